"""Tokens of bytes alike: what a state takes of the vocabulary by operations on sets, without a walk.

A state inside a string or a name reads most bytes and is where it was. Of all tokens that begin with
a byte that leads to such a state, those whose other bytes it loops on as well are a few unions of
sets. So are, where a space may come first, those behind it: in most vocabularies every other token
begins with one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diskmoe.compiled.functions import inner, kernel
from diskmoe.grammar_draft.loops import REFUSED, room_of
from diskmoe.grammar_draft.table import COUNT, GO, SHIFT, STATE
from diskmoe.grammar_draft.token_sets import LEAVES, SPACE, WITHIN

OTHERS_FIRST = 128  # as a first byte: any that is not ASCII
FIRSTS = 129
_MANY = 20  # bytes, from which sets of tokens are quicker than the trie


@kernel
def add_alike(
    having: Any,
    starting: Any,
    second: Any,
    again: Any,
    within: Any,
    broken: Any,
    spelled: Any,
    longest: Any,
    lengths: Any,
    classes: Any,
    act: Any,
    kind: Any,
    number: Any,
    at: Any,
    found: Any,
    live: Any,
    loops: Any,
    room: Any,
    whole: Any,
    start: Any,
    words: Any,
    origins: Any,
) -> None:
    """Adds to `words` tokens that stay with a state that their first byte leads to from `start`, or the
    byte behind a space at their beginning.

    The arrays of `TokenSets` and of a `Table` come first. start: with its number. origins:
    i32 (4, FIRSTS), out: per first byte that state, where all tokens were added that from there on have
    only bytes it loops on; else -1. Behind a space likewise. Then, for both, how many such bytes.
    """
    origins[:2] = -1
    origins[2:] = 0
    actions = (act, kind, number, at, found, live)
    _find(classes, actions, loops, room, whole, start, origins[0], origins[2])
    spaced = _target(start, classes[SPACE], actions)
    if spaced >= 0 and origins[0, SPACE] < 0:
        _find(classes, actions, loops, room, whole, spaced, origins[1], origins[3])
    for place in range(2):
        for byte in range(128):
            state = origins[place, byte]
            known = state < 0
            for other in range(byte):
                known |= origins[place, other] == state
            if known:
                continue
            bad = broken.copy()
            rows = np.zeros(2 * LEAVES, np.bool_)
            rows[0] = not whole[state]
            for other in range(128):
                rows[LEAVES + other] = not _loops_on(loops, state, other)
            if place and rows[LEAVES + SPACE]:
                rows[LEAVES + SPACE] = False
                bad |= again
            _unite(rows, having, bad)
            good = np.zeros_like(words)
            for other in range(128):
                rows[LEAVES + other] = origins[place, other] == state
            rows[0] = origins[place, OTHERS_FIRST] == state
            _unite(rows, second if place else starting, good)
            most = origins[place + 2, byte] + 1 + place
            if most < WITHIN:
                good &= within[most]
            i = 0
            while i < len(longest) and lengths[i] > most:
                bad[longest[i] >> 6] |= np.uint64(1) << np.uint64(longest[i] & 63)
                i += 1
            words |= spelled & good & ~bad


@inner
def _target(state: Any, column: Any, actions: Any) -> Any:
    """The state with its number that a byte leads to whatever lies below, or REFUSED. actions: act,
    kind, number, at, found, live of a `Table`."""
    act, kind, number, at, found, live = actions
    action, count = act[state & STATE, column], state >> SHIFT
    if action < REFUSED and kind[-2 - action] == COUNT:
        count = max(count - 1, 0)
        action = found[at[-2 - action] + (count == 0)]
    if action < REFUSED:
        action = number[-2 - action] if kind[-2 - action] == GO else REFUSED
    if action >= 0 and action <= STATE and live[action]:
        action |= count << SHIFT
    return action


@inner
def _find(
    classes: Any,
    actions: Any,
    loops: Any,
    room: Any,
    whole: Any,
    start: Any,
    origin: Any,
    reach: Any,
) -> None:
    """Finds the states that many bytes lead to and that loop on many, those among them; and on how
    many bytes."""
    begin = start & STATE
    onward = REFUSED  # where characters that are not ASCII lead, if all lead to one state
    for byte in range(128):
        to = _target(start, classes[byte], actions)
        if to < 0:
            continue
        state = to & STATE
        if whole[begin] and _loops_on(loops, begin, byte):
            onward = state
        if _loops_on(loops, state, byte):
            origin[byte] = state
            reach[byte] = room_of(room, state, to >> SHIFT)
    for byte in range(128):
        state = origin[byte]
        first = looped = 0
        for other in range(128):
            if origin[other] == state:
                # where numbers differ, which is rare, all are walked
                first += 1 if reach[other] == reach[byte] else -128
            looped += state >= 0 and _loops_on(loops, state, other)
        if first < _MANY or looped < _MANY:
            for other in range(128):
                if origin[other] == state:
                    origin[other] = -1
            continue
        if state == onward and whole[state]:
            alike = True
            for lead in range(0xC2, 0xF5):
                to = _target(start, classes[lead], actions)
                alike &= room[state] >= 0 or room_of(room, state, to >> SHIFT) == reach[byte]
            if alike:
                origin[OTHERS_FIRST], reach[OTHERS_FIRST] = state, reach[byte]


@inner
def _loops_on(loops: Any, state: Any, byte: Any) -> Any:
    return loops[state, byte >> 6] >> np.uint64(byte & 63) & np.uint64(1) == 1


@inner
def _unite(rows: Any, sets: Any, words: Any) -> None:
    """Adds the union of some rows of a tree. rows: bool (2 * LEAVES,), leaves and row 0 are given."""
    for row in range(LEAVES - 1, 0, -1):
        rows[row] = rows[2 * row] and rows[2 * row + 1]
    for row in range(2 * LEAVES):
        if rows[row] and (row < 2 or not rows[row >> 1]):
            for i in range(len(words)):
                words[i] |= sets[row, i]
