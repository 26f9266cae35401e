"""A grammar over a model's tokens: which may come next, and where one leads.

States are immutable and opaque. To fork is to keep one, to roll back is to take an old one up again.

    >>> from diskmoe.grammar_draft.gbnf import parse
    >>> vocabulary = Vocabulary([b"a", b"ab", b"b", None], special={3: "<end>"}, ends={3})
    >>> constraint = Constraint(parse('root ::= "a" "b"?'), vocabulary)
    >>> [constraint.allows(constraint.start, token) for token in range(4)]
    [True, True, False, False]
    >>> behind = constraint.accept(constraint.start, 0)
    >>> constraint.may_end(behind), int(constraint.mask(behind)[0])
    (True, 12)
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from diskmoe.grammar_draft.rules import Grammar
from diskmoe.grammar_draft.tables import Tables
from diskmoe.grammar_draft.tiers import tier_of
from diskmoe.grammar_draft.trie import Words
from diskmoe.grammar_draft.vocabulary import Vocabulary

State: TypeAlias = Any
MAX_FORCED = 256  # bytes
MAX_JOINED = 256  # masks


class Ended:
    """The state behind a token that ended the text."""

    __slots__ = ("mask", "tokens")

    def __init__(self, nothing: Words):
        self.mask = nothing
        self.tokens: dict[int, State] = {}


class Constraint:
    """What a grammar allows of a vocabulary. For one thread at a time.

    Raises (all methods):
        DeadEnd: the grammar is too ambiguous to be followed further.
    """

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary, tables: Tables | None = None):
        """tables: where compiled grammars are kept. Raises BadGrammar when no text can complete the
        grammar."""
        self.name = grammar.name
        self.vocabulary = vocabulary
        self._tier, self.how = tier_of(grammar, vocabulary, tables)  # how: in words
        self.start: State = self._tier.start  # before the first token
        self._ends = set(vocabulary.ends)
        self._size = len(vocabulary)
        self._ended = Ended(vocabulary.mask_of(()))
        self._joined: dict[
            int, tuple[Words, Words]
        ] = {}  # by place in memory: with the ids of ends

    def mask(self, state: State) -> Words:
        """The tokens that may come next: u64 (words,), bit t of them all for token t; read-only.

        Where the text may end, all ids that end one are among them. Where none is at all, the text
        cannot go on; `wanted` says what would have had to come.
        """
        mask = state.mask
        return self._made(state) if mask is None else mask

    def accept(self, state: State, token: int) -> State | None:
        """The state behind a token; None when it may not come."""
        after = state.tokens.get(token)
        if after is not None:
            return after
        if state is self._ended or not 0 <= token < self._size:
            return None
        if token in self._ends:
            return self._ended if self._tier.may_end(state) else None
        return self._tier.step(state, token)

    @property
    def gave_up(self) -> bool:
        """Whether it has raised DeadEnd: it can be followed no more, not by another text either."""
        return self._tier.gave_up

    @property
    def nbytes(self) -> int:
        """About what is remembered."""
        return self._tier.nbytes + len(self._joined) * self.vocabulary.ending.nbytes

    def allows(self, state: State, token: int) -> bool:
        """Whether one token may come next, without a mask."""
        return self.accept(state, token) is not None

    def known(self, state: State) -> bool:
        """Whether the mask costs next to nothing."""
        return state.mask is not None

    def only(self, state: State) -> int | None:
        """The one token that may come next; None where there are several, or it is not cheap to
        see."""
        if state.mask is None and self._tier.allowed(state).bit_count() > 1:
            return None
        words = self.mask(state)
        at = np.flatnonzero(words)
        word = int(words[at[0]]) if len(at) == 1 else 0
        return int(at[0]) * 64 + word.bit_length() - 1 if word.bit_count() == 1 else None

    def walk(self, state: State, data: bytes) -> State | None:
        """The state behind some bytes, however tokens would part them; None where they may not
        come."""
        return None if state is self._ended else self._tier.walk(state, data)

    def may_end(self, state: State) -> bool:
        """Whether the text is a whole document."""
        return state is self._ended or self._tier.may_end(state)

    def complete(self, state: State) -> bool:
        """Whether it is one that nothing may follow."""
        if state is self._ended:
            return True
        tier = self._tier
        return tier.may_end(state) and not tier.allowed(state) and not tier.named(state)

    def forced(self, state: State, limit: int = MAX_FORCED) -> bytes:
        """The bytes that must come next, at most so many; they stop where the text may end."""
        return b"" if state is self._ended else self._tier.forced(state, limit)

    def wanted(self, state: State) -> str:
        """What may come next, in words for a message."""
        if state is self._ended:
            return "nothing: the text has ended"
        allowed = self._tier.allowed(state)
        parts = [_shown(allowed)] if allowed else []
        for number, negated in sorted(self._tier.named(state)):
            parts.append(f"any token but {number}" if negated else f"token {number}")
        if self._tier.may_end(state):
            parts.append("the end")
        return " or ".join(parts) or "nothing"

    def _made(self, state: State) -> Words:
        words = self._tier.words(state)
        if self._tier.may_end(state):
            words = self._with_ends(words)
        words.setflags(write=False)
        state.mask = words
        return words

    def _with_ends(self, words: Words) -> Words:
        """The tokens of a state that may end; one array for all states of these."""
        known = self._joined.get(id(words))
        if known is None:
            if len(self._joined) >= MAX_JOINED:
                self._joined.clear()
            known = self._joined[id(words)] = words, words | self.vocabulary.ending
        return known[1]


def _shown(allowed: int) -> str:
    """A 256-bit set of bytes, in words."""
    runs: list[list[int]] = []
    for byte in (b for b in range(256) if allowed >> b & 1):
        if runs and byte == runs[-1][1] + 1:
            runs[-1][1] = byte
        else:
            runs.append([byte, byte])
    if len(runs) == 1 and runs[0][0] == runs[0][1]:
        return f"byte {_byte(runs[0][0])}"
    shown = [_byte(a) if a == b else f"{_byte(a)} to {_byte(b)}" for a, b in runs[:8]]
    return "one of the bytes " + ", ".join(shown) + (", ..." if len(runs) > 8 else "")


def _byte(byte: int) -> str:
    return repr(chr(byte)) if 0x20 <= byte < 0x7F else f"0x{byte:02X}"
