"""Rows times a packed matrix: the dense weights, the head, the embedding.

The rule of this file: a row's result does not depend on the other rows, on the threads, or on how
the work is split; `products.py` says how it is computed.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.compiled.functions import inner, kernel
from diskmoe.engine.kernels.atomics import on_stack, put_word, word_at
from diskmoe.engine.kernels.paths import HOST
from diskmoe.engine.kernels.products import (
    KIND,
    Q8,
    depth_of,
    is_integer,
    prepare_row,
    prepared_bytes,
    scale_bytes,
    tile_bytes,
    tile_kernel,
    tile_rows,
    unpack_row,
)
from diskmoe.engine.kernels.program import Builder, Phase, Rows, rows_of
from diskmoe.engine.kernels.simd import (
    add,
    address,
    f32_at,
    load_f32,
    store_f32,
    store_one,
)
from diskmoe.engine.kernels.workers import Workers
from diskmoe.experts.tiles import MatrixLayout, aligned_zeros

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Matrix:
    """A matrix in the tile16 layout: `packed` uint8 1-D, layout.nbytes long, contiguous.

    64-byte alignment is faster (no vector crosses a cache line) but not required.
    """

    layout: MatrixLayout
    packed: Bytes
    data_address: int = field(init=False, repr=False)  # asked once: asking is slow

    def __post_init__(self) -> None:
        packed, layout = self.packed, self.layout
        if packed.dtype != np.uint8 or packed.shape != (layout.nbytes,):
            raise ValueError(
                f"a packed {layout.format} matrix of {layout.rows} x {layout.cols} is uint8 "
                f"({layout.nbytes},), not {packed.dtype} {packed.shape}"
            )
        if not packed.flags.c_contiguous:
            raise ValueError("a packed matrix must be contiguous")
        object.__setattr__(self, "data_address", packed.ctypes.data)

    @property
    def rows(self) -> int:
        return self.layout.rows

    @property
    def cols(self) -> int:
        return self.layout.cols

    @property
    def kind(self) -> int:
        return KIND[self.layout.format]

    def halves(self) -> tuple["Matrix", "Matrix"]:
        """The first rows and the last, as many, of whole tiles each; the same memory."""
        layout = self.layout
        if layout.rows % 32:
            raise ValueError(f"{layout.rows} rows have no halves of whole tiles")
        tiles = layout.tiles // 2
        data, scales = layout.sections(self.packed)
        data_nbytes, scales_nbytes = len(data) // 2, len(scales) // 2
        rest = replace(layout, rows=layout.rows // 2, tiles=tiles)
        # the scales of a half are as far behind its data as they are in the whole
        first = replace(rest, nbytes=layout.nbytes)
        second = replace(
            rest,
            scales_offset=layout.scales_offset - data_nbytes + scales_nbytes,
            nbytes=layout.nbytes - data_nbytes,
        )
        return Matrix(first, self.packed), Matrix(second, self.packed[data_nbytes:])


@dataclass(frozen=True)
class Product:
    """One matrix of a multiplication: what it multiplies, and what becomes of the result.

    x: rows prepared for the matrix's kind. out: rows of f32; where their step leaves no room for
    whole tiles, `exact` says that nothing may be written beyond matrix.rows numbers.
    """

    matrix: Matrix
    x: Rows
    out: Rows
    bias: int = 0  # address of (rows,) f32, added to each result
    adds: bool = False  # the result is added to `out` instead of stored
    exact: bool = False


def matmul(
    x: Floats,  # (n, cols), C-contiguous
    matrix: Matrix,
    out: Floats,  # (n, rows), C-contiguous
    workers: Workers,
    path: Any = HOST,
) -> Floats:
    """out[i] = matrix @ x[i]; returns `out`. n = 0 is allowed. `path`: see simd.py."""
    layout = matrix.layout
    n = len(x)
    check_floats("x", x, (n, layout.cols))
    check_floats("out", out, (n, layout.rows))
    if n:
        builder = Builder()
        rows = add_prepared(builder, x, matrix.kind)
        product = Product(matrix, rows, rows_of(out), exact=True)
        add_products(builder, [product], n, path)
        workers.run(builder.program())
    return out


def add_products(builder: Builder, products: list[Product], n: int, path: Any = HOST) -> None:
    """A phase: n rows times each of these matrices."""
    words = [n, len(products)]
    tiles, macs = 0, 0
    for product in products:
        words += _words(product, path)
        tiles += product.matrix.layout.tiles
        macs += n * product.matrix.layout.tiles * 16 * product.matrix.cols
    builder.add(MULTIPLY, words, tiles, macs / tiles)


def _words(product: Product, path: Any) -> list[int]:
    layout, kind = product.matrix.layout, product.matrix.kind
    data = product.matrix.data_address
    depth = int(depth_of(kind, layout.cols))
    return [
        layout.tiles,
        tile_kernel(layout.format, path),
        data,
        data + layout.scales_offset,
        int(tile_bytes(kind, depth)),
        int(scale_bytes(kind, depth)),
        depth,
        product.x.address,
        product.x.step,
        product.out.address,
        product.out.step,
        layout.rows if product.exact or product.adds else layout.tiles * 16,
        product.bias,
        layout.rows,
        int(product.adds),
        0,
    ]


def add_prepared(builder: Builder, x: Floats, kind: int) -> Rows:
    """A phase that prepares the rows of x (n, cols) for matrices of a kind, if they need it."""
    n, cols = x.shape
    if not is_integer(kind):
        return rows_of(x)
    out = prepared_room(n, cols, kind)
    builder.keep(out)
    return add_preparation(builder, n, cols, kind, rows_of(x), rows_of(out))


def add_preparation(builder: Builder, n: int, cols: int, kind: int, x: Rows, out: Rows) -> Rows:
    """A phase: n rows of x, f32, prepared for matrices of an integer kind; returns `out`."""
    builder.add(PREPARE, [kind, cols, x.address, x.step, out.address, out.step], n, 4 * cols)
    return out


def prepared_room(n: int, cols: int, kind: int) -> Bytes:
    """Room for n prepared rows, u8 (n, bytes of one)."""
    step = int(prepared_bytes(kind, cols))
    return aligned_zeros(n * step).reshape(n, step)


def take_rows(
    matrix: Matrix,
    ids: npt.NDArray[np.int32],  # (n,)
    out: Floats,  # (n, cols), C-contiguous
) -> Floats:
    """out[i] = row ids[i] of the matrix, dequantised (embedding rows); returns `out`.

    IndexError when an id is outside 0..rows-1.
    """
    layout = matrix.layout
    check_floats("out", out, (len(ids), layout.cols))
    ids = np.ascontiguousarray(ids, np.int32)
    data = matrix.data_address
    depth = int(depth_of(matrix.kind, layout.cols))
    bad = _take_rows(matrix.kind, data, data + layout.scales_offset, depth, layout.rows, ids, out)
    if bad >= 0:
        raise IndexError(f"row {ids[bad]} of a matrix with {layout.rows} rows")
    return out


def matmul_scratch_bytes(n: int, cols: int, kind: int = Q8) -> int:
    """Bytes that `matmul` takes for n rows of `cols` activations, for the memory plan."""
    return n * int(prepared_bytes(kind, cols)) + 64


def check_floats(name: str, array: Floats, shape: tuple[int, ...]) -> None:
    """ValueError unless `array` is C-contiguous f32 of this shape: kernels trust their sizes."""
    if array.dtype != np.float32 or array.shape != shape or not array.flags.c_contiguous:
        order = "" if array.flags.c_contiguous else " not C-contiguous"
        raise ValueError(
            f"{name} must be C-contiguous float32 {shape}, not {array.dtype} {array.shape}{order}"
        )


# ---- phases --------------------------------------------------------------------------------------

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


@kernel
def _take_rows(kind, weights, scales, depth, rows, ids, out):  # pragma: no cover - compiled
    """Row ids[i] -> out[i]; returns the first i whose id is not a row, or -1."""
    cols = np.int64(out.shape[1])
    for i in range(len(ids)):
        row = np.int64(ids[i])
        if row < 0 or row >= rows:
            return i
        tile = row // 16
        unpack_row(
            kind,
            weights + tile * tile_bytes(kind, depth),
            scales + tile * scale_bytes(kind, depth),
            depth,
            row % 16,
            cols,
            address(out) + i * cols * 4,
        )
    return -1
