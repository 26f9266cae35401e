"""Dot products of one group of 32 columns for the 16 rows of a tile: exact int32 sums.

The rule of this file: no step saturates or rounds, so it does not matter in which order products
are added, and the AVX2 code and the portable code agree to the bit.
Weights lie as `diskmoe.experts.tiles` says; activations are 32 int8 in -127..127.
"""

from typing import Any

from llvmlite import ir
from numba import types

from diskmoe.engine.kernels.simd import (
    I8,
    I16,
    I32,
    LANES,
    call_llvm,
    compiled,
    constant,
    i32x16,
    is_host,
    load_at,
    shuffle,
    splat_lanes,
)


def concat(builder: Any, low: Any, high: Any) -> Any:
    return shuffle(builder, low, high, list(range(2 * low.type.count)))


def add_neighbours(builder: Any, value: Any) -> Any:
    """Lanes 2i and 2i + 1 added."""
    even = shuffle(builder, value, value, list(range(0, value.type.count, 2)))
    odd = shuffle(builder, value, value, list(range(1, value.type.count, 2)))
    return builder.add(even, odd)


def _four_activations(builder: Any, at: Any, first: int, count: int) -> Any:
    """The int8 activations first..first+3, repeated over a vector of `count` bytes."""
    word = load_at(builder, at, first, I32, 4)
    return builder.bitcast(splat_lanes(builder, word, count // 4), ir.VectorType(I8, count))


def _bytes_times_bytes(builder: Any, unsigned: Any, signed: Any) -> Any:
    """AVX2: u8 x s8 products added in neighbouring pairs, <16 x i16>, saturating."""
    result = ir.VectorType(I16, 16)
    return call_llvm(builder, "llvm.x86.avx2.pmadd.ub.sw", result, [unsigned, signed])


def _pairs_to_i32(builder: Any, value: Any) -> Any:
    """AVX2: <16 x i16> lanes added in neighbouring pairs, <8 x i32>."""
    ones = constant(value.type, 1)
    return call_llvm(builder, "llvm.x86.avx2.pmadd.wd", ir.VectorType(I32, 8), [value, ones])


def _q8_avx2(builder: Any, weights: Any, x: Any) -> Any:
    """Signs move from the weights to the activations: |w| * 127 * 2 = 32512 does not saturate."""
    half_bytes = ir.VectorType(I8, 32)
    false = ir.Constant(ir.IntType(1), 0)
    halves = []
    for half in range(2):
        total = None
        for block in range(8):
            w = load_at(builder, weights, block * 64 + half * 32, half_bytes, 1)
            a = _four_activations(builder, x, block * 4, 32)
            magnitude = call_llvm(builder, "llvm.abs.v32i8", half_bytes, [w, false])
            signed = call_llvm(builder, "llvm.x86.avx2.psign.b", half_bytes, [a, w])
            dot = _pairs_to_i32(builder, _bytes_times_bytes(builder, magnitude, signed))
            total = dot if total is None else builder.add(total, dot)
        halves.append(total)
    return concat(builder, *halves)


def _q4_avx2(builder: Any, weights: Any, x: Any) -> Any:
    """Eight products of u4 x s8 pairs fit an i16: 8 * 2 * 15 * 127 = 30480."""
    half_bytes = ir.VectorType(I8, 32)
    shorts = ir.VectorType(I16, 16)
    nibble = constant(half_bytes, 15)
    halves = []
    for half in range(2):
        total = None
        for block in range(4):
            w = load_at(builder, weights, block * 64 + half * 32, half_bytes, 1)
            high = builder.lshr(builder.bitcast(w, shorts), constant(shorts, 4))
            for part, q in enumerate((w, builder.bitcast(high, half_bytes))):
                a = _four_activations(builder, x, block * 8 + part * 4, 32)
                pairs = _bytes_times_bytes(builder, builder.and_(q, nibble), a)
                total = pairs if total is None else builder.add(total, pairs)
        halves.append(_pairs_to_i32(builder, total))
    return concat(builder, *halves)


def _q8_portable(builder: Any, weights: Any, x: Any) -> Any:
    block_bytes, shorts = ir.VectorType(I8, 64), ir.VectorType(I16, 64)
    total = None
    for block in range(8):
        w = builder.sext(load_at(builder, weights, block * 64, block_bytes, 1), shorts)
        a = builder.sext(_four_activations(builder, x, block * 4, 64), shorts)
        pairs = add_neighbours(builder, builder.mul(w, a))  # |pair| <= 32512
        dot = add_neighbours(builder, builder.sext(pairs, ir.VectorType(I32, 32)))
        total = dot if total is None else builder.add(total, dot)
    return total


def _q4_portable(builder: Any, weights: Any, x: Any) -> Any:
    block_bytes, shorts = ir.VectorType(I8, 64), ir.VectorType(I16, 64)
    total = None
    for block in range(4):
        w = load_at(builder, weights, block * 64, block_bytes, 1)
        low = builder.and_(w, constant(block_bytes, 15))
        high = builder.lshr(w, constant(block_bytes, 4))
        for part, q in enumerate((low, high)):
            a = builder.sext(_four_activations(builder, x, block * 8 + part * 4, 64), shorts)
            products = builder.mul(builder.zext(q, shorts), a)
            total = products if total is None else builder.add(total, products)
    pairs = add_neighbours(builder, total)  # |pair| <= 30480
    return add_neighbours(builder, builder.sext(pairs, ir.VectorType(I32, 32)))


@compiled
def dot_q8(typing_context, path, weights, x):
    """Sums over a group of a q8 tile: weights 512 bytes (tiles.py), x 32 int8 in -127..127."""

    def generate(context, builder, signature, args):
        emit = _q8_avx2 if is_host(signature.args[0], context, "avx2") else _q8_portable
        return emit(builder, args[1], args[2])

    return i32x16(path, types.int64, types.int64), generate


@compiled
def dot_q4(typing_context, path, weights, x, x_sum):
    """Sums over a group of a q4 tile: weights 256 bytes, x 32 int8, x_sum int32 their sum.

    The tile stores q + 8, so the sum is 8 * x_sum too large before it is taken off.
    """

    def generate(context, builder, signature, args):
        emit = _q4_avx2 if is_host(signature.args[0], context, "avx2") else _q4_portable
        excess = builder.shl(args[3], ir.Constant(I32, 3))
        return builder.sub(emit(builder, args[1], args[2]), splat_lanes(builder, excess, LANES))

    return i32x16(path, types.int64, types.int64, types.int32), generate
