"""Dense weights: read tensor by tensor into one block of huge pages, then handed to layers by role.

From a Hugging Face checkpoint a matrix keeps its own precision (bf16 as bf16, f16 and f32 as f32)
unless a format is asked for, then it is quantised on the way in; a converted model's own format
wins. Norms, biases and the router are f32 always. The one rule: beside the finished weights
there is at most one block of rows (and one norm or router) in memory, never a second copy of a
matrix. An embedding that is no head too stays on disk (``embedding.py``).
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskmoe.engine.kernels.matrix import Matrix
from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.embedding import Embedding, ResidentEmbedding, StreamedEmbedding
from diskmoe.engine.model.families import FAMILIES
from diskmoe.engine.model.family import Names
from diskmoe.engine.model.latent_config import LatentShape
from diskmoe.engine.model.roles import (
    AttentionWeights,
    DeltaWeights,
    FfnWeights,
    IndexerWeights,
    LatentWeights,
    LayerWeights,
    Projection,
    RouterWeights,
)
from diskmoe.engine.model.scratch import Floats
from diskmoe.engine.model.tensors import head_tensors, tensor_plan
from diskmoe.experts.arena import HUGE_PAGE, Arena
from diskmoe.experts.checkpoint import ROW_BLOCK_BYTES, Checkpoint, DenseTensor, VectorForm
from diskmoe.experts.container import Container
from diskmoe.experts.errors import BadModel
from diskmoe.experts.footprint import give_back
from diskmoe.experts.formats import mtp_format
from diskmoe.experts.packing import pack
from diskmoe.experts.rows import rows_on_disk
from diskmoe.experts.tiles import ALIGNMENT, MatrixLayout, matrix_layout


@dataclass(frozen=True)
class _Place:
    """Where a dense tensor will lie in the block."""

    tensor: DenseTensor
    layout: MatrixLayout | None  # None: f32 in its own shape
    offset: int
    nbytes: int


class DenseWeights:
    """Named dense tensors in one block: matrices packed for the kernels, the rest f32."""

    def __init__(self, places: list[_Place], streamed: Embedding | None) -> None:
        self._streamed = streamed  # None: the embedding is in the block
        self._places = {place.tensor.name: place for place in places}
        self.nbytes = _total(places)
        self._arena = Arena(1, self.nbytes)
        self._block: npt.NDArray[np.uint8] = self._arena.slot(0)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor, to read or to fill."""
        place = self._places[name]
        return self._block[place.offset : place.offset + place.nbytes]

    def vector(self, name: str) -> Floats:
        tensor = self._places[name].tensor
        shape = tensor.shape[::-1] if tensor.form == "turned" else tensor.shape
        return self.raw(name).view(np.float32).reshape(shape)

    def matrix(self, name: str) -> Matrix:
        layout = self._places[name].layout
        assert layout is not None, name
        return Matrix(layout, self.raw(name))

    def __contains__(self, name: str) -> bool:
        return name in self._places

    @property
    def formats(self) -> Mapping[str, str]:
        """Format of each matrix by tensor name."""
        return {n: p.layout.format for n, p in self._places.items() if p.layout is not None}

    def layer(self, config: ModelConfig, layer: int) -> LayerWeights:
        """The weights of a layer by role. They are views: keep this object alive."""
        names = FAMILIES[config.family].names
        at = names.at(layer, config.layers)

        def ffn(gate: str, up: str, down: str, switch: Floats | None = None) -> FfnWeights:
            if gate == up:
                first, second = self.matrix(at + gate).halves()
            else:
                first, second = self.matrix(at + gate), self.matrix(at + up)
            return FfnWeights(first, second, self.matrix(at + down), switch)

        if layer in config.delta_layers:
            attention = self._delta(names, at)
        elif config.latent is not None:
            attention = self._latent_attention(config, config.latent, names, at, layer)
        else:
            attention = self._attention(config, names, at, layer)
        dense = router = shared = None
        if at + names.router not in self:
            dense = ffn(names.dense_gate, names.dense_up, names.dense_down)
        else:
            correction = np.zeros(config.experts, np.float32)
            if config.correction_bias:
                correction = self.vector(at + names.correction_bias)
            bias = self.vector(at + names.router_bias) if config.router_bias else None
            router = RouterWeights(self.matrix(at + names.router), bias, correction)
            if config.shared_width:
                switch = (
                    self.vector(at + names.shared_switch)[:, 0] if config.shared_gated else None
                )
                shared = ffn(names.shared_gate, names.shared_up, names.shared_down, switch)
        return LayerWeights(
            layer=layer,
            attention_norm=self.vector(at + names.attention_norm),
            attention=attention,
            ffn_norm=self.vector(at + names.ffn_norm),
            dense=dense,
            router=router,
            shared=shared,
        )

    def _delta(self, names: Names, at: str) -> DeltaWeights:
        apart = not names.delta_fused
        return DeltaWeights(
            qkv=self.matrix(at + names.delta_qkv),
            z=self.matrix(at + names.delta_z) if apart else None,
            b=self.matrix(at + names.delta_b),
            a=self.matrix(at + names.delta_a) if apart else None,
            conv=self.vector(at + names.delta_conv),
            log=self.vector(at + names.delta_log),
            bias=self.vector(at + names.delta_bias),
            norm=self.vector(at + names.delta_norm),
            out=self.matrix(at + names.delta_out),
        )

    def _projection(self, name: str, biased: bool = False) -> Projection:
        bias = self.vector(f"{name}.bias") if biased else None
        return Projection(self.matrix(f"{name}.weight"), bias)

    def _attention(
        self, config: ModelConfig, names: Names, at: str, layer: int
    ) -> AttentionWeights:
        normed = config.qk_norm != "none"
        return AttentionWeights(
            q=self._projection(at + names.q, config.qkv_bias),
            k=self._projection(at + names.k, config.qkv_bias),
            v=self._projection(at + names.v, config.qkv_bias),
            o=self._projection(at + names.o, config.output_bias),
            q_norm=self.vector(at + names.q_norm) if normed else None,
            k_norm=self.vector(at + names.k_norm) if normed else None,
            sinks=self.vector(at + names.sinks) if config.sinks else None,
            window=config.window(layer),
        )

    def _latent_attention(
        self, config: ModelConfig, shape: LatentShape, names: Names, at: str, layer: int
    ) -> LatentWeights:
        biased, ranked = config.qkv_bias, shape.q_rank > 0
        indexer = None
        if config.chooses(layer):
            indexer = IndexerWeights(
                q=self._projection(at + names.index_q),
                k=self._projection(at + names.index_k),
                k_norm=self.vector(f"{at}{names.index_k_norm}.weight"),
                k_bias=self.vector(f"{at}{names.index_k_norm}.bias"),
                shares=self._projection(at + names.index_shares),
            )
        return LatentWeights(
            q_a=self._projection(at + names.q_a, biased) if ranked else None,
            q_a_norm=self.vector(at + names.q_a_norm) if ranked else None,
            q=self._projection(at + (names.q_b if ranked else names.q)),
            kv_a=self._projection(at + names.kv_a, biased),
            kv_a_norm=self.vector(at + names.kv_a_norm),
            kv_b=self._projection(at + names.kv_b).matrix,
            o=self._projection(at + names.o, config.output_bias),
            indexer=indexer,
        )

    def embedding(self, config: ModelConfig) -> Embedding:
        if self._streamed is not None:
            return self._streamed
        return ResidentEmbedding(self.matrix(FAMILIES[config.family].names.embedding))

    def head(self, config: ModelConfig) -> Matrix:
        """(vocab, hidden); the embedding itself where the two are tied."""
        names = FAMILIES[config.family].names
        return self.matrix(names.embedding if config.tied else names.head)

    def final_norm(self, config: ModelConfig) -> Floats:
        return self.vector(FAMILIES[config.family].names.final_norm)


def load_dense(
    source: Checkpoint | Container,
    config: ModelConfig,
    dense_format: str | None = None,
    head: bool = False,
) -> DenseWeights:
    """Read the dense weights of a checkpoint or of a converted model, or those of its draft head.

    ``dense_format`` (a name in formats.FORMATS) quantises the matrices of a checkpoint; a
    container's own formats win over it. Raises BadModel for what the files do not have, for a
    wrong shape, and for a weight that is not finite where it is to be quantised.
    """
    places = _places(source, config, dense_format, head)
    embedding = None if head else _streamed_embedding(source, config, dense_format)
    weights = DenseWeights(places, embedding)
    for place in places:
        name, out = place.tensor.name, weights.raw(place.tensor.name)
        if place.layout is None:
            _fill(out, _as_held(_vector(source, place.tensor), place.tensor.form))
        elif _is_f32_matrix(place.tensor):
            pack(_vector(source, place.tensor), place.layout, out)
        elif isinstance(source, Container):
            source.read_dense_into(name, out)
        else:
            source.pack(name, place.layout, out)
    give_back()  # blocks of rows: the hot store is to have their memory
    return weights


def _streamed_embedding(
    source: Checkpoint | Container, config: ModelConfig, dense_format: str | None
) -> StreamedEmbedding | None:
    """The embedding on disk; None when the head is the same matrix and so in memory."""
    if config.tied:
        return None
    name = FAMILIES[config.family].names.embedding
    tensor = next(tensor for tensor in tensor_plan(config).dense if tensor.name == name)
    layout = _matrix_layout(source, tensor, dense_format)
    return StreamedEmbedding(rows_on_disk(source, name, layout))


def dense_bytes(
    source: Checkpoint | Container,
    config: ModelConfig,
    dense_format: str | None = None,
    head: bool = False,
) -> int:
    """What ``load_dense(...).nbytes`` will be; nothing but headers is looked at."""
    return _total(_places(source, config, dense_format, head))


def matrix_formats(
    source: Checkpoint | Container, config: ModelConfig, dense_format: str | None = None
) -> tuple[str, ...]:
    """The formats that dense matrices will have, the one of most bytes last."""
    nbytes = Counter[str]()
    for tensor in tensor_plan(config).dense:
        if tensor.kind == "matrix":
            layout = _matrix_layout(source, tensor, dense_format)
            nbytes[layout.format] += layout.nbytes
    return tuple(fmt for fmt, _ in reversed(nbytes.most_common()))


def loader_bytes(source: Checkpoint | Container, config: ModelConfig) -> int:
    """Most bytes that ``load_dense`` takes beside the finished weights, at a time.

    A block of rows and its packing from a checkpoint; a converted model's matrices are read into
    their places, its vectors (the router is the largest) are held twice on the way.
    """
    if isinstance(source, Checkpoint):
        return 2 * ROW_BLOCK_BYTES
    vectors = [tensor for tensor in tensor_plan(config).dense if tensor.kind == "vector"]
    return 2 * max(4 * math.prod(tensor.shape) for tensor in vectors)


def _places(
    source: Checkpoint | Container, config: ModelConfig, dense_format: str | None, head: bool
) -> list[_Place]:
    places: list[_Place] = []
    offset = 0
    embedding = FAMILIES[config.family].names.embedding
    for tensor in head_tensors(config, source.has) if head else tensor_plan(config).dense:
        if tensor.name == embedding and not config.tied:
            continue  # its rows are read when they are asked for
        layout = None
        if tensor.kind == "matrix":
            layout = _matrix_layout(source, tensor, dense_format)
        elif _is_f32_matrix(tensor):
            layout = matrix_layout("f32", *tensor.shape)
        nbytes = 4 * math.prod(tensor.shape) if layout is None else layout.nbytes
        places.append(_Place(tensor, layout, offset, nbytes))
        offset += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return places


def _matrix_layout(
    source: Checkpoint | Container, tensor: DenseTensor, dense_format: str | None
) -> MatrixLayout:
    if isinstance(source, Container):
        layout = source.dense_layout(tensor.name)
        if layout is None:
            raise BadModel(
                f"{source.path}: tensor {tensor.name} is stored as a vector, config.json makes it"
                " a matrix: convert again"
            )
        if (layout.rows, layout.cols) != tensor.shape:
            raise BadModel(
                f"{source.path}: matrix {tensor.name} is stored as {layout.rows} x {layout.cols},"
                f" config.json asks for {tensor.shape[0]} x {tensor.shape[1]}: convert again"
            )
        return layout
    fmt = source.format_for(tensor.name, dense_format)
    return matrix_layout(mtp_format(fmt) if tensor.mtp else fmt, *tensor.shape)


def _is_f32_matrix(tensor: DenseTensor) -> bool:
    """Routers and the like, which are multiplied but kept in f32 in every format."""
    return tensor.kind == "vector" and len(tensor.shape) == 2 and tensor.form == "plain"


def _vector(source: Checkpoint | Container, tensor: DenseTensor) -> Floats:
    found = source.f32(tensor.name)
    if found.shape != tensor.shape:
        raise BadModel(
            f"{source.path}: tensor {tensor.name} has shape {list(found.shape)},"
            f" config.json asks for {list(tensor.shape)}"
        )
    return found


def _as_held(values: Floats, form: VectorForm) -> Floats:
    if form == "plus_one":
        return values + np.float32(1)
    return values.T if form == "turned" else values


def _fill(out: npt.NDArray[np.uint8], values: Floats) -> None:
    out.view(np.float32)[:] = values.reshape(-1)


def _total(places: list[_Place]) -> int:
    """Bytes of the block, whole huge pages: the system may give the last one whole."""
    end = places[-1].offset + places[-1].nbytes
    return -(-end // HUGE_PAGE) * HUGE_PAGE
