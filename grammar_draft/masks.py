"""Masks of the states of a table: which tokens of a vocabulary may come next.

What a state takes before it pops what lies below it is worked out once (a ``Part``), together with
the places of the trie where it pops. A part and the symbol below it give the next part, until no
place is left: so a mask is found by following as many symbols as some token pops, and is made by
walking only what those decide.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diskmoe.compiled.functions import inner, kernel
from diskmoe.grammar_draft.table import GO, I32, REFUSED, RETURN, SWITCH, Table
from diskmoe.grammar_draft.trie import OTHERS, WHOLE, Trie, Words

MAX_PARTS = 2048  # remembered at a time
_MANY = 20  # ASCII bytes that a state loops on, from which sets of tokens are quicker than the trie
_NEEDS = -2  # what `_run` says when it pops what lies below


class Part:
    """What a state and some symbols below it decide."""

    __slots__ = ("behind", "pops", "words")

    def __init__(self, words: Words, pops: I32):
        self.words = words  # the tokens that may come whatever lies further below
        self.pops = pops  # i32 (n, 3): node of the trie, action, symbols that it has yet to pop
        self.behind: dict[int, Part] = {}  # by the next symbol below


class Masks:
    """The parts of one table for one vocabulary."""

    def __init__(self, table: Table, trie: Trie):
        self._trie, self._table = trie, table
        self._tops: dict[int, Part] = {}
        self._count = 0
        self._scratch = np.empty((len(trie.byte), 3), np.int32)
        self._none = np.empty((0, 3), np.int32)
        self._arrays = (
            *(trie.byte, trie.depth, trie.end, trie.first, trie.tokens, trie.below, trie.kinds),
            *(table.classes, table.act, table.kind, table.number, table.at),
            *(table.listed, table.found, table.loops, table.whole),
        )
        longest = int(np.diff(table.at).max(initial=0))
        self._stack = np.empty((2, (longest + 1) * (trie.deepest + 1)), np.int32)
        self._levels = np.empty((4, trie.deepest + 1), np.int32)

    def top(self, state: int) -> Part:
        """What a state decides alone."""
        part = self._tops.get(state)
        if part is None:
            words, shared = self._looped(state)
            part = self._tops[state] = self._made(state, -1, self._none, words, shared)
        return part

    def behind(self, part: Part, symbol: int) -> Part:
        """What a part and the symbol below it decide."""
        after = part.behind.get(symbol)
        if after is None:
            after = self._made(-1, symbol, part.pops, part.words.copy(), False)
            part.behind[symbol] = after
        return after

    def _made(self, state: int, symbol: int, pops: I32, words: Words, shared: bool) -> Part:
        self._count += 1
        if self._count > MAX_PARTS:  # those in use stay good
            self._count = 0
            self._tops.clear()
        scratch = (self._scratch, self._stack, self._levels)
        found = walk(*self._arrays, state, symbol, pops, int(shared), words, *scratch)
        words.setflags(write=False)
        return Part(words, self._scratch[:found].copy() if found else self._none)

    def _looped(self, state: int) -> tuple[Words, bool]:
        """The tokens in which every byte leads a state back to itself, where they may be many."""
        trie, table = self._trie, self._table
        low, high = (int(word) for word in table.loops[state])
        loops = low | high << 64
        if loops.bit_count() < _MANY:
            return np.zeros_like(trie.spelled), False
        others = [byte for byte in range(128) if not loops >> byte & 1]
        if not table.whole[state]:
            others.append(128)
        words = trie.spelled & ~trie.broken
        words &= ~np.bitwise_or.reduce(trie.having[others])
        return words, True


@inner
def _run(
    action: Any,
    left: Any,
    symbol: Any,
    column: Any,
    handle: Any,
    used: Any,
    act: Any,
    kind: Any,
    number: Any,
    at: Any,
    listed: Any,
    found: Any,
    stack: Any,
) -> Any:
    """Carries an action out. left: symbols it has yet to pop, 0 before it begins; symbol: what lies
    below the stack, or -1; handle: the top of the stack, -1 for `symbol`, -2 for what is below it.

    Returns (state, or REFUSED, or _NEEDS; action; left; handle; used).
    """
    while True:
        if action >= REFUSED:
            return action, action, 0, handle, used
        i = -2 - action
        if kind[i] == GO:
            for j in range(at[i], at[i + 1]):
                stack[0, used], stack[1, used] = listed[j], handle
                handle = used
                used += 1
            return number[i], action, 0, handle, used
        if kind[i] != RETURN and kind[i] != SWITCH:
            return REFUSED, action, 0, handle, used
        if left == 0:
            left = number[i] if kind[i] == SWITCH else 1
        popped = -1
        while left > 0:
            if handle >= 0:
                popped, handle = stack[0, handle], stack[1, handle]
            elif handle == -1 and symbol >= 0:
                popped, handle = symbol, -2
            else:
                return _NEEDS, action, left, handle, used
            left -= 1
        if kind[i] == RETURN:
            action = act[popped, column]
            continue
        low, high = at[i], at[i + 1]
        while low < high:
            middle = (low + high) >> 1
            if listed[middle] < popped:
                low = middle + 1
            else:
                high = middle
        action = found[low] if low < at[i + 1] and listed[low] == popped else REFUSED


@kernel
def walk(
    byte: Any,
    depth: Any,
    end: Any,
    first: Any,
    tokens: Any,
    below: Any,
    kinds: Any,
    classes: Any,
    act: Any,
    kind: Any,
    number: Any,
    at: Any,
    listed: Any,
    found: Any,
    loops: Any,
    whole: Any,
    start: Any,
    symbol: Any,
    places: Any,
    shared: Any,
    words: Any,
    pops: Any,
    stack: Any,
    levels: Any,
) -> Any:
    """Walks the trie with a table, and adds the tokens that fit to `words`.

    The arrays of a `Trie` and of a `Table` come first. start: the state before the first byte, or -1
    to go on at `places` (as `pops`) with `symbol` below the stack. shared: whether `words` has the
    tokens in which every byte leads the start back to itself. pops: i32 (nodes, 3), out. stack: i32
    (2, n): symbols and what is below them, n more than a token can push. levels: i32 (4, deepest + 1).

    Returns the number of places where what lies further below decides.
    """
    one = np.uint64(1)
    states, handles, useds, looped = levels  # looped: whether every byte so far led the start back
    count = 0
    for turn in range(1 if start >= 0 else len(places)):
        node, stop = 0, len(byte)
        action, left, handle, used = REFUSED, 0, -1, 0
        resumed = start < 0
        if resumed:
            node, action, left = places[turn, 0], places[turn, 1], places[turn, 2]
            stop = end[node]
            looped[depth[node] - 1] = 0
        else:
            states[0], handles[0], useds[0], looped[0] = start, -1, 0, shared
        while node < stop:
            here = depth[node]
            value = byte[node]
            column = classes[value]
            if not resumed:
                action, left = act[states[here - 1], column], 0
                handle, used = handles[here - 1], useds[here - 1]
            resumed = False
            state, action, left, handle, used = _run(
                action,
                left,
                symbol,
                column,
                handle,
                used,
                act,
                kind,
                number,
                at,
                listed,
                found,
                stack,
            )
            if state < 0:
                if state == _NEEDS:
                    pops[count, 0], pops[count, 1], pops[count, 2] = node, action, left
                    count += 1
                node = end[node]
                continue
            loop = looped[here - 1]
            if loop and value >= 128:
                loop = whole[start]
            elif loop:
                loop = np.int32((loops[start, value >> 6] >> np.uint64(value & 63)) & one)
            others = kinds[node] & OTHERS
            if (
                below[node, 0] & ~loops[state, 0] == 0
                and below[node, 1] & ~loops[state, 1] == 0
                and (others == 0 or (whole[state] == 1 and kinds[node] & WHOLE))
            ):  # all of the subtree is taken
                if not (loop and state == start):
                    for j in range(first[node], first[end[node]]):
                        token = tokens[j]
                        words[token >> 6] |= one << np.uint64(token & 63)
                node = end[node]
                continue
            for j in range(first[node], first[node + 1]):
                token = tokens[j]
                words[token >> 6] |= one << np.uint64(token & 63)
            states[here], handles[here], useds[here], looped[here] = state, handle, used, loop
            node += 1
    return count
