"""A block of keys or values against one or two queries: what attention is made of.

The rule of this file: a query's scores, weights and sums are computed by the same operations in the
same order, alone or as one of two; `attention.py` says which order that is. All arguments are
addresses (of f32, of a cache part's six words, see `heads.CachePart`) and numbers; steps are bytes.
"""

import numpy as np
from llvmlite import ir
from numba import types

from diskmoe.compiled.functions import inner
from diskmoe.engine.kernels.atomics import on_stack, put_word, word_at
from diskmoe.engine.kernels.heads import KV_F16, KV_F32
from diskmoe.engine.kernels.paths import HOST
from diskmoe.engine.kernels.simd import (
    add,
    compiled,
    exp,
    f32_at,
    f32x16,
    fma,
    lane_max,
    lane_sum,
    larger,
    load_f16,
    load_f32,
    mul,
    splat,
    splat_at,
    store_f32,
    store_lane_sums,
    store_one,
)

KEYS = 64  # keys in a block


@compiled
def divide(typing_context, a, b):
    def generate(context, builder, signature, args):
        return builder.fdiv(args[0], args[1])

    return f32x16(f32x16, f32x16), generate


@compiled
def _widen_i8(typing_context, at):
    """16 int8 at an address, as f32."""

    def generate(context, builder, signature, args):
        ty = ir.VectorType(ir.IntType(8), 16)
        value = builder.load(builder.inttoptr(args[0], ty.as_pointer()))
        value.align = 1
        return builder.sitofp(value, ir.VectorType(ir.FloatType(), 16))

    return f32x16(types.int64), generate


@compiled
def _prefetch(typing_context, at):
    """Ask for the cache line at an address."""

    def generate(context, builder, signature, args):
        pointer = ir.IntType(8).as_pointer()
        ints = ir.IntType(32)
        ty = ir.FunctionType(ir.VoidType(), [pointer, ints, ints, ints])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], ty)
        kind = [ir.Constant(ints, number) for number in (0, 2, 1)]  # to read, second cache, data
        builder.call(function, [builder.inttoptr(args[0], pointer), *kind])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@inner
def look_ahead(part, kv, position, count, dims, kind, turn, turns):  # pragma: no cover - compiled
    """Turn `turn` of `turns` of asking for `count` positions of a cache part (six words)."""
    step = word_at(part + 8)
    base = word_at(part) + kv * word_at(part + 16) + position * step
    nbytes = dims * 4
    if kind != KV_F32:
        nbytes = dims * 2 if kind == KV_F16 else dims
    for i in range(count * turn // turns, count * (turn + 1) // turns):
        for line in range(0, nbytes, 64):
            _prefetch(base + i * step + line)


_sums = on_stack(16)


@inner
def score_two(q0, q1, keys, step, count, dims, scores0, scores1):  # pragma: no cover - compiled
    """Two queries . key for `count` keys at addresses keys, keys + step, ... -> their scores."""
    whole = dims // 16 * 64
    sums = _sums()
    for j in range(0, count, 2):
        # an odd last key is computed twice: the same sums, two keys at a time
        k0 = keys + j * step
        k1 = keys + min(j + 1, count - 1) * step
        a = b = c = e = splat(np.float32(0.0))
        for d in range(0, whole, 64):
            first = load_f32(q0 + d)
            second = load_f32(q1 + d)
            near = load_f32(k0 + d)
            far = load_f32(k1 + d)
            a = fma(first, near, a)
            b = fma(first, far, b)
            c = fma(second, near, c)
            e = fma(second, far, e)
        store_lane_sums(sums, a, b, c, e)
        if j + 1 < count:
            put_word(scores0 + j * 4, word_at(sums))
            put_word(scores1 + j * 4, word_at(sums + 8))
        else:
            store_one(scores0 + j * 4, f32_at(sums))
            store_one(scores1 + j * 4, f32_at(sums + 8))
    if whole < dims * 4:
        _score_rest(q0, keys, step, count, whole, dims * 4, scores0)
        _score_rest(q1, keys, step, count, whole, dims * 4, scores1)


@inner
def score_one(q, keys, step, count, dims, scores):  # pragma: no cover - compiled
    """Like `score_two` for one query, bit for bit."""
    whole = dims // 16 * 64
    sums = _sums()
    for j in range(0, count, 4):
        k0 = keys + j * step
        k1 = keys + min(j + 1, count - 1) * step
        k2 = keys + min(j + 2, count - 1) * step
        k3 = keys + min(j + 3, count - 1) * step
        s0 = s1 = s2 = s3 = splat(np.float32(0.0))
        for d in range(0, whole, 64):
            part = load_f32(q + d)
            s0 = fma(part, load_f32(k0 + d), s0)
            s1 = fma(part, load_f32(k1 + d), s1)
            s2 = fma(part, load_f32(k2 + d), s2)
            s3 = fma(part, load_f32(k3 + d), s3)
        if j + 4 <= count:
            store_lane_sums(scores + j * 4, s0, s1, s2, s3)
        else:
            store_lane_sums(sums, s0, s1, s2, s3)
            for i in range(count - j):
                store_one(scores + (j + i) * 4, f32_at(sums + i * 4))
    if whole < dims * 4:
        _score_rest(q, keys, step, count, whole, dims * 4, scores)


@inner
def _score_rest(q, keys, step, count, first, last, scores):  # pragma: no cover - compiled
    """The dims beyond a multiple of 16, whose f32 lie at bytes first..last-1 of a head."""
    for j in range(count):
        total = f32_at(scores + j * 4)
        for d in range(first, last, 4):
            total = fma(f32_at(q + d), f32_at(keys + j * step + d), total)
        store_one(scores + j * 4, total)


@inner
def weigh_keys(scores, scale, maximum, total):  # pragma: no cover - compiled
    """Scores of a block -> exp(scale * score - new maximum) in place.

    maximum, total: addresses of the query's running numbers; returns exp(old - new maximum).
    """
    factor = splat(scale)
    before = f32_at(maximum)
    highest = splat(before)
    for j in range(0, KEYS * 4, 64):
        score = mul(load_f32(scores + j), factor)
        highest = larger(score, highest)
        store_f32(scores + j, score)
    now = lane_max(highest)
    shift = splat(-now)
    added = splat(np.float32(0.0))
    for j in range(0, KEYS * 4, 64):
        weight = exp(add(load_f32(scores + j), shift))
        added = add(added, weight)
        store_f32(scores + j, weight)
    kept = exp(before - now)
    store_one(maximum, now)
    store_one(total, fma(f32_at(total), kept, lane_sum(added)))
    return kept


@inner
def add_two(w0, w1, values, step, count, kept0, kept1, dims, y0, y1):  # pragma: no cover
    """y = y * kept, then y = fma(weight, value, y) key by key, for two queries."""
    d = np.int64(0)
    while d + 128 <= dims * 4:
        a = mul(load_f32(y0 + d), splat(kept0))
        b = mul(load_f32(y0 + d + 64), splat(kept0))
        c = mul(load_f32(y1 + d), splat(kept1))
        e = mul(load_f32(y1 + d + 64), splat(kept1))
        v = values + d
        for j in range(count):
            near = load_f32(v)
            far = load_f32(v + 64)
            first = splat_at(w0 + j * 4)
            second = splat_at(w1 + j * 4)
            a = fma(first, near, a)
            b = fma(first, far, b)
            c = fma(second, near, c)
            e = fma(second, far, e)
            v += step
        store_f32(y0 + d, a)
        store_f32(y0 + d + 64, b)
        store_f32(y1 + d, c)
        store_f32(y1 + d + 64, e)
        d += 128
    if d < dims * 4:
        add_one(w0, values, step, count, kept0, d, dims, y0)
        add_one(w1, values, step, count, kept1, d, dims, y1)


@inner
def add_one(w, values, step, count, kept, d, dims, y):  # pragma: no cover - compiled
    """Like `add_two` for one query and the dims from byte d on, bit for bit."""
    old = splat(kept)
    while d + 256 <= dims * 4:  # four vectors together hide the latency of fma
        at = y + d
        a = mul(load_f32(at), old)
        b = mul(load_f32(at + 64), old)
        c = mul(load_f32(at + 128), old)
        e = mul(load_f32(at + 192), old)
        for j in range(count):
            v = values + j * step + d
            weight = splat_at(w + j * 4)
            a = fma(weight, load_f32(v), a)
            b = fma(weight, load_f32(v + 64), b)
            c = fma(weight, load_f32(v + 128), c)
            e = fma(weight, load_f32(v + 192), e)
        store_f32(at, a)
        store_f32(at + 64, b)
        store_f32(at + 128, c)
        store_f32(at + 192, e)
        d += 256
    while d + 64 <= dims * 4:
        a = mul(load_f32(y + d), old)
        for j in range(count):
            a = fma(splat_at(w + j * 4), load_f32(values + j * step + d), a)
        store_f32(y + d, a)
        d += 64
    while d < dims * 4:
        rest = f32_at(y + d) * kept
        for j in range(count):
            rest = fma(f32_at(w + j * 4), f32_at(values + j * step + d), rest)
        store_one(y + d, rest)
        d += 4


@inner
def widen(part, kv, position, count, dims, kind, out):  # pragma: no cover - compiled
    """Positions position..position+count-1 of a cache part (six words) -> f32 (count, dims)."""
    base = word_at(part) + kv * word_at(part + 16) + position * word_at(part + 8)
    scales = word_at(part + 24) + kv * word_at(part + 40) + position * word_at(part + 32)
    whole = dims // 16 * 16
    for i in range(count):
        at = base + i * word_at(part + 8)
        y = out + i * dims * 4
        if kind == KV_F16:
            for d in range(0, whole, 16):
                store_f32(y + d * 4, load_f16(HOST, at + d * 2))
            if whole < dims:
                aside = _aside()
                for d in range(whole, dims):
                    _copy_half(aside + (d - whole) * 2, at + d * 2)
                store_f32(aside + 64, load_f16(HOST, aside))
                for d in range(whole, dims):
                    store_one(y + d * 4, f32_at(aside + 64 + (d - whole) * 4))
        else:
            scale = scales + i * word_at(part + 32)
            for d in range(0, whole, 16):
                store_f32(y + d * 4, mul(_widen_i8(at + d), splat_at(scale + d // 32 * 4)))
            for d in range(whole, dims):
                store_one(y + d * 4, _i8_at(at + d) * f32_at(scale + d // 32 * 4))


_aside = on_stack(128)


@compiled
def _copy_half(typing_context, to, at):
    def generate(context, builder, signature, args):
        to, at = (builder.inttoptr(arg, ir.IntType(16).as_pointer()) for arg in args)
        builder.store(builder.load(at), to)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@compiled
def _i8_at(typing_context, at):
    def generate(context, builder, signature, args):
        value = builder.load(builder.inttoptr(args[0], ir.IntType(8).as_pointer()))
        return builder.sitofp(value, ir.FloatType())

    return types.float32(types.int64), generate
