"""One weight format in memory many times over, and its product with some rows, timed and checked.

The rule of this file: before a product's speed is believed its outputs are compared with NumPy's,
on the first and the last copy of the matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from diskmoe.bench.memory import Crew
from diskmoe.bench.weights import WRITABLE, RandomWeights
from diskmoe.compiled.functions import kernel
from diskmoe.engine.errors import DiskMoeError
from diskmoe.engine.kernels.paths import path_named
from diskmoe.engine.kernels.products import (
    KIND,
    depth_of,
    is_integer,
    prepare_row,
    prepared_bytes,
    scale_bytes,
    tile_bytes,
    tile_kernel,
    tile_rows,
)
from diskmoe.experts.arena import Arena
from diskmoe.experts.packing import pack, unpack
from diskmoe.experts.tiles import PAGE, TILE, aligned_zeros, matrix_layout

TOLERANCE = 1e-5  # of the sum of magnitudes that go into an output


class WrongResult(DiskMoeError):
    """A kernel's outputs are not those of its NumPy twin."""

    exit_code = 1


@kernel
def _walk(
    tile_kernel, arena, stride, slots, begin, count, sizes, tile_begin, tile_end, xs, ys, n
):  # pragma: no cover - compiled
    """`count` matrices from slot `begin` on, round and round, tiles tile_begin..tile_end-1 of each.

    sizes: (offset of the scales, bytes of a tile, bytes of its scales, depth).
    """
    scales, tile_nbytes, scale_nbytes, depth = sizes
    for i in range(count):
        at = arena + (begin + i) % slots * stride
        tile_rows(  # pyright: ignore[reportCallIssue]
            tile_kernel,
            at + tile_begin * tile_nbytes,
            at + scales + tile_begin * scale_nbytes,
            depth,
            tile_end - tile_begin,
            xs,
            ys,
            n,
        )


def exact_rows(n: int, cols: int, seed: int) -> npt.NDArray[np.float32]:
    """f32 (n, cols) that int8 activations hold exactly, with any group of 32 columns or more.

    Multiples of 1/64 up to 127/64, the largest in every 32 columns; so a product has nothing to
    differ in from its twin but the order of additions.
    """
    rng = np.random.Generator(np.random.SFC64([seed, 4]))
    steps = rng.integers(-126, 127, (n, cols))
    steps[:, ::32] = 127
    return (steps / 64).astype(np.float32)


@dataclass(frozen=True)
class Sizes:
    """Numbers of a packed matrix that kernels ask for."""

    format: str
    rows: int
    cols: int

    @property
    def nbytes(self) -> int:
        """Weights and scales, without padding."""
        return matrix_layout(self.format, self.rows, self.cols).used_nbytes

    @property
    def stride(self) -> int:
        return -(-matrix_layout(self.format, self.rows, self.cols).nbytes // PAGE) * PAGE


class Matrices:
    """Copies of one random matrix side by side in a hugepage arena of `arena_bytes`."""

    def __init__(self, fmt: str, rows: int, cols: int, arena_bytes: int, seed: int = 0) -> None:
        self.layout = matrix_layout(fmt, rows, cols)
        self.sizes = Sizes(fmt, rows, cols)
        self.slots = max(2, arena_bytes // self.sizes.stride)
        packed, self.weights = _random_matrix(fmt, rows, cols, seed)
        self.arena = Arena(self.slots, self.sizes.stride)
        for slot in range(self.slots):
            self.arena.slot(slot)[: len(packed)] = packed
        self.address = self.arena.bytes.ctypes.data

    def product(self, n: int, path: str, crew: Crew) -> Product:
        """The product with n rows; checked before it is returned. Raises WrongResult."""
        product = Product(self, n, path, crew)
        product.check()
        return product

    def close(self) -> None:
        self.arena.close()


def _random_matrix(
    fmt: str, rows: int, cols: int, seed: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """(packed bytes, the weights they stand for)."""
    layout = matrix_layout(fmt, rows, cols)
    if fmt in WRITABLE:
        block = RandomWeights(seed).block(fmt, fmt, rows, cols)
        return block.packed(layout), block.f32()
    rng = np.random.Generator(np.random.SFC64([seed, 5]))
    packed = pack(rng.standard_normal((rows, cols), np.float32), layout)
    return packed, unpack(packed, layout)


class Product:
    """A matrix times n prepared rows, by one path and the threads of a crew."""

    def __init__(self, matrices: Matrices, n: int, path: str, crew: Crew) -> None:
        layout = matrices.layout
        self._matrices, self._crew = matrices, crew
        self.label = f"{layout.format}, path {path}, {n} row(s), {crew.n_threads} thread(s)"
        kind = KIND[layout.format]
        depth = int(depth_of(kind, layout.cols))
        self._sizes = (
            layout.scales_offset,
            int(tile_bytes(kind, depth)),
            int(scale_bytes(kind, depth)),
            depth,
        )
        self._kernel = tile_kernel(layout.format, path_named(path))
        self.x = exact_rows(n, layout.cols, n)
        self.y = np.zeros((n, layout.tiles * TILE), np.float32)
        self._prepared, row_addresses = _prepared(self.x, kind)
        self._xs = np.array(row_addresses, np.int64)
        edges = np.linspace(0, layout.tiles, crew.n_threads + 1).astype(np.int64)
        self._parts = [(int(a), int(b)) for a, b in pairwise(edges)]
        begin = self.y.ctypes.data + np.arange(n) * self.y.strides[0]
        self._ys = [(begin + first * TILE * 4).astype(np.int64) for first, _ in self._parts]

    def seconds(self, begin: int, count: int) -> float:
        """Wall time for `count` matrices from slot `begin` on."""
        matrices, n = self._matrices, len(self.x)

        def job(number: int) -> Callable[[], object]:
            first, last = self._parts[number]
            ys = self._ys[number].ctypes.data
            return lambda: _walk(
                self._kernel,
                matrices.address,
                matrices.sizes.stride,
                matrices.slots,
                begin,
                count,
                self._sizes,
                first,
                last,
                self._xs.ctypes.data,
                ys,
                n,
            )

        return self._crew.seconds([job(number) for number in range(self._crew.n_threads)])

    def check(self) -> None:
        """Compare with NumPy. Raises WrongResult."""
        weights = self._matrices.weights.astype(np.float64)
        wide = self.x.astype(np.float64)
        expected = wide @ weights.T
        allowed = TOLERANCE * (np.abs(wide) @ np.abs(weights).T)
        for slot in (0, self._matrices.slots - 1):
            self.y[:] = np.nan
            self.seconds(slot, 1)
            found = self.y[:, : self._matrices.layout.rows].astype(np.float64)
            wrong = ~(np.abs(found - expected) <= allowed)  # true for NaN too
            if wrong.any():
                row, output = np.argwhere(wrong)[0]
                raise WrongResult(
                    f"{self.label}: {int(wrong.sum())} of {wrong.size} outputs differ from NumPy's,"
                    f" the first is output {output} of row {row}: {found[row, output]:.6g} and "
                    f"{expected[row, output]:.6g}; its speed is not reported"
                )


def _prepared(x: npt.NDArray[np.float32], kind: int) -> tuple[list[object], list[int]]:
    """(what must be kept alive, the addresses of the prepared rows of x)."""
    if not is_integer(kind):
        return [x], [x.ctypes.data + row * x.strides[0] for row in range(len(x))]
    kept: list[object] = []
    addresses = []
    for row in x:
        out = aligned_zeros(int(prepared_bytes(kind, len(row))))
        prepare_row(kind, row.ctypes.data, len(row), out.ctypes.data)
        kept.append(out)
        addresses.append(out.ctypes.data)
    return kept, addresses
