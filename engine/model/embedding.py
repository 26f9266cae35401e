"""The embedding: a row per token id, from memory or from disk.

A matrix of its own stays on disk: a forward needs one row of a few KiB per token, and the hundreds
of megabytes that it would take in memory hold experts instead. Where the head is the same matrix it
is in memory anyway. The one rule: both give the same bits.
"""

import weakref
from typing import Protocol

import numpy as np
import numpy.typing as npt

from diskmoe.engine.kernels.matmul import take_rows
from diskmoe.engine.kernels.matrix import Matrix
from diskmoe.engine.model.scratch import Floats
from diskmoe.experts.rows import RowSource
from diskmoe.experts.tiles import aligned_zeros


class Embedding(Protocol):
    """What a forward asks."""

    def take(self, ids: npt.NDArray[np.int32], out: Floats) -> Floats:
        """out[i] = row ids[i], f32 (n, hidden); returns `out`. Ids are inside the vocabulary."""
        ...


class ResidentEmbedding:
    """The rows of a matrix in memory."""

    def __init__(self, matrix: Matrix) -> None:
        self.matrix = matrix

    def take(self, ids: npt.NDArray[np.int32], out: Floats) -> Floats:
        return take_rows(self.matrix, ids, out)


class StreamedEmbedding:
    """Rows that are read when they are asked for; each piece of the matrix once per call.

    The system's page cache keeps those of frequent tokens, where there is room. Raises ReadFailed.
    """

    def __init__(self, source: RowSource) -> None:
        self._source = source
        self._piece = Matrix(source.layout, aligned_zeros(source.layout.nbytes))
        weakref.finalize(self, source.close)

    def take(self, ids: npt.NDArray[np.int32], out: Floats) -> Floats:
        piece, rows = self._piece, self._piece.rows
        held = -1
        for i in np.argsort(ids, kind="stable").tolist():
            number, row = divmod(int(ids[i]), rows)
            if number != held:
                self._source.read(number, piece.packed)
                held = number
            take_rows(piece, np.array([row], np.int32), out[i : i + 1])
        return out
