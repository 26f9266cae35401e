"""How much faster, and how sure: the ratio of two arms' speeds from pairs of runs.

(draft)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.99


@dataclass(frozen=True)
class Ratio:
    value: float
    low: float
    high: float


def paired_ratio(logs: Sequence[Sequence[float]]) -> Ratio:
    flat = np.concatenate([np.asarray(part, float) for part in logs])
    mean, half = float(flat.mean()), float(3 * flat.std() / math.sqrt(len(flat)))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    return None
