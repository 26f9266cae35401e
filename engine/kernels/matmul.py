"""Rows times a packed matrix: the dense weights, the head, the embedding.

The rule of this file: a row's result does not depend on the other rows, on the threads, or on how
the work is split; `products.py` says how it is computed.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.compiled.functions import kernel
from diskmoe.engine.kernels.matrix import Matrix
from diskmoe.engine.kernels.multiply import MULTIPLY, PREPARE
from diskmoe.engine.kernels.paths import HOST
from diskmoe.engine.kernels.products import (
    Q8,
    depth_of,
    is_integer,
    prepared_bytes,
    scale_bytes,
    tile_bytes,
    tile_kernel,
    unpack_row,
)
from diskmoe.engine.kernels.program import Builder, Rows, rows_of
from diskmoe.engine.kernels.simd import address
from diskmoe.engine.kernels.workers import Workers
from diskmoe.experts.tiles import aligned_zeros

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


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
