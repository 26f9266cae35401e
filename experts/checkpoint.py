"""A Hugging Face model directory: config.json and tensors in one or many safetensors files.

The rule of this file: opening reads headers only, and checks that they, the index and the directory
agree; a tensor's bytes are read when asked for, in row blocks where a whole matrix would be large.

    checkpoint = Checkpoint.open("OLMoE-1B-7B-0924")
    checkpoint.verify(plan)
    packed = checkpoint.pack("lm_head.weight", matrix_layout("q8", 50304, 2048))
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from diskmoe.experts.errors import BadModel
from diskmoe.experts.formats import GROUP
from diskmoe.experts.layer_experts import LayerExperts
from diskmoe.experts.matrices import INT4_CODES, StoredMatrix, find_matrix
from diskmoe.experts.naming import canonical_names
from diskmoe.experts.safetensors_io import (
    FLOAT_DTYPES,
    Header,
    TensorInfo,
    open_regular,
    parse_json,
    read_header,
    read_rows,
    read_tensor,
    shown,
)
from diskmoe.experts.tiles import (
    TILE,
    Bytes,
    MatrixLayout,
    Weights,
    checked_out,
    pack,
    pack_rows,
    widened,
)

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
JSON_LIMIT = 64_000_000  # bytes of config.json or an index; real ones have at most a few million
ROW_BLOCK_BYTES = 16 << 20  # f32 bytes of a matrix that are in memory at a time while packing
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")
CODE_DTYPES = ("U8",)
ExpertForm = Literal["each", "stacked", "fused", "codes"]
VectorForm = Literal["plain", "plus_one", "turned"]
_LAYER = re.compile(r"\blayers\.(\d+)\.")


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
        if (path / INDEX_NAME).exists():
            infos, files = _open_indexed(path)
        else:
            infos, files = _open_unindexed(path)
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
        """Where the tensor lies; BadModel with its name and layer when there is none."""
        info = self._infos.get(name)
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

    def own_format(self, name: str) -> str:
        """The format that keeps the tensor's values exactly: bf16, fp8, or f32."""
        return self.matrix(name).own_format

    def f32(self, name: str) -> npt.NDArray[np.float32]:
        """The whole tensor in f32, in its own shape."""
        matrix = self.matrix(name)
        return widened(matrix.decoded([read_tensor(piece) for piece in matrix.pieces]))

    def rows(self, name: str, begin: int, end: int) -> Weights:
        """Rows begin..end-1, `begin` a multiple of 16, or a single row: f32, bf16 bits, or codes."""
        matrix = self.matrix(name)
        stored = [read_rows(matrix.codes, begin, end)]
        if matrix.scales is not None:
            stored.append(read_rows(matrix.scales, *matrix.scale_rows(begin, end)))
        return matrix.decoded(stored, begin)

    def pack_part(self, name: str, begin: int, layout: MatrixLayout) -> Bytes:
        """Rows from `begin` on, as many as `layout` has, packed as it says."""
        return pack(self.rows(name, begin, begin + layout.rows), layout)

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
            # not bound to a name: a block's rows are gone before the next ones are read
            try:
                pack_rows(
                    self.rows(name, begin, min(begin + block, layout.rows)), layout, begin, out
                )
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


def layer_of(name: str) -> str:
    match = _LAYER.search(name)
    return f" of layer {match[1]}" if match else ""


def check_model_directory(path: Path) -> None:
    """BadModel when `path` cannot be a model directory at all, saying what was looked for."""
    wanted = f"config.json and {INDEX_NAME} or *.safetensors"
    if path.suffix == ".partial":
        raise BadModel(f"{path}: an unfinished conversion; run the same `diskmoe convert` again")
    if not path.exists():
        raise BadModel(f"{path}: no such model directory (looked for {wanted} in it)")
    if not path.is_dir():
        if path.suffix.lower() == ".gguf":
            raise BadModel(
                f"{path}: a GGUF is converted before it runs: diskmoe convert {path} OUT"
            )
        raise BadModel(f"{path}: a file; give a directory with {wanted}")
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise BadModel(f"{path}: cannot be listed: {error.strerror or error}") from None
    if not names:
        raise BadModel(f"{path}: the directory is empty (looked for {wanted})")
    if not any(name.endswith(".safetensors") or name == INDEX_NAME for name in names):
        ggufs = [name for name in names if name.lower().endswith(".gguf")]
        if ggufs:
            raise BadModel(
                f"{path}: has a GGUF; first diskmoe convert {path}/{shown(ggufs[0])} OUT"
            )
        raise BadModel(f"{path}: no safetensors file among its {len(names)} (looked for {wanted})")
    if "config.json" not in names:
        raise BadModel(f"{path}: config.json is missing (looked for {wanted})")


def read_json_object(path: Path, place: str) -> dict[str, Any]:
    """A JSON file that must be an object and of sane size; BadModel otherwise."""
    fd = open_regular(path)
    with open(fd, "rb") as file:
        try:
            text = file.read(JSON_LIMIT + 1)
        except OSError as error:
            raise BadModel(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(text) > JSON_LIMIT:
        raise BadModel(f"{path}: more than {JSON_LIMIT} bytes, too large for a {place}")
    value = parse_json(text, path, place)
    if not isinstance(value, dict):
        raise BadModel(f"{path}: {place} is a JSON {type(value).__name__}, not an object")
    return value


def _open_indexed(path: Path) -> tuple[dict[str, TensorInfo], list[Header]]:
    index = path / INDEX_NAME
    weight_map = read_json_object(index, "index").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadModel(f"{index}: no weight_map object with tensors in it")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _is_plain_name(shard):
            raise BadModel(
                f"{index}: tensor {shown(name)} is said to be in {shown(shard)}, which is not the "
                "name of a safetensors file in this directory; refused"
            )
    shards = sorted(set(weight_map.values()))
    _refuse_missing(path, shards, f"named by {INDEX_NAME}")
    headers = {shard: read_header(path / shard) for shard in shards}
    infos = {}
    for name, shard in weight_map.items():
        if name not in headers[shard].tensors:
            raise BadModel(
                f"{path / shard}: tensor {shown(name)}{layer_of(name)} is missing, although "
                f"{INDEX_NAME} says it is there; fetch both again"
            )
        infos[name] = headers[shard].tensors[name]
    return infos, list(headers.values())


def _open_unindexed(path: Path) -> tuple[dict[str, TensorInfo], list[Header]]:
    if (path / SINGLE_NAME).exists():
        shards = [SINGLE_NAME]
    else:
        shards = sorted(entry.name for entry in path.glob("*.safetensors"))
        wanted: set[str] = set()
        for shard in shards:
            match = _SHARD.fullmatch(shard)
            if match and int(match[3]) <= 10_000:
                total = int(match[3])
                wanted |= {
                    f"{match[1]}-{n:05}-of-{match[3]}.safetensors" for n in range(1, total + 1)
                }
        _refuse_missing(path, sorted(wanted), "one of a numbered set")
    headers = [read_header(path / shard) for shard in shards]
    infos: dict[str, TensorInfo] = {}
    for header in headers:
        for name, info in header.tensors.items():
            if name in infos:
                raise BadModel(
                    f"{path}: tensor {shown(name)} is in {shown(infos[name].path.name)} and in "
                    f"{shown(header.path.name)}, and there is no {INDEX_NAME} to choose"
                )
            infos[name] = info
    return infos, headers


def _is_plain_name(shard: str) -> bool:
    return (
        shard.endswith(".safetensors")
        and not set(shard) & set("/\\:\0")
        and shard.isprintable()
        and len(shard.encode()) <= 255
    )


def _refuse_missing(path: Path, shards: list[str], why: str) -> None:
    missing = [shard for shard in shards if not (path / shard).exists()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise BadModel(
            f"{path}: {missing[0]}{more} is missing ({why}; {len(shards) - len(missing)} of "
            f"{len(shards)} files are there): fetch it again"
        )
