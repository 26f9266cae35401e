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
from diskmoe.grammar_draft.loops import COUNTED
from diskmoe.grammar_draft.table import (
    COUNT,
    GO,
    I32,
    LOAD,
    POPPED,
    REFUSED,
    RETURN,
    SHIFT,
    STATE,
    SWITCH,
    Table,
)
from diskmoe.grammar_draft.trie import OTHERS, SOUND, WHOLE, Trie, Words

MAX_BYTES = 32 << 20  # of sets of tokens that are remembered at a time
_MANY = 20  # ASCII bytes that a state loops on, from which sets of tokens are quicker than the trie
_NEEDS = -2  # what `_run` says when it pops what lies below


class Part:
    """What a state and some symbols below it decide."""

    __slots__ = ("behind", "pops", "words")

    def __init__(self, words: Words, pops: I32):
        self.words = words  # the tokens that may come whatever lies further below
        self.pops = pops  # i32 (n, 4): node of the trie, action, symbols it has yet to pop, number
        self.behind: dict[int, Part] = {}  # by the next symbol below


class Masks:
    """The parts of one table for one vocabulary."""

    def __init__(self, table: Table, trie: Trie):
        self._trie, self._table = trie, table
        self._tops: dict[int, Part] = {}
        self._count = 0
        self._scratch = np.empty((len(trie.byte), 4), np.int32)
        self._none = np.empty((0, 4), np.int32)
        self._most = max(64, MAX_BYTES // max(1, trie.spelled.nbytes))
        self._far = (trie.deepest + 1) << SHIFT  # no token counts a number down that is larger
        self._arrays = (
            *(trie.nodes, trie.tokens),
            *(table.classes, table.act, table.kind, table.number, table.at),
            *(table.listed, table.found, table.live),
            *(table.loops.view(np.int32), table.room, table.whole),
        )
        longest = int(np.diff(table.at).max(initial=0))
        self._stack = np.empty((2, (longest + 1) * (trie.deepest + 1)), np.int32)
        self._levels = np.empty((4, trie.deepest + 1), np.int32)

    def top(self, state: int) -> Part:
        """What a state decides alone. state: as one integer with its number."""
        state = self._near(state)
        part = self._tops.get(state)
        if part is None:
            words, shared = self._looped(state)
            part = self._tops[state] = self._made(state, -1, self._none, words, shared)
        return part

    def behind(self, part: Part, symbol: int) -> Part:
        """What a part and the symbol below it decide."""
        symbol = self._near(symbol)
        after = part.behind.get(symbol)
        if after is None:
            after = self._made(-1, symbol, part.pops, part.words.copy(), False)
            part.behind[symbol] = after
        return after

    def _near(self, symbol: int) -> int:
        """A symbol with the number that stands for all that are so large."""
        return symbol if symbol < self._far else self._far | symbol & STATE

    def _made(self, state: int, symbol: int, pops: I32, words: Words, shared: bool) -> Part:
        self._count += 1
        if self._count > self._most:  # those in use stay good
            self._count = 0
            self._tops.clear()
        scratch = (self._scratch, self._stack, self._levels)
        found = walk(*self._arrays, state, symbol, pops, int(shared), words, *scratch)
        words.setflags(write=False)
        return Part(words, self._scratch[:found].copy() if found else self._none)

    def _looped(self, state: int) -> tuple[Words, bool]:
        """The tokens in which every byte is one that a state loops on, where they may be many."""
        trie, table = self._trie, self._table
        number, state = state >> SHIFT, state & STATE
        low, high = (int(word) for word in table.loops[state])
        loops = low | high << 64
        if loops.bit_count() < _MANY:
            return np.zeros_like(trie.spelled), False
        others = [byte for byte in range(128) if not loops >> byte & 1]
        if not table.whole[state]:
            others.append(128)
        words = trie.spelled & ~trie.broken
        leave_out(trie.having, np.array(others, np.int32), words)
        room = int(table.room[state])
        room = number - 1 if room == COUNTED else room
        if room < trie.deepest:
            leave_out_long(trie.tokens, trie.lengths, room, words)
        return words, True


@kernel
def leave_out(sets: Any, members: Any, words: Any) -> None:
    """Takes some of the sets, u64 (sets, words), out of `words`. members: i32."""
    for member in members:
        for i in range(len(words)):
            words[i] &= ~sets[member, i]


@kernel
def leave_out_long(tokens: Any, lengths: Any, most: Any, words: Any) -> None:
    """Takes tokens of more than `most` bytes out of `words`."""
    for i in range(len(tokens)):
        if lengths[i] > most:
            words[tokens[i] >> 6] &= ~(np.uint64(1) << np.uint64(tokens[i] & 63))


@inner
def _numbered(symbol: Any, count: Any, brought: Any, live: Any) -> Any:
    """A state or symbol with the number that it has from now on. symbol: with what is set there."""
    state, own = symbol & STATE, symbol >> SHIFT
    if own == POPPED:
        return state | brought << SHIFT
    return state | count << SHIFT if own == 0 and live[state] else symbol


@inner
def _room(room: Any, state: Any, count: Any) -> Any:
    """How many bytes a state loops on."""
    return count - 1 if room[state] == COUNTED else room[state]


@inner
def _run(
    action: Any,
    left: Any,
    symbol: Any,
    count: Any,
    column: Any,
    handle: Any,
    used: Any,
    act: Any,
    kind: Any,
    number: Any,
    at: Any,
    listed: Any,
    found: Any,
    live: Any,
    stack: Any,
) -> Any:
    """Carries an action out. left: symbols it has yet to pop, 0 before it begins; count: the number
    beside the state; symbol: what lies below the stack, or -1; handle: the top of the stack, -1 for
    `symbol`, -2 for what is below it.

    Returns (state with its number, or REFUSED, or _NEEDS; action; left; count; handle; used).
    """
    brought = 0  # the number of what was popped last
    while True:
        if action >= 0:
            return _numbered(action, count, brought, live), action, 0, count, handle, used
        if action == REFUSED:
            return REFUSED, action, 0, count, handle, used
        i = -2 - action
        if kind[i] == GO:
            for j in range(at[i], at[i + 1]):
                pushed = _numbered(listed[j], count, brought, live)
                stack[0, used], stack[1, used] = pushed, handle
                handle = used
                used += 1
            return _numbered(number[i], count, brought, live), action, 0, count, handle, used
        if kind[i] == COUNT:
            count = max(count - 1, 0)
            action = found[at[i] + (count == 0)]
            continue
        if kind[i] == LOAD:
            count = brought
            action = found[at[i]]
            continue
        if kind[i] != RETURN and kind[i] != SWITCH:
            return REFUSED, action, 0, count, handle, used
        if left == 0:
            left = number[i] if kind[i] == SWITCH else 1
        popped = -1
        while left > 0:
            if handle >= 0:
                popped, handle = stack[0, handle], stack[1, handle]
            elif handle == -1 and symbol >= 0:
                popped, handle = symbol, -2
            else:
                return _NEEDS, action, left, count, handle, used
            left -= 1
        brought, popped = popped >> SHIFT, popped & STATE
        if kind[i] == RETURN:
            count = brought
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


@inner
def _within(nodes: Any, node: Any, loops: Any, state: Any) -> Any:
    """Whether a state loops on all ASCII bytes of a subtree."""
    missed = nodes[node, 4] & ~loops[state, 0] | nodes[node, 5] & ~loops[state, 1]
    return missed | nodes[node, 6] & ~loops[state, 2] | nodes[node, 7] & ~loops[state, 3] == 0


@kernel
def walk(
    nodes: Any,
    tokens: Any,
    classes: Any,
    act: Any,
    kind: Any,
    number: Any,
    at: Any,
    listed: Any,
    found: Any,
    live: Any,
    loops: Any,
    room: Any,
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

    The arrays of a `Trie` and of a `Table` come first, `loops` in four parts of 32 bits. start: the
    state before the first byte with its number, or -1 to go on at `places` (as `pops`) with `symbol`
    below the stack.
    shared: whether `words` has the tokens in which every byte is a loop of the start. pops:
    i32 (nodes, 4), out. stack: i32 (2, n): symbols and what is below them, n more than a token can
    push. levels: i32 (4, deepest + 1).

    Returns the number of places where what lies further below decides.
    """
    one = np.uint64(1)
    states, handles, useds, looped = levels  # looped: whether every byte so far led the start back
    open_places = 0
    resuming, begin = start < 0, start & STATE
    most = 0 if resuming else _room(room, begin, start >> SHIFT)
    for turn in range(len(places) if resuming else 1):
        node, stop = 0, len(nodes) - 1
        action, left, count, handle, used = REFUSED, 0, 0, -1, 0
        resumed = resuming
        if resumed:
            node, action, left, count = places[turn]
            stop = nodes[node, 0]
            looped[nodes[node, 2] - 1] = 0
        else:
            states[0], handles[0], useds[0], looped[0] = start, -1, 0, shared
        while node < stop:
            end, here = nodes[node, 0], nodes[node, 2]
            packed = nodes[node, 3]
            value, kinds, height = packed & 255, packed >> 8 & 255, packed >> 16
            column = classes[value]
            if not resumed:
                before = states[here - 1]
                action, left, count = act[before & STATE, column], 0, before >> SHIFT
                handle, used = handles[here - 1], useds[here - 1]
            resumed = False
            state = action
            if action < REFUSED or count:
                state, action, left, count, handle, used = _run(
                    *(action, left, symbol, count, column, handle, used),
                    *(act, kind, number, at, listed, found, live, stack),
                )
            loop = looped[here - 1]
            if loop and value >= 128:
                loop = whole[begin]
            elif loop:
                loop = (loops[begin, value >> 5] >> (value & 31)) & 1
            if (
                loop
                and here + height <= most
                and _within(nodes, node, loops, begin)
                and (kinds & OTHERS == 0 or (whole[begin] == 1 and kinds & SOUND))
            ):  # all of the subtree is in `words`
                node = end
                continue
            if state < 0:
                if state == _NEEDS:
                    pops[open_places, 0], pops[open_places, 1] = node, action
                    pops[open_places, 2], pops[open_places, 3] = left, count
                    open_places += 1
                node = end
                continue
            top = state & STATE
            if (
                height <= _room(room, top, state >> SHIFT)
                and _within(nodes, node, loops, top)
                and (kinds & OTHERS == 0 or (whole[top] == 1 and kinds & WHOLE))
            ):  # all of the subtree is taken
                for j in range(nodes[node, 1], nodes[end, 1]):
                    token = tokens[j]
                    words[token >> 6] |= one << np.uint64(token & 63)
                node = end
                continue
            for j in range(nodes[node, 1], nodes[node + 1, 1]):
                token = tokens[j]
                words[token >> 6] |= one << np.uint64(token & 63)
            states[here], handles[here], useds[here], looped[here] = state, handle, used, loop
            node += 1
    return open_places
