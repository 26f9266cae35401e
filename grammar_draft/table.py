"""A deterministic automaton with a stack, as arrays: what compiled functions and states read.

A state and a byte lead to one action. The actions:

    Go(to, push)       go to a state; before that push symbols (states to come back to), deepest first
    Return()           pop a symbol, and do what that state does with the same byte
    Switch(pops, ...)  pop so many symbols; the last one says which action is next
    Accept()           the end of the text is fine (it is a byte of its own, behind the 256)

A regular grammar has only Go without pushes, and so is a finite automaton. In `act` a state stands
for Go without pushes, REFUSED for a byte that may not come, and -2 - i for action i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from diskmoe.compiled.functions import kernel

I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]

REFUSED = -1
GO, RETURN, SWITCH, ACCEPT = range(4)
END_OF_TEXT = 1 << 256  # as a set of bytes
CHARACTERS = (  # first bytes of characters, and the ranges of those that follow (RFC 3629)
    ((0xC2, 0xDF), ((0x80, 0xBF),)),
    ((0xE0, 0xE0), ((0xA0, 0xBF), (0x80, 0xBF))),
    ((0xE1, 0xEC), ((0x80, 0xBF), (0x80, 0xBF))),
    ((0xED, 0xED), ((0x80, 0x9F), (0x80, 0xBF))),
    ((0xEE, 0xEF), ((0x80, 0xBF), (0x80, 0xBF))),
    ((0xF0, 0xF0), ((0x90, 0xBF), (0x80, 0xBF), (0x80, 0xBF))),
    ((0xF1, 0xF3), ((0x80, 0xBF), (0x80, 0xBF), (0x80, 0xBF))),
    ((0xF4, 0xF4), ((0x80, 0x8F), (0x80, 0xBF), (0x80, 0xBF))),
)


@dataclass(frozen=True, slots=True)
class Go:
    to: int
    push: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Return:
    pass


@dataclass(frozen=True, slots=True)
class Switch:
    pops: int
    cases: tuple[tuple[int, Action], ...]  # by symbol


@dataclass(frozen=True, slots=True)
class Accept:
    pass


Action: TypeAlias = Go | Return | Switch | Accept
Row: TypeAlias = list[tuple[int, Action]]  # (set of bytes, what they lead to), sets disjoint


@dataclass(frozen=True, eq=False)
class Table:
    """The arrays. State 0 is below everything: all it does is accept the end."""

    classes: U8  # (256,): bytes that every state treats alike are one class
    act: I32  # (states, classes + 1): last the end of the text
    kind: U8  # (actions,): GO, RETURN, SWITCH or ACCEPT
    number: I32  # (actions,): the state to go to, or how many symbols are popped
    at: I32  # (actions + 1,): where its part of `listed` begins
    listed: I32  # symbols that are pushed, deepest first; or symbols of cases, ascending
    found: I32  # beside symbols of cases: what they lead to, as in `act`
    loops: U64  # (states, 2): the ASCII bytes with which a state stays as it is
    whole: U8  # (states,): 1 where every other character leads back
    only: I32  # (states,): the byte that must come next whatever lies below and leads to a state, or -1
    start: int

    @property
    def states(self) -> int:
        """How many there are, the one below everything left out."""
        return len(self.act) - 1

    @property
    def regular(self) -> bool:
        """Whether nothing is ever pushed."""
        return not bool((self.kind[:-1] == SWITCH).any()) and len(self.listed) == 0


def table_of(rows: Sequence[Row], start: int) -> Table:
    """Arrays from rows of actions; states that nothing can tell apart are made one."""
    sets = {some for row in rows for some, _ in row}
    classes = _classes([some & ~END_OF_TEXT for some in sets])
    width = int(classes.max()) + 2
    columns = {some: _columns(some, classes) for some in sets}
    act = np.full((len(rows), width), REFUSED, np.int32)
    actions: dict[Action, int] = {}
    for state, row in enumerate(rows):
        for some, action in row:
            act[state, columns[some]] = _code(action, actions)
    names = _merged(act, actions)
    return _laid(act, list(actions), names, classes, start)


def _code(action: Action, actions: dict[Action, int]) -> int:
    if type(action) is Go and not action.push:
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


def _merged(act: I32, actions: dict[Action, int]) -> I32:
    """Which state each one becomes: the lowest of those that do the same.

    Actions are compared as they are, so that what is merged is rather too little than too much.
    """
    names = np.arange(len(act), dtype=np.int32)
    refine(act, names)
    return names


@kernel
def refine(act: Any, names: Any) -> Any:
    """Moore's partition (1956): names[s] = the lowest state that no text tells from s.

    act: i32 (states, columns); what is negative is told apart by its value.
    """
    states, columns = act.shape
    size = 4
    while size < 2 * states:
        size *= 2
    slots = np.empty(size, np.int32)
    names[:] = 0
    fresh = np.empty(states, np.int32)
    parts = 1
    while True:
        slots[:] = -1
        found = 0
        for state in range(states):
            key = np.uint64(names[state]) * np.uint64(0x9E3779B97F4A7C15)
            for column in range(columns):
                to = act[state, column]
                value = names[to] if to >= 0 else to
                key = (key ^ np.uint64(np.uint32(value))) * np.uint64(0x100000001B3)
                key ^= key >> np.uint64(29)
            slot = np.int64(key & np.uint64(size - 1))
            while slots[slot] >= 0:
                other = slots[slot]
                same = names[other] == names[state]
                for column in range(columns):
                    if not same:
                        break
                    a, b = act[state, column], act[other, column]
                    same = a == b or (a >= 0 and b >= 0 and names[a] == names[b])
                if same:
                    break
                slot = (slot + 1) & (size - 1)
            if slots[slot] < 0:
                slots[slot] = state
                found += 1
            fresh[state] = slots[slot]
        names[:] = fresh
        if found == parts:
            return
        parts = found


def _laid(act: I32, actions: list[Action], names: I32, classes: U8, start: int) -> Table:
    """Numbers what is left of the states, and lays actions flat."""
    keys = {s for a in actions if type(a) is Switch for s, _ in a.cases}
    kept = np.array(sorted({int(name) for name in names} | keys), np.int32)
    number = np.full(len(act), -1, np.int32)
    number[kept] = np.arange(len(kept), dtype=np.int32)
    named = np.array([number[s] if s in keys else number[names[s]] for s in range(len(act))])
    queue = list(actions)
    index = {action: i for i, action in enumerate(queue)}

    def code(action: Action) -> int:
        if type(action) is Go and not action.push:
            return int(named[action.to])
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
            value.append(int(named[action.to]))
            listed += [int(named[s]) for s in action.push]
            found += [0] * len(action.push)
        elif isinstance(action, Switch):
            kind.append(SWITCH)
            value.append(action.pops)
            cases = sorted((int(named[s]), code(then)) for s, then in action.cases)
            listed += [s for s, _ in cases]
            found += [then for _, then in cases]
        else:
            kind.append(RETURN if isinstance(action, Return) else ACCEPT)
            value.append(0)
        at.append(len(listed))
    rows = act[kept]
    rows = np.where(rows >= 0, named[np.maximum(rows, 0)], rows).astype(np.int32)
    i32 = partial(np.array, dtype=np.int32)
    return completed(
        classes,
        rows,
        np.array([*kind, 255], np.uint8),
        i32([*value, 0]),
        i32(at),
        i32(listed),
        i32(found),
        int(named[start]),
    )


def completed(
    classes: U8, act: I32, kind: U8, number: I32, at: I32, listed: I32, found: I32, start: int
) -> Table:
    """The table of these arrays, with what follows from them."""
    loops = np.zeros((len(act), 2), np.uint64)
    whole = np.zeros(len(act), np.uint8)
    find_loops(act, classes, _tails(classes), loops, whole)
    only = only_bytes(act, classes)
    return Table(classes, act, kind, number, at, listed, found, loops, whole, only, start)


def only_bytes(act: I32, classes: U8) -> I32:
    """Per state the byte that must come next; see `Table`."""
    fits = act != REFUSED
    sizes = np.bincount(classes, minlength=act.shape[1])
    one = (fits.sum(1) == 1) & (act.max(1) >= 0)
    column = fits.argmax(1)
    alone = {int(c): b for b, c in enumerate(classes.tolist()) if sizes[c] == 1}
    byte = np.array([alone.get(c, -1) for c in range(act.shape[1])], np.int32)[column]
    return np.where(one, byte, -1).astype(np.int32)


def _tails(classes: U8) -> tuple[I32, U8]:
    """What a character of several bytes is, in classes.

    Returns (patterns i32 (n, 4): class of the first byte and up to three indices of ranges, else -1;
    ranges u8 (ranges, classes): 1 where a range has a byte of the class).
    """
    ranges: dict[tuple[int, int], int] = {}
    patterns = set()
    for (low, high), rest in CHARACTERS:
        places = [ranges.setdefault(span, len(ranges)) for span in rest]
        for lead in set(classes[low : high + 1].tolist()):
            patterns.add((lead, *places, *[-1] * (3 - len(places))))
    have = np.zeros((len(ranges), int(classes.max()) + 1), np.uint8)
    for (low, high), i in ranges.items():
        have[i, classes[low : high + 1]] = 1
    return np.array(sorted(patterns), np.int32), have


@kernel
def find_loops(act: Any, classes: Any, tails: Any, loops: Any, whole: Any) -> Any:
    """Fills `loops` and `whole` (see `Table`), zero before; tails: of `_tails`."""
    patterns, ranges = tails
    width = ranges.shape[1]
    for state in range(len(act)):
        for byte in range(128):
            if act[state, classes[byte]] == state:
                loops[state, byte >> 6] |= np.uint64(1) << np.uint64(byte & 63)
        if loops[state, 0] | loops[state, 1] == 0:
            continue
        back = True
        for i in range(len(patterns)):
            a = act[state, patterns[i, 0]]
            for c in range(width):
                if not back or a < 0:
                    break
                if not ranges[patterns[i, 1], c]:
                    continue
                b = act[a, c]
                if patterns[i, 2] < 0:
                    back = b == state
                    continue
                for d in range(width):
                    if not back or b < 0:
                        break
                    if not ranges[patterns[i, 2], d]:
                        continue
                    e = act[b, d]
                    if patterns[i, 3] < 0:
                        back = e == state
                        continue
                    for f in range(width):
                        if not back or e < 0:
                            break
                        if ranges[patterns[i, 3], f]:
                            back = act[e, f] == state
                    back = back and e >= 0
                back = back and b >= 0
            back = back and a >= 0
            if not back:
                break
        whole[state] = back
