"""A delta layer's queries, keys and values out of its convolution, and how fast its states fade."""

import numpy as np

from diskmoe.compiled.functions import inner
from diskmoe.engine.kernels.atomics import word_at
from diskmoe.engine.kernels.delta_words import (
    BIAS,
    CONV,
    KEY_DIM,
    KEY_HEADS,
    LOG,
    TAPS,
    VALUE_DIM,
    VALUE_HEADS,
    A,
    B,
    K,
    N,
    Q,
    V,
    channels_of,
    gates_at,
    mixed_at,
    pending_rows,
    raw_at,
)
from diskmoe.engine.kernels.program import Phase
from diskmoe.engine.kernels.simd import (
    exp,
    f32_at,
    fma,
    lane_sum,
    load_f32,
    mul,
    sigmoid,
    silu,
    splat,
    store_f32,
    store_one,
)

_LENGTH_EPSILON = np.float32(1e-6)  # below a length's square root


@inner
def _softplus(x):  # pragma: no cover - compiled
    """log(1 + e**x) = max(x, 0) + 2 atanh(t / (2 + t)), t = e**-|x|; the series ends at s**15."""
    t = exp(x if x < np.float32(0.0) else -x)
    s = t / (np.float32(2.0) + t)
    square = s * s
    series = np.float32(1.0 / 15.0)
    series = fma(series, square, np.float32(1.0 / 13.0))
    series = fma(series, square, np.float32(1.0 / 11.0))
    series = fma(series, square, np.float32(1.0 / 9.0))
    series = fma(series, square, np.float32(1.0 / 7.0))
    series = fma(series, square, np.float32(1.0 / 5.0))
    series = fma(series, square, np.float32(1.0 / 3.0))
    series = fma(series, square, np.float32(1.0))
    logarithm = np.float32(2.0) * s * series
    return logarithm + x if x > np.float32(0.0) else logarithm


@inner
def _convolve(args, index, channel, dims, part, group, inside, out):  # pragma: no cover - compiled
    """Channels channel..channel+dims-1 of row `index`, over it and the taps - 1 before it."""
    step = channels_of(args) * 4
    weights = word_at(args + CONV) + channel * 4
    for c in range(0, dims, 16):
        total = splat(np.float32(0.0))
        for tap in range(word_at(args + TAPS)):
            x = raw_at(args, index + tap, channel * 4, part, group, inside)
            total = fma(load_f32(weights + tap * step + c * 4), load_f32(x + c * 4), total)
        store_f32(out + c * 4, silu(total))


@inner
def _unit(x, dims, scale):  # pragma: no cover - compiled
    """x / its length * scale, in place."""
    squares = splat(np.float32(0.0))
    for c in range(0, dims, 16):
        v = load_f32(x + c * 4)
        squares = fma(v, v, squares)
    inverse = np.float32(1.0) / np.sqrt(lane_sum(squares) + _LENGTH_EPSILON)
    for c in range(0, dims, 16):
        store_f32(x + c * 4, mul(mul(load_f32(x + c * 4), splat(inverse)), splat(scale)))


@inner
def _rates(args, row, head, group, inside):  # pragma: no cover - compiled
    """fade and step of a value head of a row, from its raw a and b."""
    heads = word_at(args + VALUE_HEADS)
    index = row + word_at(args + TAPS) - 1
    kept = (channels_of(args) + head) * 4
    b = f32_at(raw_at(args, index, kept, args + B, group, inside * 4))
    a = f32_at(raw_at(args, index, kept + heads * 4, args + A, group, inside * 4))
    rate = exp(f32_at(word_at(args + LOG) + head * 4))
    speed = _softplus(a + f32_at(word_at(args + BIAS) + head * 4))
    gates = gates_at(args, head, row)
    store_one(gates, exp(-(rate * speed)))
    store_one(gates + 4, sigmoid(b))


def _mix(args, begin, end):  # pragma: no cover - compiled
    """Items: (row, head), the rows before the forward first; heads of q, of k, of v."""
    key_heads = word_at(args + KEY_HEADS)
    value_heads = word_at(args + VALUE_HEADS)
    key_dim = word_at(args + KEY_DIM)
    value_dim = word_at(args + VALUE_DIM)
    heads = 2 * key_heads + value_heads
    shared = value_heads // key_heads
    pending = pending_rows(args)
    rows = pending + word_at(args + N)
    scale = np.float32(1.0) / np.sqrt(np.float32(key_dim))
    for item in range(begin, end):
        row = item // heads
        head = item % heads
        if row >= rows or (row < pending and head < key_heads):
            continue  # nobody asks for it
        if head < 2 * key_heads:
            group = head % key_heads
            part = args + (Q if head < key_heads else K)
            channel = head * key_dim
            out = mixed_at(args, channel, key_dim, row)
            _convolve(args, row, channel, key_dim, part, group, 0, out)
            _unit(out, key_dim, scale if head < key_heads else np.float32(1.0))
        else:
            head -= 2 * key_heads
            group = head // shared
            inside = head % shared
            channel = 2 * key_heads * key_dim + head * value_dim
            offset = inside * value_dim * 4
            out = mixed_at(args, channel, value_dim, row)
            _convolve(args, row, channel, value_dim, args + V, group, offset, out)
            _rates(args, row, head, group, inside)


MIX = Phase(_mix)
