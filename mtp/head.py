"""The model's own draft head (MTP): its equations, and what its cache holds.

With h_t the model's state after the final norm and x_t the tokens of the text, the head makes

    z_t = W [norm_e(Emb(x_t+1)) ; norm_h(h_t)]
    g_t = norm(DecoderLayer(z_<=t))             lm_head . g_t are the logits of x_t+2

(DeepSeek-V3 report, arXiv 2412.19437, section 2.2). It goes deeper on what it made itself: g_t takes
the place of h_t+1 and the draft that of x_t+2; the *normed* state, or drafts after the first are no
good. The layer has a KV cache of its own with a row for each row of the model's that was of use.

The one rule: rows on drafts are tentative and are trimmed before anybody else looks. What the model
says of a text comes in by `absorb`, in order, and is worked off when drafts are wanted or enough has
come together: a head that is not asked costs little, and one that is asked has missed nothing.

    source = MtpSource(layer, hidden, sampler.guess)
    decode(..., on_rows=lambda following: source.absorb(following, transformer.hidden))
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from diskmoe.mtp.source import Draft

Floats = npt.NDArray[np.float32]
# (logits, tokens that come first) -> the token, -1 for none, and its share of what may come
Guess = Callable[[Floats, Sequence[int]], tuple[int, float]]

MOST_DEPTH = 4  # drafts at once, those of others before them included
WAITING_ROWS = 64  # rows that may wait to be absorbed; as many at once are a prompt's
_SURE = (0.25, 0.5, 0.8)  # where grades begin: probabilities of the draft in the head's own eyes


def _likeliest(logits: Floats, chain: Sequence[int]) -> tuple[int, float]:
    token = int(logits.argmax())
    return token, 1 / float(np.exp(logits - logits[token]).sum())


class _Cache(Protocol):
    """What the head asks of the layer's KV cache."""

    @property
    def length(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    def advance(self, n: int) -> None: ...
    def trim(self, length: int) -> None: ...


class MtpLayer(Protocol):
    """What the engine lends: the parts of the head, by the kernels that the model itself runs on."""

    @property
    def kv(self) -> _Cache: ...

    def project(self, tokens: Sequence[int], states: Floats) -> Floats:
        """z (n, hidden) of n tokens and the states (n, hidden) before them; valid until the next."""
        ...

    def run(self, z: Floats, prompt: bool) -> None:
        """The decoder layer over z, in place, at positions kv.length and on; kv.length stays."""
        ...

    def normed(self, row: Floats) -> Floats:
        """The norm after the layer, of one row (hidden,), a new array."""
        ...

    def logits(self, state: Floats) -> Floats:
        """(vocab,) of a state (hidden,)."""
        ...


class MtpSource:
    """Drafts of the head for one text."""

    name = "mtp"
    prior = (0.8, 0.6, 0.5)
    grades = (0.22, 0.37, 0.68, 0.9)  # of the first draft, as seen with the demo model
    cheap = False

    def __init__(
        self, layer: MtpLayer, hidden: int, guess: Guess = _likeliest, reused: int = 0
    ) -> None:
        """guess: the draft, from logits and the tokens before it that are drafts too.
        reused: rows at the start of the text that the model's cache has from the text before. Of
        these the head keeps what it has: positions are relative, so others may be missing."""
        self._layer = layer
        self._guess = guess
        self.gave_up = ""
        self._reused: int | None = (
            reused  # until its first row comes: another text may run till then
        )
        self._tokens: list[int] = []  # that wait, with the states before them
        self._states = np.empty((WAITING_ROWS, hidden), np.float32)
        self._latest: Floats | None = None  # g of the row absorbed last

    def absorb(self, tokens: Sequence[int], states: Floats) -> None:
        """The model's rows went on by these tokens: states (n, hidden) after the final norm, row i
        the one before tokens[i]. They are not kept beyond the call."""
        if self._reused is not None:
            self._layer.kv.trim(min(self._reused, self._layer.kv.length))
            self._reused = None
        if len(tokens) >= WAITING_ROWS:
            self._catch_up()
            self._latest = self._fed(tokens, states, prompt=True)
            return
        for token, state in zip(tokens, states, strict=True):
            self._states[len(self._tokens)] = state
            self._tokens.append(token)
            if len(self._tokens) == WAITING_ROWS:
                self._catch_up()

    def drafts(self, chain: Sequence[int]) -> Generator[Draft, None, None]:
        """Up to `MOST_DEPTH`, the drafts of others in `chain` counted: what the head sees of itself
        gets worse with every step."""
        if len(chain) >= MOST_DEPTH or self.gave_up:
            return
        self._catch_up()
        state, kv = self._latest, self._layer.kv
        absorbed = kv.length
        if state is None or absorbed + len(chain) > kv.capacity:
            return
        try:
            for token in chain:
                state = self._fed([token], state[None])
            said = list(chain)
            while True:
                logits = self._layer.logits(state)
                if not np.isfinite(logits).all():
                    self.gave_up = "it computed what is no number"
                    return
                token, share = self._guess(logits, said)
                if token < 0:
                    return
                yield Draft(token, bisect_right(_SURE, share))
                said.append(token)
                if len(said) == MOST_DEPTH or kv.length == kv.capacity:
                    return
                state = self._fed([token], state[None])
        finally:
            kv.trim(absorbed)

    def observe(self, tokens: Sequence[int]) -> None:
        """Emitted tokens say nothing new: `absorb` brings them with their states."""

    def _catch_up(self) -> None:
        """Works off what waits."""
        if self._tokens:
            self._latest = self._fed(self._tokens, self._states[: len(self._tokens)])
            self._tokens.clear()

    def _fed(self, tokens: Sequence[int], states: Floats, prompt: bool = False) -> Floats:
        """Appends rows to the layer's cache; g (hidden,) of the last one."""
        z = self._layer.project(tokens, states)
        self._layer.run(z, prompt)
        self._layer.kv.advance(len(tokens))
        return self._layer.normed(z[-1])
