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

from diskmoe.compiled.functions import inner, kernel

I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]

REFUSED = -1
GO, RETURN, SWITCH, ACCEPT = range(4)
END_OF_TEXT = 1 << 256  # as a set of bytes
FOREVER = 1 << 30
FEWEST_OF_A_CHAIN = 20  # ASCII bytes
LONGEST_CHAIN = 30_000  # below what a trie says of texts that are too long to be measured
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
    loops: (
        U64  # (states, 2): the ASCII bytes with which a state stays as it is, or goes to the next
    )
    #             of a chain of states that have these loops as well
    room: I32  # (states,): how often; FOREVER where it stays
    whole: U8  # (states,): 1 where every other character leads to the same state
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
    names = _merged(act)
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


def _merged(act: I32) -> I32:
    """Which state each one becomes: the lowest of those that do the same.

    Actions are compared as they are, so that what is merged is rather too little than too much.
    """
    known: dict[bytes, int] = {}
    alone = np.minimum(act, 0)  # what a state does by itself
    blocks = np.array([known.setdefault(row.tobytes(), len(known)) for row in alone], np.int32)
    names = np.empty(len(act), np.int32)
    refine(act, blocks, names)
    return names


@inner
def _mark(element: Any, elements: Any, places: Any, sets: Any, bounds: Any, touched: Any) -> Any:
    """Moves an element to the marked ones of its set. bounds: (3, sets): begin, end, marked."""
    mine = sets[element]
    place = places[element]
    marked = bounds[0, mine] + bounds[2, mine]
    other = elements[marked]
    elements[place], places[other] = other, place
    elements[marked], places[element] = element, marked
    if bounds[2, mine] == 0:
        touched[touched[-1]] = mine
        touched[-1] += 1
    bounds[2, mine] += 1


@inner
def _split(count: Any, elements: Any, sets: Any, bounds: Any, touched: Any) -> Any:
    """Parts marked elements from the others of their sets; the smaller part becomes a new set."""
    while touched[-1]:
        touched[-1] -= 1
        mine = touched[touched[-1]]
        middle = bounds[0, mine] + bounds[2, mine]
        bounds[2, mine] = 0
        if middle == bounds[1, mine]:
            continue
        if middle - bounds[0, mine] <= bounds[1, mine] - middle:
            bounds[0, count], bounds[1, count] = bounds[0, mine], middle
            bounds[0, mine] = middle
        else:
            bounds[0, count], bounds[1, count] = middle, bounds[1, mine]
            bounds[1, mine] = middle
        for i in range(bounds[0, count], bounds[1, count]):
            sets[elements[i]] = count
        count += 1
    return count


@kernel
def refine(act: Any, blocks: Any, names: Any) -> Any:
    """names[s] = the lowest state that no text tells from s (Valmari, "Fast brief practical DFA
    minimization", 2012, after Hopcroft 1971).

    act: i32 (states, columns), negative: no state. blocks: i32 (states,), what states do by
    themselves, 0 and up. names: i32 (states,), out.
    """
    states, columns = act.shape
    edges = 0
    for state in range(states):
        for column in range(columns):
            edges += act[state, column] >= 0
    tail = np.empty(edges, np.int32)
    into = np.zeros(states + 1, np.int32)  # where the edges into a state begin in `arrive`
    arrive = np.empty(edges, np.int32)
    # blocks of states, and cords: edges by column and by the block that they lead to
    b_elements, b_places = np.empty(states, np.int32), np.empty(states, np.int32)
    b_sets = blocks.copy()
    b_bounds = np.zeros((3, states + 1), np.int32)
    b_touched = np.zeros(states + 2, np.int32)  # last: how many
    c_elements, c_places = np.empty(edges, np.int32), np.empty(edges, np.int32)
    c_sets = np.empty(edges, np.int32)
    c_bounds = np.zeros((3, edges + columns + 1), np.int32)
    c_touched = np.zeros(edges + columns + 2, np.int32)
    edge = cords = 0
    for column in range(columns):
        begin = edge
        for state in range(states):
            if act[state, column] >= 0:
                tail[edge] = state
                into[act[state, column] + 1] += 1
                c_elements[edge] = c_places[edge] = edge
                c_sets[edge] = cords
                edge += 1
        if edge > begin:
            c_bounds[0, cords], c_bounds[1, cords] = begin, edge
            cords += 1
    for state in range(states):
        into[state + 1] += into[state]
    fill = into.copy()
    edge = 0
    for column in range(columns):
        for state in range(states):
            to = act[state, column]
            if to >= 0:
                arrive[fill[to]] = edge
                fill[to] += 1
                edge += 1
    parts = 0
    for state in range(states):
        parts = max(parts, blocks[state] + 1)
        b_bounds[1, blocks[state]] += 1
    begin = 0
    for part in range(parts):
        size = b_bounds[1, part]
        b_bounds[0, part] = b_bounds[1, part] = begin
        begin += size
    for state in range(states):
        place = b_bounds[1, blocks[state]]
        b_elements[place], b_places[state] = state, place
        b_bounds[1, blocks[state]] += 1
    block = cord = 0
    while block < parts or cord < cords:
        if block < parts:
            for i in range(b_bounds[0, block], b_bounds[1, block]):
                state = b_elements[i]
                for j in range(into[state], into[state + 1]):
                    _mark(arrive[j], c_elements, c_places, c_sets, c_bounds, c_touched)
            cords = _split(cords, c_elements, c_sets, c_bounds, c_touched)
            block += 1
            continue
        for i in range(c_bounds[0, cord], c_bounds[1, cord]):
            _mark(tail[c_elements[i]], b_elements, b_places, b_sets, b_bounds, b_touched)
        parts = _split(parts, b_elements, b_sets, b_bounds, b_touched)
        cord += 1
    lowest = np.full(states, states, np.int32)
    for state in range(states - 1, -1, -1):
        lowest[b_sets[state]] = state
    for state in range(states):
        names[state] = lowest[b_sets[state]]


def _laid(act: I32, actions: list[Action], names: I32, classes: U8, start: int) -> Table:
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
        if type(action) is Go and not action.push:
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
            value.append(named[action.to])
            listed += [named[s] for s in action.push]
            found += [0] * len(action.push)
        elif isinstance(action, Switch):
            kind.append(SWITCH)
            value.append(action.pops)
            cases = sorted((named[s], code(then)) for s, then in action.cases)
            listed += [s for s, _ in cases]
            found += [then for _, then in cases]
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
        named[start],
    )


def completed(
    classes: U8, act: I32, kind: U8, number: I32, at: I32, listed: I32, found: I32, start: int
) -> Table:
    """The table of these arrays, with what follows from them."""
    loops = np.zeros((len(act), 2), np.uint64)
    room = np.zeros(len(act), np.int32)
    whole = np.zeros(len(act), np.uint8)
    find_loops(act, classes, _tails(classes), loops, room, whole)
    only = only_bytes(act, classes)
    return Table(classes, act, kind, number, at, listed, found, loops, room, whole, only, start)


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
def find_loops(act: Any, classes: Any, tails: Any, loops: Any, room: Any, whole: Any) -> Any:
    """Fills `loops`, `room` and `whole` (see `Table`), zero before; tails: of `_tails`."""
    states = len(act)
    one = np.uint64(1)
    onward = np.full(states, -1, np.int32)
    for state in range(states):
        # where most bytes lead, if most lead to one state (Boyer and Moore's vote); itself before all
        target, votes = -1, 0
        for byte in range(128):
            to = act[state, classes[byte]]
            if to == state:
                target, votes = to, 1000
            elif to >= 0:
                if votes == 0:
                    target = to
                votes += 1 if to == target else -1
        if target < 0:
            continue
        count = 0
        for byte in range(128):
            if act[state, classes[byte]] == target:
                loops[state, byte >> 6] |= one << np.uint64(byte & 63)
                count += 1
        if target != state and count < FEWEST_OF_A_CHAIN:
            loops[state, 0] = loops[state, 1] = np.uint64(0)
            continue
        onward[state] = target
        whole[state] = _leads_whole(act, state, target, tails)
    path = np.empty(states, np.int32)
    for state in range(states):
        if onward[state] == state:
            room[state] = FOREVER
    for first in range(states):
        length = 0
        here = first
        # a chain ends where the next state has not all of the loops; one of a circle may be cut
        while onward[here] >= 0 and room[here] == 0 and length < states:
            path[length] = here
            length += 1
            room[here] = 1
            here = onward[here]
        for i in range(length - 1, -1, -1):
            state = path[i]
            to = onward[state]
            lost = loops[state, 0] & ~loops[to, 0] | loops[state, 1] & ~loops[to, 1]
            if lost == 0 and whole[state] <= whole[to]:
                longer = min(room[to] + 1, LONGEST_CHAIN)
                room[state] = FOREVER if room[to] == FOREVER else longer


@inner
def _leads_whole(act: Any, state: Any, target: Any, tails: Any) -> Any:
    """Whether every character that is not ASCII leads from a state to the target."""
    patterns, ranges = tails
    width = ranges.shape[1]
    for i in range(len(patterns)):
        a = act[state, patterns[i, 0]]
        if a < 0:
            return False
        for c in range(width):
            if not ranges[patterns[i, 1], c]:
                continue
            b = act[a, c]
            if patterns[i, 2] < 0:
                if b != target:
                    return False
                continue
            if b < 0:
                return False
            for d in range(width):
                if not ranges[patterns[i, 2], d]:
                    continue
                e = act[b, d]
                if patterns[i, 3] < 0:
                    if e != target:
                        return False
                    continue
                if e < 0:
                    return False
                for f in range(width):
                    if ranges[patterns[i, 3], f] and act[e, f] != target:
                        return False
    return True
