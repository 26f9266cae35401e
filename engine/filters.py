"""What top_k, top_p and min_p leave of a vocabulary, and what it weighs.

The rule of this file: each filter looks at the fewest logits that can decide it. top_k and min_p know
from the blocks' largest logits (``kernels/select.py``) where to look; top_p adds up all weights and
then orders only tokens that could be among the kept.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from diskmoe.engine.kernels.select import at_least, heaviest, total_weight, weigh

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]
Weights = NDArray[np.float64]
Words = NDArray[np.uint64]
MOST_CHECKED = 64  # kept ids that are looked at one by one before a mask is the cheaper way


class Filters:
    """The filters of one sampler, above temperature 0. 0 or 1.0 switch one off.

    What it gives are views of its own memory, until it is asked again.
    """

    def __init__(
        self,
        tokens: int,
        *,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
    ) -> None:
        """tokens: how many ids may be taken at most."""
        self._tokens = tokens
        # as the one kind of number that kernels are compiled for
        self._temperature = float(temperature)
        self._top_k, self._top_p, self._min_p = int(top_k), float(top_p), float(min_p)
        self._ids, self._members = np.empty((2, self._tokens), np.int32)
        self._weights = np.empty(self._tokens, np.float64)

    def kept(
        self, logits: Floats, allowed: Words, best: int, maxima: Floats
    ) -> tuple[Ids, Weights] | None:
        """Ids, ascending, and their weights (the likeliest weighs 1); None where all are off.

        allowed u64 (blocks,): a bit for each id that may be taken; best, maxima: what
        `largest_of_blocks` found in the logits.
        """
        largest, top_k = logits[best], self._top_k
        ids = weights = None
        if 0 < top_k < self._tokens:
            # as many blocks hold a logit each that is not below the k-th of the blocks' largest
            known = top_k <= len(maxima)
            border = float(np.partition(maxima, -top_k)[-top_k]) if known else -math.inf
            ids = self._at_least(logits, allowed, maxima, border)
            count = heaviest(logits, ids, np.ones(len(ids)), float(top_k), self._members)
            ids = ids[:count]
        if self._top_p < 1:
            if ids is None:
                total = total_weight(logits, allowed, maxima, largest, self._temperature)
                # all that weigh less than this are together less than what may be left out
                share = total * (1 - self._top_p) / self._tokens
                ids = self._not_lighter(logits, allowed, maxima, largest, share)
                weights = self._weighed(logits, ids, largest)
            else:
                weights = self._weighed(logits, ids, largest)
                total = float(weights.sum())
            count = heaviest(logits, ids, weights, self._top_p * total, self._members)
            ids, weights = ids[:count], weights[:count]
        if self._min_p > 0:
            if ids is None:
                ids = self._not_lighter(logits, allowed, maxima, largest, self._min_p)
            if weights is None:
                weights = self._weighed(logits, ids, largest)
            keep = weights >= self._min_p
            return ids[keep], weights[keep]
        if ids is None:
            return None
        return ids, self._weighed(logits, ids, largest) if weights is None else weights

    def all(self, logits: Floats, allowed: Words, best: int, maxima: Floats) -> tuple[Ids, Weights]:
        """All ids that may be taken, ascending, and their weights."""
        ids = self._at_least(logits, allowed, maxima, -math.inf)
        return ids, self._weighed(logits, ids, logits[best])

    def decisive(
        self, logits: Floats, best: int, kept: tuple[Ids, Weights], winner: int
    ) -> list[int] | None:
        """When all of the returned ids may be taken, the winner among the kept is also the winner
        among what the filters keep of only those ids that may be taken; None: nobody can say
        without knowing them all.

        kept: of all ids. min_p compares with the likeliest alone. The k largest are also the k
        largest allowed when all of them are. What top_p keeps depends on the weight of everything
        allowed, which is at least that of the kept and at most that of all ids: so it keeps none
        but these, and at least those that weigh its share of them.
        """
        ids, weights = kept
        if not self._top_k and self._top_p == 1:
            return [best, winner]
        if len(ids) > MOST_CHECKED:
            return None
        if self._top_p < 1:
            sure, own = ids.copy(), weights.copy()
            target = self._top_p * float(own.sum())
            count = heaviest(logits, sure, own, target, np.empty(len(ids), np.int32))
            if winner not in sure[:count]:
                return None
        return ids.tolist()

    def _not_lighter(
        self, logits: Floats, allowed: Words, maxima: Floats, largest: np.float32, least: float
    ) -> Ids:
        """The ids that weigh `least` or more, and perhaps some that weigh a trifle less."""
        border = float(largest) + self._temperature * math.log(least)
        return self._at_least(logits, allowed, maxima, border - 1e-9 * abs(border))

    def _at_least(self, logits: Floats, allowed: Words, maxima: Floats, border: float) -> Ids:
        return self._ids[: at_least(logits, allowed, maxima, border, self._ids)]

    def _weighed(self, logits: Floats, ids: Ids, largest: np.float32) -> Weights:
        weights = self._weights[: len(ids)]
        weigh(logits, ids, largest, self._temperature, weights)
        return weights
