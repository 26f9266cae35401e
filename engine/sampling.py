"""Which token comes next, given logits.

Filters come in transformers' order: temperature, top_k, top_p, min_p. (llama.cpp applies the
temperature last, so its top_p and min_p see sharper or flatter numbers than ours.) Each filter
sees what the one before has left, renormalised. Equal logits are ordered by token id, so top_k
keeps exactly k tokens.

The rule kept here: one token takes one uniform number, so a seed gives the same text however the
tokens were computed.
"""

import math
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskmoe.engine.errors import BadModel, BadRequest

TOP_P_FIRST_LOOK = 256  # tokens looked at first; a nucleus is rarely wider


@dataclass(frozen=True)
class Sampling:
    """How to choose tokens. Temperature 0 is greedy and ignores the rest; 0 or 1.0 switch off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self):
        _check("temperature", self.temperature, 0.0, math.inf, "0 (greedy) or more")
        _check("top_k", self.top_k, 0, math.inf, "0 (off) or a number of tokens", whole=True)
        _check("top_p", self.top_p, 0.0, 1.0, "above 0 and at most 1 (off)")
        if self.top_p == 0:
            raise BadRequest("top_p is 0: it must be above 0 and at most 1 (off)")
        _check("min_p", self.min_p, 0.0, 1.0, "between 0 (off) and 1")
        if self.seed is not None:
            _check("seed", self.seed, 0, 2**64 - 1, "between 0 and 2^64-1", whole=True)


def _check(name: str, value: Any, low: float, high: float, rule: str, whole: bool = False) -> None:
    kinds = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    is_number = isinstance(value, kinds) and not isinstance(value, (bool, np.bool_))
    # Written so that NaN fails; an infinite temperature is refused with the rest.
    if not is_number or not (low <= value <= high) or value == math.inf:
        raise BadRequest(f"{name} is {value!r}: it must be {rule}")


class Sampler:
    """Chooses tokens one by one, with a random stream of its own.

    `valid_vocab` says which ids have a token: a number n for ids below n, or a bool mask (vocab,).
    `seed` is the seed in use, drawn from the operating system when none was given, so that any run
    can be repeated.
    """

    def __init__(self, sampling: Sampling, valid_vocab: int | NDArray[np.bool_]):
        self.sampling = sampling
        self.seed = secrets.randbits(63) if sampling.seed is None else int(sampling.seed)
        self._random = np.random.Generator(np.random.PCG64(self.seed))
        self._gaps: NDArray[np.bool_] | None = None
        if isinstance(valid_vocab, (int, np.integer)):
            self._count = int(valid_vocab)
        else:
            # Most vocabularies are one block and then padding, which a slice cuts off.
            valid = np.flatnonzero(valid_vocab)
            self._count = int(valid[-1]) + 1 if len(valid) else 0
            if len(valid) < self._count:
                self._gaps = ~np.asarray(valid_vocab[: self._count], dtype=np.bool_)
        if self._count < 1:
            raise BadModel("the tokenizer leaves no token to sample")

    def pick(self, logits: NDArray[np.float32]) -> int:
        """The next token id, from logits (vocab,). BadModel when they are not finite."""
        if self.sampling.temperature == 0:
            return int(np.argmax(self._usable(logits)))  # the first of equals: the lowest id
        ids, probs = self.probabilities(logits)
        return draw(ids, probs, self.uniform())

    def uniform(self) -> float:
        """The next number of the random stream, in [0, 1)."""
        return float(self._random.random())

    def probabilities(
        self, logits: NDArray[np.float32]
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """The exact distribution that `pick` draws from.

        Returns ids int32 (n,), ascending, and their probabilities float64 (n,), which sum to 1 up
        to rounding. Greedy is one id with probability 1.
        """
        usable = self._usable(logits)
        settings = self.sampling
        if settings.temperature == 0:
            return np.array([np.argmax(usable)], dtype=np.int32), np.ones(1)
        ids = None
        if 0 < settings.top_k < len(usable):
            ids = _largest(usable, settings.top_k)
            usable = usable[ids]
        scaled = usable.astype(np.float64)
        scaled -= scaled.max()
        with np.errstate(over="ignore"):  # a tiny temperature may reach -inf: probability 0
            scaled /= settings.temperature
        probs = np.exp(scaled)
        probs /= probs.sum()
        if settings.top_p < 1:
            keep = _nucleus(probs, settings.top_p)
            ids = keep if ids is None else ids[keep]
            probs = probs[keep]
        if settings.min_p > 0:
            keep = np.flatnonzero(probs >= settings.min_p * probs.max())
            ids = keep if ids is None else ids[keep]
            probs = probs[keep]
        if ids is None or not probs.all():
            keep = np.flatnonzero(probs)
            ids = keep if ids is None else ids[keep]
            probs = probs[keep]
        return ids.astype(np.int32), probs / probs.sum()

    def _usable(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """The logits that belong to tokens, checked; gaps hold -inf."""
        if logits.ndim != 1 or logits.shape[0] < self._count:
            raise ValueError(f"logits have shape {logits.shape}, expected at least {self._count}")
        usable = logits[: self._count]
        finite = np.isfinite(usable)
        if self._gaps is not None:
            finite |= self._gaps
        if not finite.all():
            broken = int(np.argmin(finite))
            raise BadModel(
                f"the model computed {usable[broken]} as the logit of token {broken} "
                f"({int((~finite).sum())} of {len(usable)} are not finite): its weights are "
                "damaged or its numbers overflow"
            )
        if self._gaps is not None:
            usable = np.where(self._gaps, np.float32(-np.inf), usable)
        return usable


def draw(ids: NDArray[np.int32], probs: NDArray[np.float64], uniform: float) -> int:
    """The id in whose share of [0, 1) the number falls; shares lie in ascending order of id."""
    shares = np.cumsum(probs)
    place = int(np.searchsorted(shares, uniform * shares[-1], side="right"))
    return int(ids[min(place, len(ids) - 1)])


def _largest(values: NDArray[np.floating], count: int) -> NDArray[np.intp]:
    """Positions of the `count` largest values, ascending; of equals, those that come first."""
    border = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > border)
    equal = np.flatnonzero(values == border)[: count - len(above)]
    return np.sort(np.concatenate([above, equal]))


def _nucleus(probs: NDArray[np.float64], top_p: float) -> NDArray[np.intp]:
    """Positions, ascending, of the fewest largest values that hold `top_p` of the whole."""
    look = min(TOP_P_FIRST_LOOK, len(probs))
    while True:
        candidates = _largest(probs, look)
        # A stable sort of ascending positions keeps equals in order of id.
        order = candidates[np.argsort(-probs[candidates], kind="stable")]
        held = np.cumsum(probs[order])
        if held[-1] >= top_p or look == len(probs):
            break
        look = min(8 * look, len(probs))
    count = int(np.searchsorted(held, top_p, side="left")) + 1
    return np.sort(order[:count])
