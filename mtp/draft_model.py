"""A small model as a source of drafts: it writes on, and the large one judges.

The one rule: its cache holds the tokens that it was fed, and whatever was fed wrongly (drafts that
were rejected, chains of others) is trimmed when it is asked again. What was accepted of its own
drafts is there already, the rest of what was emitted goes through in one pass.

    source = DraftModelSource(small, prompt_ids, sampler.guess, p_min=0.6)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from diskmoe.mtp.source import Draft

Floats = npt.NDArray[np.float32]
# (logits, tokens that come first) -> the token, -1 for none, and its share of what may come
Guess = Callable[[Floats, Sequence[int]], tuple[int, float]]

DEFAULT_P_MIN = 0.4  # of drafts below it half were wrong (bench/LOG.md)
_CHUNK = 256  # tokens that go through at once
_BEHIND = 64  # with more to read than this, reading is all that is done when it is asked
_GRADE_FROM = (0.5, 0.7, 0.9)  # its own probability of a draft, of the grades above 0


class _Cache(Protocol):
    @property
    def room(self) -> int: ...
    def trim(self, length: int) -> None: ...


class SmallModel(Protocol):
    """What is asked of a small model: see ``diskmoe.engine.model.forward.Transformer``."""

    @property
    def kv(self) -> _Cache: ...
    @property
    def vocab_size(self) -> int: ...
    def forward(self, ids: npt.ArrayLike, rows: Literal["last", "none"]) -> Floats: ...


class DraftModelSource:
    """Drafts for one text from a small model of the same vocabulary."""

    name = "draft"
    cheap = False
    prior = (0.7, 0.75)
    grades = (0.7, 0.85, 0.85, 0.97)

    def __init__(
        self,
        model: SmallModel,
        prompt: Sequence[int],
        guess: Guess,
        p_min: float = DEFAULT_P_MIN,
    ) -> None:
        """guess: the token that the large model would choose, were these its logits. p_min: drafts
        end where the small model gives the next one less."""
        self.gave_up = ""
        self._model = model
        self._guess = guess
        self._p_min = p_min
        self._fed: list[int] = []  # what the cache holds
        self._text: list[int] = []
        self.observe(prompt)

    def drafts(self, chain: Sequence[int]) -> Generator[Draft, None, None]:
        """As the small model goes on; none where it has much to read first: the prompt at least."""
        if self.gave_up:
            return
        for place, token in enumerate(chain, len(self._text)):
            self._check(place, token)
        told = len(self._text)
        del self._fed[told + len(chain) - 1 :]  # the last is fed again: its logits are wanted
        kept = len(self._fed)
        self._model.kv.trim(kept)
        rest = [*self._text[kept:], *chain[max(0, kept - told) :]]
        if not self._can_read(rest, told - kept):
            return
        behind = len(rest) > _BEHIND
        while len(rest) > (1 if behind else _CHUNK):
            part = rest[: min(_CHUNK, len(rest) - 1)]
            self._feed(part, "none")
            rest = rest[len(part) :]
        if behind:
            return
        said = list(chain)
        while True:
            logits = self._feed(rest, "last")[0]
            draft = self._draft(logits, said)
            if draft is None:
                return
            yield draft
            rest = [draft.token]
            said += rest
            if not self._can_read(rest, 0):
                return

    def observe(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._check(len(self._text), token)
            self._text.append(token)

    def _check(self, place: int, token: int) -> None:
        """What was fed from a place on is forgotten where another token stands there."""
        if place < len(self._fed) and self._fed[place] != token:
            del self._fed[place:]

    def _can_read(self, rest: Sequence[int], emitted: int) -> bool:
        """Whether it can go through these; the first so many are of the text and will stay, so what
        they forbid ends it, and the rest are drafts, which may be wrong."""
        room = self._model.kv.room
        for tokens in (rest[:emitted], rest):
            if len(tokens) > room:
                why = f"the small model's context of {len(self._fed) + room} tokens is full"
            elif max(tokens, default=0) >= self._model.vocab_size:
                why = f"the small model has no token {max(tokens)}"
            else:
                continue
            if len(tokens) == emitted:
                self.gave_up = why
            return False
        return True

    def _feed(self, tokens: Sequence[int], rows: Literal["last", "none"]) -> Floats:
        logits = self._model.forward(tokens, rows)
        self._fed += tokens
        return logits

    def _draft(self, logits: Floats, chain: Sequence[int]) -> Draft | None:
        """The next draft; None where the small model is not sure enough of it."""
        if not np.isfinite(logits).all():
            self.gave_up = "the small model computed what is no number"
            return None
        token, share = self._guess(logits, chain)
        if token < 0 or share < self._p_min:
            return None
        return Draft(token, sum(share >= least for least in _GRADE_FROM))
