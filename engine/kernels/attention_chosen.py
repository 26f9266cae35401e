"""Attention of rows over the keys that were chosen for them; see `indexer.py`.

The rule of this file: a row walks its keys in position order in blocks of 64 of *its own* keys, by the
operations of `attention.py`. So a row that sees all keys has the same bits as there.
"""

import numpy as np

from diskmoe.compiled.functions import inner
from diskmoe.engine.kernels.atomics import word_at
from diskmoe.engine.kernels.attention import AttendShape
from diskmoe.engine.kernels.attention_blocks import (
    KEYS,
    add_one,
    add_two,
    divide,
    score_one,
    score_two,
    weigh_keys,
    widen,
)
from diskmoe.engine.kernels.heads import KV_F32, CachePart
from diskmoe.engine.kernels.program import Builder, Phase, Rows, f32_word
from diskmoe.engine.kernels.simd import (
    address,
    f32_at,
    i32_at,
    load_f32,
    splat,
    store_f32,
    store_one,
)

_TOGETHER = 8  # keys of a block that are scored, or weighed, before the next ones: a first cache's


def add_attend_chosen(
    builder: Builder,
    n: int,
    shape: AttendShape,  # one head of keys, whose front is its values; no window
    q: Rows,  # (n, heads, dims)
    kv_kind: int,
    keys: CachePart,
    start: int,  # address of the first row's position, int64
    scale: float,
    top: int,
    lists: Rows,  # i32 (n, top): positions, ascending, of the rows that see more than `top` keys
    out: Rows,  # (n, heads, v_dims)
    threads: int,
) -> None:
    """A phase: attention of n rows of queries over the chosen keys of the cache."""
    parts = 1
    while n * parts % threads and n * parts < 4 * threads and shape.heads // parts % 2 == 0:
        parts *= 2
    words = [
        *(shape.heads, shape.dims, shape.v_dims, parts, q.address, q.step, out.address, out.step),
        *(start, f32_word(scale), kv_kind, *keys.words, top, lists.address, lists.step),
    ]
    macs = shape.heads // parts * shape.dims * KEYS * 4
    builder.add(ATTEND_CHOSEN, words, n * parts, macs)


@inner
def _gather(part, kind, dims, chosen, first, count, room):  # pragma: no cover - compiled
    """Keys number first..first+count-1 of a list (0: of all) -> f32 (count, dims)."""
    for i in range(count):
        position = np.int64(first + i)
        if chosen != 0:
            position = np.int64(i32_at(chosen + (first + i) * 4))
        to = room + i * dims * 4
        if kind != KV_F32:
            widen(part, np.int64(0), position, np.int64(1), dims, kind, to)
        else:
            at = word_at(part) + position * word_at(part + 8)
            d = np.int64(0)
            while d + 64 <= dims * 4:
                store_f32(to + d, load_f32(at + d))
                d += 64
            while d < dims * 4:
                store_one(to + d, f32_at(at + d))
                d += 4


@inner
def _attend_row(args, q, y, heads, chosen, seen, maxima, room):  # pragma: no cover - compiled
    """`heads` queries at q over `seen` keys -> y; maxima: room for their running numbers."""
    dims = word_at(args + 8)
    v_dims = word_at(args + 16)
    totals = maxima + heads * 4
    kept = totals + heads * 4
    scores = (kept + heads * 4 + 63) // 64 * 64
    for m in range(heads):
        store_one(maxima + m * 4, np.float32(-np.inf))
        store_one(totals + m * 4, np.float32(0.0))
        for d in range(v_dims):
            store_one(y + (m * v_dims + d) * 4, np.float32(0.0))
    for block in range(0, seen, KEYS):
        used = min(np.int64(KEYS), seen - block)
        _gather(args + 88, word_at(args + 80), dims, chosen, block, used, room)
        for j in range(heads * KEYS):
            store_one(scores + j * 4, np.float32(-np.inf))
        for sub in range(0, used, _TOGETHER):
            count = min(np.int64(_TOGETHER), used - sub)
            k = room + sub * dims * 4
            for m in range(0, heads - 1, 2):
                at = q + m * dims * 4
                to = scores + (m * KEYS + sub) * 4
                score_two(at, at + dims * 4, k, dims * 4, count, dims, to, to + KEYS * 4)
            if heads % 2 == 1:
                m = heads - 1
                to = scores + (m * KEYS + sub) * 4
                score_one(q + m * dims * 4, k, dims * 4, count, dims, to)
        for m in range(heads):
            at = scores + m * KEYS * 4
            factor = weigh_keys(at, f32_at(args + 72), maxima + m * 4, totals + m * 4)
            store_one(kept + m * 4, factor)
        for sub in range(0, used, _TOGETHER):
            count = min(np.int64(_TOGETHER), used - sub)
            v = room + sub * dims * 4
            for m in range(0, heads - 1, 2):
                w = scores + (m * KEYS + sub) * 4
                y0 = y + m * v_dims * 4
                kept0 = f32_at(kept + m * 4) if sub == 0 else np.float32(1.0)
                kept1 = f32_at(kept + m * 4 + 4) if sub == 0 else np.float32(1.0)
                other = w + KEYS * 4
                step = dims * 4
                add_two(w, other, v, step, count, kept0, kept1, v_dims, y0, y0 + v_dims * 4)
            if heads % 2 == 1:
                m = heads - 1
                w = scores + (m * KEYS + sub) * 4
                kept0 = f32_at(kept + m * 4) if sub == 0 else np.float32(1.0)
                add_one(w, v, dims * 4, count, kept0, np.int64(0), v_dims, y + m * v_dims * 4)
    for m in range(heads):
        total = f32_at(totals + m * 4)
        at = y + m * v_dims * 4
        d = np.int64(0)
        while d + 64 <= v_dims * 4:
            store_f32(at + d, divide(load_f32(at + d), splat(total)))
            d += 64
        while d < v_dims * 4:
            store_one(at + d, f32_at(at + d) / total)
            d += 4


def _attend_chosen(args, begin, end):  # pragma: no cover - compiled
    """Items: (row, part of its heads)."""
    dims = word_at(args + 8)
    parts = word_at(args + 24)
    heads = word_at(args) // parts
    start = word_at(word_at(args + 64))
    top = word_at(args + 136)
    numbers = np.empty(heads * (KEYS + 3) + 32, np.float32)
    block = np.empty(KEYS * dims + 16, np.float32)
    for item in range(begin, end):
        maxima = (address(numbers) + 63) // 64 * 64  # in here: see `simd.address`
        room = (address(block) + 63) // 64 * 64
        row = item // parts
        first = item % parts * heads
        seen = start + row + 1
        chosen = np.int64(0)
        if seen > top:
            chosen = word_at(args + 144) + row * word_at(args + 152)
            seen = top
        q = word_at(args + 32) + row * word_at(args + 40) + first * dims * 4
        y = word_at(args + 48) + row * word_at(args + 56) + first * word_at(args + 16) * 4
        _attend_row(args, q, y, heads, chosen, seen, maxima, room)


ATTEND_CHOSEN = Phase(_attend_chosen)
