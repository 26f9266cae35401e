"""The experts of a layer as a GGUF has them: tensors of all experts, gate and up apart or in one.

The rule of this file: it knows where an expert's bytes lie and what they mean, and reads nothing by
itself. `stored.py` does the same for the hub's checkpoints.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diskmoe.experts.checkpoint import TensorPlan
from diskmoe.experts.errors import BadModel
from diskmoe.experts.gguf_blocks import (
    FLOATS,
    exact_formats,
    keeps_codes,
    numbers,
    refuse_unsupported,
    wide,
)
from diskmoe.experts.layer_experts import Read
from diskmoe.experts.packing import pack, pack_biases, pack_values, packing_bytes
from diskmoe.experts.reader import through_nbytes
from diskmoe.experts.safetensors_io import TensorInfo, shown
from diskmoe.experts.tiles import Bytes, MatrixLayout, RecordLayout

Shape = tuple[int, int]  # rows, columns


class GgufExperts:
    """Where the weights of a layer's experts are, and how they come out of there.

    BadModel when one of their tensors is missing, or of an unknown type or another shape.
    """

    def __init__(
        self, path: Path, tensors: Mapping[str, TensorInfo], plan: TensorPlan, layer: int
    ) -> None:
        self._path, self._tensors, self._plan, self._layer = path, tensors, plan, layer
        inner, down = (plan.ffn, plan.hidden), (plan.hidden, plan.ffn)
        if self._has("ffn_gate_up_exps.weight"):
            both = self._checked("ffn_gate_up_exps.weight", (2 * plan.ffn, plan.hidden))
            self._weights = [_half(both, 0), _half(both, 1)]
        else:
            self._weights = [self._checked(f"ffn_{part}_exps.weight", inner) for part in _INNER]
        self._weights.append(self._checked("ffn_down_exps.weight", down))
        self._biases: list[_Matrices] = []
        if plan.biased and self._has("ffn_gate_up_exps.bias"):
            both = self._checked("ffn_gate_up_exps.bias", (2 * plan.ffn, 1))
            self._biases = [_half(both, 0), _half(both, 1)]
        elif plan.biased:
            self._biases = [
                self._checked(f"ffn_{part}_exps.bias", (plan.ffn, 1)) for part in _INNER
            ]
        if plan.biased:
            self._biases.append(self._checked("ffn_down_exps.bias", (plan.hidden, 1)))

    def exact_formats(self) -> tuple[set[str], set[str]]:
        gate, up, down = (exact_formats(matrices.whole.dtype) for matrices in self._weights)
        return gate & up, down

    def pieces(self, expert: int) -> list[TensorInfo]:
        return [matrices.piece(expert) for matrices in self._weights + self._biases]

    def buffer_bytes(self, expert: int) -> int:
        return max(through_nbytes(piece.nbytes) for piece in self.pieces(expert))

    def temporary_bytes(self, expert: int, part: MatrixLayout) -> int:
        # the gguf package makes several f32 copies on its way
        return 16 * part.rows * part.cols + packing_bytes(part, False)

    def load(
        self, expert: int, buffer: Bytes, read: Read, layout: RecordLayout, record: Bytes
    ) -> None:
        for matrices, (part, begin, end) in zip(self._weights, layout.parts(), strict=True):
            piece = matrices.piece(expert)
            raw, out = read(piece, buffer), record[begin:end]
            try:
                if keeps_codes(piece.dtype, part.format):
                    pack_values(numbers(raw, piece.dtype, part.cols, part.format), part, out)
                else:
                    pack(wide(raw, piece.dtype, part.cols), part, out)
            except ValueError as error:
                raise BadModel(
                    f"{piece.path}: tensor {shown(piece.name)}, expert {expert}: {error}"
                ) from None
        biases: list[npt.NDArray[np.float32]] = []
        for matrices in self._biases:
            piece = matrices.piece(expert)
            biases.append(wide(read(piece, buffer), piece.dtype, 1).reshape(-1).copy())
        pack_biases(biases, layout, record)

    def _name(self, ending: str) -> str:
        return f"blk.{self._layer}.{ending}"

    def _has(self, ending: str) -> bool:
        return self._name(ending) in self._tensors

    def _checked(self, ending: str, shape: Shape) -> "_Matrices":
        """The matrices, or the vectors (columns: 1), of all experts."""
        name = self._name(ending)
        info = self._tensors.get(name)
        if info is None:
            old = self._name("ffn_gate.0.weight") in self._tensors
            why = "an old file, with a tensor for each expert" if old else "fetch the model again"
            raise BadModel(f"{self._path}: tensor {shown(name)} is missing ({why})")
        refuse_unsupported(info)
        asked = (self._plan.n_experts, *(shape if shape[1] > 1 else shape[:1]))
        if info.shape != asked or (shape[1] == 1 and info.dtype not in FLOATS):
            raise BadModel(
                f"{info.path}: tensor {shown(name)} is {info.dtype} {list(info.shape)}, its metadata "
                f"ask for {list(asked)}{'' if shape[1] > 1 else ' of ' + ', '.join(FLOATS)}"
            )
        return _Matrices(info, 0, 1)


_INNER = ("gate", "up")


class _Matrices:
    """One matrix, or vector, of each expert: the part `part` of `parts` of a tensor's rows."""

    def __init__(self, whole: TensorInfo, part: int, parts: int) -> None:
        self.whole, self._part, self._parts = whole, part, parts

    def piece(self, expert: int) -> TensorInfo:
        experts, rows, *cols = self.whole.shape
        nbytes = self.whole.nbytes // experts // self._parts
        return replace(
            self.whole,
            shape=(rows // self._parts, *cols),
            offset=self.whole.offset + (expert * self._parts + self._part) * nbytes,
            nbytes=nbytes,
        )


def _half(both: _Matrices, part: int) -> _Matrices:
    return _Matrices(both.whole, part, 2)
