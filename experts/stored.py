"""The experts of a layer as a checkpoint has them, in each of its forms.

The rule of this file: it knows where bytes lie and what they mean, and reads nothing by itself: it
is given room and a function that reads into it. `checkpoint.ExpertTensors` says what the forms are.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.experts.checkpoint import Checkpoint, ExpertTensors, TensorPlan
from diskmoe.experts.errors import BadModel
from diskmoe.experts.formats import GROUP, Quantised
from diskmoe.experts.layer_experts import LayerExperts, Read
from diskmoe.experts.packing import Weights, pack, pack_biases, packing_bytes
from diskmoe.experts.reader import through_nbytes
from diskmoe.experts.safetensors_io import TensorInfo, as_f32, numpy_dtype, shown
from diskmoe.experts.tiles import Bytes, MatrixLayout, RecordLayout

CODES = "mxfp4"  # the format that keeps codes exactly


def experts_of(checkpoint: Checkpoint, plan: TensorPlan, layer: ExpertTensors) -> LayerExperts:
    """What takes the experts of a layer out of a checkpoint."""
    return checkpoint.experts(plan, layer) or StoredExperts(checkpoint, plan, layer)


class StoredExperts:
    """Where the weights of a layer's experts are, and how they come out of there."""

    def __init__(self, checkpoint: Checkpoint, plan: TensorPlan, tensors: ExpertTensors) -> None:
        self._checkpoint = checkpoint
        self._tensors = tensors
        self._biased = plan.biased
        self._ffn, self._n_experts = plan.ffn, plan.n_experts
        if tensors.form == "codes" and (plan.hidden % GROUP or plan.ffn % GROUP):
            raise BadModel(
                f"{checkpoint.path}: experts of {plan.ffn} x {plan.hidden} have no whole groups of "
                f"{GROUP} columns, as MXFP4 has them: config.json is of another model"
            )

    def exact_formats(self) -> tuple[set[str], set[str]]:
        """The formats that keep every number of gate and up, and those that keep down's."""
        if self._tensors.form == "codes":
            return {CODES, "f32"}, {CODES, "f32"}
        numbers = range(self._n_experts if self._tensors.form == "each" else 1)
        names = [self._tensors.names(expert) for expert in numbers]
        gate, up, down = (
            set.intersection(*map(self._checkpoint.exact_formats, of))
            for of in zip(*names, strict=True)
        )
        return gate & up, down

    def pieces(self, expert: int) -> list[TensorInfo]:
        """The parts of tensors that an expert is made of."""
        weights = [piece for name, _ in self._sources(expert) for piece in self._of(name, expert)]
        return weights + self._bias_pieces(expert)

    def _sources(self, expert: int) -> list[tuple[str, list[slice]]]:
        """Tensors, and which of their rows (outputs) are gate, up and down, in this order."""
        gate, up, down = self._tensors.names(expert)
        if self._tensors.form == "each":
            return [(name, [slice(None)]) for name in (gate, up, down)]
        if self._tensors.form == "stacked":
            both = [slice(0, self._ffn), slice(self._ffn, None)]
        else:
            both = [slice(0, None, 2), slice(1, None, 2)]
        return [(gate, both), (down, [slice(None)])]

    def _of(self, name: str, expert: int) -> list[TensorInfo]:
        """The expert's own part of a tensor: its numbers, or codes and scales."""
        if self._tensors.form == "each":
            return self._checkpoint.matrix(name).pieces
        endings = ("_blocks", "_scales") if self._tensors.form == "codes" else ("",)
        return [self._part(name + ending, expert) for ending in endings]

    def _part(self, name: str, expert: int) -> TensorInfo:
        """An expert's own part of a tensor of all experts."""
        whole = self._checkpoint.info(name)
        nbytes = whole.nbytes // whole.shape[0]
        return replace(
            whole, shape=whole.shape[1:], offset=whole.offset + expert * nbytes, nbytes=nbytes
        )

    def _bias_pieces(self, expert: int) -> list[TensorInfo]:
        names = (self._tensors.gate, self._tensors.down) if self._biased else ()
        return [self._part(name + "_bias", expert) for name in names]

    def buffer_bytes(self, expert: int) -> int:
        """The buffer that `load` needs."""
        read_at_once = [self._of(name, expert) for name, _ in self._sources(expert)]
        read_at_once += [[piece] for piece in self._bias_pieces(expert)]
        return max(sum(through_nbytes(p.nbytes) for p in pieces) for pieces in read_at_once)

    def temporary_bytes(self, expert: int, part: MatrixLayout) -> int:
        """Most bytes that `load` takes to pack one matrix so, beside the buffer."""
        elements = part.rows * part.cols
        if self._tensors.form == "each":
            stored = [self._checkpoint.matrix(name) for name in self._tensors.names(expert)]
            return max(matrix.temporary_bytes(part) for matrix in stored)
        if self._tensors.form == "codes":
            numbers = elements + elements // 2
            wide = 0 if part.format == CODES else 4 * elements + packing_bytes(part, False)
            return numbers + wide
        dtypes = {piece.dtype for piece in self.pieces(expert)}
        most = max(packing_bytes(part, dtype == "BF16") for dtype in dtypes)
        if "F16" in dtypes:
            most += 4 * elements  # its f32 copy
        if self._tensors.form == "fused":  # turned to output-major
            most += (2 if part.format == "bf16" and dtypes == {"BF16"} else 4) * elements
        return most

    def load(
        self, expert: int, buffer: Bytes, read: Read, layout: RecordLayout, record: Bytes
    ) -> None:
        """Fill an expert's record u8 (layout.nbytes,).

        buffer: page-aligned, `buffer_bytes`. BadModel for numbers that the format cannot have.
        """
        places = iter([(part, record[begin:end]) for part, begin, end in layout.parts()])
        for name, cuts in self._sources(expert):
            pieces, stored, used = self._of(name, expert), [], 0
            for piece in pieces:
                raw = read(piece, buffer[used:])
                stored.append(raw.view(numpy_dtype(piece.dtype)).reshape(piece.shape))
                used += through_nbytes(piece.nbytes)
            last = pieces[-1]  # the numbers, or the scales: what can be no number
            for cut in cuts:
                part, out = next(places)
                try:
                    # not bound to a name: one matrix is gone before the next one is made
                    pack(self._weights(name, last.dtype, stored, cut, part.format), part, out)
                except ValueError as error:
                    raise BadModel(f"{last.path}: tensor {shown(last.name)}: {error}") from None
        biases: list[npt.NDArray[np.float32]] = []
        for piece, (_, cuts) in zip(self._bias_pieces(expert), self._sources(expert), strict=False):
            bias = as_f32(read(piece, buffer).view(numpy_dtype(piece.dtype)), piece.dtype)
            biases += [bias[cut].copy() for cut in cuts]
        pack_biases(biases, layout, record)

    def _weights(
        self, name: str, dtype: str, stored: list[npt.NDArray[Any]], cut: slice, fmt: str
    ) -> Weights:
        """The rows `cut` of a matrix (outputs, inputs), wanted for format `fmt`."""
        if self._tensors.form == "each":
            return self._checkpoint.matrix(name).decoded(stored, 0, fmt)
        if self._tensors.form == "codes":
            blocks, scales = (array[cut] for array in stored)
            rows, groups, _ = blocks.shape
            codes = np.empty((rows, groups, GROUP), np.uint8)
            np.bitwise_and(blocks, 15, out=codes[..., 0::2])
            np.right_shift(blocks, 4, out=codes[..., 1::2])
            return Quantised(codes.reshape(rows, -1), scales)
        numbers = (stored[0].T if self._tensors.form == "fused" else stored[0])[cut]
        return numbers.view(np.uint16) if dtype == "BF16" else as_f32(numbers, dtype)
