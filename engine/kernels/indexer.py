"""Which keys a row attends to, where it could see more than it should (DeepSeek sparse attention).

A key's score for a row is the sum over heads of ``share * max(0, query . key)``; the constants that
published code multiplies scores by are the same for all keys and change no choice. The best `top`
are chosen, the earlier one of equals; a row that sees no more than `top` keys attends to them all,
and its list is not written.

The rule of this file: a score is computed by the same operations whatever rows and keys are computed
with it: dims in 16 lanes, as in attention, then head by head, by fma. A choice depends on scores only.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskmoe.compiled.functions import inner
from diskmoe.engine.kernels.atomics import store_i32, word_at
from diskmoe.engine.kernels.attention_blocks import KEYS, score_one, score_two, widen
from diskmoe.engine.kernels.heads import KV_F32, CachePart, keep, turn
from diskmoe.engine.kernels.latent import Turning
from diskmoe.engine.kernels.program import Builder, Phase, Rows, address_of_array, f32_word
from diskmoe.engine.kernels.simd import (
    address,
    f32_at,
    fma,
    i32_at,
    larger,
    load_f32,
    splat,
    splat_at,
    store_f32,
    store_one,
)

Floats = npt.NDArray[np.float32]

_PARTS = 16  # into which the keys of a row are cut, where there are few rows


@dataclass(frozen=True)
class IndexHeads:
    heads: int
    dims: int
    top: int


def add_index_heads(
    builder: Builder,
    n: int,
    shape: IndexHeads,
    q: Rows,  # (n, heads, dims), turned in place
    k: Rows,  # (n, dims), changed
    norm: tuple[Floats, Floats],  # weight, bias of the keys' layer norm
    eps: float,
    turning: Turning,
    kv_kind: int,
    keys: CachePart,
) -> None:
    """A phase: queries are turned; keys are normed, turned and put into the cache."""
    weight, bias = norm
    words = [
        *(shape.heads, shape.dims, q.address, q.step, k.address, k.step),
        *(address_of_array(weight), address_of_array(bias), f32_word(eps)),
        *(*turning.words, kv_kind, *keys.words),
    ]
    builder.add(INDEX_HEADS, words, n * (shape.heads + 1), 4 * shape.dims)


def add_choose(
    builder: Builder,
    n: int,
    shape: IndexHeads,
    q: Rows,  # (n, heads, dims)
    shares: Rows,  # (n, heads)
    kv_kind: int,
    keys: CachePart,
    start: int,  # address of the first row's position, int64
    scores: Rows,  # (n, positions to whole blocks), for use in between
    lists: Rows,  # i32 (n, top)
) -> None:
    """Two phases: the positions that each row attends to, ascending -> lists."""
    parts = 1 if n >= _PARTS else _PARTS
    words = [
        *(shape.heads, shape.dims, q.address, q.step, shares.address, shares.step),
        *(start, kv_kind, *keys.words, scores.address, scores.step, shape.top, parts),
    ]
    builder.add(INDEX_SCORES, words, n * parts, shape.heads * shape.dims * KEYS)
    words = [start, shape.top, scores.address, scores.step, lists.address, lists.step]
    builder.add(CHOOSE, words, n, 8 * shape.top)


@inner
def _layer_norm(x, d, weight, bias, eps):  # pragma: no cover - compiled
    """d f32 at x, in place; sums in ascending order."""
    total = np.float32(0.0)
    for c in range(0, d * 4, 4):
        total += f32_at(x + c)
    mean = total / np.float32(d)
    squares = np.float32(0.0)
    for c in range(0, d * 4, 4):
        off = f32_at(x + c) - mean
        squares = fma(off, off, squares)
    inverse = np.float32(1.0) / np.sqrt(squares / np.float32(d) + eps)
    for c in range(0, d * 4, 4):
        normed = (f32_at(x + c) - mean) * inverse
        store_one(x + c, fma(normed, f32_at(weight + c), f32_at(bias + c)))


def _index_heads(args, begin, end):  # pragma: no cover - compiled
    """Items: (row, head), the queries' first, then the key."""
    heads = word_at(args)
    dims = word_at(args + 8)
    pairs = word_at(args + 88)
    start = word_at(word_at(args + 104))
    for item in range(begin, end):
        row = item // (heads + 1)
        head = item % (heads + 1)
        at = (start + row) * pairs * 4
        cos = word_at(args + 72) + at
        sin = word_at(args + 80) + at
        if head < heads:
            x = word_at(args + 16) + row * word_at(args + 24) + head * dims * 4
            turn(x, cos, sin, pairs, word_at(args + 96))
        else:
            x = word_at(args + 32) + row * word_at(args + 40)
            _layer_norm(x, dims, word_at(args + 48), word_at(args + 56), f32_at(args + 64))
            turn(x, cos, sin, pairs, word_at(args + 96))
            keep(x, dims, word_at(args + 112), args + 120, np.int64(0), start + row)


@inner
def _block_scores(
    q, shares, heads, dims, keys, step, count, parts, out
):  # pragma: no cover - compiled
    """Scores of `count` keys of a block; parts: room for the dots of all heads (heads, KEYS)."""
    for head in range(0, heads - 1, 2):
        at = q + head * dims * 4
        to = parts + head * KEYS * 4
        score_two(at, at + dims * 4, keys, step, count, dims, to, to + KEYS * 4)
    if heads % 2 == 1:
        last = heads - 1
        score_one(q + last * dims * 4, keys, step, count, dims, parts + last * KEYS * 4)
    nothing = splat(np.float32(0.0))
    for j in range(0, KEYS * 4, 64):
        total = nothing
        for head in range(heads):
            dot = larger(load_f32(parts + head * KEYS * 4 + j), nothing)
            total = fma(splat_at(shares + head * 4), dot, total)
        store_f32(out + j, total)


def _index_scores(args, begin, end):  # pragma: no cover - compiled
    """Items: (row, part of its blocks of keys)."""
    heads = word_at(args)
    dims = word_at(args + 8)
    start = word_at(word_at(args + 48))
    kind = word_at(args + 56)
    keys = args + 64
    parts = word_at(args + 136)
    dots = np.zeros(heads * KEYS + 16, np.float32)
    widened = np.empty(1 if kind == KV_F32 else KEYS * dims + 16, np.float32)
    for item in range(begin, end):
        at = (address(dots) + 63) // 64 * 64  # in here: see `simd.address`
        room = (address(widened) + 63) // 64 * 64
        row = item // parts
        seen = start + row + 1
        if seen <= word_at(args + 128):
            continue
        q = word_at(args + 16) + row * word_at(args + 24)
        shares = word_at(args + 32) + row * word_at(args + 40)
        scores = word_at(args + 112) + row * word_at(args + 120)
        for block in range(item % parts * KEYS, seen, parts * KEYS):
            count = min(np.int64(KEYS), seen - block)
            step = word_at(keys + 8)
            first = word_at(keys) + block * step
            if kind != KV_F32:
                widen(keys, np.int64(0), block, count, dims, kind, room)
                step = dims * 4
                first = room
            _block_scores(q, shares, heads, dims, first, step, count, at, scores + block * 4)


@inner
def _rank(scores, j):  # pragma: no cover - compiled
    """A number 0..2**32-1 that is the larger the larger score j is."""
    bits = np.int64(i32_at(scores + j * 4))
    return bits + 0x80000000 if bits >= 0 else -1 - bits


def _choose(args, begin, end):  # pragma: no cover - compiled
    """Items: rows. The rank of the last chosen is found byte by byte, from the highest."""
    start = word_at(word_at(args))
    top = word_at(args + 8)
    counts = np.empty(256, np.int64)
    for row in range(begin, end):
        seen = start + row + 1
        if seen <= top:
            continue
        scores = word_at(args + 16) + row * word_at(args + 24)
        last = np.int64(0)  # the bytes of the last one's rank that are known
        left = top  # to be chosen among those whose rank begins with these bytes
        for shift in range(24, -1, -8):
            counts[:] = 0
            for j in range(seen):
                rank = _rank(scores, j)
                if rank >> (shift + 8) == last:
                    counts[(rank >> shift) & 255] += 1
            byte = 255
            while counts[byte] < left:
                left -= counts[byte]
                byte -= 1
            last = last * 256 + byte
        out = word_at(args + 32) + row * word_at(args + 40)
        for j in range(seen):
            rank = _rank(scores, j)
            if rank == last and left > 0:
                left -= 1
                rank += 1
            if rank > last:
                store_i32(out, j)
                out += 4


INDEX_HEADS = Phase(_index_heads)
INDEX_SCORES = Phase(_index_scores)
CHOOSE = Phase(_choose)
