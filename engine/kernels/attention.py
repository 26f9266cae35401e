"""Causal attention over the key-value cache, for grouped query heads.

The rule of this file: a row walks its keys in position order in blocks of 64 that begin at
positions 0, 64, 128, ..., with one running maximum and sum per head (online softmax), so its
result does not depend on the other rows, and scratch does not grow with the context.

For each block: scores = scale * (q . k), dims into 16 lanes by fma, then the tree of halves, then
the dims beyond a multiple of 16; the new maximum m; what was summed so far times exp(m_old - m);
weights exp(score - m), and weight * v added by fma key by key. A block that is not full yet counts
as full of keys with score -inf, whose weight is 0.
"""

import numpy as np
import numpy.typing as npt

from diskmoe.engine.kernels.matmul import check_floats, grain_for
from diskmoe.engine.kernels.simd import (
    add,
    address,
    exp,
    f32_at,
    fma,
    lane_max,
    lane_sum,
    larger,
    load_f32,
    mul,
    splat,
    store_f32,
    store_lane_sums,
    store_one,
)
from diskmoe.engine.kernels.workers import Workers
from diskmoe.experts.compiled import kernel

Floats = npt.NDArray[np.float32]

_KEYS = 64  # keys in a block


def attend(
    q: Floats,  # (n, heads, head_dim)
    k: Floats,  # (ctx, kv_heads, head_dim), ctx >= start + n
    v: Floats,  # (ctx, kv_heads, v_dim)
    start: int,
    scale: float,
    out: Floats,  # (n, heads, v_dim)
    workers: Workers,
) -> Floats:
    """Row i sees keys 0..start+i (its own key is already in k and v); returns `out`.

    Query head h uses kv head h // (heads / kv_heads). All arrays C-contiguous (a leading slice of
    a cache is).
    """
    n, heads, head_dim = q.shape
    ctx, kv_heads, v_dim = v.shape
    check_floats("q", q, (n, heads, head_dim))
    check_floats("k", k, (ctx, kv_heads, head_dim))
    check_floats("v", v, (ctx, kv_heads, v_dim))
    check_floats("out", out, (n, heads, v_dim))
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads do not share {kv_heads} key heads evenly")
    if start < 0 or start + n > ctx:
        raise ValueError(f"rows at positions {start}..{start + n - 1} with {ctx} keys")
    macs = 2 * (start + n) * (heads // kv_heads) * head_dim
    workers.run(
        _attend,
        n * kv_heads,
        q,
        k,
        v,
        start,
        np.float32(scale),
        out,
        grain=grain_for(macs * 4),  # a multiply-add costs about four times one of int8
    )
    return out


@kernel
def _score_keys(q, keys, step, count, head_dim, scores):  # pragma: no cover - compiled
    """q . key for `count` keys at addresses keys, keys + step, ... -> scores; the rest -inf."""
    whole = head_dim // 16 * 16
    out = address(scores)
    for j in range(0, _KEYS, 4):
        if j >= count:
            scores[j : j + 4] = -np.inf
            continue
        # The last keys are computed together with repeated ones: the same sums, four at a time.
        k0 = keys + j * step
        k1 = keys + min(j + 1, count - 1) * step
        k2 = keys + min(j + 2, count - 1) * step
        k3 = keys + min(j + 3, count - 1) * step
        s0 = s1 = s2 = s3 = splat(np.float32(0.0))
        for d in range(0, whole * 4, 64):
            part = load_f32(q + d)
            s0 = fma(part, load_f32(k0 + d), s0)
            s1 = fma(part, load_f32(k1 + d), s1)
            s2 = fma(part, load_f32(k2 + d), s2)
            s3 = fma(part, load_f32(k3 + d), s3)
        store_lane_sums(out + j * 4, s0, s1, s2, s3)
        for i in range(j, min(j + 4, count)):
            for d in range(whole * 4, head_dim * 4, 4):
                scores[i] = fma(f32_at(q + d), f32_at(keys + i * step + d), scores[i])
        if j + 4 > count:
            scores[count : j + 4] = -np.inf


@kernel
def _weigh_keys(scores, scale, maximum):  # pragma: no cover - compiled
    """Scores of a block -> exp(scale * score - new maximum) in place; (new maximum, sum)."""
    at = address(scores)
    factor = splat(scale)
    largest = splat(maximum)
    for j in range(0, _KEYS * 4, 64):
        score = mul(load_f32(at + j), factor)
        largest = larger(score, largest)
        store_f32(at + j, score)
    maximum = lane_max(largest)
    shift = splat(-maximum)
    total = splat(np.float32(0.0))
    for j in range(0, _KEYS * 4, 64):
        weight = exp(add(load_f32(at + j), shift))
        total = add(total, weight)
        store_f32(at + j, weight)
    return maximum, lane_sum(total)


@kernel
def _add_values(weights, values, step, count, kept, v_dim, y):  # pragma: no cover - compiled
    """y = y * kept, then y = fma(weight, value, y) key by key; y: address of v_dim f32."""
    old = splat(kept)
    d = 0
    while d + 64 <= v_dim:  # four vectors together hide the latency of fma
        at = y + d * 4
        a = mul(load_f32(at), old)
        b = mul(load_f32(at + 64), old)
        c = mul(load_f32(at + 128), old)
        e = mul(load_f32(at + 192), old)
        for j in range(count):
            v = values + j * step + d * 4
            weight = splat(weights[j])
            a = fma(weight, load_f32(v), a)
            b = fma(weight, load_f32(v + 64), b)
            c = fma(weight, load_f32(v + 128), c)
            e = fma(weight, load_f32(v + 192), e)
        store_f32(at, a)
        store_f32(at + 64, b)
        store_f32(at + 128, c)
        store_f32(at + 192, e)
        d += 64
    while d + 16 <= v_dim:
        a = mul(load_f32(y + d * 4), old)
        for j in range(count):
            a = fma(splat(weights[j]), load_f32(values + j * step + d * 4), a)
        store_f32(y + d * 4, a)
        d += 16
    while d < v_dim:
        rest = f32_at(y + d * 4) * kept
        for j in range(count):
            rest = fma(weights[j], f32_at(values + j * step + d * 4), rest)
        store_one(y + d * 4, rest)
        d += 1


@kernel
def _attend(q, k, v, start, scale, out, begin, end):  # pragma: no cover - compiled
    """Items (row, kv head)."""
    heads, head_dim = q.shape[1:]
    kv_heads, v_dim = v.shape[1:]
    shared = heads // kv_heads
    k_step = kv_heads * head_dim * 4
    v_step = kv_heads * v_dim * 4
    scores = np.empty(_KEYS, np.float32)
    maximum = np.empty(shared, np.float32)
    total = np.empty(shared, np.float32)
    for item in range(begin, end):
        row = item // kv_heads
        kv = item % kv_heads
        n_keys = start + row + 1
        maximum[:] = -np.inf
        total[:] = 0.0
        out[row, kv * shared : kv * shared + shared] = 0.0
        for first in range(0, n_keys, _KEYS):
            count = min(_KEYS, n_keys - first)
            keys = address(k) + first * k_step + kv * head_dim * 4
            values = address(v) + first * v_step + kv * v_dim * 4
            for h in range(shared):
                head = row * heads + kv * shared + h
                q_at = address(q) + head * head_dim * 4
                _score_keys(q_at, keys, k_step, count, head_dim, scores)
                largest, added = _weigh_keys(scores, scale, maximum[h])
                kept = exp(maximum[h] - largest)
                maximum[h] = largest
                total[h] = fma(total[h], kept, added)
                y = address(out) + head * v_dim * 4
                _add_values(scores, values, v_step, count, kept, v_dim, y)
        for h in range(shared):
            for d in range(v_dim):
                out[row, kv * shared + h, d] /= total[h]
