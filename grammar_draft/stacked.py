"""Sets of stacks walked by the tokens of a vocabulary, for grammars that no table can hold.

A mask is put together from parts that do not depend on what stands below: the tops of a state's
stacks, taken apart by the tail below them, are finite automata of their own (``Tops``) until they
are complete. They are walked through the trie by a compiled function; where they may be complete the
walk goes on with what stands in the tail. What is a mask of one state is a union over its stacks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from diskmoe.compiled.functions import kernel
from diskmoe.grammar_draft.automaton import Automaton, Tail
from diskmoe.grammar_draft.automaton import State as Stacks
from diskmoe.grammar_draft.errors import DeadEnd
from diskmoe.grammar_draft.patience import breathe
from diskmoe.grammar_draft.trie import I32, OTHERS, WHOLE, Words
from diskmoe.grammar_draft.utf8 import CHARACTERS
from diskmoe.grammar_draft.vocabulary import Vocabulary

MAX_KEPT = 30_000  # states, tokens whose states are remembered, kilobytes of masks
MAX_PARTS_BYTES = 16 << 20
STATE_BYTES = 1000  # of a state that is remembered, about
MAX_TOPS = 8192  # states with rows, 1 KiB each
MAX_WAYS = 4000  # to be complete behind the tops of one stack; they may double with each byte
_FIRST = 64  # rows to begin with
_UNKNOWN = -2  # in a row's first place: not worked out yet
_ASKED = -3  # ... and about to be


class State:
    """Where a text stands. Compare with ``is``."""

    __slots__ = ("mask", "stacks", "tokens")

    def __init__(self, stacks: Stacks):
        self.stacks = stacks
        self.tokens: dict[int, State] = {}  # where tokens lead
        self.mask: Words | None = None


class Tops:
    """States without what stands below them, as rows for compiled functions, made as needed."""

    def __init__(self, automaton: Automaton):
        self._automaton = automaton
        self.clear()

    def clear(self) -> None:
        """Forgets all."""
        self._numbers: dict[Stacks, int] = {}
        self._states: list[Stacks] = []
        self.rows = np.full((_FIRST, 256), _UNKNOWN, np.int32)
        self.ends = np.zeros(_FIRST, np.uint8)  # whether a state may be complete
        self.loops = np.zeros((_FIRST, 2), np.uint64)  # as in `Table`
        self.whole = np.zeros(_FIRST, np.uint8)

    @property
    def full(self) -> bool:
        """Whether it is time to forget."""
        return len(self._states) > MAX_TOPS

    def number(self, state: Stacks) -> int:
        """The row of a state."""
        known = self._numbers.get(state)
        if known is None:
            known = self._numbers[state] = len(self._states)
            self._states.append(state)
            if known >= len(self.ends):
                for name in ("rows", "ends", "loops", "whole"):
                    old = getattr(self, name)
                    fresh = np.full_like(old, _UNKNOWN) if name == "rows" else np.zeros_like(old)
                    setattr(self, name, np.concatenate([old, fresh]))
            self.ends[known] = state.may_end
        return known

    def work_out(self, numbers: Iterable[int]) -> None:
        """Fills in rows; what `breathe` raises leaves them unknown."""
        try:
            for number in numbers:
                breathe()
                self._work_out(number)
        finally:
            left = self.rows[:, 0] == _ASKED
            self.rows[left, 0] = _UNKNOWN

    def _work_out(self, number: int) -> None:
        state = self._states[number]
        row = np.full(256, -1, np.int32)
        loops = 0
        for byte in (b for b in range(256) if state.allowed >> b & 1):
            after = self._automaton.advance(state, byte)
            if after is not None:
                row[byte] = self.number(after)
                loops |= (after is state) << byte
        self.rows[number] = row
        self.loops[number] = loops & (1 << 64) - 1, loops >> 64 & (1 << 64) - 1
        self.whole[number] = bool(loops & (1 << 128) - 1) and self._is_whole(state)

    def _is_whole(self, state: Stacks) -> bool:
        """Whether every character that is not ASCII leads back."""
        for lead, rest in CHARACTERS:
            here: set[Stacks | None] = {state}
            for low, high in (lead, *rest):
                here = {
                    some and self._automaton.advance(some, byte)
                    for some in here
                    for byte in range(low, high + 1)
                }
            if here != {state}:
                return False
        return True


class Stacked:
    """Sets of stacks walked by the tokens of a vocabulary. Raises DeadEnd where a text cannot be
    followed."""

    def __init__(self, automaton: Automaton, vocabulary: Vocabulary):
        self._automaton = automaton
        self._vocabulary = vocabulary
        self._texts = vocabulary.plain
        self._trie = trie = vocabulary.trie
        self._arrays = (
            *(trie.byte, trie.depth, trie.end, trie.first, trie.tokens, trie.below, trie.kinds),
        )
        self._tops = Tops(automaton)
        self._parts: dict[Stacks, tuple[Words, I32]] = {}  # what tops take, where they are complete
        self._below: dict[Tail, Stacks | None] = {}
        self._states: dict[Stacks, State] = {}
        self._kept = 0
        self._everywhere = np.array([-1], np.int32)
        self._levels = np.empty(trie.deepest + 1, np.int32)
        self._noted = np.zeros(len(trie.byte), np.uint8)
        self.start = self._state(automaton.start)

    def step(self, state: State, token: int) -> State | None:
        """The state behind a token: spelled, named by the grammar, or both."""
        data = self._texts[token]
        if not data and token not in self._vocabulary.special:
            return None
        if self._kept > MAX_KEPT:
            self._forget()
        self._kept += 1
        after = self._automaton.advance_token(state.stacks, token, data or b"")
        self._refuse_too_much()
        if after is None:
            return None
        found = state.tokens[token] = self._state(after)
        return found

    def walk(self, state: State, data: bytes) -> State | None:
        """The state behind some bytes; None when they may not come."""
        after = self._automaton.walk(state.stacks, data)
        self._refuse_too_much()
        return self._state(after) if after else None

    def may_end(self, state: State) -> bool:
        """Whether the text may stop here."""
        return state.stacks.may_end

    def allowed(self, state: State) -> int:
        """The bytes that may come next, as a 256-bit set."""
        return state.stacks.allowed

    def named(self, state: State) -> set[tuple[int, bool]]:
        """The tokens that the grammar names here: (id, whether it is any other than this one)."""
        return self._automaton.named(state.stacks)

    def forced(self, state: State, limit: int) -> bytes:
        """The bytes that must come next, at most so many; they stop where the text may end."""
        return self._automaton.forced(state.stacks, limit)

    @property
    def gave_up(self) -> bool:
        """Whether some text was too ambiguous: from then on it follows none."""
        return self._automaton.gave_up > 0

    @property
    def nbytes(self) -> int:
        """About what is remembered."""
        rows = self._tops.rows.nbytes
        parts = sum(words.nbytes + ends.nbytes for words, ends in self._parts.values())
        return rows + parts + self._kept * STATE_BYTES

    def words(self, state: State) -> Words:
        """The tokens that may come next."""
        self._kept += 8 * self._vocabulary.words // STATE_BYTES  # whoever asks keeps them
        vocabulary = self._vocabulary
        if self._tops.full or len(self._parts) * 8 * vocabulary.words > MAX_PARTS_BYTES:
            self._tops.clear()
            self._parts.clear()
            self._below.clear()
        words = np.zeros(vocabulary.words, np.uint64)
        for number, negated in self.named(state):
            one = vocabulary.mask_of([number] if 0 <= number < len(vocabulary) else [])
            words |= vocabulary.named & (~one if negated else one)
        for tops, tail in self._automaton.parts(state.stacks):
            part = self._parts.get(tops)
            if part is None:
                part = self._parts[tops] = self._walked(tops, self._everywhere)
            words |= part[0]
            self._go_on(tail, part[1], words)
        self._refuse_too_much()
        return words

    def _go_on(self, tail: Tail, places: I32, words: Words) -> None:
        """Adds what may follow at some places of the trie behind a tail."""
        queue = [(tail, places)]
        for below, nodes in queue:  # grows; places are deeper in the trie each time
            if not len(nodes) or not below.frames:
                continue
            breathe()
            if len(queue) > MAX_WAYS:
                self._automaton.gave_up += 1
                self._refuse_too_much()
            if below not in self._below:
                self._below[below] = self._automaton.below(below)
            state = self._below[below]
            for tops, deeper in self._automaton.parts(state) if state else ():
                more, ends = self._walked(tops, nodes)
                words |= more
                queue.append((deeper, ends))

    def _walked(self, tops: Stacks, places: I32) -> tuple[Words, I32]:
        """What tops take behind some places of the trie, and where they are complete."""
        words = np.zeros(self._vocabulary.words, np.uint64)
        ends = np.empty(len(self._trie.byte), np.int32)
        asked = np.empty(MAX_TOPS + 1, np.int32)
        start = self._tops.number(tops)
        while True:
            made = self._tops
            rows = (made.rows, made.ends, made.loops, made.whole)
            out = (words, ends, asked, self._levels, self._noted)
            count, unknown = spread(*self._arrays, *rows, start, places, *out)
            if not unknown:
                return words, ends[:count].copy()
            made.work_out(asked[:unknown].tolist())

    def _state(self, stacks: Stacks) -> State:
        state = self._states.get(stacks)
        if state is None:
            state = self._states[stacks] = State(stacks)
            self._kept += 1
        return state

    def _forget(self) -> None:
        """Drops what states remember of each other; states that are held stay good."""
        for state in self._states.values():
            state.tokens.clear()
        self._states.clear()
        self._kept = 0

    def _refuse_too_much(self) -> None:
        if self.gave_up:
            name = self._automaton.name
            raise DeadEnd(f"the grammar {name} is too ambiguous to be followed further")


@kernel
def spread(
    byte: Any,
    depth: Any,
    end: Any,
    first: Any,
    tokens: Any,
    below: Any,
    kinds: Any,
    rows: Any,
    ends: Any,
    loops: Any,
    whole: Any,
    start: Any,
    places: Any,
    words: Any,
    complete: Any,
    asked: Any,
    levels: Any,
    noted: Any,
) -> Any:
    """Walks the trie with rows of states, and adds the tokens that fit to `words`.

    The arrays of a `Trie` come first, then those of `Tops`. places: i32, nodes whose subtrees are
    walked from `start`, or -1 for the whole trie. complete: i32 (nodes,), out: nodes where a state is
    complete, each once though places lie below one another. asked: i32, out: states whose rows are
    wanted; what is behind them is left out. levels: i32 (deepest + 1,). noted: u8 (nodes,), zeros,
    and zeros again afterwards.

    Returns (how many nodes are complete, how many states are asked for).
    """
    one = np.uint64(1)
    count = wanted = 0
    for place in places:
        node, stop = 0, len(byte)
        if place >= 0:
            node, stop = place + 1, end[place]
            levels[depth[place]] = start
        else:
            levels[0] = start
        while node < stop:
            here = depth[node]
            before = levels[here - 1]
            if rows[before, 0] <= _UNKNOWN:
                if rows[before, 0] == _UNKNOWN and wanted < len(asked):
                    rows[before, 0] = _ASKED
                    asked[wanted] = before
                    wanted += 1
                node = end[node]
                continue
            state = rows[before, byte[node]]
            if state < 0:
                node = end[node]
                continue
            if ends[state] and not noted[node]:
                noted[node] = 1
                complete[count] = node
                count += 1
            others = kinds[node] & OTHERS
            if (
                below[node, 0] & ~loops[state, 0] == 0
                and below[node, 1] & ~loops[state, 1] == 0
                and (others == 0 or (whole[state] == 1 and kinds[node] & WHOLE))
            ):  # all of the subtree is taken
                for j in range(first[node], first[end[node]]):
                    token = tokens[j]
                    words[token >> 6] |= one << np.uint64(token & 63)
                node = end[node]
                continue
            for j in range(first[node], first[node + 1]):
                token = tokens[j]
                words[token >> 6] |= one << np.uint64(token & 63)
            levels[here] = state
            node += 1
    for j in range(count):
        noted[complete[j]] = 0
    return count, wanted
