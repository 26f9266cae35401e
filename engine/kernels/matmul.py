"""Rows times a packed matrix: the dense weights, the head, the embedding.

The rule of this file: a row's result does not depend on the other rows, on the threads, or on how
the work is split; `products.py` says how it is computed.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.engine.kernels.products import (
    BF16,
    F32,
    KIND,
    Q8,
    four_rows,
    one_row,
    quantise_rows,
    tile_bytes,
)
from diskmoe.engine.kernels.simd import HOST, address, bits_float, i32_at, lane_of, load_f16
from diskmoe.engine.kernels.workers import Workers
from diskmoe.experts.compiled import kernel
from diskmoe.experts.tiles import MatrixLayout

Floats = npt.NDArray[np.float32]

_MACS_PER_PART = 500_000  # about 25 us of work: less is not worth waking a thread for


@dataclass(frozen=True, eq=False)
class Matrix:
    """A matrix in the tile16 layout: `packed` uint8 1-D, layout.nbytes long, contiguous.

    64-byte alignment is faster (no vector crosses a cache line) but not required.
    """

    layout: MatrixLayout
    packed: npt.NDArray[np.uint8]
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
    kind = KIND[layout.format]
    prepared = prepare(x, kind, workers)
    workers.run(
        _multiply,
        layout.tiles,
        path,
        kind,
        matrix.data_address,
        matrix.data_address + layout.scales_offset,
        layout.groups if kind >= Q8 else layout.cols,
        prepared,
        out,
        grain=grain_for(n * 16 * layout.cols),
    )
    return out


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
    bad = _take_rows(KIND[layout.format], data, data + layout.scales_offset, layout.rows, ids, out)
    if bad >= 0:
        raise IndexError(f"row {ids[bad]} of a matrix with {layout.rows} rows")
    return out


def matmul_scratch_bytes(n: int, cols: int) -> int:
    """Bytes that `matmul` takes for n rows of `cols` activations, for the memory plan."""
    return n * prepared_bytes(cols)


# ---- what experts.py shares ----------------------------------------------------------------------


def check_floats(name: str, array: Floats, shape: tuple[int, ...]) -> None:
    """ValueError unless `array` is C-contiguous f32 of this shape: kernels trust their sizes."""
    if array.dtype != np.float32 or array.shape != shape or not array.flags.c_contiguous:
        order = "" if array.flags.c_contiguous else " not C-contiguous"
        raise ValueError(
            f"{name} must be C-contiguous float32 {shape}, not {array.dtype} {array.shape}{order}"
        )


def grain_for(macs_per_item: int) -> int:
    """The fewest items that are worth a thread of their own."""
    return max(1, _MACS_PER_PART // max(1, macs_per_item))


def prepared_bytes(cols: int) -> int:
    """Bytes of one prepared row for an integer format."""
    return -(-cols // 32) * 40


def prepare(x: Floats, kind: int, workers: Workers) -> npt.NDArray[np.uint8]:
    """x (n, cols) -> prepared rows as uint8 (n, bytes of one); a view of x for float formats."""
    n, cols = x.shape
    if kind < Q8:
        return x.view(np.uint8)
    prepared = np.empty((n, prepared_bytes(cols)), np.uint8)
    workers.run(quantise_rows, n, x, cols, prepared, grain=grain_for(8 * cols))
    return prepared


@kernel
def _multiply(path, kind, weights, scales, depth, prepared, out, begin, end):  # pragma: no cover
    """Tiles begin..end-1 of a matrix times all prepared rows u8 (n, bytes) -> out f32 (n, rows)."""
    n, rows = out.shape
    stride = prepared.shape[1]
    x = address(prepared)
    y = address(out)
    spill = np.empty((4, 16), np.float32)  # outputs of the last tile, when rows % 16 is not 0
    spilled = address(spill)
    for tile in range(begin, end):
        w = weights + tile * tile_bytes(kind, depth)
        s = scales + tile * depth * 32
        count = min(16, rows - tile * 16)
        i = 0
        while i < n:
            xi = x + i * stride
            yi = y + (i * rows + tile * 16) * 4
            step = rows * 4
            if count < 16:
                yi = spilled
                step = 64
            done = 1
            if i + 4 <= n:
                done = 4
                four_rows(
                    path,
                    kind,
                    w,
                    s,
                    depth,
                    (xi, xi + stride, xi + 2 * stride, xi + 3 * stride),
                    (yi, yi + step, yi + 2 * step, yi + 3 * step),
                )
            else:
                one_row(path, kind, w, s, depth, xi, yi)
            if count < 16:
                for j in range(done):
                    for lane in range(count):
                        out[i + j, tile * 16 + lane] = spill[j, lane]
            i += done


@kernel
def _take_rows(kind, weights, scales, rows, ids, out):  # pragma: no cover - compiled
    """Row ids[i] -> out[i]; returns the first i whose id is not a row, or -1."""
    cols = out.shape[1]
    depth = (cols + 31) // 32 if kind >= Q8 else cols
    for i in range(len(ids)):
        row = np.int64(ids[i])
        if row < 0 or row >= rows:
            return i
        tile = row // 16
        lane = row % 16
        w = weights + tile * tile_bytes(kind, depth)
        if kind == F32:
            for col in range(cols):
                out[i, col] = bits_float(i32_at(w + col * 64 + lane * 4))
        elif kind == BF16:
            for col in range(cols):
                pair = i32_at(w + col * 32 + (lane // 2) * 4)
                if lane % 2 == 0:
                    pair = pair << 16
                out[i, col] = bits_float(np.int32(pair & np.int32(-65536)))
        else:
            for col in range(cols):
                group = col // 32
                scale = lane_of(load_f16(None, scales + (tile * depth + group) * 32), lane)
                if kind == Q8:
                    word = i32_at(w + (col // 4) * 64 + lane * 4)
                    q = np.int32(word << (24 - 8 * (col % 4))) >> 24
                else:
                    word = i32_at(w + (col // 8) * 64 + lane * 4)
                    q = ((word >> (8 * (col % 4) + 4 * ((col // 4) % 2))) & 15) - 8
                out[i, col] = np.float32(q) * scale
    return -1
