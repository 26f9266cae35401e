"""A GGUF file, or a split set of them, as a checkpoint that can be converted.

The rule of this file: tensors have the names and shapes that they have on the hub, whatever the
file made of them, and only headers are read until bytes are asked for. What the file has and the
model does not ask for is refused.

    checkpoint = GgufCheckpoint.open("Qwen3-30B-A3B-Q4_K_M.gguf")
    plan = tensor_plan(read_config(checkpoint.config, ...), checkpoint.has)
    convert(checkpoint, plan, "Qwen3-30B-A3B", made=files)
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.experts.checkpoint import Checkpoint, ExpertTensors, TensorPlan
from diskmoe.experts.errors import BadModel
from diskmoe.experts.gguf_blocks import (
    FLOATS,
    exact_formats,
    keeps_codes,
    numbers,
    refuse_unsupported,
    wide,
)
from diskmoe.experts.gguf_experts import GgufExperts
from diskmoe.experts.gguf_families import config_of
from diskmoe.experts.gguf_file import Metadata, read_gguf
from diskmoe.experts.gguf_names import ARCHITECTURES, experts_beside, layer_number, recipes_of
from diskmoe.experts.gguf_recipes import Recipe
from diskmoe.experts.naming import layer_of
from diskmoe.experts.packing import pack, pack_values
from diskmoe.experts.safetensors_io import Header, TensorInfo, read_into, shown
from diskmoe.experts.tiles import Bytes, Floats, MatrixLayout


class GgufCheckpoint(Checkpoint):
    """An opened GGUF. `path` is the file that was given, `config` what config.json would say."""

    def __init__(self, path: Path, metadata: Metadata, files: list[Header]) -> None:
        tensors = {name: info for header in files for name, info in header.tensors.items()}
        super().__init__(path, config_of(metadata, tensors), tensors, files)
        self.metadata = metadata
        architecture = metadata.value("general.architecture", str)
        self._mtp_layers = metadata.integer(f"{architecture}.nextn_predict_layers", 0)
        self._recipes, self._left = recipes_of(ARCHITECTURES[architecture], self.config, tensors)
        self._made: tuple[str, Floats] | None = None  # the last tensor that was more than rows

    @classmethod
    def open(cls, directory: str | Path) -> "GgufCheckpoint":
        """Read and check all headers; BadModel says what is missing or wrong, and where."""
        path = Path(directory)
        files, metadata = read_gguf(path)
        return cls(path, metadata, files)

    @property
    def types(self) -> dict[str, int]:
        """{type: bytes} of the tensors, the largest first."""
        counts: Counter[str] = Counter()
        for info in self._infos.values():
            counts[info.dtype] += info.nbytes
        return dict(counts.most_common())

    def has(self, name: str) -> bool:
        return name in self._recipes

    def info(self, name: str) -> TensorInfo:
        """A tensor under the file's own name, or the first that one under the hub's is made of."""
        return self._infos[name] if name in self._infos else self._recipe(name).sources[0]

    def exact_formats(self, name: str) -> set[str]:
        recipe = self._recipe(name)
        kinds = {info.dtype for info in recipe.sources}
        return exact_formats(kinds.pop()) if recipe.make is None and len(kinds) == 1 else {"f32"}

    def f32(self, name: str) -> Floats:
        shape = self._recipe(name).shape
        return self.rows(name, 0, shape[0]).reshape(shape)

    def rows(self, name: str, begin: int, end: int, fmt: str | None = None) -> Floats:
        """Rows begin..end-1 in f32, whatever they are wanted for."""
        recipe = self._recipe(name)
        if recipe.make is None:
            return _gathered(recipe, begin, end, _wide)
        if self._made is None or self._made[0] != name:
            self._made = None  # one at a time is in memory
            whole = [_wide(info, _read(info, 0, _rows(info))) for info in recipe.sources]
            shaped = [
                rows.reshape(info.shape) for rows, info in zip(whole, recipe.sources, strict=True)
            ]
            self._made = (name, np.ascontiguousarray(recipe.make(*shaped)).reshape(recipe.shape))
        return self._made[1][begin:end]

    def pack_part(self, name: str, begin: int, layout: MatrixLayout) -> Bytes:
        recipe = self._recipe(name)
        kinds = {info.dtype for info in recipe.sources}
        kind = kinds.pop()
        if recipe.make is None and not kinds and keeps_codes(kind, layout.format):
            raw = _gathered(recipe, begin, begin + layout.rows, lambda info, raw: raw)
            return pack_values(numbers(raw, kind, layout.cols, layout.format), layout)
        return pack(self.rows(name, begin, begin + layout.rows), layout)

    def pack(self, name: str, layout: MatrixLayout, out: Bytes | None = None) -> Bytes:
        packed = self.pack_part(name, 0, layout)
        if out is None:
            return packed
        out[:] = packed
        return out

    def experts(self, plan: TensorPlan, layer: ExpertTensors) -> GgufExperts:
        return GgufExperts(self.path, self._infos, plan, layer.layer)

    def dense_types(self, name: str) -> set[str]:
        """The types of what a dense tensor is made of."""
        return {info.dtype for info in self._recipe(name).sources}

    def expert_types(self, plan: TensorPlan) -> tuple[set[str], set[str]]:
        """The types of gate and up, and of down, of experts of the layers before an MTP head."""
        layers = [self.experts(plan, layer) for layer in plan.experts if not layer.mtp]
        kinds = [[piece.dtype for piece in layer.pieces(0)[:3]] for layer in layers]
        return {kind for of in kinds for kind in of[:2]}, {of[2] for of in kinds}

    def verify(self, plan: TensorPlan) -> None:
        """Every planned tensor is there, of a known type and of the right shape, and there is none
        beside them, or BadModel."""
        for tensor in plan.dense:
            recipe = self._recipe(tensor.name)
            for info in recipe.sources:
                refuse_unsupported(info)
                if len(info.shape) == 1 and info.dtype not in FLOATS:
                    raise BadModel(
                        f"{info.path}: tensor {shown(info.name)} is a vector of type {info.dtype}; "
                        f"vectors are {', '.join(FLOATS)}"
                    )
            if recipe.shape != tuple(tensor.shape):
                found = recipe.sources[0]
                raise BadModel(
                    f"{found.path}: tensor {shown(found.name)} has shape {list(recipe.shape)}, its "
                    f"metadata ask for {list(tensor.shape)}"
                )
        for layer in plan.experts:
            self.experts(plan, layer)  # which looks at what it needs
        planned = {tensor.name for tensor in plan.dense}
        unused = [
            info
            for name, recipe in self._recipes.items()
            if name not in planned
            for info in recipe.sources
        ]
        layers = {layer.layer for layer in plan.experts}
        heads = range(plan.n_layers, plan.n_layers + self._mtp_layers)  # which need not be run
        for info in [*self._left, *unused, *experts_beside(layers, self._infos)]:
            if layer_number(info.name) not in heads:
                raise BadModel(
                    f"{info.path}: tensor {shown(info.name)} {list(info.shape)} has no place in this "
                    f"{self.config['model_type']} model: without it the text would be another one"
                )

    def _recipe(self, name: str) -> Recipe:
        recipe = self._recipes.get(name)
        if recipe is None:
            raise BadModel(
                f"{self.path}: tensor {shown(name)}{layer_of(name)} is missing: none of the "
                f"{len(self._infos)} tensors in {len(self.files)} files is it; fetch the model again"
            )
        return recipe


def _rows(info: TensorInfo) -> int:
    """Rows of all of a tensor's matrices; a vector has rows of one number."""
    rows = 1
    for dimension in info.shape[:-1] or info.shape:
        rows *= dimension
    return rows


def _read(info: TensorInfo, begin: int, end: int) -> Bytes:
    """The bytes of rows begin..end-1, u8 (rows, bytes of a row)."""
    row_nbytes = info.nbytes // _rows(info)
    raw = np.empty((end - begin) * row_nbytes, np.uint8)
    read_into(info.path, info.offset + begin * row_nbytes, raw)
    return raw.reshape(-1, row_nbytes)


def _wide(info: TensorInfo, raw: Bytes) -> Floats:
    return wide(raw, info.dtype, info.shape[-1] if len(info.shape) > 1 else 1)


def _gathered(
    recipe: Recipe, begin: int, end: int, taken: Callable[[TensorInfo, Bytes], npt.NDArray[Any]]
) -> npt.NDArray[Any]:
    """Rows begin..end-1 of what the sources are, one behind the other and in the recipe's order:
    what `taken` gives for the bytes of a source's rows."""
    wanted = np.arange(begin, end) if recipe.order is None else recipe.order[begin:end]
    found: list[tuple[npt.NDArray[np.intp], npt.NDArray[Any]]] = []  # (places among them, rows)
    first = 0
    for info in recipe.sources:
        rows = _rows(info)
        places = np.flatnonzero((wanted >= first) & (wanted < first + rows))
        if len(places):
            own = wanted[places] - first
            least = int(own.min())
            raw = _read(info, least, int(own.max()) + 1)
            found.append((places, taken(info, raw[own - least])))
        first += rows
    if len(found) == 1:
        return found[0][1]
    gathered = np.empty((len(wanted), found[0][1].shape[1]), found[0][1].dtype)
    for places, part in found:
        gathered[places] = part
    return gathered
