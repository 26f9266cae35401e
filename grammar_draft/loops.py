"""The bytes that lead a state of a table back to itself, or along a chain of states alike.

A mask takes all tokens of such bytes at once (`masks`), where it would walk them byte by byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.compiled.functions import inner, kernel
from diskmoe.grammar_draft.utf8 import CHARACTERS

REFUSED = -1  # what leads nowhere in a table
FOREVER = 1 << 30
COUNTED = -1  # and what is below it, see `table.Table`
FEWEST_OF_A_CHAIN = 20  # ASCII bytes
LONGEST_CHAIN = 30_000  # below what a trie says of texts that are too long to be measured


def tails(
    classes: npt.NDArray[np.uint8],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
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
def find_loops(
    act: Any,
    ahead: Any,
    sets: Any,
    lasts: Any,
    classes: Any,
    tails: Any,
    loops: Any,
    room: Any,
    whole: Any,
    leaves: Any,
    ascii_only: Any,
    closed: Any,
) -> Any:
    """Fills `loops`, `room`, `whole`, `leaves`, `ascii_only` and `closed` (see `table.Table`), zero
    before.

    ahead, sets, lasts: i32 as `act`, of actions that only count or set a number: the state that they
    lead to, what they set it to (COUNTED where they count), and the state behind the last one that is
    counted, else -1; tails: of `tails`.
    """
    states = len(act)
    one = np.uint64(1)
    onward = np.full(states, -1, np.int32)
    given = np.zeros(states, np.int32)  # the least number that the loops of a state set
    for state in range(states):
        # where most bytes lead, if most lead to one state (Boyer and Moore's vote); itself before all
        target, votes = -1, 0
        for byte in range(128):
            to = ahead[state, classes[byte]]
            if to == state:
                target, votes = to, 1000
            elif to >= 0:
                if votes == 0:
                    target = to
                votes += 1 if to == target else -1
        if target < 0:
            continue
        count = 0
        given[state] = FOREVER
        for byte in range(128):
            if ahead[state, classes[byte]] == target:
                loops[state, byte >> 6] |= one << np.uint64(byte & 63)
                count += 1
                given[state] = min(given[state], sets[state, classes[byte]])
        if target != state and count < FEWEST_OF_A_CHAIN:
            loops[state, 0] = loops[state, 1] = np.uint64(0)
            continue
        for column in range(act.shape[1]):
            if sets[state, column] > 0:
                given[state] = min(given[state], sets[state, column])
        onward[state] = target
        whole[state] = _leads_whole(act, ahead, state, target, tails)
    for state in range(states):
        for byte in range(128):
            if act[state, classes[byte]] != REFUSED:
                leaves[state, byte >> 6] |= one << np.uint64(byte & 63)
        for part in range(2):
            leaves[state, part] &= ~loops[state, part]
        ascii_only[state] = 1
        for byte in range(128, 256):
            if act[state, classes[byte]] != REFUSED:
                ascii_only[state] = 0
    path = np.empty(states, np.int32)
    for state in range(states):
        if onward[state] == state:
            room[state] = FOREVER
            for column in range(act.shape[1]):
                if sets[state, column] == COUNTED:
                    room[state] = COUNTED
    arrays = (act, lasts, sets, classes, tails, loops, room, whole, leaves, ascii_only, closed)
    for state in range(states):
        if room[state] == COUNTED and onward[state] == state:
            _look_behind(state, arrays)
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
                if room[to] < 0 and given[state] > 0:
                    room[state] = min(room_of(room, to, given[state]) + 1, FOREVER)
                elif room[to] == FOREVER and given[state] != COUNTED:
                    room[state] = FOREVER
                elif room[to] >= 0 and given[state] != COUNTED:
                    room[state] = min(room[to] + 1, LONGEST_CHAIN)
                _go_on(state, to, loops, leaves, ascii_only)
    for state in range(states):
        if room[state] == COUNTED and onward[state] == state and not closed[state]:
            _look_behind(state, arrays)
    for state in range(states):  # those before loops that were found to go on
        to = onward[state]
        if to >= 0 and to != state and room[to] < COUNTED and given[state] > 0 and room[state] > 1:
            room[state] = min(room_of(room, to, given[state]) + 1, FOREVER)
            _go_on(state, to, loops, leaves, ascii_only)


@inner
def room_of(room: Any, state: Any, count: Any) -> Any:
    """How many bytes a state with a number loops on. room: of `table.Table`."""
    return room[state] if room[state] >= 0 else count - 1 - room[state]


@inner
def _go_on(state: Any, to: Any, loops: Any, leaves: Any, ascii_only: Any) -> Any:
    """Adds what the next state of a chain can read."""
    for part in range(2):
        leaves[state, part] |= leaves[to, part] | loops[to, part] & ~loops[state, part]
    ascii_only[state] &= ascii_only[to]


@inner
def _look_behind(state: Any, arrays: Any) -> Any:
    """What comes behind the last that a state counts: further loops on the same bytes, or none of
    these bytes (the state is closed)."""
    act, lasts, sets, classes, tails, loops, room, whole, leaves, ascii_only, closed = arrays
    behind = -2
    for byte in range(128):
        column = classes[byte]
        if loops[state, byte >> 6] >> np.uint64(byte & 63) & np.uint64(1):
            if sets[state, column] != COUNTED or (behind != -2 and behind != lasts[state, column]):
                return
            behind = int(lasts[state, column])
    if behind < 0:
        return
    read = False
    for byte in range(128):
        if loops[state, byte >> 6] >> np.uint64(byte & 63) & np.uint64(1):
            read |= act[behind, classes[byte]] != REFUSED
    if not read:
        closed[state] = 1
        _go_on(state, behind, loops, leaves, ascii_only)
        return
    lost = loops[state, 0] & ~loops[behind, 0] | loops[state, 1] & ~loops[behind, 1]
    if lost or room[behind] <= 0:
        return
    if whole[state] and not (whole[behind] and _leads_whole(act, lasts, state, behind, tails)):
        return
    room[state] = COUNTED - room[behind]
    _go_on(state, behind, loops, leaves, ascii_only)


@kernel
def find_only(act: Any, classes: Any, only: Any) -> None:
    """only[s] = the byte that must come next in state s, or -1; see `table.Table`."""
    alone = np.full(act.shape[1], -1, np.int32)  # the byte of a class that has one
    for byte in range(len(classes)):
        alone[classes[byte]] = byte if alone[classes[byte]] == -1 else -2
    for state in range(len(act)):
        only[state] = -1
        fits = 0
        for column in range(act.shape[1]):
            if act[state, column] != REFUSED:
                fits += 1
                only[state] = alone[column] if act[state, column] >= 0 else -1
        if fits != 1:
            only[state] = -1
        only[state] = max(only[state], -1)


@inner
def _leads_whole(act: Any, ahead: Any, state: Any, target: Any, tails: Any) -> Any:
    """Whether every character that is not ASCII leads from a state to the target."""
    patterns, ranges = tails
    width = ranges.shape[1]
    for i in range(len(patterns)):
        a = ahead[state, patterns[i, 0]]
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
