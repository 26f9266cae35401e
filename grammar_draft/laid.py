"""Rows of actions laid out as a table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from diskmoe.grammar_draft.loops import REFUSED
from diskmoe.grammar_draft.minimal import merged
from diskmoe.grammar_draft.table import (
    ACCEPT,
    COUNT,
    END_OF_TEXT,
    GO,
    I32,
    LOAD,
    NO_ACTION,
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
    sets: dict[int, int] = {}
    actions: dict[Action, int] = {}
    states: list[int] = []
    places: list[int] = []
    codes: list[int] = []
    for state, row in enumerate(rows):
        for some, action in row:
            states.append(state)
            places.append(sets.setdefault(some, len(sets)))
            codes.append(action if type(action) is int else _code(action, actions))
    classes, members = _classes(list(sets))
    act = np.full((len(rows), members.shape[1]), REFUSED, np.int32)
    entry, column = np.nonzero(members[places])
    act[np.array(states)[entry], column] = np.array(codes)[entry]
    lives = np.array(live, np.uint8)
    return _laid(act, list(actions), merged(act, lives), classes, start, lives)


def _code(action: Action, actions: dict[Action, int]) -> int:
    return -2 - actions.setdefault(action, len(actions))


def _classes(sets: Sequence[int]) -> tuple[U8, npt.NDArray[np.bool_]]:
    """Numbers bytes so that two have one number exactly where no set tells them apart.

    Returns (that number per byte, which set has which number: (sets, numbers + 1), last the end of
    the text).
    """
    data = b"".join((some & ~END_OF_TEXT).to_bytes(32, "little") for some in sets)
    told = np.unpackbits(
        np.frombuffer(data, np.uint8).reshape(-1, 32), axis=1, bitorder="little"
    )  # (sets, 256)
    columns = np.packbits(told, axis=0).T.tobytes()  # of each byte, which sets have it
    size = len(columns) // 256
    known: dict[bytes, int] = {}
    parts = [columns[at : at + size] for at in range(0, len(columns), size)]
    classes = np.array([known.setdefault(part, len(known)) for part in parts], np.uint8)
    members = np.zeros((len(sets), len(known) + 1), np.bool_)
    members[:, classes] = told
    members[:, -1] = [bool(some & END_OF_TEXT) for some in sets]
    return classes, members


def _laid(act: I32, actions: list[Action], names: I32, classes: U8, start: int, live: U8) -> Table:
    """Numbers what is left of the states, and lays actions flat."""
    keys = {s for a in actions if type(a) is Switch for s, _ in a.cases}
    old = names.tolist()
    kept = sorted({*old, *keys})
    new = {state: number for number, state in enumerate(kept)}
    named = [new[s] if s in keys else new[old[s]] for s in range(len(act))]
    queue = list(actions)
    index = {action: i for i, action in enumerate(queue)}

    def code(action: Action) -> int:
        if type(action) is int:
            return named[action]
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
        np.array([*kind, NO_ACTION], np.uint8),
        i32([*value, 0]),
        i32(at),
        i32(listed),
        i32(found),
        live[kept],
        named[start],
    )
