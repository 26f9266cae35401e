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
from diskmoe.grammar_draft.alike import FIRSTS, OTHERS_FIRST, add_alike
from diskmoe.grammar_draft.loops import REFUSED
from diskmoe.grammar_draft.table import (
    COUNT,
    GO,
    I32,
    LOAD,
    POPPED,
    RETURN,
    SHIFT,
    STATE,
    SWITCH,
    Table,
)
from diskmoe.grammar_draft.token_sets import SPACE
from diskmoe.grammar_draft.trie import OTHERS, SOUND, WHOLE, Trie, Words

MAX_BYTES = 32 << 20  # of sets of tokens that are remembered at a time
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
        self._none = np.empty((0, 4), np.int32)
        self._most = max(64, MAX_BYTES // max(1, trie.sets.spelled.nbytes))
        self._far = (trie.deepest + 1) << SHIFT  # no token counts a number down that is larger
        self._arrays = (
            *(trie.nodes, trie.tokens),
            *(table.classes, table.act, table.kind, table.number, table.at),
            *(table.listed, table.found, table.live, facts_of(table)),
        )
        sets = trie.sets
        self._alike = (
            *(sets.having, sets.starting, sets.second, sets.again, sets.within),
            *(sets.broken, sets.spelled, sets.longest, sets.lengths),
            *(table.classes, table.act, table.kind, table.number, table.at, table.found),
            *(table.live, table.loops, table.room, table.whole),
        )
        self._origins = np.empty((4, FIRSTS), np.int32)
        longest = int(np.diff(table.at).max(initial=0))
        self._stack = np.empty((2, (longest + 1) * (trie.deepest + 1)), np.int32)
        self._levels = np.zeros((5, trie.deepest + 1), np.int32)

    def top(self, state: int) -> Part:
        """What a state decides alone. state: as one integer with its number."""
        state = self._near(state)
        part = self._tops.get(state)
        if part is None:
            words = np.zeros_like(self._trie.sets.spelled)
            add_alike(*self._alike, state, words, self._origins)
            part = self._tops[state] = self._made(state, -1, self._none, words)
        return part

    def behind(self, part: Part, symbol: int) -> Part:
        """What a part and the symbol below it decide."""
        symbol = self._near(symbol)
        after = part.behind.get(symbol)
        if after is None:
            after = self._made(-1, symbol, part.pops, part.words.copy())
            part.behind[symbol] = after
        return after

    @property
    def full(self) -> bool:
        """Whether it is time to forget."""
        return self._count > self._most

    def clear(self) -> None:
        """Forgets all; parts that are held stay good."""
        self._tops.clear()
        self._count = 0

    @property
    def nbytes(self) -> int:
        """About what is remembered."""
        return self._count * self._trie.sets.spelled.nbytes

    def _near(self, symbol: int) -> int:
        """A symbol with the number that stands for all that are so large."""
        return symbol if symbol < self._far else self._far | symbol & STATE

    def _made(self, state: int, symbol: int, pops: I32, words: Words) -> Part:
        self._count += 1
        left = np.empty((len(self._trie.byte), 4), np.int32)  # pages that are not used cost nothing
        scratch = (left, self._stack, self._levels)
        found = walk(*self._arrays, state, symbol, pops, self._origins, words, *scratch)
        words.setflags(write=False)
        return Part(words, left[:found].copy() if found else self._none)


@inner
def numbered(symbol: Any, count: Any, brought: Any, live: Any) -> Any:
    """A state or symbol with the number that it has from now on.

    symbol: with what is set there; count: the number beside the state before; brought: that of what
    was popped last.
    """
    state, own = symbol & STATE, symbol >> SHIFT
    if own == POPPED:
        return state | brought << SHIFT
    return state | count << SHIFT if own == 0 and live[state] else symbol


@inner
def _run(
    action: Any,
    left: Any,
    count: Any,
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
            return numbered(action, count, brought, live), action, 0, count, handle, used
        if action == REFUSED:
            return REFUSED, action, 0, count, handle, used
        i = -2 - action
        if kind[i] == GO:
            for j in range(at[i], at[i + 1]):
                pushed = numbered(listed[j], count, brought, live)
                stack[0, used], stack[1, used] = pushed, handle
                handle = used
                used += 1
            return numbered(number[i], count, brought, live), action, 0, count, handle, used
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


# what a walk reads of a state, see `facts_of`
_ROOM, _WHOLE, _ASCII, _CLOSED = 8, 9, 10, 11


def facts_of(table: Table) -> I32:
    """i32 (states, 12): sets of bytes in four parts, and numbers, of each state side by side."""
    sets = [table.loops.view(np.int32), table.leaves.view(np.int32)]
    flags = (table.whole, table.ascii_only, table.closed)
    return np.column_stack([*sets, table.room, *flags]).astype(np.int32)


@inner
def _room(facts: Any, state: Any, count: Any) -> Any:
    """How many bytes a state loops on."""
    room = facts[state, _ROOM]
    return room if room >= 0 else count - 1 - room


@inner
def _within(nodes: Any, node: Any, facts: Any, state: Any) -> Any:
    """Whether a state loops on all ASCII bytes of a subtree."""
    missed = nodes[node, 4] & ~facts[state, 0] | nodes[node, 5] & ~facts[state, 1]
    return missed | nodes[node, 6] & ~facts[state, 2] | nodes[node, 7] & ~facts[state, 3] == 0


@inner
def _without(nodes: Any, node: Any, facts: Any, state: Any) -> Any:
    """Whether a subtree has no ASCII byte that a state can read and does not loop on."""
    met = nodes[node, 4] & facts[state, 4] | nodes[node, 5] & facts[state, 5]
    return met | nodes[node, 6] & facts[state, 6] | nodes[node, 7] & facts[state, 7] == 0


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
    facts: Any,
    start: Any,
    symbol: Any,
    places: Any,
    origins: Any,
    words: Any,
    pops: Any,
    stack: Any,
    levels: Any,
) -> Any:
    """Walks the trie with a table, and adds the tokens that fit to `words`.

    The arrays of a `Trie` and of a `Table` come first. start: the state before the first byte, with
    its number, or -1 to go on at `places` (as `pops`) with `symbol` below the stack. origins: of
    `add_alike`, whose tokens are in `words`. pops: i32 (nodes, 4), out. stack: i32 (2, n): symbols and what is below them, n more than a token can
    push. levels: i32 (5, deepest + 1).

    Returns the number of places where what lies further below decides.
    """
    one = np.uint64(1)
    # looped: the origin of what was read, where it is alike; wide: whether not all of it is ASCII
    states, handles, useds, looped, wide = levels
    open_places, base, reach = 0, 1, 0
    for turn in range(1 if start >= 0 else len(places)):
        node, stop = 0, len(nodes) - 1
        action, left, count, handle, used = REFUSED, 0, 0, -1, 0
        resumed = start < 0
        if resumed:
            node, action = places[turn, 0], places[turn, 1]
            left, count = places[turn, 2], places[turn, 3]
            stop = nodes[node, 0]
            looped[nodes[node, 2] - 1] = -1
        else:
            states[0], handles[0], useds[0], looped[0], wide[0] = start, -1, 0, -1, 0
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
                    *(action, left, count, symbol, column, handle, used),
                    *(act, kind, number, at, listed, found, live, stack),
                )
            mine = looped[here - 1]
            if start >= 0 and here == 1:
                mine = origins[0, min(value, OTHERS_FIRST)]
                reach = origins[2, min(value, OTHERS_FIRST)]
                base = 2 if value == SPACE and mine < 0 else 1  # where `mine` is entered
            elif start >= 0 and here == base == 2:
                mine = origins[1, min(value, OTHERS_FIRST)]
                reach = origins[3, min(value, OTHERS_FIRST)]
            elif mine >= 0 and value >= 128:
                mine = mine if facts[mine, _WHOLE] else -1
            elif mine >= 0 and not facts[mine, value >> 5] >> (value & 31) & 1:
                mine = -1
            wide[here] = wide[here - 1] or value >= 128
            fits = here - base + height <= reach
            if (
                mine >= 0
                and (fits or (facts[mine, _CLOSED] and not wide[here]))
                and _without(nodes, node, facts, mine)
                and (
                    kinds & OTHERS == 0
                    or facts[mine, _ASCII]
                    or (fits and facts[mine, _WHOLE] and kinds & SOUND)
                )
            ):  # what it can read of the subtree is in `words`
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
                height <= _room(facts, top, state >> SHIFT)
                and _within(nodes, node, facts, top)
                and (kinds & OTHERS == 0 or (facts[top, _WHOLE] and kinds & WHOLE))
            ):  # all of the subtree is taken
                for j in range(nodes[node, 1], nodes[end, 1]):
                    token = tokens[j]
                    words[token >> 6] |= one << np.uint64(token & 63)
                node = end
                continue
            for j in range(nodes[node, 1], nodes[node + 1, 1]):
                token = tokens[j]
                words[token >> 6] |= one << np.uint64(token & 63)
            states[here], handles[here], useds[here], looped[here] = state, handle, used, mine
            node += 1
    return open_places
