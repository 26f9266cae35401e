"""A constraint that begins in the middle of a text: behind a word, a pattern or a token.

While it waits everything is allowed, but for a token in which the trigger ends and the rest of which
the grammar forbids. The grammar gets the text from the first byte of the trigger on where it can
begin with it, else from the byte behind it: so a trigger leads into the grammar always. Tokens that
print nothing are looked at as they are written.

    rules = Lazy(Constraint(grammar, vocabulary), ["<tool_call>", "/\\\\{/", "<[7]>"])
    rules = Free(vocabulary)                    # never forbids anything
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from diskmoe.grammar_draft.constraint import Constraint, State
from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.triggers import Finder, Spot
from diskmoe.grammar_draft.vocabulary import Vocabulary, Words

MAX_MASKS = 256  # remembered at a time
_TOKEN = re.compile(r"<\[(\d{1,9})\]>")
OVER: State = "behind a token that ended the text"


class Waiting(NamedTuple):
    """No trigger has come. recent: the bytes that one under way has so far."""

    spot: Spot
    recent: bytes


class Free:
    """Rules that forbid nothing; a base for those that begin to later."""

    name = "nothing"

    def __init__(self, vocabulary: Vocabulary, triggers: Iterable[str] = ()) -> None:
        """triggers: words, /patterns/ and <[ids]>. Raises BadGrammar: one that is none."""
        self.vocabulary = vocabulary
        found = [(text, _TOKEN.fullmatch(text)) for text in triggers]
        self._tokens = {int(match[1]) for _, match in found if match}
        for token in self._tokens:
            if token >= len(vocabulary):
                said = f"the model has tokens from 0 to {len(vocabulary) - 1}"
                raise BadGrammar(f"{said}, no <[{token}]> that could begin anything", "trigger")
            if token in vocabulary.ends:
                raise BadGrammar(f"<[{token}]> ends the text, so it begins nothing", "trigger")
        self._finder = Finder.of(text for text, match in found if not match)
        self._masks: dict[State, Words] = {}
        self.start: State = Waiting(self._finder.start, b"")

    def free(self, state: State) -> bool:
        """Whether nothing constrains the text yet."""
        return isinstance(state, Waiting)

    def accept(self, state: State, token: int) -> State | None:
        """The state behind a token; None when it may not come."""
        if not isinstance(state, Waiting):
            return None
        if token in self.vocabulary.ends:
            return OVER
        data = written(self.vocabulary, token)
        if data is None:
            return None
        if token in self._tokens:
            return self.begun(data, b"", token)
        return self._fed(state, data, token)

    def walk(self, state: State, data: bytes) -> State | None:
        """The state behind some bytes; None where they may not come."""
        return self._fed(state, data, None) if isinstance(state, Waiting) else None

    def _fed(self, state: Waiting, data: bytes, token: int | None) -> State | None:
        spot = state.spot
        whole = token in self.vocabulary.special
        for at, byte in enumerate(data, 1):
            spot = self._finder.step(spot, byte)
            if spot.found and (at == len(data) or not whole):
                match = (state.recent + data[:at])[-spot.found :]
                return self.begun(match, data[at:], token if match == data else None)
        recent = (state.recent + data)[-spot.reach :] if spot.reach else b""
        return Waiting(spot, recent)

    def begun(self, match: bytes, rest: bytes, token: int | None) -> State | None:
        """The state behind a trigger and some more bytes. token: the trigger is this one."""
        raise NotImplementedError

    def mask(self, state: State) -> Words:
        """The tokens that may come next; see `Constraint.mask`."""
        if not isinstance(state, Waiting):
            return self.vocabulary.mask_of(())
        mask = self._masks.get(state)
        if mask is None:
            if len(self._masks) >= MAX_MASKS:
                self._masks.clear()
            ending = completing(self._finder, state.spot, self.vocabulary)
            refused = [token for token in ending if self.accept(state, token) is None]
            mask = self._masks[state] = everything_but(self.vocabulary, refused)
        return mask

    def allows(self, state: State, token: int) -> bool:
        return self.accept(state, token) is not None

    def known(self, state: State) -> bool:
        return not isinstance(state, Waiting) or state in self._masks

    def only(self, state: State) -> int | None:
        return None

    def complete(self, state: State) -> bool:
        return not isinstance(state, Waiting)

    def may_end(self, state: State) -> bool:
        return True

    def wanted(self, state: State) -> str:
        return "anything" if isinstance(state, Waiting) else "nothing: the text has ended"


class Lazy(Free):
    """A constraint that waits for a trigger."""

    def __init__(self, inner: Constraint, triggers: Sequence[str]) -> None:
        super().__init__(inner.vocabulary, triggers)
        self.inner = inner
        self.name = inner.name

    def begun(self, match: bytes, rest: bytes, token: int | None) -> State | None:
        inner = self.inner
        state = None if token is None else inner.accept(inner.start, token)
        if state is None:
            state = inner.walk(inner.start, match)
        if state is None:
            state = inner.start
        return inner.walk(state, rest) if rest else state

    def accept(self, state: State, token: int) -> State | None:
        if self._mine(state):
            return super().accept(state, token)
        return self.inner.accept(state, token)

    def walk(self, state: State, data: bytes) -> State | None:
        return super().walk(state, data) if self._mine(state) else self.inner.walk(state, data)

    def mask(self, state: State) -> Words:
        return super().mask(state) if self._mine(state) else self.inner.mask(state)

    def known(self, state: State) -> bool:
        return super().known(state) if self._mine(state) else self.inner.known(state)

    def only(self, state: State) -> int | None:
        return None if self._mine(state) else self.inner.only(state)

    def complete(self, state: State) -> bool:
        return super().complete(state) if self._mine(state) else self.inner.complete(state)

    def may_end(self, state: State) -> bool:
        return self._mine(state) or self.inner.may_end(state)

    def wanted(self, state: State) -> str:
        return super().wanted(state) if self._mine(state) else self.inner.wanted(state)

    def _mine(self, state: State) -> bool:
        return state is OVER or isinstance(state, Waiting)


def written(vocabulary: Vocabulary, token: int) -> bytes | None:
    """What a token prints or, where it prints nothing, how it is written; None for no token."""
    if token in vocabulary.special:
        return vocabulary.special[token].encode()
    return vocabulary.texts[token] or None if 0 <= token < len(vocabulary) else None


def everything_but(vocabulary: Vocabulary, refused: Iterable[int]) -> Words:
    """The mask of all tokens but these."""
    mask = (vocabulary.named | vocabulary.ending) & ~vocabulary.mask_of(refused)
    mask.setflags(write=False)
    return mask


def completing(finder: Finder, spot: Spot, vocabulary: Vocabulary) -> list[int]:
    """The tokens in which a match ends before their last byte does."""
    path, before = [spot], b""
    found: list[int] = []
    for data, token in vocabulary.spelled:
        common = 0
        while common < len(path) - 1 and common < len(data) and before[common] == data[common]:
            common += 1
        del path[common + 1 :]
        for byte in data[common:]:
            path.append(finder.step(path[-1], byte))
        if any(behind.found for behind in path[1:-1]):
            found.append(token)
        before = data
    return found
