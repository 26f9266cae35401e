"""Results that are multiplied by sigmoids of other numbers: of attention, and of a shared expert.

The rule of this file: a dot goes into 16 lanes (column c into lane c % 16, by fma) that are added
as the tree of halves, then the columns beyond a multiple of 16 by fma; products round once.
"""

import numpy as np

from diskmoe.compiled.functions import inner
from diskmoe.engine.kernels.atomics import word_at
from diskmoe.engine.kernels.program import Builder, Phase, Rows
from diskmoe.engine.kernels.simd import (
    f32_at,
    fma,
    lane_sum,
    load_f32,
    mul,
    sigmoid,
    splat,
    store_f32,
    store_one,
)


def add_split(builder: Builder, n: int, heads: int, dims: int, wide: Rows, q: Rows) -> None:
    """A phase: the queries out of rows that have, per head, `dims` queries and then `dims` gates."""
    words = [heads, dims, wide.address, wide.step, q.address, q.step]
    builder.add(SPLIT, words, n * heads, dims)


def add_open(builder: Builder, n: int, heads: int, dims: int, wide: Rows, y: Rows) -> None:
    """A phase: y (n, heads * dims) *= sigmoid of the gates in such rows."""
    words = [heads, dims, wide.address, wide.step, y.address, y.step]
    builder.add(OPEN, words, n * heads, 16 * dims)


def add_switch(
    builder: Builder,
    n: int,
    x: Rows,
    weight: int,  # address of f32 (dims,)
    dims: int,
    y: Rows,
    width: int,
) -> None:
    """A phase: row i of y (n, width) *= sigmoid(weight . row i of x (n, dims))."""
    words = [x.address, x.step, weight, dims, y.address, y.step, width]
    builder.add(SWITCH, words, n, dims + width)


@inner
def _dot(a, b, count):  # pragma: no cover - compiled
    lanes = splat(np.float32(0.0))
    whole = count // 16 * 16
    for c in range(0, whole, 16):
        lanes = fma(load_f32(a + c * 4), load_f32(b + c * 4), lanes)
    total = lane_sum(lanes)
    for c in range(whole, count):
        total = fma(f32_at(a + c * 4), f32_at(b + c * 4), total)
    return total


def _split(args, begin, end):  # pragma: no cover - compiled
    """Items: (row, head)."""
    heads = word_at(args)
    dims = word_at(args + 8)
    for item in range(begin, end):
        row = item // heads
        head = item % heads
        source = word_at(args + 16) + row * word_at(args + 24) + 2 * head * dims * 4
        out = word_at(args + 32) + row * word_at(args + 40) + head * dims * 4
        for d in range(dims):
            store_one(out + d * 4, f32_at(source + d * 4))


def _open(args, begin, end):  # pragma: no cover - compiled
    """Items: (row, head)."""
    heads = word_at(args)
    dims = word_at(args + 8)
    whole = dims // 16 * 16
    for item in range(begin, end):
        row = item // heads
        head = item % heads
        gate = word_at(args + 16) + row * word_at(args + 24) + (2 * head + 1) * dims * 4
        y = word_at(args + 32) + row * word_at(args + 40) + head * dims * 4
        for d in range(0, whole, 16):
            store_f32(y + d * 4, mul(load_f32(y + d * 4), sigmoid(load_f32(gate + d * 4))))
        for d in range(whole, dims):
            store_one(y + d * 4, f32_at(y + d * 4) * sigmoid(f32_at(gate + d * 4)))


def _switch(args, begin, end):  # pragma: no cover - compiled
    """Items: rows."""
    width = word_at(args + 48)
    whole = width // 16 * 16
    for row in range(begin, end):
        x = word_at(args) + row * word_at(args + 8)
        share = sigmoid(_dot(x, word_at(args + 16), word_at(args + 24)))
        y = word_at(args + 32) + row * word_at(args + 40)
        for c in range(0, whole, 16):
            store_f32(y + c * 4, mul(load_f32(y + c * 4), splat(share)))
        for c in range(whole, width):
            store_one(y + c * 4, f32_at(y + c * 4) * share)


SPLIT = Phase(_split)
OPEN = Phase(_open)
SWITCH = Phase(_switch)
