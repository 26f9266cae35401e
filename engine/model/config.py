"""``config.json`` -> ``ModelConfig``: everything the forward needs to know, checked and bounded.

The file comes from elsewhere and is not believed: every size is compared with a limit before
anything is computed from it, and what cannot be carried out (another activation, another scaling of
rope, an unknown quantisation) is refused by name. The one rule: a value that changes the result is
either used or refused, never ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diskmoe.engine.kernels.delta_shape import DeltaShape
from diskmoe.engine.model.delta_config import delta_layers, delta_shape, text_half
from diskmoe.engine.model.families import FAMILIES
from diskmoe.engine.model.family import Family, GroupScore, QkNorm, RopeLayout, Score
from diskmoe.engine.model.fields import (
    MAX_CONTEXT,
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_VOCAB,
    MAX_WIDTH,
    Fields,
)
from diskmoe.engine.model.latent_config import IndexerShape, LatentShape, read_indexer, read_latent
from diskmoe.engine.model.quantisation import quantisation_of
from diskmoe.engine.model.rope import Llama3, Yarn
from diskmoe.engine.model.rope_config import read_rope
from diskmoe.engine.model.scale_config import read_scales
from diskmoe.experts.errors import BadModel
from diskmoe.experts.tiles import TILE

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_MTP_LAYERS = (
    "num_nextn_predict_layers",
    "num_mtp_layers",
    "mtp_num_hidden_layers",
    "num_mtp_modules",
)


@dataclass(frozen=True)
class ModelConfig:
    """A model's architecture. Sizes count elements; layers and experts count from 0."""

    family: str  # the row of families.FAMILIES
    vocab: int
    hidden: int
    layers: int
    context: int  # positions the model was trained for
    norm_epsilon: float
    zero_centred: bool  # norms are x * (1 + weight), but those within delta layers
    tied: bool  # the head is the embedding matrix
    embedding_scale: float  # of its rows as they enter the first layer
    logit_scale: float
    # attention
    heads: int
    kv_heads: int
    head_dim: int  # of queries and keys
    latent: LatentShape | None  # None: keys and values have projections of their own
    indexer: IndexerShape | None  # None: rows attend to all keys that they see
    qk_norm: QkNorm
    qkv_bias: bool
    output_bias: bool
    clip_qkv: float | None
    rope_layout: RopeLayout
    rope_dims: int  # the first dims of a head that turn
    rope_theta: float
    rope_scaling: Yarn | Llama3 | None  # None: plain rope
    sinks: bool
    windows: tuple[int, ...]  # by layer: keys that a row sees, 0 for all; (): all, in all layers
    attention_scale: float  # of the dots of queries and keys
    q_gate: bool  # q has a gate per output behind the queries of each head
    # layers with a delta rule in place of attention
    delta: DeltaShape | None
    delta_layers: tuple[int, ...]  # ascending
    # router
    experts: int  # 0: a model without any
    top_k: int
    score: Score
    router_bias: bool
    correction_bias: bool
    groups: int
    top_groups: int
    group_score: GroupScore
    renorm: bool
    routed_scale: float
    # feed-forward
    expert_width: int  # 1 where there are none: the least that a record can have
    shared_width: int  # 0: no shared expert
    shared_gated: bool  # its result times sigmoid of a row's own number
    dense_width: int  # of the layers without experts; 0 when there are none
    moe_layers: tuple[int, ...]  # ascending
    expert_bias: bool
    quantisation: str | None  # of the checkpoint: fp8, int4, mxfp4 (experts only), None
    swiglu_limit: float | None  # None: silu(gate) * up; else see kernels.ffn_shape.Swiglu
    swiglu_alpha: float
    # rest
    mtp_layers: int  # that files are searched for, and may not have
    mtp_announced: int  # by the config; 0 where it says nothing

    @property
    def q_width(self) -> int:
        """Of the queries, and of what attention gives."""
        return self.heads * self.head_dim

    @property
    def q_outputs(self) -> int:
        """Rows of the matrix of queries."""
        return self.q_width * (2 if self.q_gate else 1)

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def cached_parts(self) -> int:
        """Parts that a position has in the cache: keys and values, or a latent that is both."""
        return 2 if self.latent is None else 1

    @property
    def cached_dims(self) -> int:
        """Numbers of a head in a part of the cache."""
        return self.head_dim if self.latent is None else self.latent.width

    def chooses(self, layer: int) -> bool:
        """Whether a layer chooses the keys that its rows attend to. An MTP layer never does."""
        return self.indexer is not None and layer < self.layers and self.indexer.full[layer]

    def window(self, layer: int) -> int:
        """How many keys a row of a layer sees, its own among them; 0: all."""
        return self.windows[layer] if layer < len(self.windows) else 0


def family_of(raw: Mapping[str, Any], where: str) -> str:
    """The family's name, or BadModel that says what was seen and lists what is supported."""
    name = raw.get("model_type")
    supported = ", ".join(sorted(FAMILIES))
    if name is None:
        raise BadModel(f"{where}: model_type is missing, supported families: {supported}")
    if not isinstance(name, str) or name not in FAMILIES:
        shown = repr(name)[:60]
        raise BadModel(f"{where}: model_type {shown} is not supported, families: {supported}")
    return name


def read_config(raw: object, where: str) -> ModelConfig:
    """Check a parsed config.json.

    ``where`` is what messages call the file. Raises BadModel for anything missing, of a wrong
    type, out of bounds, or that this program would have to ignore.
    """
    if not isinstance(raw, Mapping):
        raise BadModel(f"{where}: expected a JSON object, found {type(raw).__name__}")
    name = family_of(raw, where)
    family = FAMILIES[name]
    raw = text_half(raw, Fields(raw, where))
    f = Fields(raw, where)
    _refuse_unsupported(f, family)

    hidden = f.integer("hidden_size", 1, MAX_HIDDEN, None)
    layers = f.integer("num_hidden_layers", 1, MAX_LAYERS, None)
    heads = f.integer("num_attention_heads", 1, MAX_HEADS, None)
    latent = read_latent(f, heads) if family.latent else None
    if latent is None:
        kv_heads, head_dim = _heads(f, heads, hidden)
        rope = read_rope(f, family, head_dim)
    else:
        kv_heads, head_dim = 1, latent.plain + latent.turning
        rope = read_rope(f, family, latent.turning)

    experts, top_k, expert_width = 0, 0, 1
    if family.dense_rule != "all":
        experts = f.integer(_EXPERTS, 1, MAX_EXPERTS, None)
        top_k = f.integer("num_experts_per_tok", 1, MAX_EXPERTS, None)
        expert_width = f.integer(family.expert_width_key, 1, MAX_WIDTH, None)
    if top_k > experts:
        raise f.wrong("num_experts_per_tok", top_k, f"at most the {experts} experts there are")
    groups, top_groups = _groups(f, family, experts, top_k)
    shared_width = 0
    if family.shared_width_key is not None:
        least = 1 if family.shared_gated else 0
        shared_width = f.integer(family.shared_width_key, least, MAX_WIDTH, None)
        if family.names.shared_fused and shared_width % TILE:
            raise f.wrong(family.shared_width_key, shared_width, f"a multiple of {TILE}")
    elif family.shared_count_key is not None:
        shared = f.integer(family.shared_count_key, 0, 1024, family.shared_count_default)
        shared_width = shared * expert_width
        if shared_width > MAX_WIDTH:
            raise f.wrong(family.shared_count_key, shared, f"a total width up to {MAX_WIDTH}")
    moe_layers = _moe_layers(f, family, layers)
    dense_width = 0
    if len(moe_layers) < layers:
        dense_width = f.integer("intermediate_size", 1, MAX_WIDTH, None)
    clip = None
    if family.clip_key is not None and raw.get(family.clip_key) is not None:
        clip = f.number(family.clip_key, 1e-6, 1e9, None)
    bias = f.flag(family.bias_key, family.bias_default)
    norm_on = family.qk_norm_key is None or f.flag(family.qk_norm_key, False)
    announced = f.integer(_MTP_LAYERS, 0, 16, 0)
    scales = read_scales(f, family, head_dim, latent, rope.scaling)

    return ModelConfig(
        family=name,
        vocab=f.integer("vocab_size", 1, MAX_VOCAB, None),
        hidden=hidden,
        layers=layers,
        context=f.integer("max_position_embeddings", 1, MAX_CONTEXT, MAX_CONTEXT),
        norm_epsilon=f.number("rms_norm_eps", 0.0, 1.0, family.norm_epsilon_default)
        / scales.residual**2,
        zero_centred=family.zero_centred,
        tied=f.flag("tie_word_embeddings", False),
        embedding_scale=scales.embedding / scales.residual,
        logit_scale=scales.logits,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        latent=latent,
        indexer=read_indexer(f, family, latent, layers),
        qk_norm=family.qk_norm if norm_on else "none",
        qkv_bias=bias,
        output_bias=bias and family.output_bias,
        clip_qkv=clip,
        rope_layout=rope.layout,
        rope_dims=rope.dims,
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
        sinks=family.sinks,
        windows=_windows(f, family, layers),
        attention_scale=scales.attention,
        q_gate=family.q_gate,
        delta=delta_shape(f) if family.delta else None,
        delta_layers=delta_layers(f, layers) if family.delta else (),
        experts=experts,
        top_k=top_k,
        score=family.score,
        router_bias=family.router_bias,
        correction_bias=family.correction_bias,
        groups=groups,
        top_groups=top_groups,
        group_score=family.group_score,
        renorm=family.renorm_key is None or f.flag(family.renorm_key, family.renorm_default),
        routed_scale=_routed_scale(f, family),
        expert_width=expert_width,
        shared_width=shared_width,
        shared_gated=family.shared_gated,
        dense_width=dense_width,
        moe_layers=moe_layers,
        expert_bias=family.expert_bias,
        quantisation=quantisation_of(raw, family.names.fused, where),
        swiglu_limit=f.number("swiglu_limit", 1e-6, 1e6, 7.0) if family.clamped else None,
        swiglu_alpha=f.number("swiglu_alpha", -1e6, 1e6, 1.702) if family.clamped else 1.0,
        mtp_layers=_mtp_layers(f, family, announced),
        mtp_announced=announced,
    )


def _heads(f: Fields, heads: int, hidden: int) -> tuple[int, int]:
    """(heads of keys and values, dims of a head) of ordinary attention."""
    kv_heads = f.integer("num_key_value_heads", 1, MAX_HEADS, heads)
    if heads % kv_heads:
        raise f.wrong("num_key_value_heads", kv_heads, f"a divisor of {heads} attention heads")
    if f.raw.get("head_dim") is None and hidden % heads:
        raise f.wrong("num_attention_heads", heads, f"a divisor of hidden_size {hidden}")
    head_dim = f.integer("head_dim", 2, MAX_HEAD_DIM, hidden // heads)
    if heads * head_dim > MAX_WIDTH:
        raise f.wrong("head_dim", head_dim, f"heads x head_dim up to {MAX_WIDTH}")
    return kv_heads, head_dim


def _routed_scale(f: Fields, family: Family) -> float:
    if family.scale_key is None:
        return 1.0
    return f.number(family.scale_key, 0, 1e6, family.scale_default)


def _refuse_unsupported(f: Fields, family: Family) -> None:
    for key, only in family.fixed:
        if f.raw.get(key) not in (None, only):
            raise f.wrong(key, f.raw[key], repr(only))
    act = f.raw.get("hidden_act", "silu")
    if act not in ("silu", "swish"):
        raise f.wrong("hidden_act", act, "silu")
    if family.window_key is not None and f.flag(family.window_key, False):
        raise BadModel(
            f"{f.where}: {family.window_key} is true, but sliding windows are not supported"
        )


def _windows(f: Fields, family: Family, layers: int) -> tuple[int, ...]:
    """By layer: how many keys a row sees, 0 for all. Listed layers are by default every other one,
    from the first."""
    if family.windows == "none":
        return ()
    if family.windows == "all":
        window = f.integer("sliding_window", 1, MAX_CONTEXT, 0)
        return (window,) * layers if window else ()
    kinds = ("sliding_attention", "full_attention")
    listed = f.raw.get("layer_types")
    if listed is None:
        listed = [kinds[layer % 2] for layer in range(layers)]
    if not isinstance(listed, list) or any(kind not in kinds for kind in listed):
        raise f.wrong("layer_types", listed, f"a list of {' or '.join(kinds)}")
    if len(listed) != layers:
        raise f.wrong("layer_types", listed, f"as many as there are layers, {layers}")
    if "sliding_window" in f.raw and f.raw["sliding_window"] is None and kinds[0] in listed:
        raise f.wrong("sliding_window", None, "a whole number, for the layers with a window")
    window = f.integer("sliding_window", 1, MAX_CONTEXT, 128)
    return tuple(window if kind == kinds[0] else 0 for kind in listed)


def _groups(f: Fields, family: Family, experts: int, top_k: int) -> tuple[int, int]:
    if not family.grouped:
        return 1, 1
    if family.group_method_key is not None:
        methods = ("greedy", "group_limited_greedy")
        method = f.raw.get(family.group_method_key) or methods[0]
        if method not in methods:
            raise f.wrong(family.group_method_key, method, " or ".join(methods))
        if method == methods[0]:
            return 1, 1
    default, top_default = family.groups_default
    groups = f.integer("n_group", 1, experts, default)
    top_groups = f.integer("topk_group", 1, groups, min(top_default, groups))
    if groups == 1:
        return 1, 1
    if experts % groups or experts // groups < 2:
        raise f.wrong("n_group", groups, f"a divisor of {experts} experts, 2 or more in a group")
    if top_k > top_groups * (experts // groups):
        room = top_groups * (experts // groups)
        raise f.wrong("num_experts_per_tok", top_k, f"at most the {room} experts of topk_group")
    return groups, top_groups


def _moe_layers(f: Fields, family: Family, layers: int) -> tuple[int, ...]:
    if family.dense_rule == "all":
        return ()
    if family.dense_rule == "listed" and f.raw.get("mlp_layer_types") is not None:
        kinds = f.raw["mlp_layer_types"]
        if not isinstance(kinds, list) or any(kind not in ("dense", "sparse") for kind in kinds):
            raise f.wrong("mlp_layer_types", kinds, "a list of dense or sparse")
        if len(kinds) != layers:
            raise f.wrong("mlp_layer_types", kinds, f"as many as there are layers, {layers}")
        found = tuple(layer for layer, kind in enumerate(kinds) if kind == "sparse")
    elif family.dense_rule in ("first_k", "listed"):
        first = f.integer("first_k_dense_replace", 0, MAX_LAYERS, family.first_dense_default)
        found = tuple(range(min(first, layers), layers))
    elif family.dense_rule == "sparse_step":
        step = f.integer("decoder_sparse_step", 1, MAX_LAYERS, 1)
        listed = f.raw.get("mlp_only_layers") or []
        if not isinstance(listed, list) or len(listed) > MAX_LAYERS:
            raise f.wrong("mlp_only_layers", listed, "a list of layer numbers")
        for layer in listed:
            if isinstance(layer, bool) or not isinstance(layer, int):
                raise f.wrong("mlp_only_layers", layer, "whole numbers")
        only_dense = set(listed)
        found = tuple(i for i in range(layers) if i not in only_dense and (i + 1) % step == 0)
    else:
        found = tuple(range(layers))
    if not found:
        raise BadModel(f"{f.where}: none of the {layers} layers has experts, this is no MoE model")
    return found


def _mtp_layers(f: Fields, family: Family, announced: int) -> int:
    if family.mtp == "own_layers":  # not all configs tell; of several the first one is used
        told = f.find(_MTP_LAYERS)[1] is not None
        return min(1, announced) if told else 1
    return announced if family.mtp == "extra_layer" else 0
