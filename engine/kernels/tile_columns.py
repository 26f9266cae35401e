"""Columns of a tile as f32: what a product with the transposed matrix reads.

The rule of this file: a column is what `matmul.take_rows` would say of it, bit for bit, in every
format, with the tile's 16 rows in 16 lanes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from diskmoe.compiled.functions import inner, kernel
from diskmoe.engine.kernels import emit
from diskmoe.engine.kernels.emit import F32, I8, I32, constant, vector
from diskmoe.engine.kernels.paths import HOST
from diskmoe.engine.kernels.products import BF16, FP8, INT4, MXFP4, Q4_0, Q4_1, Q8, group_of
from diskmoe.engine.kernels.products import F32 as PLAIN
from diskmoe.engine.kernels.simd import (
    LANES,
    add,
    compiled,
    f32x16,
    load_bf16,
    load_f16,
    load_f32,
    mul,
    splat,
    splat_at,
    store_f32,
)


def _lanes(element: Any, meaning: Callable[[Any, Any], Any]) -> Any:
    """An intrinsic (address, shift): 16 unsigned numbers, shifted right, mean 16 f32."""

    @compiled
    def load(typing_context, at, shift):
        def generate(context, builder, signature, args):
            value = emit.load(builder, args[0], vector(element, LANES))
            if element is not I32:
                value = builder.zext(value, vector(I32, LANES))
            by = emit.splat(builder, builder.trunc(args[1], I32), LANES)
            return meaning(builder, builder.lshr(value, by))

        return f32x16(types.int64, types.int64), generate

    return load


def _number(b: Any, bits: Any) -> Any:
    return b.sitofp(bits, vector(F32, LANES))


def _signed_byte(b: Any, bits: Any) -> Any:
    top = constant(bits.type, 24)
    return _number(b, b.ashr(b.shl(bits, top), top))


def _nibble(b: Any, bits: Any) -> Any:
    return _number(b, b.and_(bits, constant(bits.type, 15)))


def _small_float(magnitude: int, size: int, bias: int) -> Callable[[Any, Any], Any]:
    """A float of few bits: `magnitude` of them below a sign go where an f32's are, `size` up, and
    what the exponents then differ by is `bias`."""

    def meaning(b: Any, bits: Any) -> Any:
        ints, floats = bits.type, vector(F32, LANES)
        low = b.shl(b.and_(bits, constant(ints, (1 << magnitude) - 1)), constant(ints, size))
        sign = b.shl(b.lshr(bits, constant(ints, magnitude)), constant(ints, 31))
        return b.fmul(b.bitcast(b.or_(low, sign), floats), constant(floats, 2.0**bias))

    return meaning


def _power(b: Any, bits: Any) -> Any:
    ints = bits.type
    none = b.icmp_signed("==", bits, constant(ints, 0))
    shifted = b.select(none, constant(ints, 0x400000), b.shl(bits, constant(ints, 23)))
    return b.bitcast(shifted, vector(F32, LANES))


_byte_in_word = _lanes(I32, _signed_byte)
_nibble_in_word = _lanes(I32, _nibble)
_e2m1_in_word = _lanes(I32, _small_float(3, 22, 126))  # the sign that is left is the lowest bit
_bytes = _lanes(I8, _number)
_e4m3 = _lanes(I8, _small_float(7, 20, 120))
_e8m0 = _lanes(I8, _power)


@kernel
def columns_together(kind):  # pragma: no cover - compiled
    """How many columns `tile_columns` is asked for at once, at most."""
    return 64 if group_of(kind) == 64 else 32


@inner
def tile_columns(
    kind, weights, scales, depth, first, count, out, step
):  # pragma: no cover - compiled
    """Columns first..first+count-1 of the tile at these addresses -> 16 f32 each, `step` bytes apart.

    first: a multiple of `columns_together`, which count does not exceed.
    """
    if kind == PLAIN:
        for c in range(count):
            store_f32(out + c * step, load_f32(weights + (first + c) * 64))
    elif kind == BF16:
        for c in range(count):
            store_f32(out + c * step, load_bf16(weights + (first + c) * 32))
    elif kind == FP8:
        scale = splat_at(scales + first // 128 * 4)
        for c in range(count):
            store_f32(out + c * step, mul(_e4m3(weights + (first + c) * 16, np.int64(0)), scale))
    elif kind == Q8:
        scale = load_f16(HOST, scales + first // 32 * 32)
        for c in range(count):
            value = _byte_in_word(weights + (first + c) // 4 * 64, 8 * (c % 4))
            store_f32(out + c * step, mul(value, scale))
    elif kind == MXFP4:
        scale = _e8m0(scales + first // 32 * 16, np.int64(0))
        for c in range(count):
            shift = 8 * (c % 4) + c // 4 % 2 * 4
            value = _e2m1_in_word(weights + (first + c) // 8 * 64, shift)
            store_f32(out + c * step, mul(value, scale))
    else:  # (times * code + zero) * scale + minimum
        at = scales + first // columns_together(kind) * (64 if kind == Q4_1 else 32)
        times, zero = splat(np.float32(1.0)), splat(np.float32(-8.0))
        minimum = splat(np.float32(-0.0))  # which changes no number
        if kind == Q4_0:
            scale = load_f16(HOST, at)
        elif kind == INT4:
            scale = load_bf16(at)
        elif kind == Q4_1:
            scale, zero = load_f16(HOST, at), splat(np.float32(0.0))
            minimum = load_f16(HOST, at + 32)
        else:
            scale = mul(load_f32(scales + depth * 32), _bytes(at, np.int64(0)))
            times = splat(np.float32(16.0))
            zero = mul(_bytes(at + 16, np.int64(0)), splat(np.float32(-1.0)))
        for c in range(count):
            shift = 8 * (c % 4) + c // 4 % 2 * 4
            code = _nibble_in_word(weights + (first + c) // 8 * 64, shift)
            value = mul(add(mul(code, times), zero), scale)
            store_f32(out + c * step, add(value, minimum))
