"""Routing by construction: which experts a synthetic model's tokens go to, and how that varies.

The last `RESERVED` numbers of the hidden state belong to the routing. Only the embedding writes
them: the rows of every output projection that would add to them are zero, so in each layer the
router finds there what the token's embedding says, times the norm's common factor, which changes no
order. The router's rows read them through random weights of their own per layer. So the choice is
the router's real product over a real hidden state, and is known beforehand: a function of token and
layer alone.

What the embedding says is a random walk over token ids: number d of token t + 1 is ``rho[d]`` times
that of token t plus fresh noise, unit size always. Token ids that follow one another stand for a
text; benchmarks feed them in order.

* ``uniform``: no memory (rho 0). The least recently used slots hit as often as slots / experts.
* ``zipf:S``: no memory, and expert of rank r is chosen like a draw of weight r**-S without
  replacement: included with probability ``1 - exp(-t * r**-S)``, t such that they add up to top-k.
* ``sticky:P``: one rho for all, so that a token shares P of its experts with the one before it.
* ``sticky``: three speeds and a popularity, fitted to a recorded run of Qwen3-30B-A3B: a least
  recently used store hits .38 / .53 / .65 / .73 / .85 at slots of 1, 2, 3, 4, 6 x top-k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from diskmoe.engine.errors import BadRequest

SIGNAL = 64  # numbers that the router reads beside the constant
RESERVED = 96  # whole groups of 32 columns: signal, one constant, the rest is unread noise
CONSTANT = 64  # index of the constant among the reserved
GAIN = 1.5  # standard deviation of router logits over tokens, in the first layer
_NORMAL = NormalDist()

# fitted by random search over 12 layers of 156 tokens, the first 28 not counted:
# (slow rho, its variance over 24 numbers), (middle, over 20), (none, over 20), popularity's variance
_STICKY = {
    16: ((0.9807, 0.1784), (0.5294, 0.4476), (0.0, 0.1217), 0.2523),  # of 128 experts, 8
    8: ((0.9000, 0.1080), (0.5930, 0.6990), (0.0, 0.1630), 0.0310),  # of 64 experts, 8
}
_DIMS = (24, 20, 20)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Routing:
    """How a model's routing is made. Variances add up to 1 with that of the popularity."""

    text: str
    rho: Floats  # (SIGNAL,) of the walk over token ids
    spread: Floats  # (SIGNAL,) size of the router's weights
    popularity: Floats  # (experts,) offset of each rank, in units of the logits' deviation
    shuffled: bool  # ranks are dealt anew in each layer

    @property
    def follows_ids(self) -> bool:
        """Does the order of token ids matter?"""
        return bool(self.rho.any())


def routing_named(text: str, experts: int, top_k: int) -> Routing:
    """``uniform``, ``zipf:S``, ``sticky`` or ``sticky:P`` for a model of this size.

    Raises:
        BadRequest: another word, or a number out of its range.
    """
    kind, colon, number = text.partition(":")
    even = np.full(SIGNAL, math.sqrt(1 / SIGNAL))
    none = np.zeros(SIGNAL)
    flat = np.zeros(experts)
    if text == "uniform":
        return Routing(text, none, even, flat, False)
    if text == "sticky":
        return _preset(experts, top_k)
    if kind == "zipf" and colon:
        s = _parsed(text, number, 0.0, 4.0)
        return Routing(text, none, even, _zipf_offsets(s, experts, top_k), True)
    if kind == "sticky" and colon:
        least = top_k / experts
        share = _parsed(text, number, least, 0.99)
        rho = np.full(SIGNAL, _rho_for(share, least))
        return Routing(text, rho, even, flat, False)
    raise BadRequest(
        f"--routing is {text!r}; it must be uniform, zipf:S, sticky, sticky:P or, for bench decode,"
        " the file of a trace"
    )


def _parsed(text: str, number: str, low: float, high: float) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise BadRequest(
            f"--routing is {text!r}; the number must be from {low:.4g} to {high:g} for this shape"
        )
    return value


def _preset(experts: int, top_k: int) -> Routing:
    ratio = min(_STICKY, key=lambda known: abs(math.log(known * top_k / experts)))
    *speeds, popularity = _STICKY[ratio]
    rho = np.concatenate([np.full(n, r) for n, (r, _) in zip(_DIMS, speeds, strict=True)])
    spread = np.concatenate(
        [np.full(n, math.sqrt(v / n)) for n, (_, v) in zip(_DIMS, speeds, strict=True)]
    )
    ranks = (np.arange(experts) + 0.5) / experts
    offsets = np.array([_NORMAL.inv_cdf(float(rank)) for rank in ranks])
    return Routing("sticky", rho, spread, offsets * math.sqrt(popularity), True)


def zipf_shares(s: float, experts: int, top_k: int) -> Floats:
    """(experts,) how likely a token's selection includes the expert of each rank; sum top_k."""
    weights = np.arange(1, experts + 1, dtype=np.float64) ** -s
    low, high = 0.0, 1.0
    while (1 - np.exp(-high * weights)).sum() < top_k and high < 1e12:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        if (1 - np.exp(-middle * weights)).sum() < top_k:
            low = middle
        else:
            high = middle
    return 1 - np.exp(-high * weights)


def _zipf_offsets(s: float, experts: int, top_k: int) -> Floats:
    """A normal logit with this offset is above the common threshold as often as is wanted."""
    shares = np.clip(zipf_shares(s, experts, top_k), 1e-4, 1 - 1e-4)
    return np.array([_NORMAL.inv_cdf(float(share)) for share in shares])


def shared_share(rho: float, chosen: float) -> float:
    """P(a logit is among the best `chosen` share, given that it was for the token before)."""
    threshold = _NORMAL.inv_cdf(1 - chosen)
    x = threshold + (np.arange(4000) + 0.5) * (8 / 4000)
    spread = math.sqrt(max(1 - rho * rho, 1e-12))
    above = np.array([_NORMAL.cdf(float((rho * value - threshold) / spread)) for value in x])
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return float((density * above).sum() * (8 / 4000) / chosen)


def _rho_for(share: float, chosen: float) -> float:
    low, high = 0.0, 0.99999
    for _ in range(40):
        middle = (low + high) / 2
        if shared_share(middle, chosen) < share:
            low = middle
        else:
            high = middle
    return high


def walk(routing: Routing, vocab: int, seed: int) -> npt.NDArray[np.float32]:
    """(vocab, RESERVED): what the embeddings say to the router; the constant column is 1."""
    rng = np.random.Generator(np.random.SFC64([seed, 1]))
    out = rng.standard_normal((vocab, RESERVED), dtype=np.float32)
    rho = routing.rho.astype(np.float32)
    fresh = np.sqrt(1 - rho * rho)
    if routing.follows_ids:
        signal = out[:, :SIGNAL]
        signal[1:] *= fresh
        for token in range(1, vocab):
            signal[token] += rho * signal[token - 1]
    out[:, CONSTANT] = 1
    return out


def router_rows(routing: Routing, experts: int, layer: int, seed: int) -> npt.NDArray[np.float32]:
    """(experts, RESERVED): the columns of a layer's router that are not zero."""
    rng = np.random.Generator(np.random.SFC64([seed, 2, layer]))
    rows = np.zeros((experts, RESERVED))
    signal = rng.standard_normal((experts, SIGNAL)) * routing.spread
    # equal lengths: by size alone no expert is chosen more often than another
    size = math.sqrt(float((routing.spread**2).sum()))
    signal *= size / np.linalg.norm(signal, axis=1, keepdims=True)
    rows[:, :SIGNAL] = signal
    offsets = routing.popularity
    rows[:, CONSTANT] = rng.permutation(offsets) if routing.shuffled else offsets
    return (rows * GAIN).astype(np.float32)
