"""The states of a table: where a text stands, with all that lies below.

A state is a symbol and the state below it, one object per content: to keep one is to fork, to take
an old one up is to roll back, and what is known of one is known wherever the text comes back to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diskmoe.grammar_draft.loops import FOREVER, REFUSED
from diskmoe.grammar_draft.masks import Masks
from diskmoe.grammar_draft.table import (
    ACCEPT,
    COUNT,
    GO,
    LOAD,
    POPPED,
    RETURN,
    SHIFT,
    STATE,
    SWITCH,
    Table,
)
from diskmoe.grammar_draft.trie import Words
from diskmoe.grammar_draft.vocabulary import Vocabulary

MAX_KEPT = 50_000  # states, and tokens whose states are remembered
MAX_FORCED = 1024  # bytes
STATE_BYTES = 1000  # of a state that is remembered, about
_MANY = 20  # bytes, from which tokens of them are looked for
_ACCEPTED = 1 << 30  # what the end of a text leads to


class State:
    """Where a text stands. Compare with ``is``."""

    __slots__ = ("above", "allowed", "below", "forced", "mask", "may_end", "symbol", "tokens")

    def __init__(self, symbol: int, below: State | None):
        self.symbol = symbol  # with its number, if it is in a loop that counts
        self.below = below
        self.above: dict[int, State] = {}
        self.tokens: dict[int, State] = {}  # where tokens lead
        self.mask: Words | None = None
        self.forced: bytes | None = None
        self.allowed = -1
        self.may_end: bool | None = None


class Tabled:
    """A table walked by the tokens of a vocabulary."""

    gave_up = False  # it is never too ambiguous

    def __init__(self, table: Table, vocabulary: Vocabulary):
        self.table = table
        self._texts = vocabulary.plain
        self._masks = Masks(table, vocabulary.trie)
        self._classes: list[int] = table.classes.tolist()
        low = int(table.act.min())
        # one object per number, not one per place
        numbers = np.arange(low, len(table.act)).astype(object)
        self._act: list[list[int]] = numbers[table.act - low].tolist()
        # (kind, state to go to or how many are popped, symbols to push or actions that may be next,
        # what a symbol leads to)
        self._actions: list[tuple[int, int, list[int], dict[int, int]]] = []
        # the same, those that have to do with numbers as COUNT
        self._plain: list[tuple[int, int, list[int], dict[int, int]]] = []
        at, listed, found = table.at.tolist(), table.listed.tolist(), table.found.tolist()
        places = zip(table.kind.tolist(), table.number.tolist(), at, at[1:], strict=False)
        for kind, number, low, high in places:
            symbols = found[low:high] if kind in (COUNT, LOAD) else listed[low:high]
            cases = dict(zip(symbols, found[low:high], strict=True)) if kind == SWITCH else {}
            self._actions.append((kind, number, symbols, cases))
            counts = kind == LOAD or (kind == GO and max(number, *symbols, 0) > STATE)
            self._plain.append((COUNT if counts else kind, number, symbols, cases))
        self._live: list[int] = table.live.tolist()
        self._counts = table.counts
        self._looped = _looped(table)
        self._end = len(self._act[0]) - 1
        self._only: list[int] = table.only.tolist()
        self._chains: dict[int, tuple[bytes, int]] = {}
        self._states: list[State] = []
        self._kept = 0
        self._bottom = State(0, None)
        self.start = self._state(table.start, self._bottom)

    def step(self, state: State, token: int) -> State | None:
        """The state behind a token by its bytes."""
        data = self._texts[token]
        if not data:
            return None
        if self._kept > MAX_KEPT:
            self._forget()
        after = self.walk(state, data)
        if after is not None:
            self._kept += 1
            state.tokens[token] = after
        return after

    def walk(self, state: State, data: bytes) -> State | None:
        """The state behind some bytes; None when they may not come."""
        act, classes = self._act, self._classes
        top = begun = state.symbol
        below: Any = state.below
        if top > STATE:
            return self._counted(state, data)
        rest = data.lstrip(self._looped[top]) if top in self._looped else data
        for byte in rest:
            column = classes[byte]
            top = act[top][column]
            while top < 0:
                if top == REFUSED:
                    return None
                kind, number, symbols, cases = self._plain[-2 - top]
                if kind == GO:
                    for symbol in symbols:
                        # what is below everything was popped to be looked at
                        below = self._bottom if below is None else self._state(symbol, below)
                    top = number
                elif kind == COUNT or below.symbol > STATE:
                    return self._counted(state, data)
                else:  # the end of a text is no byte: nothing is accepted here
                    popped, below = below.symbol, below.below
                    top = act[popped][column] if kind == RETURN else cases.get(popped, REFUSED)
        if top == begun and below is state.below:
            return state
        return self._state(top, below)

    def _counted(self, state: State, data: bytes) -> State | None:
        """The same with numbers that go along."""
        top, below = state.symbol, state.below
        for byte in data:
            column = self._classes[byte]
            top, below = self._run(top, column, below)
            if top < 0:
                return None
        assert below is not None
        return self._state(top, below)

    def _run(self, top: int, column: int, below: Any) -> tuple[int, Any]:
        """What a state does with a byte of a class: (the state behind it, _ACCEPTED or REFUSED; what
        is below)."""
        action = self._act[top & STATE][column]
        count, brought = top >> SHIFT, 0  # the number, and that of what was popped last
        while action < REFUSED:
            kind, number, symbols, cases = self._actions[-2 - action]
            if kind == GO:
                for symbol in symbols:
                    if below is None:  # what is below everything was popped to be looked at
                        below = self._bottom
                    else:
                        below = self._state(self._numbered(symbol, count, brought), below)
                return self._numbered(number, count, brought), below
            if kind == ACCEPT:
                return _ACCEPTED, below
            if kind == COUNT:
                count = max(count - 1, 0)
                action = symbols[count == 0]
            elif kind == LOAD:
                count, action = brought, symbols[0]
            elif kind == RETURN:
                count = below.symbol >> SHIFT
                action, below = self._act[below.symbol & STATE][column], below.below
            else:
                brought = below.symbol >> SHIFT
                action, below = cases.get(below.symbol & STATE, REFUSED), below.below
        return (action if action < 0 else self._numbered(action, count, brought)), below

    def _numbered(self, symbol: int, count: int, brought: int) -> int:
        """A state or symbol with the number that it has from now on; see `masks.numbered`."""
        state, own = symbol & STATE, symbol >> SHIFT
        if own == POPPED:
            return state | brought << SHIFT
        return state | count << SHIFT if not own and self._live[state] else symbol

    def may_end(self, state: State) -> bool:
        """Whether the text may stop here."""
        if state.may_end is None:
            state.may_end = self._leads(state, self._end) == _ACCEPTED
        return state.may_end

    def words(self, state: State) -> Words:
        """The tokens that may come next by their bytes."""
        if self._masks.full:
            self._masks.clear()
            self._forget()  # states hold masks as well
        part, below = self._masks.top(state.symbol), state.below
        while len(part.pops) and below is not None:
            part = self._masks.behind(part, below.symbol)
            below = below.below
        return part.words

    @property
    def nbytes(self) -> int:
        """About what is remembered."""
        lists = 2 * self.table.act.nbytes
        return self._masks.nbytes + self.table.nbytes + lists + self._kept * STATE_BYTES

    def allowed(self, state: State) -> int:
        """The bytes that may come next, as a 256-bit set."""
        if state.allowed < 0:
            fits = [self._leads(state, column) >= 0 for column in range(self._end)]
            state.allowed = sum(1 << b for b, column in enumerate(self._classes) if fits[column])
        return state.allowed

    def forced(self, state: State, limit: int) -> bytes:
        """The bytes that must come next, at most so many; they stop where the text may."""
        if state.forced is None:
            data = bytearray()
            here: State | None = state
            while here is not None and len(data) < MAX_FORCED:
                chain, to = b"", 0
                if here.symbol <= STATE:
                    chain, to = self._chains.get(here.symbol) or self._chain(here.symbol)
                if chain:
                    assert here.below is not None
                    data += chain
                    here = self._state(to, here.below)
                if self.may_end(here):
                    break
                allowed = self.allowed(here)
                if allowed.bit_count() != 1:
                    break
                data.append(allowed.bit_length() - 1)
                here = self.walk(here, bytes(data[-1:]))
            state.forced = bytes(data)
        return state.forced[:limit]

    def named(self, state: State) -> set[tuple[int, bool]]:
        """The tokens that the grammar names here: it names none, or it would have no table."""
        del state
        return set()

    def _chain(self, symbol: int) -> tuple[bytes, int]:
        """The bytes that must follow a symbol one after another whatever lies below, and the state
        behind them."""
        data = bytearray()
        here = symbol
        while self._only[here] >= 0 and len(data) < MAX_FORCED:
            data.append(self._only[here])
            here = self._act[here][self._classes[data[-1]]]
        found = self._chains[symbol] = bytes(data), here
        return found

    def _leads(self, state: State, column: int) -> int:
        """The state that a byte of a class leads to; or _ACCEPTED, or REFUSED."""
        if self._counts:
            return self._run(state.symbol, column, state.below)[0]
        action = self._act[state.symbol][column]
        below: Any = state.below
        while action < REFUSED:
            kind, number, _, cases = self._actions[-2 - action]
            if kind == GO:
                return number
            if kind == ACCEPT:
                return _ACCEPTED
            popped, below = below.symbol, below.below
            action = self._act[popped][column] if kind == RETURN else cases.get(popped, REFUSED)
        return action

    def _state(self, symbol: int, below: State) -> State:
        state = below.above.get(symbol)
        if state is None:
            state = below.above[symbol] = State(symbol, below)
            self._states.append(state)
            self._kept += 1
        return state

    def _forget(self) -> None:
        """Drops what states remember of each other; states that are held stay good."""
        for state in (self._bottom, *self._states):
            state.tokens.clear()
            state.above.clear()
        self._states.clear()
        self._kept = 0


def _looped(table: Table) -> dict[int, bytes]:
    """Per state the ASCII bytes that leave it as it is, where they are many."""
    found: dict[int, bytes] = {}
    known: dict[int, bytes] = {}
    act, classes = table.act, table.classes
    for state, (low, high) in enumerate(table.loops.tolist()):
        loops = low | high << 64
        if loops.bit_count() < _MANY or table.room[state] != FOREVER:
            continue
        if act[state, classes[(loops & -loops).bit_length() - 1]] == state:
            if loops not in known:
                known[loops] = bytes(byte for byte in range(128) if loops >> byte & 1)
            found[state] = known[loops]
    return found
