"""A random choice with given weights, as a race: the least of noise / weight wins.

Noise is a number of its own for each stream and id, exponentially distributed, so an id wins with
its share of the weights (what is called Gumbel-max, in other words). The rule of this file: it is a
function of stream and id alone. So two distributions that are alike, raced with the same stream, have
the same winner mostly: with p and q that happens with probability (1 - d) / (1 + d) or more, where
d = sum |p - q| / 2, and 1 - d is the most that any rule can reach (arXiv 2408.07978).
"""

import math

import numpy as np

from diskmoe.compiled.functions import inner, kernel
from diskmoe.engine.kernels.select import BLOCK, LOWEST, allows, weight

_STEP = np.uint64(0x9E3779B97F4A7C15)  # SplitMix64 (Steele, Lea, Flood 2014)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_MARGIN = 1 + 1e-9  # more than what rounding can hide


@inner
def mixed(word):  # pragma: no cover - compiled
    """A u64 whose bits all depend on all of a u64's: SplitMix64's last steps."""
    word = (word ^ (word >> np.uint64(30))) * _MIX_A
    word = (word ^ (word >> np.uint64(27))) * _MIX_B
    return word ^ (word >> np.uint64(31))


@inner
def _uniform(stream, number):  # pragma: no cover - compiled
    """A number of a stream, in (0, 1): an odd multiple of 2**-53."""
    word = mixed(stream + (np.uint64(number) + np.uint64(1)) * _STEP)
    return (np.float64(np.int64(word >> np.uint64(12))) + 0.5) * 2.0**-52


@kernel
def stream_of(seed, place):  # pragma: no cover - compiled
    """The stream u64 of a place in a text, for a seed u64 and a place u64."""
    return mixed(mixed(seed + _STEP) ^ (place * _STEP))


@kernel
def uniform(stream, number):  # pragma: no cover - compiled
    """The number u64 `number` of a stream, f64 in (0, 1)."""
    return _uniform(stream, number)


@kernel
def race(ids, weights, stream):  # pragma: no cover - compiled
    """The winner among ids i32 (n,) with weights f64 (n,), one of them above 0."""
    winner, least = np.int64(ids[0]), np.inf
    for k in range(len(ids)):
        u = _uniform(stream, ids[k])
        if u < least * weights[k] * _MARGIN:  # -log(1 - u) > u: most need no logarithm
            time = -math.log1p(-u) / weights[k]
            if time < least:
                winner, least = np.int64(ids[k]), time
    return winner


@kernel
def race_all(logits, allowed, maxima, best, temperature, stream):  # pragma: no cover - compiled
    """What `race` gives for all ids that may be taken.

    maxima, best: what `largest_of_blocks` said. The likeliest id runs first; blocks that cannot
    beat it with any noise are left out.
    """
    largest = logits[best]
    winner, least = np.int64(best), -math.log1p(-_uniform(stream, best))
    for block in range(len(maxima)):
        if maxima[block] == LOWEST:
            continue
        top = weight(maxima[block], largest, temperature) * _MARGIN
        if least * top < 2.0**-53:
            continue
        first = block * BLOCK
        for i in range(first, min(first + BLOCK, len(logits))):
            u = _uniform(stream, i)
            if u < least * top and allows(allowed, i):
                own = weight(logits[i], largest, temperature)
                if u < least * own * _MARGIN:
                    time = -math.log1p(-u) / own
                    if time < least or (time == least and i < winner):
                        winner, least = np.int64(i), time
    return winner
