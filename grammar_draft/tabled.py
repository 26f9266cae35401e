"""The states of a table: where a text stands, with all that lies below.

A state is a symbol and the state below it, one object per content: to keep one is to fork, to take
an old one up is to roll back, and what is known of one is known wherever the text comes back to it.
"""

from __future__ import annotations

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
    Table,
)
from diskmoe.grammar_draft.trie import Words
from diskmoe.grammar_draft.vocabulary import Vocabulary

MAX_KEPT = 50_000  # states, and tokens whose states are remembered
MAX_FORCED = 1024  # bytes
_ACCEPTED = 1 << 30  # what the end of a text leads to


class State:
    """Where a text stands. Compare with ``is``."""

    __slots__ = ("above", "allowed", "below", "forced", "mask", "may_end", "symbol", "tokens")

    def __init__(self, symbol: int, below: State | None):
        self.symbol = symbol  # with its number, if it is in a loop that counts
        self.below = below
        self.above: dict[int, State] = {}
        self.tokens: dict[int, State | None] = {}  # where tokens lead
        self.mask: Words | None = None
        self.forced: bytes | None = None
        self.allowed = -1
        self.may_end: bool | None = None


class Tabled:
    """A table walked by the tokens of a vocabulary."""

    def __init__(self, table: Table, vocabulary: Vocabulary):
        self.table = table
        self._texts = vocabulary.plain
        self._masks = Masks(table, vocabulary.trie)
        self._classes: list[int] = table.classes.tolist()
        self._act: list[list[int]] = table.act.tolist()
        self._kind: list[int] = table.kind.tolist()
        self._number: list[int] = table.number.tolist()
        at, listed, found = table.at.tolist(), table.listed.tolist(), table.found.tolist()
        spans = [slice(at[i], at[i + 1]) for i in range(len(at) - 1)]
        self._pushes = [listed[span] for span in spans]
        self._cases = [dict(zip(listed[span], found[span], strict=True)) for span in spans]
        self._nexts = [found[span] for span in spans]
        self._end = len(self._act[0]) - 1
        self._live: list[int] = table.live.tolist()
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
        self._kept += 1
        after = state.tokens[token] = self.walk(state, data)
        return after

    def walk(self, state: State, data: bytes) -> State | None:
        """The state behind some bytes; None when they may not come."""
        act, classes = self._act, self._classes
        top, below = state.symbol, state.below
        for byte in data:
            column = classes[byte]
            action = act[top & STATE][column]
            if action < 0 or top > STATE:
                action, below = self._run(action, top, column, below)
                if action < 0:
                    return None
            top = action
        assert below is not None
        return self._state(top, below)

    def may_end(self, state: State) -> bool:
        """Whether the text may stop here."""
        if state.may_end is None:
            action = self._act[state.symbol & STATE][self._end]
            after = self._run(action, state.symbol, self._end, state.below)
            state.may_end = after[0] == _ACCEPTED
        return state.may_end

    def words(self, state: State) -> Words:
        """The tokens that may come next by their bytes."""
        part, below = self._masks.top(state.symbol), state.below
        while len(part.pops) and below is not None:
            part = self._masks.behind(part, below.symbol)
            below = below.below
        return part.words

    def allowed(self, state: State) -> int:
        """The bytes that may come next, as a 256-bit set."""
        if state.allowed < 0:
            row, top = self._act[state.symbol & STATE], state.symbol
            fits = [self._run(row[c], top, c, state.below)[0] >= 0 for c in range(self._end)]
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

    def _run(
        self, action: int, top: int, column: int, below: State | None
    ) -> tuple[int, State | None]:
        """Carries an action of a state out. Returns (the state behind it, or what is refused or
        accepted; what is below)."""
        count, brought = top >> SHIFT, 0  # the number, and that of what was popped last
        while action < -1:
            i = -2 - action
            kind = self._kind[i]
            if kind == GO:
                for symbol in self._pushes[i]:
                    if below is None:  # the state below everything was popped to be looked at
                        below = self._bottom
                    else:
                        below = self._state(self._numbered(symbol, count, brought), below)
                return self._numbered(self._number[i], count, brought), below
            if kind == ACCEPT:
                return _ACCEPTED, below
            if kind == COUNT:
                count = max(count - 1, 0)
                action = self._nexts[i][count == 0]
                continue
            if kind == LOAD:
                count, action = brought, self._nexts[i][0]
                continue
            popped = -1
            for _ in range(1 if kind == RETURN else self._number[i]):
                assert below is not None
                popped, below = below.symbol, below.below
            brought, popped = popped >> SHIFT, popped & STATE
            if kind == RETURN:
                count, action = brought, self._act[popped][column]
            else:
                action = self._cases[i].get(popped, -1)
        return (action if action < 0 else self._numbered(action, count, brought)), below

    def _numbered(self, symbol: int, count: int, brought: int) -> int:
        """A state or symbol with the number that it has from now on. symbol: with what is set there."""
        state, own = symbol & STATE, symbol >> SHIFT
        if own == POPPED:
            return state | brought << SHIFT
        return state | count << SHIFT if not own and self._live[state] else symbol

    def _state(self, symbol: int, below: State) -> State:
        state = below.above.get(symbol)
        if state is None:
            state = below.above[symbol] = State(symbol, below)
            self._states.append(state)
            self._kept += 1
        return state

    def _forget(self) -> None:
        """Drops what states remember of each other; states that are held stay good."""
        for state in self._states:
            state.tokens.clear()
            state.above.clear()
        self._states.clear()
        self._kept = 0
