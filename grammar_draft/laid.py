"""Rows of actions laid out as a table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from diskmoe.grammar_draft.minimal import merged
from diskmoe.grammar_draft.table import (
    ACCEPT,
    COUNT,
    END_OF_TEXT,
    GO,
    I32,
    LOAD,
    REFUSED,
    RETURN,
    SHIFT,
    SWITCH,
    U8,
    Action,
    Count,
    Go,
    Load,
    Return,
    Row,
    Switch,
    Table,
    completed,
)


def table_of(rows: Sequence[Row], start: int, live: Sequence[bool]) -> Table:
    """Arrays from rows of actions; states that nothing can tell apart are made one. live: per row
    whether a number goes along."""
    sets = {some for row in rows for some, _ in row}
    classes = _classes([some & ~END_OF_TEXT for some in sets])
    width = int(classes.max()) + 2
    columns = {some: _columns(some, classes) for some in sets}
    lines: list[list[int]] = []
    actions: dict[Action, int] = {}
    for row in rows:
        line = [REFUSED] * width
        for some, action in row:
            code = _code(action, actions)
            for column in columns[some]:
                line[column] = code
        lines.append(line)
    act = np.array(lines, np.int32)
    lives = np.array(live, np.uint8)
    return _laid(act, list(actions), merged(act, lives), classes, start, lives)


def _code(action: Action, actions: dict[Action, int]) -> int:
    if type(action) is Go and not action.push and not action.sets:
        return action.to
    return -2 - actions.setdefault(action, len(actions))


def _columns(some: int, classes: U8) -> list[int]:
    """The columns of `act` that a set of bytes stands in."""
    found = [int(classes.max()) + 1] if some & END_OF_TEXT else []
    data = np.frombuffer((some & ~END_OF_TEXT).to_bytes(32, "little"), np.uint8)
    return [*set(classes[np.unpackbits(data, bitorder="little") == 1].tolist()), *found]


def _classes(sets: Sequence[int]) -> U8:
    """Numbers bytes so that two have one number exactly where no set tells them apart."""
    data = b"".join(some.to_bytes(32, "little") for some in sets)
    told = np.unpackbits(
        np.frombuffer(data, np.uint8).reshape(-1, 32), axis=1, bitorder="little"
    )  # (sets, 256)
    columns = np.ascontiguousarray(np.packbits(told, axis=0).T)  # (256, bytes)
    known: dict[bytes, int] = {}
    return np.array([known.setdefault(c.tobytes(), len(known)) for c in columns], np.uint8)


def _laid(act: I32, actions: list[Action], names: I32, classes: U8, start: int, live: U8) -> Table:
    """Numbers what is left of the states, and lays actions flat."""
    keys = {s for a in actions if type(a) is Switch for s, _ in a.cases}
    kept = np.array(sorted({int(name) for name in names} | keys), np.int32)
    number = np.full(len(act), -1, np.int32)
    number[kept] = np.arange(len(kept), dtype=np.int32)
    new, old = number.tolist(), names.tolist()
    named = [new[s] if s in keys else new[old[s]] for s in range(len(act))]
    queue = list(actions)
    index = {action: i for i, action in enumerate(queue)}

    def code(action: Action) -> int:
        if type(action) is Go and not action.push and not action.sets:
            return named[action.to]
        if action not in index:
            index[action] = len(queue)
            queue.append(action)
        return -2 - index[action]

    kind: list[int] = []
    value: list[int] = []
    at = [0]
    listed: list[int] = []
    found: list[int] = []
    for action in queue:  # grows while it is read
        if isinstance(action, Go):
            kind.append(GO)
            *sets, own = action.sets or [0] * (len(action.push) + 1)
            value.append(named[action.to] | own << SHIFT)
            listed += [named[s] | n << SHIFT for s, n in zip(action.push, sets, strict=True)]
            found += [0] * len(action.push)
        elif isinstance(action, Switch):
            kind.append(SWITCH)
            value.append(action.pops)
            cases = sorted((named[s], code(then)) for s, then in action.cases)
            listed += [s for s, _ in cases]
            found += [then for _, then in cases]
        elif isinstance(action, Count | Load):
            nexts = [action.then] if isinstance(action, Load) else [action.more, action.last]
            kind.append(LOAD if isinstance(action, Load) else COUNT)
            value.append(0)
            listed += [0] * len(nexts)
            found += [code(then) for then in nexts]
        else:
            kind.append(RETURN if isinstance(action, Return) else ACCEPT)
            value.append(0)
        at.append(len(listed))
    rows = act[kept]
    rows = np.where(rows >= 0, np.array(named)[np.maximum(rows, 0)], rows).astype(np.int32)
    i32 = partial(np.array, dtype=np.int32)
    return completed(
        classes,
        rows,
        np.array([*kind, 255], np.uint8),
        i32([*value, 0]),
        i32(at),
        i32(listed),
        i32(found),
        live[kept],
        named[start],
    )
