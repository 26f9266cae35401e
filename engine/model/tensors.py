"""Which tensors a model of a given configuration has, by name and shape: the ``TensorPlan``.

The plan is made from ``ModelConfig`` and the family's names alone, without looking at a file, so
a checkpoint can be verified, a converter can be fed and memory can be reckoned before any weight is
read. Two kinds of dense tensors: ``matrix`` (may be quantised) and ``vector`` (kept as f32 in its
own shape: norms, biases, and the router, whose small differences decide which experts run).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from diskmoe.engine.kernels.delta_shape import DeltaShape
from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.families import FAMILIES
from diskmoe.engine.model.family import Names
from diskmoe.engine.model.latent_config import IndexerShape, LatentShape
from diskmoe.experts.checkpoint import (
    DenseTensor,
    ExpertForm,
    ExpertTensors,
    TensorPlan,
    VectorForm,
)
from diskmoe.experts.container import Container
from diskmoe.experts.errors import BadModel


def tensor_plan(config: ModelConfig, has: Callable[[str], bool] | None = None) -> TensorPlan:
    """The tensors of ``config``.

    ``has(name)`` tells whether the checkpoint holds a tensor: with it, the layer of the MTP head
    (index ``config.layers``) is planned too where the files have one, and experts are planned in
    the form that they have there; without it, never and in the family's own form.
    """
    names = FAMILIES[config.family].names
    dense = list(_outer(config, names))
    experts: list[ExpertTensors] = []
    for layer in range(config.layers):
        dense += _layer(config, names, layer, layer in config.moe_layers)
    experts += [_experts(config, names, layer, has) for layer in config.moe_layers]
    for layer in mtp_layers(config, has):
        dense += _head(config, names, layer)
        experts.append(replace(_experts(config, names, layer, has), mtp=True))
    return TensorPlan(
        n_layers=config.layers,
        n_experts=config.experts,
        hidden=config.hidden,
        ffn=config.expert_width,
        biased=config.expert_bias,
        dense=tuple(dense),
        experts=tuple(experts),
    )


def verify_container(container: Container, plan: TensorPlan) -> None:
    """A converted model holds what ``plan`` asks for, or BadModel (a swapped config.json).

    The container has checked itself when it was opened; this compares it with the config.
    """
    facts = (
        ("hidden size", container.hidden, plan.hidden),
        ("expert width", container.ffn, plan.ffn),
        ("number of experts", container.n_experts, plan.n_experts),
        ("whether experts have biases", container.biased, plan.biased),
    )
    for what, found, asked in facts:
        if found != asked:
            raise BadModel(
                f"{container.path}: {what} is {found}, config.json says {asked}: one of the two is"
                " of another model, convert again"
            )
    missing = sorted({e.layer for e in plan.experts} - set(container.layers))
    if missing:
        raise BadModel(
            f"{container.path}: the experts of layer {missing[0]} are missing, config.json has"
            f" {len(plan.experts)} layers with experts, the files {len(container.layers)}:"
            " convert again"
        )
    for tensor in plan.dense:
        found_shape = container.shape(tensor.name)
        if found_shape != tensor.shape:
            raise BadModel(
                f"{container.path}: tensor {tensor.name} has shape {list(found_shape)},"
                f" config.json asks for {list(tensor.shape)}: convert again"
            )


def mtp_layers(config: ModelConfig, has: Callable[[str], bool] | None) -> list[int]:
    """The layer numbers of the MTP heads whose tensors are there."""
    if has is None:
        return []
    names = FAMILIES[config.family].names
    announced = range(config.layers, config.layers + config.mtp_layers)
    return [i for i in announced if has(mtp_name(config, names.mtp_projection, i))]


def head_tensors(config: ModelConfig, has: Callable[[str], bool]) -> tuple[DenseTensor, ...]:
    """The dense tensors of the first MTP head; () where the files have none."""
    names, layers = FAMILIES[config.family].names, mtp_layers(config, has)[:1]
    return tuple(tensor for layer in layers for tensor in _head(config, names, layer))


def mtp_name(config: ModelConfig, template: str, layer: int) -> str:
    """The name of an MTP head's own tensor."""
    return template.format(L=layer, M=layer - config.layers)


def _matrix(name: str, rows: int, cols: int) -> DenseTensor:
    return DenseTensor(name, (rows, cols), "matrix")


def _plain(name: str, *shape: int) -> DenseTensor:
    return DenseTensor(name, shape, "vector")


def _norm(config: ModelConfig, name: str, width: int) -> DenseTensor:
    form: VectorForm = "plus_one" if config.zero_centred else "plain"
    return DenseTensor(name, (width,), "vector", form=form)


def _outer(config: ModelConfig, names: Names) -> Iterator[DenseTensor]:
    yield _matrix(names.embedding, config.vocab, config.hidden)
    yield _norm(config, names.final_norm, config.hidden)
    if not config.tied:
        yield _matrix(names.head, config.vocab, config.hidden)


def _projection(name: str, rows: int, cols: int, biased: bool = False) -> Iterator[DenseTensor]:
    yield _matrix(f"{name}.weight", rows, cols)
    if biased:
        yield _plain(f"{name}.bias", rows)


def _attention(config: ModelConfig, names: Names, at: str) -> Iterator[DenseTensor]:
    hidden, biased = config.hidden, config.qkv_bias
    yield from _projection(at + names.q, config.q_outputs, hidden, biased)
    yield from _projection(at + names.k, config.kv_width, hidden, biased)
    yield from _projection(at + names.v, config.kv_width, hidden, biased)
    yield from _projection(at + names.o, hidden, config.q_width, config.output_bias)
    if config.sinks:
        yield _plain(at + names.sinks, config.heads)
    if config.qk_norm != "none":
        per_head = config.qk_norm == "per_head"
        yield _norm(config, at + names.q_norm, config.head_dim if per_head else config.q_width)
        yield _norm(config, at + names.k_norm, config.head_dim if per_head else config.kv_width)


def _latent_attention(
    config: ModelConfig, shape: LatentShape, names: Names, at: str
) -> Iterator[DenseTensor]:
    hidden, heads, biased = config.hidden, config.heads, config.qkv_bias
    if shape.q_rank:
        yield from _projection(at + names.q_a, shape.q_rank, hidden, biased)
        yield _plain(at + names.q_a_norm, shape.q_rank)
        yield from _projection(at + names.q_b, config.q_width, shape.q_rank)
    else:
        yield from _projection(at + names.q, config.q_width, hidden)
    yield from _projection(at + names.kv_a, shape.width, hidden, biased)
    yield _plain(at + names.kv_a_norm, shape.rank)
    yield from _projection(at + names.kv_b, heads * shape.head_rows, shape.rank)
    yield from _projection(at + names.o, hidden, heads * shape.value, config.output_bias)


def _indexer(
    hidden: int, shape: IndexerShape, q_rank: int, names: Names, at: str
) -> Iterator[DenseTensor]:
    yield from _projection(at + names.index_q, shape.heads * shape.dims, q_rank)
    yield from _projection(at + names.index_k, shape.dims, hidden)
    yield _plain(f"{at}{names.index_k_norm}.weight", shape.dims)
    yield _plain(f"{at}{names.index_k_norm}.bias", shape.dims)
    yield _plain(f"{at}{names.index_shares}.weight", shape.heads, hidden)


def _layer(config: ModelConfig, names: Names, layer: int, moe: bool) -> Iterator[DenseTensor]:
    at = names.at(layer, config.layers)
    hidden = config.hidden
    yield _norm(config, at + names.attention_norm, hidden)
    yield _norm(config, at + names.ffn_norm, hidden)
    if config.delta is not None and layer in config.delta_layers:
        yield from _delta(config.delta, hidden, names, at)
    elif config.latent is not None:
        yield from _latent_attention(config, config.latent, names, at)
        if config.indexer is not None and config.chooses(layer):
            yield from _indexer(hidden, config.indexer, config.latent.q_rank, names, at)
    else:
        yield from _attention(config, names, at)
    if not moe:
        yield _matrix(at + names.dense_gate, config.dense_width, hidden)
        yield _matrix(at + names.dense_up, config.dense_width, hidden)
        yield _matrix(at + names.dense_down, hidden, config.dense_width)
        return
    yield _plain(at + names.router, config.experts, hidden)
    if config.router_bias:
        yield _plain(at + names.router_bias, config.experts)
    if config.correction_bias:
        yield _plain(at + names.correction_bias, config.experts)
    if config.shared_width:
        if names.shared_fused:
            yield _matrix(at + names.shared_gate, 2 * config.shared_width, hidden)
        else:
            yield _matrix(at + names.shared_gate, config.shared_width, hidden)
            yield _matrix(at + names.shared_up, config.shared_width, hidden)
        yield _matrix(at + names.shared_down, hidden, config.shared_width)
        if config.shared_gated:
            yield DenseTensor(at + names.shared_switch, (1, hidden), "vector", form="turned")


def _delta(shape: DeltaShape, hidden: int, names: Names, at: str) -> Iterator[DenseTensor]:
    """What decides how fast a state fades and how far it moves is kept in f32, as a router is."""
    heads = shape.value_heads
    if names.delta_fused:
        yield _matrix(at + names.delta_qkv, shape.channels + shape.value_width, hidden)
        yield _plain(at + names.delta_b, 2 * heads, hidden)
    else:
        yield _matrix(at + names.delta_qkv, shape.channels, hidden)
        yield _matrix(at + names.delta_z, shape.value_width, hidden)
        yield _plain(at + names.delta_b, heads, hidden)
        yield _plain(at + names.delta_a, heads, hidden)
    taps = (shape.channels, 1, shape.taps)
    yield DenseTensor(at + names.delta_conv, taps, "vector", form="turned")
    yield _plain(at + names.delta_log, heads)
    yield _plain(at + names.delta_bias, heads)
    yield _plain(at + names.delta_norm, shape.value_dim)
    yield _matrix(at + names.delta_out, hidden, shape.value_width)


def _experts(
    config: ModelConfig, names: Names, layer: int, has: Callable[[str], bool] | None
) -> ExpertTensors:
    at = names.at(layer, config.layers)
    form: ExpertForm = "each"
    gate, up, down = names.expert_gate, names.expert_up, names.expert_down
    if names.fused:
        form = "codes" if config.quantisation == "mxfp4" else "fused"
    elif names.only_stacked or (has is not None and has(at + names.stacked_gate_up)):
        form = "stacked"
        gate, up, down = names.stacked_gate_up, names.stacked_gate_up, names.stacked_down
    return ExpertTensors(layer, at + gate, at + up, at + down, form=form)


def _head(config: ModelConfig, names: Names, layer: int) -> list[DenseTensor]:
    def norm(template: str) -> DenseTensor:
        return _norm(config, mtp_name(config, template, layer), config.hidden)

    projection = mtp_name(config, names.mtp_projection, layer)
    tensors = [
        norm(names.mtp_embedding_norm),
        norm(names.mtp_hidden_norm),
        _matrix(projection, config.hidden, 2 * config.hidden),
        norm(names.mtp_final_norm),
        *_layer(config, names, layer, True),
    ]
    return [replace(tensor, mtp=True) for tensor in tensors]
