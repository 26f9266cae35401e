"""Which tensors a model of a given configuration has, by name and shape: the ``TensorPlan``.

The plan is made from ``ModelConfig`` and the family's names alone, without looking at a file, so
a checkpoint can be verified, a converter can be fed and memory can be reckoned before any weight is
read. Two kinds of dense tensors: ``matrix`` (may be quantised) and ``vector`` (kept as f32 in its
own shape: norms, biases, and the router, whose small differences decide which experts run).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.families import FAMILIES, Names
from diskmoe.experts.checkpoint import DenseTensor, ExpertForm, ExpertTensors, TensorPlan
from diskmoe.experts.container import Container
from diskmoe.experts.errors import BadModel


def tensor_plan(config: ModelConfig, has: Callable[[str], bool] | None = None) -> TensorPlan:
    """The tensors of ``config``.

    ``has(name)`` tells whether the checkpoint holds a tensor: with it, the layer of the MTP head
    (index ``config.layers``) is planned too where the files have one; without it, never.
    """
    names = FAMILIES[config.family].names
    dense = list(_outer(config, names))
    experts: list[ExpertTensors] = []
    for layer in range(config.layers):
        dense += _layer(config, names, layer, layer in config.moe_layers)
    experts += [_experts(config, names, layer) for layer in config.moe_layers]
    for layer in mtp_layers(config, has):
        dense += _head(config, layer)
        experts.append(replace(_experts(config, names, layer), mtp=True))
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
    return [i for i in announced if has(names.of_head(names.mtp_projection, i, config.layers))]


def head_tensors(config: ModelConfig, has: Callable[[str], bool]) -> tuple[DenseTensor, ...]:
    """The dense tensors of the first MTP head; () where the files have none."""
    layers = mtp_layers(config, has)[:1]
    return tuple(tensor for layer in layers for tensor in _head(config, layer))


def _matrix(name: str, rows: int, cols: int) -> DenseTensor:
    return DenseTensor(name, (rows, cols), "matrix")


def _plain(name: str, *shape: int) -> DenseTensor:
    return DenseTensor(name, shape, "vector")


def _outer(config: ModelConfig, names: Names) -> Iterator[DenseTensor]:
    yield _matrix(names.embedding, config.vocab, config.hidden)
    yield _plain(names.final_norm, config.hidden)
    if not config.tied:
        yield _matrix(names.head, config.vocab, config.hidden)


def _layer(config: ModelConfig, names: Names, layer: int, moe: bool) -> Iterator[DenseTensor]:
    at = names.at(layer, config.layers)
    hidden = config.hidden
    yield _plain(at + names.attention_norm, hidden)
    yield _plain(at + names.ffn_norm, hidden)
    for part, width in (
        (names.q, config.q_width),
        (names.k, config.kv_width),
        (names.v, config.kv_width),
    ):
        yield _matrix(f"{at}{part}.weight", width, hidden)
        if config.qkv_bias:
            yield _plain(f"{at}{part}.bias", width)
    yield _matrix(f"{at}{names.o}.weight", hidden, config.q_width)
    if config.output_bias:
        yield _plain(f"{at}{names.o}.bias", hidden)
    if config.sinks:
        yield _plain(at + names.sinks, config.heads)
    if config.qk_norm != "none":
        per_head = config.qk_norm == "per_head"
        yield _plain(at + names.q_norm, config.head_dim if per_head else config.q_width)
        yield _plain(at + names.k_norm, config.head_dim if per_head else config.kv_width)
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
        yield _matrix(at + names.shared_gate, config.shared_width, hidden)
        yield _matrix(at + names.shared_up, config.shared_width, hidden)
        yield _matrix(at + names.shared_down, hidden, config.shared_width)


def _experts(config: ModelConfig, names: Names, layer: int) -> ExpertTensors:
    at = names.at(layer, config.layers)
    form: ExpertForm = "each"
    if names.fused:
        form = "codes" if config.expert_codes else "fused"
    return ExpertTensors(
        layer=layer,
        gate=at + names.expert_gate,
        up=at + names.expert_up,
        down=at + names.expert_down,
        form=form,
    )


def _head(config: ModelConfig, layer: int) -> list[DenseTensor]:
    names, hidden = FAMILIES[config.family].names, config.hidden

    def own(template: str) -> str:
        return names.of_head(template, layer, config.layers)

    tensors = [
        _plain(own(names.mtp_embedding_norm), hidden),
        _plain(own(names.mtp_hidden_norm), hidden),
        _matrix(own(names.mtp_projection), hidden, 2 * hidden),
        _plain(own(names.mtp_final_norm), hidden),
        *_layer(config, names, layer, True),
    ]
    return [replace(tensor, mtp=True) for tensor in tensors]
