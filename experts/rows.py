"""Single rows of a matrix that stays on disk, packed as the kernels want them.

The rule of this file: what is read for a row are the bytes that `load_dense` would have put in
memory for it, so that it does not matter to a number where the matrix is. A converted model keeps
tiles of 16 rows, so its piece is a tile; a checkpoint keeps rows, so its piece is a row.
"""

from typing import Protocol

import numpy as np

from diskmoe.experts.checkpoint import Checkpoint
from diskmoe.experts.container import Container
from diskmoe.experts.errors import BadModel
from diskmoe.experts.packing import pack
from diskmoe.experts.reader import FileReader
from diskmoe.experts.safetensors_io import numpy_dtype, shown
from diskmoe.experts.tiles import TILE, Bytes, MatrixLayout, matrix_layout


class RowSource(Protocol):
    """Pieces of a matrix of some rows each; `layout` is that of one piece."""

    @property
    def layout(self) -> MatrixLayout: ...

    def read(self, piece: int, out: Bytes) -> None:
        """Fill `out` u8 (layout.nbytes,) with rows piece * layout.rows and on; ReadFailed."""
        ...

    def close(self) -> None: ...


class ContainerRows:
    """Tiles of a packed matrix of a converted model: its 16 rows and their scales, two reads."""

    def __init__(self, container: Container, name: str, whole: MatrixLayout) -> None:
        self.layout = matrix_layout(whole.format, TILE, whole.cols)
        self._reader = FileReader()
        self._path, self._data = container.dense_place(name)
        self._scales = self._data + whole.scales_offset

    def read(self, piece: int, out: Bytes) -> None:
        for at, part in zip((self._data, self._scales), self.layout.sections(out), strict=True):
            if len(part):
                self._reader.read_into(self._path, at + piece * len(part), part)

    def close(self) -> None:
        self._reader.close()


class CheckpointRows:
    """Rows of a checkpoint's matrix, each packed as it is read."""

    def __init__(self, checkpoint: Checkpoint, name: str, whole: MatrixLayout) -> None:
        self.layout = matrix_layout(whole.format, 1, whole.cols)
        self._reader = FileReader()
        self._matrix = checkpoint.matrix(name)
        if self._matrix.shape != (whole.rows, whole.cols):
            raise BadModel(
                f"{self._matrix.codes.path}: tensor {shown(name)} has shape "
                f"{list(self._matrix.shape)}, config.json asks for {[whole.rows, whole.cols]}"
            )
        pieces = self._matrix.pieces
        self._raw = [np.empty(info.nbytes // info.shape[0], np.uint8) for info in pieces]

    def read(self, piece: int, out: Bytes) -> None:
        stored = []
        places = (piece, self._matrix.scale_rows(piece, piece + 1)[0])
        for info, row, raw in zip(self._matrix.pieces, places, self._raw, strict=False):
            self._reader.read_into(info.path, info.offset + row * len(raw), raw)
            stored.append(raw.view(numpy_dtype(info.dtype)).reshape(1, -1))
        try:
            pack(self._matrix.decoded(stored, piece, self.layout.format), self.layout, out)
        except ValueError as error:
            info = self._matrix.codes
            raise BadModel(
                f"{info.path}: tensor {shown(info.name)}, row {piece}: {error}"
            ) from None

    def close(self) -> None:
        self._reader.close()


def rows_on_disk(source: Checkpoint | Container, name: str, whole: MatrixLayout) -> RowSource:
    """The rows of a dense matrix that would have the layout `whole` in memory."""
    if isinstance(source, Container):
        return ContainerRows(source, name, whole)
    return CheckpointRows(source, name, whole)
