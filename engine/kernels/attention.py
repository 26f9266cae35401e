"""Causal attention over the key-value cache, for grouped query heads.

The rule of this file: a row walks its keys in position order in blocks of 64 that begin at
positions 0, 64, 128, ..., with one running maximum and sum per head (online softmax), so its
result does not depend on the other rows, and scratch does not grow with the context.

For each block: scores = scale * (q . k), dims into 16 lanes by fma, then the tree of halves, then
the dims beyond a multiple of 16; the new maximum m; what was summed so far times exp(m_old - m);
weights exp(score - m), and weight * v added by fma key by key. A block that is not full yet counts
as full of keys with score -inf, whose weight is 0.

With a window of w, a row sees its own key and the w - 1 before it; blocks with no such key are
passed over. A sink is a score with no value: the running maximum begins with it, the sum with 1.

A block's keys and values are read once for all query heads that share them and for several rows,
two of these queries at a time. In the formats f16 and q8 a block is widened to f32 first.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskmoe.compiled.functions import inner
from diskmoe.engine.kernels.atomics import word_at
from diskmoe.engine.kernels.attention_blocks import (
    KEYS,
    add_one,
    add_two,
    divide,
    look_ahead,
    score_one,
    score_two,
    weigh_keys,
    widen,
)
from diskmoe.engine.kernels.attention_windows import first_of, first_seen
from diskmoe.engine.kernels.heads import KV_F32, CachePart
from diskmoe.engine.kernels.program import Builder, Phase, Rows, f32_word
from diskmoe.engine.kernels.simd import address, f32_at, load_f32, splat, store_f32, store_one

Floats = npt.NDArray[np.float32]

_QUERIES = 32  # heads times rows that share a block, where there are as many
_WIDENED = 4_096  # numbers of a part of a block: 16 KiB, half of a small first cache
_TYPICAL_KEYS = 256  # to judge whether an item is worth a thread


@dataclass(frozen=True)
class AttendShape:
    heads: int
    kv_heads: int
    dims: int  # of queries and keys
    v_dims: int
    window: int = 0  # keys that a row sees; 0: all


def add_attend(
    builder: Builder,
    n: int,
    shape: AttendShape,
    q: Rows,
    kv_kind: int,
    keys: CachePart,
    values: CachePart,
    start: int,  # address of the first row's position, int64
    scale: float,
    out: Rows,
    threads: int,
    sinks: int = 0,  # address of f32 (heads,); 0: none
) -> None:
    """A phase: attention of n rows of queries over the cache, which holds their own keys too."""
    shared = shape.heads // shape.kv_heads
    rows, parts = _split(n, shape.kv_heads, shared, threads)
    words = [
        *(n, shape.heads, shape.kv_heads, shape.dims, shape.v_dims, rows, parts),
        *(q.address, q.step, out.address, out.step),
        *(start, f32_word(scale), kv_kind, *keys.words, *values.words),
        *(shape.window, sinks),
    ]
    items = -(-n // rows) * shape.kv_heads * parts
    macs = 2 * rows * (shared // parts) * _TYPICAL_KEYS * shape.dims
    builder.add(ATTEND, words, items, macs)


def _split(n: int, kv_heads: int, shared: int, threads: int) -> tuple[int, int]:
    """(rows of an item, parts into which the heads that share keys are cut).

    Few items are as many as share a block in the caches; more where threads would stay idle.
    """
    rows, parts = max(1, min(n, 16, _QUERIES // shared)), 1
    while True:
        items = -(-n // rows) * kv_heads * parts
        if items % threads == 0 or items >= 4 * threads:
            return rows, parts
        if rows > 1:
            rows = -(-rows // 2)
        elif shared // parts % 2 == 0:
            parts *= 2
        else:
            return rows, parts


@inner
def _block_scores(
    args, kv, first_head, per_row, first_row, rows, block, cut, keys, step, sub, room, scores, used
):  # pragma: no cover - compiled
    """Scores of all queries for keys sub..sub+room-1 of a block -> scores (queries, KEYS).

    cut: a window begins in the block, so some query may not see its first keys.
    """
    dims = word_at(args + 24)
    q = word_at(args + 56) + first_row * word_at(args + 64) + first_head * dims * 4
    q_step = word_at(args + 64)
    seen = word_at(word_at(args + 88)) + first_row + 1 - block - sub  # keys of the first row
    queries = rows * per_row
    part = args + 112  # what is read next: keys of this block, then its values
    position = block + sub + room
    ahead = min(room, used - sub - room)
    if ahead <= 0:
        part = args + 160
        position = np.int64(block)
        ahead = min(room, used)
        dims_ahead = word_at(args + 32)
    else:
        dims_ahead = dims
    kind = word_at(args + 104)
    m = np.int64(0)
    while m < queries:
        look_ahead(part, kv, position, ahead, dims_ahead, kind, m // 2, (queries + 1) // 2)
        row = m // per_row
        following = (m + 1) // per_row
        begin = first_of(args, first_row + row, block + sub, room, cut)
        count = min(seen + row, room) - begin
        at = scores + (m * KEYS + sub + begin) * 4
        k = keys + begin * step
        q0 = q + row * q_step + m % per_row * dims * 4
        other = first_of(args, first_row + following, block + sub, room, cut)
        if m + 1 < queries and other == begin and min(seen + following, room) - other == count:
            if count > 0:
                q1 = q + following * q_step + (m + 1) % per_row * dims * 4
                score_two(q0, q1, k, step, count, dims, at, at + KEYS * 4)
            m += 2
        else:
            if count > 0:
                score_one(q0, k, step, count, dims, at)
            m += 1


@inner
def _block_values(
    args,
    kv,
    first_head,
    per_row,
    first_row,
    rows,
    block,
    cut,
    values,
    step,
    sub,
    room,
    scores,
    kept,
    ahead,
):  # pragma: no cover - compiled
    """Weighted values of keys sub..sub+room-1 of a block, added to the rows' outputs."""
    dims = word_at(args + 32)
    y = word_at(args + 72) + first_row * word_at(args + 80) + first_head * dims * 4
    y_step = word_at(args + 80)
    seen = word_at(word_at(args + 88)) + first_row + 1 - block - sub
    queries = rows * per_row
    part = args + 160  # what is read next: values of this block, then the next one's keys
    position = block + sub + room
    dims_ahead = dims
    last = min(np.int64(KEYS), word_at(word_at(args + 88)) + first_row + rows - block)
    coming = min(room, last - sub - room)
    if coming <= 0:
        part = args + 112
        position = np.int64(block + KEYS)
        coming = min(room, ahead)
        dims_ahead = word_at(args + 24)
    kind = word_at(args + 104)
    m = np.int64(0)
    while m < queries:
        if coming > 0:
            look_ahead(part, kv, position, coming, dims_ahead, kind, m // 2, (queries + 1) // 2)
        row = m // per_row
        following = (m + 1) // per_row
        begin = first_of(args, first_row + row, block + sub, room, cut)
        count = min(seen + row, room) - begin
        w = scores + (m * KEYS + sub + begin) * 4
        v = values + begin * step
        y0 = y + row * y_step + m % per_row * dims * 4
        kept0 = f32_at(kept + m * 4) if sub == 0 else np.float32(1.0)
        other = first_of(args, first_row + following, block + sub, room, cut)
        if m + 1 < queries and other == begin and min(seen + following, room) - other == count:
            if count > 0:
                y1 = y + following * y_step + (m + 1) % per_row * dims * 4
                kept1 = f32_at(kept + m * 4 + 4) if sub == 0 else np.float32(1.0)
                add_two(w, w + KEYS * 4, v, step, count, kept0, kept1, dims, y0, y1)
            m += 2
        else:
            if count > 0:
                add_one(w, v, step, count, kept0, np.int64(0), dims, y0)
            m += 1


@inner
def _in_f32(part, kv, first, count, dims, kind, widened):  # pragma: no cover - compiled
    """(address, bytes of a step) of f32 keys or values at positions first..first+count-1."""
    if kind != KV_F32:
        widen(part, kv, first, count, dims, kind, widened)
        return widened, dims * 4
    step = word_at(part + 8)
    return word_at(part) + kv * word_at(part + 16) + first * step, step


@inner
def _attend_item(
    args, kv, first_head, per_row, first_row, rows, scratch, widened
):  # pragma: no cover - compiled
    """Rows first_row.. and heads first_head.. of them, which share a kv head."""
    dims = word_at(args + 24)
    v_dims = word_at(args + 32)
    start = word_at(word_at(args + 88))
    scale = f32_at(args + 96)
    kind = word_at(args + 104)
    keys_part = args + 112
    values_part = args + 160
    queries = rows * per_row
    maxima = scratch
    totals = scratch + queries * 4
    kept = scratch + queries * 8
    scores = scratch + (queries * 12 + 63) // 64 * 64
    out = word_at(args + 72) + first_row * word_at(args + 80) + first_head * v_dims * 4
    sinks = word_at(args + 216)
    for m in range(queries):
        if sinks == 0:
            store_one(maxima + m * 4, np.float32(-np.inf))
            store_one(totals + m * 4, np.float32(0.0))
        else:
            store_one(maxima + m * 4, f32_at(sinks + (first_head + m % per_row) * 4))
            store_one(totals + m * 4, np.float32(1.0))
        y = out + m // per_row * word_at(args + 80) + m % per_row * v_dims * 4
        for d in range(v_dims):
            store_one(y + d * 4, np.float32(0.0))
    n_keys = start + first_row + rows  # of the last row
    first_block = first_seen(args, first_row) // KEYS * KEYS
    cut_until = first_seen(args, first_row + rows - 1)  # no row's window begins behind it
    for block in range(first_block, n_keys, KEYS):
        used = min(KEYS, n_keys - block)
        room = min(used, max(1, _WIDENED // max(dims, v_dims)))
        cut = block < cut_until
        # some row does not see the whole block
        if block + KEYS > start + first_row + 1 or cut:
            for j in range(queries * KEYS):
                store_one(scores + j * 4, np.float32(-np.inf))
        for sub in range(0, used, room):
            count = min(room, used - sub)
            keys, step = _in_f32(keys_part, kv, block + sub, count, dims, kind, widened)
            _block_scores(
                args,
                kv,
                first_head,
                per_row,
                first_row,
                rows,
                block,
                cut,
                keys,
                step,
                sub,
                count,
                scores,
                used,
            )
        for m in range(queries):
            row = first_row + m // per_row
            if start + row >= block and first_seen(args, row) < block + KEYS:
                at = scores + m * KEYS * 4
                factor = weigh_keys(at, scale, maxima + m * 4, totals + m * 4)
                store_one(kept + m * 4, factor)
        for sub in range(0, used, room):
            count = min(room, used - sub)
            values, step = _in_f32(values_part, kv, block + sub, count, v_dims, kind, widened)
            _block_values(
                args,
                kv,
                first_head,
                per_row,
                first_row,
                rows,
                block,
                cut,
                values,
                step,
                sub,
                count,
                scores,
                kept,
                min(KEYS, n_keys - block - KEYS),
            )
    for m in range(queries):
        total = f32_at(totals + m * 4)
        y = out + m // per_row * word_at(args + 80) + m % per_row * v_dims * 4
        d = np.int64(0)
        while d + 16 <= v_dims:
            store_f32(y + d * 4, divide(load_f32(y + d * 4), splat(total)))
            d += 16
        while d < v_dims:
            store_one(y + d * 4, f32_at(y + d * 4) / total)
            d += 1


def _attend(args, begin, end):  # pragma: no cover - compiled
    """Items: (group of rows, kv head, part of the heads that share it)."""
    n = word_at(args)
    kv_heads = word_at(args + 16)
    shared = word_at(args + 8) // kv_heads
    rows = word_at(args + 40)
    parts = word_at(args + 48)
    per_row = shared // parts
    queries = rows * per_row
    scratch = np.empty(queries * (KEYS + 3) + 32, np.float32)
    used = 16
    if word_at(args + 104) != KV_F32:
        dims = max(word_at(args + 24), word_at(args + 32))
        used = dims * min(KEYS, max(1, _WIDENED // dims)) + 16
    widened = np.empty(used, np.float32)
    for item in range(begin, end):
        group = item // (kv_heads * parts)
        kv = item // parts % kv_heads
        first_head = kv * shared + item % parts * per_row
        first_row = group * rows
        count = min(rows, n - first_row)
        at = (address(scratch) + 63) // 64 * 64
        room = (address(widened) + 63) // 64 * 64
        _attend_item(args, kv, first_head, per_row, first_row, count, at, room)


ATTEND = Phase(_attend)
