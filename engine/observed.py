"""A sampler that is looked at: log-probabilities of what it chose, and logits changed before it does.

The rule of this file: it stands between the model and the sampler at the places of the text alone.
What drafts guess they guess without it, which costs right guesses and never changes a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskmoe.engine.sampling import Sampler

Floats = npt.NDArray[np.float32]
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
        """The token of the next place; see ``Sampler.pick``."""
        changed = logits
        if self._processors:
            tokens, changed = np.array(self._tokens, np.intc), logits.copy()
            for processor in self._processors:
                changed = np.asarray(processor(tokens, changed), np.float32)
        token = self._sampler.pick(changed)
        if self._top is not None:
            self.logprobs.append(_logprobs(logits, token, self._top))
        self._tokens.append(token)
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
