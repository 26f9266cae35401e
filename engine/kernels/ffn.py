"""The phases of a feed-forward: gate, up and activation; down; the sum of a row's experts.

The rule of this file: what is computed for a selection (a row and one of its experts) does not
depend on the other selections, on the items of a claim, or on how rows go through a tile together.
Arguments are built by `experts.py`, which says what they mean.
"""

import numpy as np

from diskmoe.compiled.functions import inner
from diskmoe.engine.kernels.atomics import on_stack, put_word, word_at
from diskmoe.engine.kernels.multiply import PIECE, ROWS, tiles_of_rows, write_out
from diskmoe.engine.kernels.program import Phase
from diskmoe.engine.kernels.simd import (
    add,
    f32_at,
    fma,
    i32_at,
    larger,
    load_f32,
    mul,
    sigmoid,
    silu,
    smaller,
    splat,
    splat_at,
    store_f32,
    store_one,
)

COLUMNS = 512  # that an item of COMBINE adds


_input_addresses = on_stack(8 * ROWS)
_gate_addresses = on_stack(8 * ROWS)
_up_addresses = on_stack(8 * ROWS)
_ups = on_stack(64 * PIECE)


@inner
def _named(indices, t):  # pragma: no cover - compiled
    """indices[t], or t where there are no indices."""
    if indices == 0:
        return t
    return np.int64(i32_at(indices + t * 4))


@inner
def _inputs(matrix, indices, t, count, shift, xs):  # pragma: no cover - compiled
    """Addresses of the prepared rows of selections t..t+count-1, less `shift`, -> xs."""
    for i in range(count):
        row = _named(indices, t + i) - shift
        put_word(xs + i * 8, word_at(matrix + 48) + row * word_at(matrix + 56))


@inner
def _times(matrix, record, first, last, xs, ys, count, rows):  # pragma: no cover - compiled
    """Tiles first..last-1 of one of a record's matrices (eight words) times `count` rows."""
    tiles_of_rows(
        word_at(matrix),
        record + word_at(matrix + 8),
        record + word_at(matrix + 16),
        word_at(matrix + 40),
        word_at(matrix + 24),
        word_at(matrix + 32),
        first,
        last,
        xs,
        ys,
        count,
        rows,
    )


@inner
def _activate(args, record, gates, ups, first, last):  # pragma: no cover - compiled
    """Bytes first..last-1 of a selection's gate and up at these addresses -> gates.

    The words at args: see `experts.add_gate_up`.
    """
    bias = word_at(args)
    clamped = word_at(args + 16)
    for c in range(first, last, 64):
        gate = load_f32(gates + c)
        up = load_f32(ups + c)
        if bias != 0:
            gate = add(gate, load_f32(record + bias + c))
            up = add(up, load_f32(record + word_at(args + 8) + c))
        if clamped != 0:
            limit = splat_at(args + 24)
            gate = smaller(limit, gate)
            up = larger(mul(limit, splat(np.float32(-1.0))), smaller(limit, up))
            turned = mul(gate, sigmoid(mul(gate, splat_at(args + 32))))
            store_f32(gates + c, mul(add(up, splat(np.float32(1.0))), turned))
        else:
            store_f32(gates + c, mul(silu(gate), up))


def _gate_up(args, begin, end):  # pragma: no cover - compiled
    """Items: (expert, tile)."""
    rows = word_at(args + 8)
    base = word_at(word_at(args + 32))
    tiles = word_at(args + 40)
    gate = args + 64
    up = args + 128
    xs = _input_addresses()
    gates = _gate_addresses()
    ups = _up_addresses()
    aside = _ups()
    item = begin
    while item < end:
        entry = word_at(args) + item // tiles * 24
        record = word_at(entry)
        tile = item % tiles
        last_tile = min(tiles, tile + end - item)
        item += last_tile - tile
        total = word_at(entry + 16) - word_at(entry + 8)
        piece = PIECE // min(ROWS, total)
        while tile < last_tile:
            stop = min(last_tile, tile + piece)
            t = word_at(entry + 8)
            while t < word_at(entry + 16):
                count = min(ROWS, word_at(entry + 16) - t)
                for i in range(count):
                    y = word_at(args + 16) + (t + i - base) * word_at(args + 24)
                    put_word(gates + i * 8, y)
                    put_word(ups + i * 8, aside + (i * piece - tile) * 64)
                _inputs(gate, rows, t, count, np.int64(0), xs)
                _times(gate, record, tile, stop, xs, gates, count, tiles * 16)
                _inputs(up, rows, t, count, np.int64(0), xs)
                _times(up, record, tile, stop, xs, ups, count, tiles * 16)
                for i in range(count):
                    y = word_at(gates + i * 8)
                    other = word_at(ups + i * 8)
                    _activate(args + 192, record, y, other, tile * 64, stop * 64)
                t += count
            tile = stop


def _down(args, begin, end):  # pragma: no cover - compiled
    """Items: (expert, tile)."""
    selections = word_at(args + 8)
    base = word_at(word_at(args + 32))
    tiles = word_at(args + 40)
    limit = word_at(args + 48)
    bias = word_at(args + 56)
    matrix = args + 64
    xs = _input_addresses()
    ys = _gate_addresses()
    item = begin
    while item < end:
        entry = word_at(args) + item // tiles * 24
        record = word_at(entry)
        tile = item % tiles
        last_tile = min(tiles, tile + end - item)
        item += last_tile - tile
        total = word_at(entry + 16) - word_at(entry + 8)
        piece = PIECE // ROWS if total > ROWS else tiles
        while tile < last_tile:
            stop = min(last_tile, tile + piece)
            t = word_at(entry + 8)
            while t < word_at(entry + 16):
                count = min(ROWS, word_at(entry + 16) - t)
                _inputs(matrix, np.int64(0), t, count, base, xs)
                for i in range(count):
                    row = _named(selections, t + i)
                    put_word(ys + i * 8, word_at(args + 16) + row * word_at(args + 24))
                _times(matrix, record, tile, stop, xs, ys, count, limit)
                if bias != 0:
                    for i in range(count):
                        y = word_at(ys + i * 8)
                        last = min(stop * 16, limit)
                        write_out(y + tile * 64, record + bias, 0, y, tile * 16, last)
                t += count
            tile = stop


def _combine(args, begin, end):  # pragma: no cover - compiled
    """Items: (row, part of its columns)."""
    k = word_at(args)
    hidden = word_at(args + 8)
    parts = word_at(args + 16)
    selected = word_at(args + 24)
    step = word_at(args + 32)
    for item in range(begin, end):
        row = item // parts
        c = item % parts * COLUMNS
        last = min(hidden, c + COLUMNS)
        weights = word_at(args + 48) + row * k * 4
        y = word_at(args + 56) + row * word_at(args + 64)
        while c + 16 <= last:
            total = splat(np.float32(0.0))
            for j in range(k):
                part = load_f32(selected + _named(word_at(args + 40), row * k + j) * step + c * 4)
                total = fma(splat_at(weights + j * 4), part, total)
            store_f32(y + c * 4, add(load_f32(y + c * 4), total))
            c += 16
        while c < last:
            rest = np.float32(0.0)
            for j in range(k):
                part = f32_at(selected + _named(word_at(args + 40), row * k + j) * step + c * 4)
                rest = fma(f32_at(weights + j * 4), part, rest)
            store_one(y + c * 4, f32_at(y + c * 4) + rest)
            c += 1


GATE_UP = Phase(_gate_up)
DOWN = Phase(_down)
COMBINE = Phase(_combine)
