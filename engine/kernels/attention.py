"""Causal attention over the key-value cache, for grouped query heads.

The rule of this file: a row walks its keys in position order in blocks of 64 that begin at
positions 0, 64, 128, ..., with one running maximum and sum per head (online softmax), so its
result does not depend on the other rows, and scratch does not grow with the context.

For each block: scores = scale * (q . k), lanes by fma and then the tree of halves; the new maximum
m; earlier sums times exp(m_old - m); then exp(score - m) and v added key by key.
"""

import numpy as np
import numpy.typing as npt
from numba import njit

from diskmoe.engine.kernels.matmul import check_floats, grain_for
from diskmoe.engine.kernels.simd import (
    address,
    exp,
    fma,
    lane_sum,
    load_f32,
    mul,
    splat,
    store_f32,
)
from diskmoe.engine.kernels.workers import Workers

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


@njit(cache=True, nogil=True)
def _dot(a, b, d):  # pragma: no cover - compiled
    """Dot product of d f32 at two addresses, d a multiple of 16."""
    total = splat(np.float32(0.0))
    for c in range(0, d, 16):
        total = fma(load_f32(a + c * 4), load_f32(b + c * 4), total)
    return lane_sum(total)


@njit(cache=True, nogil=True)
def _attend(q, k, v, start, scale, out, begin, end):  # pragma: no cover - compiled
    """Items (row, kv head)."""
    heads, head_dim = q.shape[1:]
    kv_heads, v_dim = v.shape[1:]
    shared = heads // kv_heads
    whole = head_dim // 16 * 16
    v_whole = v_dim // 16 * 16
    scores = np.empty(_KEYS, np.float32)
    maximum = np.empty(shared, np.float32)
    total = np.empty(shared, np.float32)
    for item in range(begin, end):
        row = item // kv_heads
        kv = item % kv_heads
        n_keys = start + row + 1
        for h in range(shared):
            maximum[h] = -np.inf
            total[h] = 0.0
            for d in range(v_dim):
                out[row, kv * shared + h, d] = 0.0
        for first in range(0, n_keys, _KEYS):
            count = min(_KEYS, n_keys - first)
            for h in range(shared):
                head = kv * shared + h
                q_at = address(q) + (row * heads + head) * head_dim * 4
                largest = maximum[h]
                for j in range(count):
                    k_at = address(k) + ((first + j) * kv_heads + kv) * head_dim * 4
                    score = _dot(q_at, k_at, whole)
                    for d in range(whole, head_dim):
                        score = fma(q[row, head, d], k[first + j, kv, d], score)
                    score *= scale
                    scores[j] = score
                    largest = max(largest, score)
                kept = exp(maximum[h] - largest)
                maximum[h] = largest
                added = total[h] * kept
                for j in range(count):
                    scores[j] = exp(scores[j] - largest)
                    added += scores[j]
                total[h] = added
                y = address(out) + (row * heads + head) * v_dim * 4
                for d in range(0, v_whole, 16):
                    part = mul(load_f32(y + d * 4), splat(kept))
                    for j in range(count):
                        v_at = address(v) + (((first + j) * kv_heads + kv) * v_dim + d) * 4
                        part = fma(splat(scores[j]), load_f32(v_at), part)
                    store_f32(y + d * 4, part)
                for d in range(v_whole, v_dim):
                    rest = out[row, head, d] * kept
                    for j in range(count):
                        rest = fma(scores[j], v[first + j, kv, d], rest)
                    out[row, head, d] = rest
        for h in range(shared):
            for d in range(v_dim):
                out[row, kv * shared + h, d] /= total[h]
