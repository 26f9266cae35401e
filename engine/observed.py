"""A sampler that is looked at: log-probabilities of what it chose, and logits changed before it does.

The rule of this file: it stands between the model and the sampler at the places of the text alone.
What drafts guess they guess without it, which costs right guesses and never changes a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.sampling import Sampler

Floats = npt.NDArray[np.float32]
_LEAST = np.finfo(np.float32).min
# (tokens so far, logits of the next (vocab,)) -> the logits to choose by
Processor = Callable[[npt.NDArray[np.intc], Floats], Floats]


@dataclass(frozen=True)
class LogProbs:
    """Of one token of a text: natural logarithms of probabilities by the model's own logits, before
    any temperature, filter, mask or processor."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # the likeliest tokens, the likeliest first


class Observed:
    """What ``mtp.verify`` asks of a picker, around a sampler."""

    def __init__(
        self,
        sampler: Sampler,
        prompt: Sequence[int],
        top: int | None,
        processors: Sequence[Processor],
    ) -> None:
        """top: how many of the likeliest tokens are noted at each place; None: nothing is."""
        self.logprobs: list[LogProbs] = []
        self._sampler = sampler
        self._top = top
        self._processors = processors
        self._tokens = list(prompt)

    @property
    def done(self) -> bool:
        return self._sampler.done

    def pick(self, logits: Floats) -> int:
        """The token of the next place; see ``Sampler.pick``. BadRequest for what processors make of
        its logits, where no token can be chosen by that."""
        if self._processors:
            token = self._picked(logits)
        else:
            token = self._sampler.pick(logits)
        if self._top is not None:
            self.logprobs.append(_logprobs(logits, token, self._top))
        self._tokens.append(token)
        return token

    def _picked(self, logits: Floats) -> int:
        """By what processors make of logits; minus infinity forbids a token."""
        tokens, changed = np.array(self._tokens, np.intc), logits.copy()
        for processor in self._processors:
            changed = np.asarray(processor(tokens, changed), np.float32)
            if changed.shape != logits.shape:
                raise BadRequest(
                    f"a logits processor gives shape {changed.shape}; it must be {logits.shape}"
                )
        wrong = np.flatnonzero(~(changed < np.inf) & np.isfinite(logits))
        if len(wrong):
            raise BadRequest(
                f"a logits processor or bias makes {changed[wrong[0]]} of token {wrong[0]}'s logit; it "
                "must be a number, or minus infinity"
            )
        # a finite number that weighs nothing: of a model's own logits all must be finite
        token = self._sampler.pick(np.where(changed == -np.inf, _LEAST, changed))
        if changed[token] == -np.inf:
            raise BadRequest("logits processors and biases forbid every token that may come next")
        return token


def _logprobs(logits: Floats, token: int, top: int) -> LogProbs:
    """By a sum in f64."""
    wide = logits.astype(np.float64)
    largest = wide.max()
    log_sum = largest + np.log(np.exp(wide - largest).sum())
    best: npt.NDArray[np.intp] = np.zeros(0, np.intp)
    if top:
        most = min(top, len(wide))
        best = np.argpartition(-wide, most - 1)[:most]
        best = best[np.lexsort((best, -wide[best]))]
    ranked = tuple((int(each), float(wide[each] - log_sum)) for each in best)
    return LogProbs(token, float(wide[token] - log_sum), ranked)
