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

from typing import TypeAlias, cast

import numpy as np

from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.automaton import State as Stacks
from diskmoe.grammar_draft.errors import DeadEnd
from diskmoe.grammar_draft.rules import Grammar
from diskmoe.grammar_draft.vocabulary import Vocabulary, Words

State: TypeAlias = object
MAX_FORCED = 256  # bytes
MAX_MASKS = 1024  # remembered at a time
_ENDED = "behind a token that ended the text"


class Constraint:
    """What a grammar allows of a vocabulary. For one thread at a time.

    Raises (all methods):
        DeadEnd: the grammar is too ambiguous to be followed further.
    """

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary):
        self.name = grammar.name
        self.vocabulary = vocabulary
        self._automaton = Automaton(grammar)
        self._masks: dict[State, Words] = {}
        self._nothing = vocabulary.mask_of(())

    @property
    def start(self) -> State:
        """Before the first token."""
        return self._automaton.start

    def mask(self, state: State) -> Words:
        """The tokens that may come next: u64 (words,), bit t of them all for token t; read-only.

        Where the text may end, all ids that end one are among them. Where none is at all, the text
        cannot go on; `wanted` says what would have had to come.
        """
        if state is _ENDED:
            return self._nothing
        mask = self._masks.get(state)
        if mask is None:
            if len(self._masks) >= MAX_MASKS:
                self._masks.clear()
            mask = self._masks[state] = self._made(cast(Stacks, state))
        return mask

    def accept(self, state: State, token: int) -> State | None:
        """The state behind a token; None when it may not come."""
        if state is _ENDED or not 0 <= token < len(self.vocabulary):
            return None
        stacks, data = cast(Stacks, state), self.vocabulary.texts[token]
        if token in self.vocabulary.ends:
            return _ENDED if stacks.may_end else None
        if token in self.vocabulary.special:
            data = None
        elif not data:
            return None
        after = self._automaton.advance_token(stacks, token, data or b"")
        self._refuse_too_much()
        return after

    def allows(self, state: State, token: int) -> bool:
        """Whether one token may come next, without a mask."""
        return self.accept(state, token) is not None

    def known(self, state: State) -> bool:
        """Whether the mask costs next to nothing."""
        return state is _ENDED or state in self._masks

    def only(self, state: State) -> int | None:
        """The one token that may come next; None where there are several, or it is not cheap to
        see."""
        if state is _ENDED or (cast(Stacks, state).only < 0 and not cast(Stacks, state).tokens):
            return None
        words = self.mask(state)
        at = np.flatnonzero(words)
        word = int(words[at[0]]) if len(at) == 1 else 0
        return int(at[0]) * 64 + word.bit_length() - 1 if word.bit_count() == 1 else None

    def walk(self, state: State, data: bytes) -> State | None:
        """The state behind some bytes, however tokens would part them; None where they may not
        come."""
        after = None if state is _ENDED else self._automaton.walk(cast(Stacks, state), data)
        self._refuse_too_much()
        return after

    def may_end(self, state: State) -> bool:
        """Whether the text is a whole document."""
        return state is _ENDED or cast(Stacks, state).may_end

    def complete(self, state: State) -> bool:
        """Whether it is one that nothing may follow."""
        if state is _ENDED:
            return True
        stacks = cast(Stacks, state)
        return stacks.may_end and not stacks.allowed and not stacks.tokens

    def forced(self, state: State, limit: int = MAX_FORCED) -> bytes:
        """The bytes that must come next, at most so many; they stop where the text may end."""
        return b"" if state is _ENDED else self._automaton.forced(cast(Stacks, state), limit)

    def wanted(self, state: State) -> str:
        """What may come next, in words for a message."""
        if state is _ENDED:
            return "nothing: the text has ended"
        stacks = cast(Stacks, state)
        parts = [_shown(stacks.allowed)] if stacks.allowed else []
        for number, negated in sorted(self._automaton.named(stacks)):
            parts.append(f"any token but {number}" if negated else f"token {number}")
        if stacks.may_end:
            parts.append("the end")
        return " or ".join(parts) or "nothing"

    def _made(self, state: Stacks) -> Words:
        vocabulary = self.vocabulary
        mask = vocabulary.mask_of(self._spelled(state))
        mask.setflags(write=True)
        for number, negated in self._automaton.named(state):
            one = vocabulary.mask_of([number] if 0 <= number < len(vocabulary) else [])
            mask |= vocabulary.named & (~one if negated else one)
        if state.may_end:
            mask |= vocabulary.ending
        mask.setflags(write=False)
        self._refuse_too_much()
        return mask

    def _spelled(self, state: Stacks) -> list[int]:
        """The ids whose bytes fit: the sorted vocabulary walked as a trie."""
        path, before, refused = [state], b"", b""
        found: list[int] = []
        for data, token in self.vocabulary.spelled:
            if refused and data.startswith(refused):
                continue
            common = 0
            while common < len(path) - 1 and before[common] == data[common]:
                common += 1
            del path[common + 1 :]
            before, refused = data, b""
            for byte in data[common:]:
                after = self._automaton.advance(path[-1], byte)
                if after is None:
                    refused = data[: len(path)]
                    break
                path.append(after)
            else:
                found.append(token)
        return found

    def _refuse_too_much(self) -> None:
        if self._automaton.gave_up:
            raise DeadEnd(f"the grammar {self.name} is too ambiguous to be followed further")


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
