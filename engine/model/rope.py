"""How fast the pairs of a head turn from position to position, and how large they are then.

The rule of this file: numbers in, numbers out; which pairs they are for is the kernels' business.
Plain rope turns pair i by ``theta ** (-2 i / dims)`` per position. Yarn (Peng et al., 2023) spreads
a trained context over ``factor`` times as many positions: pairs that turn many times within it stay
as they are, those that hardly turn are slowed by the factor, and those between by a part of it.
Llama 3 does the same with other limits, and between them by how often a pair turns.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Yarn:
    """Rope over `factor` times the `trained` positions."""

    factor: float
    trained: int
    fast: float  # pairs that turn at least as often within the trained positions stay as they are
    slow: float  # those that turn at most as often are slowed by the whole factor
    truncate: bool  # the two limits are moved apart to whole pairs
    magnitude: float  # of cosines and sines
    all_dims: float = 0.0  # share of yarn_magnitude that latent attention takes into its scores


@dataclass(frozen=True)
class Llama3:
    """Rope over `factor` times the `trained` positions, as Llama 3.1 has it."""

    factor: float
    trained: int
    slow: float  # pairs that turn at most as often within the trained positions: slowed by all
    fast: float  # those that turn at least as often stay as they are


def yarn_magnitude(factor: float, share: float = 1.0) -> float:
    """What makes up for flatter softmaxes over a longer context, by the method's own formula."""
    return 1.0 if factor <= 1 else 0.1 * share * math.log(factor) + 1.0


def rope_frequencies(
    theta: float, dims: int, scaling: Yarn | Llama3 | None
) -> npt.NDArray[np.float64]:
    """(dims / 2,), what the pairs turn by per position."""
    plain = 1.0 / theta ** (np.arange(0, dims, 2) / dims)
    if scaling is None:
        return plain
    if isinstance(scaling, Llama3):
        times = plain * scaling.trained / (2 * math.pi)
        kept = np.clip((times - scaling.slow) / (scaling.fast - scaling.slow), 0, 1)
        return plain * kept + plain / scaling.factor * (1 - kept)
    return _yarn_frequencies(theta, dims, plain, scaling)


def _yarn_frequencies(
    theta: float, dims: int, plain: npt.NDArray[np.float64], yarn: Yarn
) -> npt.NDArray[np.float64]:
    trained = yarn.trained

    def pair_that_turns(times: float) -> float:
        return dims * math.log(trained / (times * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair_that_turns(yarn.fast), pair_that_turns(yarn.slow)
    if yarn.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dims - 1)
    if first == last:
        last += 0.001
    slowed = np.clip((np.arange(dims // 2) - first) / (last - first), 0, 1)
    return plain * (1 - slowed) + plain / yarn.factor * slowed
