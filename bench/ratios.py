"""How much faster, and how sure: the ratio of two arms' speeds, from pairs of runs.

A pair's ratio is free of what disturbs both of its runs, and turns (A B B A) take away what changes
steadily. What is left has long tails: on a shared machine one run in ten is slower by half. So the
ratio is the mean of the logarithms with a fifth at either end set aside, and its interval the one
that Tukey and McLaughlin gave for such means: the deviation of the winsorised values, with Student's
t. A bootstrap of so few pairs is too narrow: in simulations (tests/bench/test_ratios.py) 99 %
intervals of bootstrapped means missed the truth 2 to 9 times in a hundred, these 1 time.

Pairs of all prompts are taken together: of prompts with means of their own, one that is noisier than
the others would decide alone. Where an arm helps some prompts only, ratios by prompt say so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

LEVEL = 0.99  # so that two arms that are the same differ in one comparison of a hundred
SET_ASIDE = 0.2  # of the pairs, at either end
_RESAMPLED = 2000
_STEPS = 20_001


@dataclass(frozen=True)
class Ratio:
    """A ratio and its interval, at `LEVEL`; of one pair there is none."""

    value: float
    interval: tuple[float, float] | None


def paired_ratio(logs: Sequence[float] | npt.NDArray[np.float64]) -> Ratio:
    """The ratio of which these are logarithms, pair by pair; at least one."""
    found = np.sort(np.asarray(logs, np.float64))
    n = len(found)
    aside = int(SET_ASIDE * n)
    kept = n - 2 * aside
    middle = float(found[aside : n - aside].mean())
    if n < 2:
        return Ratio(math.exp(middle), None)
    winsorised = np.clip(found, found[aside], found[n - aside - 1])
    error = float(winsorised.std(ddof=1)) * math.sqrt((n - 1) / (kept * (kept - 1)))
    half = student(kept - 1) * error
    return Ratio(math.exp(middle), (_exp(middle - half), _exp(middle + half)))


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Where the median of such values lies, at `LEVEL`, by a bootstrap that is always the same; None
    for fewer than two."""
    if len(values) < 2:
        return None
    rng = np.random.Generator(np.random.SFC64(8))
    drawn = rng.choice(np.asarray(values, np.float64), (_RESAMPLED, len(values)))
    ends = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
    low, high = np.quantile(np.median(drawn, axis=1), ends)
    return float(low), float(high)


@cache
def student(freedom: int) -> float:
    """How many deviations Student's t lets through at `LEVEL`, with so many degrees of freedom.

    With t = sqrt(freedom) tan(angle) its density is that of cos(angle) ** (freedom - 1).
    """
    angles = np.linspace(0, math.pi / 2, _STEPS)
    density = np.cos(angles) ** (freedom - 1)
    share = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    angle = float(np.interp(LEVEL, share / share[-1], angles))
    return math.sqrt(freedom) * math.tan(angle)


def _exp(log: float) -> float:
    """Finite whatever the logarithm."""
    return math.exp(min(max(log, -700.0), 700.0))
