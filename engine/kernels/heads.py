"""What happens to the heads of a row between their projections and attention, in one pass.

The rule of this file: queries are normed, clipped and turned in place; keys too, and are then put
into the cache with the values, in the cache's own format. Every head of every row is an item of its
own. In the formats of fewer bits a head of a position is rounded by itself:

====  ==========================================================================================
f32   as it is
f16   nearest, ties to even; beyond the range the largest finite number; NaN stays NaN
q8    int8 and one f32 scale, amax / 127, per 32 dims, as activations are quantised everywhere
====  ==========================================================================================
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types

from diskmoe.compiled.functions import inner
from diskmoe.engine.kernels.atomics import word_at
from diskmoe.engine.kernels.basic import norm_row
from diskmoe.engine.kernels.program import Builder, Phase, Rows, address_of_array, f32_word
from diskmoe.engine.kernels.simd import (
    add,
    bits_float,
    compiled,
    f32_at,
    float_bits,
    i32_at,
    load_f32,
    mul,
    splat,
    store_f32,
    store_one,
)

Floats = npt.NDArray[np.float32]

KV_F32, KV_F16, KV_Q8 = range(3)
KV_KIND = {"f32": KV_F32, "f16": KV_F16, "q8": KV_Q8}


@dataclass(frozen=True)
class CachePart:
    """Keys or values of one layer: where head h of position p begins, at
    ``address + h * head_step + p * step``; the scales of q8 likewise."""

    address: int
    step: int
    head_step: int
    scales: int = 0
    scales_step: int = 0
    scales_head_step: int = 0

    @property
    def words(self) -> list[int]:
        scales = [self.scales, self.scales_step, self.scales_head_step]
        return [self.address, self.step, self.head_step, *scales]


@dataclass(frozen=True)
class HeadShape:
    heads: int
    kv_heads: int
    dims: int


def add_heads(
    builder: Builder,
    n: int,
    shape: HeadShape,
    q: Rows,
    k: Rows,
    v: Rows,
    norms: tuple[Floats, Floats] | None,  # per head: weights (dims,) of queries and keys
    eps: float,
    clip: float | None,
    rope: tuple[Floats, Floats],  # cos, sin (positions, pairs)
    interleaved: bool,
    start: int,  # address of the first row's position, int64
    kv_kind: int,
    keys: CachePart,
    values: CachePart,
) -> None:
    """A phase: q (n, heads * dims), k, v (n, kv_heads * dims), made ready for attention."""
    cos, sin = rope
    words = [
        *(shape.heads, shape.kv_heads, shape.dims),
        *(q.address, q.step, k.address, k.step, v.address, v.step),
        *((address_of_array(norms[0]), address_of_array(norms[1])) if norms else (0, 0)),
        *(f32_word(eps), int(clip is not None), f32_word(clip or 0.0)),
        *(address_of_array(cos), address_of_array(sin), cos.shape[1], int(interleaved)),
        *(start, kv_kind, *keys.words, *values.words),
    ]
    builder.add(HEADS, words, n * (shape.heads + 2 * shape.kv_heads), 8 * shape.dims)


@inner
def turn(x, cos, sin, pairs, interleaved):  # pragma: no cover - compiled
    """Turn the pairs of a head in place, by its position's rows of the rotary tables."""
    d = np.int64(0)
    if interleaved == 0:
        far = x + pairs * 4
        minus = splat(np.float32(-1.0))
        while d + 16 <= pairs:
            a = load_f32(x + d * 4)
            b = load_f32(far + d * 4)
            c = load_f32(cos + d * 4)
            s = load_f32(sin + d * 4)
            store_f32(x + d * 4, add(mul(a, c), mul(mul(b, s), minus)))
            store_f32(far + d * 4, add(mul(b, c), mul(a, s)))
            d += 16
    while d < pairs:
        near = x + d * 4
        far = near + pairs * 4
        if interleaved != 0:
            near = x + d * 8
            far = near + 4
        a = f32_at(near)
        b = f32_at(far)
        c = f32_at(cos + d * 4)
        s = f32_at(sin + d * 4)
        store_one(near, a * c - b * s)
        store_one(far, b * c + a * s)
        d += 1


@inner
def _clip(x, dims, limit):  # pragma: no cover - compiled
    for d in range(dims):
        number = f32_at(x + d * 4)
        if number > limit:
            store_one(x + d * 4, limit)
        elif number < -limit:
            store_one(x + d * 4, -limit)


def _whole_storer(element):
    @compiled
    def store(typing_context, at, value):
        def generate(context, builder, signature, args):
            pointer = builder.inttoptr(args[0], element.as_pointer())
            builder.store(builder.trunc(args[1], element), pointer)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return store


_store_i16 = _whole_storer(ir.IntType(16))
_store_i8 = _whole_storer(ir.IntType(8))


@inner
def f16_bits(x):  # pragma: no cover - compiled
    """The bits of the f16 nearest to an f32; see the module."""
    bits = np.int64(float_bits(x))
    sign = (bits >> 16) & 0x8000
    magnitude = bits & 0x7FFFFFFF
    if magnitude > 0x7F800000:
        return sign | 0x7E00
    if magnitude >= 0x477FF000:
        return sign | 0x7BFF
    if magnitude < 0x38800000:  # below 2**-14: a count of 2**-24 steps
        steps = bits_float(np.int32(magnitude)) * np.float32(16777216.0)
        rounding = np.float32(12582912.0)
        return sign | np.int64((steps + rounding) - rounding)
    magnitude += 0xFFF + ((magnitude >> 13) & 1)
    return sign | ((magnitude - 0x38000000) >> 13)


@inner
def _keep_q8(x, dims, out, scales):  # pragma: no cover - compiled
    rounding = np.float32(12582912.0)
    for first in range(0, dims, 32):
        last = min(first + 32, dims)
        largest = np.int32(0)  # bit patterns of magnitudes sort like numbers, NaN last
        for d in range(first, last):
            largest = max(largest, i32_at(x + d * 4) & np.int32(0x7FFFFFFF))
        scale = bits_float(largest) / np.float32(127.0)
        store_one(scales + first // 32 * 4, scale)
        divisor = scale if scale != np.float32(0.0) else np.float32(1.0)
        for d in range(first, last):
            q = f32_at(x + d * 4) / divisor
            q = max(np.float32(-127.0), q)
            q = min(np.float32(127.0), q)
            _store_i8(out + d, np.int64((q + rounding) - rounding))


@inner
def keep(x, dims, kind, part, kv, position):  # pragma: no cover - compiled
    """A head of f32 at x -> the cache whose part (six words) is described at `part`."""
    at = word_at(part) + kv * word_at(part + 16) + position * word_at(part + 8)
    if kind == KV_F32:
        for d in range(dims):
            store_one(at + d * 4, f32_at(x + d * 4))
    elif kind == KV_F16:
        for d in range(dims):
            _store_i16(at + d * 2, f16_bits(f32_at(x + d * 4)))
    else:
        scales = word_at(part + 24) + kv * word_at(part + 40) + position * word_at(part + 32)
        _keep_q8(x, dims, at, scales)


def _heads(args, begin, end):  # pragma: no cover - compiled
    """Items: (row, head), the heads of queries first, then those of keys, then those of values."""
    heads = word_at(args)
    kv_heads = word_at(args + 8)
    dims = word_at(args + 16)
    pairs = word_at(args + 128)
    start = word_at(word_at(args + 144))
    kind = word_at(args + 152)
    per_row = heads + 2 * kv_heads
    for item in range(begin, end):
        row = item // per_row
        head = item % per_row
        position = start + row
        base = args + 24  # the words of q; those of k and of v follow
        norm = word_at(args + 72)
        if head >= heads + kv_heads:
            head -= heads + kv_heads
            base = args + 56
            norm = np.int64(0)
        elif head >= heads:
            head -= heads
            base = args + 40
            norm = word_at(args + 80)
        x = word_at(base) + row * word_at(base + 8) + head * dims * 4
        if norm != 0:
            norm_row(x, norm, dims, f32_at(args + 88), x)
        if word_at(args + 96) != 0:
            _clip(x, dims, f32_at(args + 104))
        if base != args + 56:
            cos = word_at(args + 112) + position * pairs * 4
            sin = word_at(args + 120) + position * pairs * 4
            turn(x, cos, sin, pairs, word_at(args + 136))
        if base == args + 40:
            keep(x, dims, kind, args + 160, head, position)
        elif base == args + 56:
            keep(x, dims, kind, args + 208, head, position)


HEADS = Phase(_heads)
