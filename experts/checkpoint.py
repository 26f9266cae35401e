"""A Hugging Face model directory: config.json and tensors in one or many safetensors files.

The rule of this file: opening reads headers only, and checks that they, the index and the directory
agree; a tensor's bytes are read when asked for, in row blocks where a whole matrix would be large.

    checkpoint = Checkpoint.open("OLMoE-1B-7B-0924")
    checkpoint.verify(plan)
    packed = checkpoint.pack("lm_head.weight", matrix_layout("q8", 50304, 2048))
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from diskmoe.experts.directory import check_model_directory, open_tensors, read_json_object
from diskmoe.experts.errors import BadModel
from diskmoe.experts.formats import GROUP, chosen_format
from diskmoe.experts.layer_experts import LayerExperts
from diskmoe.experts.matrices import INT4_CODES, StoredMatrix, find_matrix
from diskmoe.experts.naming import canonical_names, layer_of
from diskmoe.experts.packing import Weights, pack, pack_rows, widened
from diskmoe.experts.safetensors_io import (
    FLOAT_DTYPES,
    Header,
    TensorInfo,
    read_rows,
    read_tensor,
    shown,
)
from diskmoe.experts.tiles import TILE, Bytes, MatrixLayout, checked_out

ROW_BLOCK_BYTES = 16 << 20  # f32 bytes of a matrix that are in memory at a time while packing
CODE_DTYPES = ("U8",)
ExpertForm = Literal["each", "stacked", "fused", "codes"]
VectorForm = Literal["plain", "plus_one", "turned"]


@dataclass(frozen=True)
class DenseTensor:
    """A tensor that stays in memory. A "matrix" is packed (and may be quantised), a "vector" is
    kept as f32 in its own shape, which may have two dimensions (a router). `mtp`: it belongs to an
    MTP layer, which loses its acceptance below int8. `form`: what a vector is in memory: as stored,
    1 + what is stored (a zero-centred norm), or with its dimensions in the opposite order."""

    name: str
    shape: tuple[int, ...]
    kind: Literal["matrix", "vector"]
    mtp: bool = False
    form: VectorForm = "plain"


@dataclass(frozen=True)
class ExpertTensors:
    """Names of one layer's expert tensors, and the form they are in.

    "each": three matrices an expert, gate, up (ffn, hidden), down (hidden, ffn), with ``{e}`` in
    the names standing for the expert's number.
    "stacked": tensors of all experts. gate and up are the first and the last rows of one
    (experts, 2 * ffn, hidden); down is (experts, hidden, ffn).
    "fused": the same, input-major. gate and up are the even and the odd columns of one
    (experts, hidden, 2 * ffn); down is (experts, ffn, hidden).
    "codes": as MXFP4, output-major, gate and up alternating: the name + ``_blocks`` (experts, rows,
    cols / 32, 16), two codes a byte, the lower one first, and ``_scales`` (experts, rows, cols / 32).
    In all but the first, biases are called the name + ``_bias``, (experts, rows).
    """

    layer: int
    gate: str
    up: str
    down: str
    mtp: bool = False  # of an MTP layer: never below int8
    form: ExpertForm = "each"

    def names(self, expert: int) -> tuple[str, str, str]:
        """The names of gate, up, down of one expert; fused gate and up have the same."""
        number = str(expert)
        gate, up, down = (t.replace("{e}", number) for t in (self.gate, self.up, self.down))
        return gate, up, down


@dataclass(frozen=True)
class TensorPlan:
    """Every tensor a model needs from its checkpoint."""

    n_layers: int
    n_experts: int
    hidden: int
    ffn: int
    dense: tuple[DenseTensor, ...]
    experts: tuple[ExpertTensors, ...]
    biased: bool = False  # whether gate, up and down of experts have biases

    @property
    def n_tensors(self) -> int:
        counts = {"each": 3 * self.n_experts, "stacked": 2, "fused": 2, "codes": 4}
        biases = 2 if self.biased else 0
        return len(self.dense) + sum(counts[layer.form] + biases for layer in self.experts)

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...], tuple[str, ...]]]:
        """(name, shape, possible dtypes) of every tensor, one by one: there may be very many."""
        for tensor in self.dense:
            yield tensor.name, tensor.shape, FLOAT_DTYPES
        for layer in self.experts:
            yield from self._expert_tensors(layer)

    def _expert_tensors(
        self, layer: ExpertTensors
    ) -> Iterator[tuple[str, tuple[int, ...], tuple[str, ...]]]:
        inner, down = (self.ffn, self.hidden), (self.hidden, self.ffn)
        if layer.form == "each":
            for expert in range(self.n_experts):
                for name, shape in zip(layer.names(expert), (inner, inner, down), strict=True):
                    yield name, shape, FLOAT_DTYPES
            return
        for name, (rows, cols) in ((layer.gate, (2 * self.ffn, self.hidden)), (layer.down, down)):
            if layer.form == "stacked":
                yield name, (self.n_experts, rows, cols), FLOAT_DTYPES
            elif layer.form == "fused":
                yield name, (self.n_experts, cols, rows), FLOAT_DTYPES
            else:
                groups = (self.n_experts, rows, cols // GROUP)
                yield name + "_blocks", (*groups, GROUP // 2), CODE_DTYPES
                yield name + "_scales", groups, CODE_DTYPES
            if self.biased:
                yield name + "_bias", (self.n_experts, rows), FLOAT_DTYPES


class Checkpoint:
    """An opened model directory. Tensors are read at each call; nothing is kept.

    Their names are those of `naming.py`, whatever prefix the files put before them.
    """

    def __init__(
        self, path: Path, config: dict[str, Any], infos: dict[str, TensorInfo], files: list[Header]
    ) -> None:
        self.path = path
        self.config = config
        self.files = files  # headers, in the order of file names
        self._infos = infos

    @classmethod
    def open(cls, directory: str | Path) -> "Checkpoint":
        """Read config.json and all headers; BadModel says what is missing or wrong, and where."""
        path = Path(directory)
        check_model_directory(path)
        config = read_json_object(path / "config.json", "config.json")
        infos, files = open_tensors(path)
        names = canonical_names(infos, path)
        return cls(path, config, {name: infos[stored] for name, stored in names.items()}, files)

    @property
    def names(self) -> list[str]:
        return list(self._infos)

    @property
    def types(self) -> dict[str, int]:
        """Bytes of the tensors of each type, as the files call it, the most first."""
        nbytes = Counter[str]()
        for info in self._infos.values():
            nbytes[info.dtype] += info.nbytes
        return dict(nbytes.most_common())

    def has(self, name: str) -> bool:
        """Whether there is a tensor of that name, or codes and scales of a matrix called so."""
        return name in self._infos or name + INT4_CODES in self._infos

    def info(self, name: str) -> TensorInfo:
        """Where the tensor lies, or a matrix's codes; BadModel with its name and layer when there is
        none."""
        info = self._infos.get(name) or self._infos.get(name + INT4_CODES)
        if info is None:
            raise self._missing(name)
        return info

    def matrix(self, name: str) -> StoredMatrix:
        """How the matrix or vector is stored; BadModel when there is none, or in no known way."""
        found = find_matrix(self._infos, name, layer_of(name))
        if found is None:
            raise self._missing(name)
        return found

    def _missing(self, name: str) -> BadModel:
        return BadModel(
            f"{self.path}: tensor {shown(name)}{layer_of(name)} is missing "
            f"({len(self._infos)} tensors in {len(self.files)} files)"
        )

    def exact_formats(self, name: str) -> set[str]:
        """The formats that keep every number of the tensor, f32 among them."""
        return self.matrix(name).exact_formats

    def format_for(self, name: str, asked: str | None) -> str:
        """The format that the matrix gets where `asked` is wanted (`formats.chosen_format`)."""
        return chosen_format(self.exact_formats(name), asked)

    def f32(self, name: str) -> npt.NDArray[np.float32]:
        """The whole tensor in f32, in its own shape."""
        matrix = self.matrix(name)
        return widened(matrix.decoded([read_tensor(piece) for piece in matrix.pieces]))

    def rows(self, name: str, begin: int, end: int, fmt: str | None = None) -> Weights:
        """Rows begin..end-1, `begin` a multiple of 16, or a single row: f32, bf16 bits, or codes.

        `fmt`: what they are wanted for, where it makes a difference (`StoredMatrix.decoded`).
        """
        matrix = self.matrix(name)
        stored = [read_rows(matrix.codes, begin, end)]
        if matrix.scales is not None:
            stored.append(read_rows(matrix.scales, *matrix.scale_rows(begin, end)))
        return matrix.decoded(stored, begin, fmt)

    def pack_part(self, name: str, begin: int, layout: MatrixLayout) -> Bytes:
        """Rows from `begin` on, as many as `layout` has, packed as it says."""
        return pack(self.rows(name, begin, begin + layout.rows, layout.format), layout)

    def experts(self, plan: TensorPlan, layer: ExpertTensors) -> LayerExperts | None:
        """What takes the experts of a layer out of this checkpoint; None: `stored.StoredExperts`."""
        return None

    def pack(self, name: str, layout: MatrixLayout, out: Bytes | None = None) -> Bytes:
        """The matrix packed as `layout`, u8 (nbytes,).

        Takes at most 2 * ROW_BLOCK_BYTES beside `out`, as long as 16 rows are no larger than a
        block (up to 262,144 columns).
        """
        matrix = self.matrix(name)
        if matrix.shape != (layout.rows, layout.cols):
            raise BadModel(self._wrong_shape(name, matrix, (layout.rows, layout.cols)))
        out = checked_out(layout.nbytes, out)
        block = max(ROW_BLOCK_BYTES // (4 * layout.cols) // TILE, 1) * TILE
        for begin in range(0, layout.rows, block):
            end = min(begin + block, layout.rows)
            # not bound to a name: a block's rows are gone before the next ones are read
            try:
                pack_rows(self.rows(name, begin, end, layout.format), layout, begin, out)
            except ValueError as error:
                raise BadModel(f"{matrix.codes.path}: tensor {shown(name)}: {error}") from None
        out[layout.used_nbytes :] = 0
        return out

    def verify(self, plan: TensorPlan) -> None:
        """Every planned tensor is there, of a right type and of the right shape, or BadModel."""
        missing = next((name for name, *_ in plan.tensors() if not self.has(name)), None)
        if missing is not None:
            raise BadModel(
                f"{self.path}: tensor {shown(missing)}{layer_of(missing)} is missing; "
                f"config.json asks for {plan.n_tensors} tensors, the {len(self.files)} safetensors "
                f"files have {len(self._infos)}: fetch the model again, or config.json is not its"
            )
        for name, shape, dtypes in plan.tensors():
            found = self.matrix(name) if dtypes == FLOAT_DTYPES else self._codes(name, dtypes)
            if found.shape != tuple(shape):
                raise BadModel(self._wrong_shape(name, found, shape))

    def _codes(self, name: str, dtypes: tuple[str, ...]) -> TensorInfo:
        info = self.info(name)
        if info.dtype not in dtypes:
            raise BadModel(
                f"{info.path}: tensor {shown(name)}{layer_of(name)} has dtype {info.dtype}; "
                f"{', '.join(dtypes)} is expected there: fetch another release of the model"
            )
        return info

    def _wrong_shape(
        self, name: str, found: StoredMatrix | TensorInfo, expected: Iterable[int]
    ) -> str:
        path = found.path if isinstance(found, TensorInfo) else found.codes.path
        return (
            f"{path}: tensor {shown(name)}{layer_of(name)} has shape {list(found.shape)}, "
            f"config.json asks for {list(expected)}"
        )
