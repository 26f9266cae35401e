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
from diskmoe.grammar_draft.loops import REFUSED
from diskmoe.grammar_draft.table import GO
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
    loops: Any,
    room: Any,
    whole: Any,
    start: Any,
    words: Any,
    origins: Any,
) -> None:
    """Adds to `words` tokens that stay with a state that their first byte leads to from `start`, or the
    byte behind a space at their beginning.

    The arrays of `TokenSets` and of a `Table` come first. origins: i32 (2, FIRSTS), out: per first
    byte that state, where all tokens were added that from there on have only bytes it loops on; else
    -1. Behind a space likewise.
    """
    origins[:] = -1
    _find(classes, act, kind, number, loops, whole, start, origins[0])
    spaced = _target(act[start, classes[SPACE]], kind, number)
    if spaced >= 0 and origins[0, SPACE] < 0:
        _find(classes, act, kind, number, loops, whole, spaced, origins[1])
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
            most = room[state] + 1 + place
            if most < WITHIN:
                good &= within[most]
            i = 0
            while i < len(longest) and lengths[i] > most:
                bad[longest[i] >> 6] |= np.uint64(1) << np.uint64(longest[i] & 63)
                i += 1
            words |= spelled & good & ~bad


@inner
def _target(action: Any, kind: Any, number: Any) -> Any:
    """The state that an action leads to whatever lies below, or REFUSED."""
    if action < REFUSED:
        return number[-2 - action] if kind[-2 - action] == GO else REFUSED
    return action


@inner
def _find(
    classes: Any,
    act: Any,
    kind: Any,
    number: Any,
    loops: Any,
    whole: Any,
    start: Any,
    origin: Any,
) -> None:
    """Finds the states that many bytes lead to and that loop on many, those among them."""
    onward = REFUSED  # where characters that are not ASCII lead, if all lead to one state
    for byte in range(128):
        to = _target(act[start, classes[byte]], kind, number)
        if whole[start] and _loops_on(loops, start, byte):
            onward = to
        if to >= 0 and _loops_on(loops, to, byte):
            origin[byte] = to
    for byte in range(128):
        state = origin[byte]
        first = looped = 0
        for other in range(128):
            first += origin[other] == state
            looped += state >= 0 and _loops_on(loops, state, other)
        if first < _MANY or looped < _MANY:
            for other in range(128):
                if origin[other] == state:
                    origin[other] = -1
        elif state == onward and whole[state]:
            origin[OTHERS_FIRST] = state


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
