"""A matrix as kernels take it: packed bytes, and where they are."""

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from diskmoe.engine.kernels.products import KIND
from diskmoe.experts.tiles import MatrixLayout

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
