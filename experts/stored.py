"""The experts of a layer as a checkpoint has them, in each of its forms.

The rule of this file: it knows where bytes lie and what they mean, and reads nothing by itself: it
is given a buffer and a function that fills it. `checkpoint.ExpertTensors` says what the forms are.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from diskmoe.experts.checkpoint import Checkpoint, ExpertTensors, TensorPlan
from diskmoe.experts.errors import BadModel
from diskmoe.experts.formats import GROUP, Quantised, dequantise
from diskmoe.experts.safetensors_io import TensorInfo, as_f32, numpy_dtype, shown
from diskmoe.experts.tiles import Bytes, MatrixLayout, pack, pack_values, packing_bytes

Weights = npt.NDArray[np.float32] | npt.NDArray[np.uint16] | Quantised  # u16: the bits of bf16
Read = Callable[[TensorInfo, Bytes], None]  # fills the bytes from where the tensor begins

CODES = "mxfp4"  # the format that keeps codes exactly


class StoredExperts:
    """Where the weights of a layer's experts are, and how they come out of there."""

    def __init__(self, checkpoint: Checkpoint, plan: TensorPlan, tensors: ExpertTensors) -> None:
        self._checkpoint = checkpoint
        self._tensors = tensors
        self._biased = plan.biased
        self._sizes = (plan.hidden, plan.ffn)
        if tensors.form == "codes" and (plan.hidden % GROUP or plan.ffn % GROUP):
            raise BadModel(
                f"{checkpoint.path}: experts of {plan.ffn} x {plan.hidden} have no whole groups of "
                f"{GROUP} columns, as MXFP4 has them: config.json is of another model"
            )

    def own_format(self, expert: int = 0) -> str:
        """The format that keeps the weights exactly."""
        if self._tensors.form == "codes":
            return CODES
        names = self._tensors.names(expert)
        own = {self._checkpoint.own_format(name) for name in names}
        return "bf16" if own == {"bf16"} else "f32"

    def name(self, which: int, expert: int) -> str:
        """The tensor that gate, up or down (0, 1, 2) of an expert is in, for messages."""
        suffix = "_blocks" if self._tensors.form == "codes" else ""
        return self._tensors.names(expert)[which] + suffix

    def pieces(self, expert: int) -> list[TensorInfo]:
        """The parts of tensors that an expert is made of."""
        if self._tensors.form == "each":
            return [self._checkpoint.info(name) for name in self._tensors.names(expert)]
        endings = ["_blocks", "_scales"] if self._tensors.form == "codes" else [""]
        endings += ["_bias"] if self._biased else []
        names = (self._tensors.gate, self._tensors.down)
        return [self._part(name + ending, expert) for name in names for ending in endings]

    def _part(self, name: str, expert: int) -> TensorInfo:
        """An expert's own part of a tensor of all experts."""
        whole = self._checkpoint.info(name)
        nbytes = whole.nbytes // whole.shape[0]
        return replace(
            whole, shape=whole.shape[1:], offset=whole.offset + expert * nbytes, nbytes=nbytes
        )

    def buffer_bytes(self, expert: int) -> int:
        """What `matrix` needs at most as its buffer."""
        sizes = [piece.nbytes for piece in self.pieces(expert)]
        return sum(sizes[:2]) if self._tensors.form == "codes" else max(sizes)

    def temporary_bytes(self, expert: int, part: MatrixLayout) -> int:
        """Most bytes that `put` takes for one matrix in this layout, beside buffer and result."""
        elements = part.rows * part.cols
        if self._tensors.form == "codes":
            numbers = elements + elements // 2
            wide = 0 if part.format == CODES else 8 * elements + packing_bytes(part, False)
            return numbers + wide
        dtypes = {piece.dtype for piece in self.pieces(expert)}
        most = max(packing_bytes(part, dtype == "BF16") for dtype in dtypes)
        if "F16" in dtypes:
            most += 4 * elements  # its f32 copy
        if self._tensors.form == "fused":
            most += 4 * elements  # turned to output-major
        return most

    def put(
        self, which: int, expert: int, buffer: Bytes, read: Read, part: MatrixLayout, out: Bytes
    ) -> None:
        """Gate, up or down (0, 1, 2) of an expert -> packed as `part`, u8 (part.nbytes,).

        The three are asked for in turn with the same buffer: up may lie in what was read for gate.
        BadModel for numbers that the format cannot have.
        """
        try:
            # not bound to a name: what was read is gone before the next matrix is
            _pack(self._matrix(which, expert, buffer, read), part, out)
        except ValueError as error:
            name = self.name(which, expert)
            path = self._checkpoint.info(name).path
            raise BadModel(f"{path}: tensor {shown(name)}: {error}") from None

    def _matrix(self, which: int, expert: int, buffer: Bytes, read: Read) -> Weights:
        form = self._tensors.form
        if form == "codes":
            return self._codes(which, expert, buffer, read)
        name = self._tensors.names(expert)[which]
        piece = self._checkpoint.info(name) if form == "each" else self._part(name, expert)
        raw = buffer[: piece.nbytes]
        if form == "each" or which != 1:
            read(piece, raw)
        stored = raw.view(numpy_dtype(piece.dtype)).reshape(piece.shape)
        if form == "fused":
            stored = stored.T if which == 2 else stored[:, which::2].T
        return stored.view(np.uint16) if piece.dtype == "BF16" else as_f32(stored, piece.dtype)

    def _codes(self, which: int, expert: int, buffer: Bytes, read: Read) -> Quantised:
        name = self._tensors.names(expert)[which]
        stored: list[Bytes] = []
        begin = 0
        for ending in ("_blocks", "_scales"):
            piece = self._part(name + ending, expert)
            raw = buffer[begin : begin + piece.nbytes]
            if which != 1:
                read(piece, raw)
            array = raw.reshape(piece.shape)
            stored.append(array if which == 2 else array[which::2])
            begin += piece.nbytes
        blocks, scales = stored
        rows, groups, _ = blocks.shape
        codes = np.empty((rows, groups, GROUP), np.uint8)
        np.bitwise_and(blocks, 15, out=codes[..., 0::2])
        np.right_shift(blocks, 4, out=codes[..., 1::2])
        return Quantised(codes.reshape(rows, -1), scales)

    def biases(self, expert: int, read: Read) -> Iterator[npt.NDArray[np.float32]]:
        """Of gate and up (ffn,), and of down (hidden,); none where experts have none."""
        if not self._biased:
            return
        for name in (self._tensors.gate, self._tensors.down):
            piece = self._part(name + "_bias", expert)
            raw = np.empty(piece.nbytes, np.uint8)
            read(piece, raw)
            bias = as_f32(raw.view(numpy_dtype(piece.dtype)), piece.dtype)
            yield from (bias[0::2], bias[1::2]) if name == self._tensors.gate else (bias,)


def _pack(weights: Weights, part: MatrixLayout, out: Bytes) -> None:
    if not isinstance(weights, Quantised):
        pack(weights, part, out)
    elif part.format == CODES:
        pack_values(weights, part, out)
    else:
        if (weights.scales == 0xFF).any():
            raise ValueError(f"a {CODES} scale is not a number")
        pack(dequantise(*weights), part, out)
