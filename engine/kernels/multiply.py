"""The phases of a multiplication: rows prepared, and tiles of matrices times them."""

import numpy as np

from diskmoe.compiled.functions import inner
from diskmoe.engine.kernels.atomics import on_stack, put_word, word_at
from diskmoe.engine.kernels.products import prepare_row, tile_rows
from diskmoe.engine.kernels.program import Phase
from diskmoe.engine.kernels.simd import add, f32_at, load_f32, store_f32, store_one

ROWS = 8  # rows that go through a piece of a matrix together
PIECE = 32  # 16 outputs, times rows, that are kept aside before they are written

_addresses = on_stack(8 * ROWS)
_outputs = on_stack(64 * PIECE)


@inner
def tiles_of_rows(
    kernel_address, weights, scales, depth, tile_nbytes, scale_nbytes, first, last, xs, ys, n, rows
):  # pragma: no cover - compiled
    """Tiles first..last-1 of a matrix times n <= ROWS rows; `ys`: where output 0 of each row goes.

    No output beyond number `rows` is written.
    """
    whole = min(last, rows // 16)
    places = _addresses()
    if whole > first:
        for i in range(n):
            put_word(places + i * 8, word_at(ys + i * 8) + first * 64)
        tile_rows(
            kernel_address,
            weights + first * tile_nbytes,
            scales + first * scale_nbytes,
            depth,
            whole - first,
            xs,
            places,
            n,
        )
    if whole < last:
        spill = _outputs()
        for i in range(n):
            put_word(places + i * 8, spill + i * 64)
        tile_rows(
            kernel_address,
            weights + whole * tile_nbytes,
            scales + whole * scale_nbytes,
            depth,
            np.int64(1),
            xs,
            places,
            n,
        )
        for i in range(n):
            y = word_at(ys + i * 8) + whole * 64
            for lane in range(rows - whole * 16):
                store_one(y + lane * 4, f32_at(spill + i * 64 + lane * 4))


@inner
def _multiply_part(part, n, first, last):  # pragma: no cover - compiled
    """Tiles first..last-1 of the matrix that `part` describes, times all n rows."""
    kernel_address = word_at(part + 8)
    tile_nbytes = word_at(part + 32)
    scale_nbytes = word_at(part + 40)
    weights = word_at(part + 16)
    scales = word_at(part + 24)
    depth = word_at(part + 48)
    x = word_at(part + 56)
    x_step = word_at(part + 64)
    out = word_at(part + 72)
    out_step = word_at(part + 80)
    bias = word_at(part + 96)
    rows = word_at(part + 104)
    adds = word_at(part + 112)
    xs = _input_addresses()
    ys = _output_addresses()
    aside = _aside()
    plain = bias == 0 and adds == 0
    piece = last - first
    if n > ROWS:
        piece = PIECE // ROWS
    elif not plain:
        piece = PIECE // n
    for tile in range(first, last, piece):
        end = min(last, tile + piece)
        for row in range(0, n, ROWS):
            count = min(ROWS, n - row)
            for i in range(count):
                put_word(xs + i * 8, x + (row + i) * x_step)
                y = out + (row + i) * out_step
                if not plain:
                    y = aside + (i * piece - tile) * 64
                put_word(ys + i * 8, y)
            limit = word_at(part + 88) if plain else end * 16
            tiles_of_rows(
                kernel_address,
                weights,
                scales,
                depth,
                tile_nbytes,
                scale_nbytes,
                tile,
                end,
                xs,
                ys,
                count,
                limit,
            )
            if not plain:
                for i in range(count):
                    write_out(
                        aside + i * piece * 64,
                        bias,
                        adds,
                        out + (row + i) * out_step,
                        tile * 16,
                        min(end * 16, rows),
                    )


_input_addresses = on_stack(8 * ROWS)
_output_addresses = on_stack(8 * ROWS)
_aside = on_stack(64 * PIECE)


@inner
def write_out(values, bias, adds, out, first, last):  # pragma: no cover - compiled
    """Outputs first..last-1 of a row, computed to `values`, with bias, to or on top of `out`."""
    c = first
    while c + 16 <= last:
        v = load_f32(values + (c - first) * 4)
        if bias != 0:
            v = add(v, load_f32(bias + c * 4))
        if adds != 0:
            v = add(load_f32(out + c * 4), v)
        store_f32(out + c * 4, v)
        c += 16
    while c < last:
        one = f32_at(values + (c - first) * 4)
        if bias != 0:
            one = one + f32_at(bias + c * 4)
        if adds != 0:
            one = f32_at(out + c * 4) + one
        store_one(out + c * 4, one)
        c += 1


def _multiply(args, begin, end):  # pragma: no cover - compiled
    """Items: the tiles of all matrices one after another."""
    n = word_at(args)
    part = args + 16
    before = np.int64(0)
    for _ in range(word_at(args + 8)):
        tiles = word_at(part)
        first = max(begin - before, 0)
        last = min(end - before, tiles)
        if first < last:
            _multiply_part(part, n, first, last)
        before += tiles
        part += 128


def _prepare(args, begin, end):  # pragma: no cover - compiled
    """Items: rows."""
    for row in range(begin, end):
        prepare_row(
            word_at(args),
            word_at(args + 16) + row * word_at(args + 24),
            word_at(args + 8),
            word_at(args + 32) + row * word_at(args + 40),
        )


MULTIPLY = Phase(_multiply)
PREPARE = Phase(_prepare)
