"""``config.json`` -> ``ModelConfig``: everything the forward needs to know, checked and bounded.

The file comes from elsewhere and is not believed: every size is compared with a limit before
anything is computed from it, and what cannot be carried out (another activation, another scaling of
rope, an unknown quantisation) is refused by name. The one rule: a value that changes the result is
either used or refused, never ignored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diskmoe.engine.model.families import FAMILIES, Family, QkNorm, RopeLayout, Score
from diskmoe.engine.model.rope import Yarn, yarn_magnitude
from diskmoe.experts.errors import BadModel

MAX_HIDDEN = 65_536
MAX_LAYERS = 1_024
MAX_EXPERTS = 4_096
MAX_VOCAB = 2_000_000
MAX_HEADS = 4_096
MAX_HEAD_DIM = 4_096
MAX_WIDTH = 1_048_576  # of a projection or an FFN
MAX_CONTEXT = 1 << 31
MAX_STOP_IDS = 64

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_MTP_LAYERS = ("num_nextn_predict_layers", "num_mtp_layers")


@dataclass(frozen=True)
class ModelConfig:
    """A model's architecture. Sizes count elements; layers and experts count from 0."""

    family: str  # the row of families.FAMILIES
    vocab: int
    hidden: int
    layers: int
    context: int  # positions the model was trained for
    norm_epsilon: float
    tied: bool  # the head is the embedding matrix
    # attention
    heads: int
    kv_heads: int
    head_dim: int
    qk_norm: QkNorm
    qkv_bias: bool
    output_bias: bool
    clip_qkv: float | None
    rope_layout: RopeLayout
    rope_dims: int  # the first dims of a head that turn
    rope_theta: float
    yarn: Yarn | None  # None: plain rope
    sinks: bool
    windows: tuple[int, ...]  # by layer: keys that a row sees, 0 for all; (): all, in all layers
    # router
    experts: int  # 0: a model without any
    top_k: int
    score: Score
    router_bias: bool
    correction_bias: bool
    groups: int
    top_groups: int
    renorm: bool
    routed_scale: float
    # feed-forward
    expert_width: int  # 1 where there are none: the least that a record can have
    shared_width: int  # 0: no shared expert
    dense_width: int  # of the layers without experts; 0 when there are none
    moe_layers: tuple[int, ...]  # ascending
    expert_bias: bool
    expert_codes: bool  # the checkpoint has its experts as MXFP4 codes
    swiglu_limit: float | None  # None: silu(gate) * up; else see kernels.ffn_shape.Swiglu
    swiglu_alpha: float
    # rest
    mtp_layers: int  # announced by the config; the files may not have them
    eos_ids: tuple[int, ...]
    bos_id: int | None

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def attention_scale(self) -> float:
        return self.head_dim**-0.5

    def window(self, layer: int) -> int:
        """How many keys a row of a layer sees, its own among them; 0: all."""
        return self.windows[layer] if layer < len(self.windows) else 0


class _Fields:
    """Typed, bounded access to a parsed config.json. Every complaint names key, value, allowed."""

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        self.raw = raw
        self.where = where

    def find(self, keys: Sequence[str]) -> tuple[str, Any]:
        """The first of ``keys`` that is there and not null, else (first key, None)."""
        for key in keys:
            if self.raw.get(key) is not None:
                return key, self.raw[key]
        return keys[0], None

    def wrong(self, key: str, value: object, allowed: str) -> BadModel:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return BadModel(f"{self.where}: {key} is {shown}, allowed: {allowed}")

    def integer(self, keys: str | Sequence[str], low: int, high: int, default: int | None) -> int:
        key, value = self.find((keys,) if isinstance(keys, str) else keys)
        if value is None:
            if default is None:
                raise BadModel(
                    f"{self.where}: {key} is missing, expected a whole number {low} to {high}"
                )
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(key, value, f"a whole number {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float, default: float | None) -> float:
        value = self.raw.get(key)
        if value is None:
            if default is None:
                raise BadModel(f"{self.where}: {key} is missing, expected {low:g} to {high:g}")
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, value, f"a number {low:g} to {high:g}")
        if not low <= value <= high:  # false for NaN too
            raise self.wrong(key, value, f"a number {low:g} to {high:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.raw.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value


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
    f = _Fields(raw, where)
    _refuse_unsupported(f, family)

    hidden = f.integer("hidden_size", 1, MAX_HIDDEN, None)
    layers = f.integer("num_hidden_layers", 1, MAX_LAYERS, None)
    heads = f.integer("num_attention_heads", 1, MAX_HEADS, None)
    kv_heads = f.integer("num_key_value_heads", 1, MAX_HEADS, heads)
    if heads % kv_heads:
        raise f.wrong("num_key_value_heads", kv_heads, f"a divisor of {heads} attention heads")
    if f.raw.get("head_dim") is None and hidden % heads:
        raise f.wrong("num_attention_heads", heads, f"a divisor of hidden_size {hidden}")
    head_dim = f.integer("head_dim", 2, MAX_HEAD_DIM, hidden // heads)
    if heads * head_dim > MAX_WIDTH:
        raise f.wrong("head_dim", head_dim, f"heads x head_dim up to {MAX_WIDTH}")
    rope_theta, rope_dims, yarn = _rope(f, family, head_dim)

    experts, top_k, expert_width = 0, 0, 1
    if family.dense_rule != "all":
        experts = f.integer(_EXPERTS, 1, MAX_EXPERTS, None)
        top_k = f.integer("num_experts_per_tok", 1, MAX_EXPERTS, None)
        expert_width = f.integer(family.expert_width_key, 1, MAX_WIDTH, None)
    if top_k > experts:
        raise f.wrong("num_experts_per_tok", top_k, f"at most the {experts} experts there are")
    groups, top_groups = _groups(f, family, experts, top_k)
    shared = 0
    if family.shared_count_key is not None:
        shared = f.integer(family.shared_count_key, 0, 1024, family.shared_count_default)
    if shared * expert_width > MAX_WIDTH:
        raise f.wrong(str(family.shared_count_key), shared, f"a total width up to {MAX_WIDTH}")
    moe_layers = _moe_layers(f, family, layers)
    dense_width = 0
    if len(moe_layers) < layers:
        dense_width = f.integer("intermediate_size", 1, MAX_WIDTH, None)
    clip = None
    if family.clip_key is not None and raw.get(family.clip_key) is not None:
        clip = f.number(family.clip_key, 1e-6, 1e9, None)
    bias = f.flag("attention_bias", family.bias_default)
    norm_on = family.qk_norm_key is None or f.flag(family.qk_norm_key, False)

    return ModelConfig(
        family=name,
        vocab=f.integer("vocab_size", 1, MAX_VOCAB, None),
        hidden=hidden,
        layers=layers,
        context=f.integer("max_position_embeddings", 1, MAX_CONTEXT, MAX_CONTEXT),
        norm_epsilon=f.number("rms_norm_eps", 0.0, 1.0, family.norm_epsilon_default),
        tied=f.flag("tie_word_embeddings", False),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        qk_norm=family.qk_norm if norm_on else "none",
        qkv_bias=bias,
        output_bias=bias and family.output_bias,
        clip_qkv=clip,
        rope_layout=family.rope_layout,
        rope_dims=rope_dims,
        rope_theta=rope_theta,
        yarn=yarn,
        sinks=family.sinks,
        windows=_windows(f, layers) if family.windows else (),
        experts=experts,
        top_k=top_k,
        score=family.score,
        router_bias=family.router_bias,
        correction_bias=family.correction_bias,
        groups=groups,
        top_groups=top_groups,
        renorm=f.flag("norm_topk_prob", family.renorm_default),
        routed_scale=1.0 if family.scale_key is None else f.number(family.scale_key, 0, 1e6, 1.0),
        expert_width=expert_width,
        shared_width=shared * expert_width,
        dense_width=dense_width,
        moe_layers=moe_layers,
        expert_bias=family.expert_bias,
        expert_codes=f.raw.get("quantization_config") is not None,
        swiglu_limit=f.number("swiglu_limit", 1e-6, 1e6, 7.0) if family.clamped else None,
        swiglu_alpha=f.number("swiglu_alpha", -1e6, 1e6, 1.702) if family.clamped else 1.0,
        mtp_layers=0 if family.mtp == "none" else f.integer(_MTP_LAYERS, 0, 16, 0),
        eos_ids=_ids(f, "eos_token_id"),
        bos_id=next(iter(_ids(f, "bos_token_id")), None),
    )


def _refuse_unsupported(f: _Fields, family: Family) -> None:
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
    quantised = f.raw.get("quantization_config")
    if quantised is not None:
        method = quantised.get("quant_method") if isinstance(quantised, Mapping) else quantised
        if method == "mxfp4" and family.names.fused:
            return
        raise BadModel(
            f"{f.where}: the weights are quantised already (quantization_config:"
            f" {str(method)[:40]}), use the bf16, f16 or f32 checkpoint of the model"
        )


def _rope(f: _Fields, family: Family, head_dim: int) -> tuple[float, int, Yarn | None]:
    """(theta, dims that turn, yarn) from the old keys or from the ``rope_parameters`` dict of 5.x.

    Where both forms say something, the dict wins over the plain keys and ``rope_scaling`` over
    ``rope_parameters``, as in transformers.
    """
    key, value = f.find(("rope_scaling", "rope_parameters"))
    if value == {}:
        key, value = "rope_parameters", f.raw.get("rope_parameters")
    if value is None:
        value = family.yarn_default or {}
    if not isinstance(value, Mapping):
        raise f.wrong(key, value, "an object")
    if any(isinstance(item, Mapping) for item in value.values()):
        raise BadModel(f"{f.where}: {key} differs between layers, which is not supported")
    kind = value.get("rope_type", value.get("type", "default"))
    if kind not in ("default", "yarn"):
        raise BadModel(
            f"{f.where}: rope scaling {str(kind)[:40]!r} is not supported, only plain rope"
            f" (rope_type 'default') and 'yarn'; see {key}"
        )
    merged = _Fields({**f.raw, **{k: v for k, v in value.items() if v is not None}}, f.where)
    theta = merged.number("rope_theta", 1.0, 1e12, family.theta_default)
    if family.rope_partial is None:
        dims = head_dim
    else:
        share = merged.number("partial_rotary_factor", 0.0, 1.0, family.rope_partial)
        dims = int(head_dim * share)
    if dims < 2 or dims % 2:
        raise f.wrong("head_dim", head_dim, f"an even number of rotary dims, not {dims}")
    return theta, dims, _yarn(merged, key) if kind == "yarn" else None


def _yarn(f: _Fields, key: str) -> Yarn:
    """The keys of a rope_scaling with rope_type yarn."""
    for name in ("mscale", "mscale_all_dim"):
        if f.raw.get(name) is not None:
            raise BadModel(f"{f.where}: yarn with {name} is not supported; see {key}")
    if f.raw.get("rope_theta") == 1:
        raise f.wrong("rope_theta", 1, "more than 1 with yarn")
    context = f.integer("max_position_embeddings", 1, MAX_CONTEXT, MAX_CONTEXT)
    factor = f.number("factor", 1.0, 1e6, None)
    return Yarn(
        factor=factor,
        trained=f.integer("original_max_position_embeddings", 1, MAX_CONTEXT, context),
        fast=f.number("beta_fast", 1e-6, 1e6, 32.0),
        slow=f.number("beta_slow", 1e-6, 1e6, 1.0),
        truncate=f.flag("truncate", True),
        magnitude=f.number("attention_factor", 0.0, 1e3, yarn_magnitude(factor)),
    )


def _windows(f: _Fields, layers: int) -> tuple[int, ...]:
    """By layer: how many keys a row sees, 0 for all. By default every other layer, from the first."""
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


def _groups(f: _Fields, family: Family, experts: int, top_k: int) -> tuple[int, int]:
    if not family.grouped:
        return 1, 1
    groups = f.integer("n_group", 1, experts, 1)
    top_groups = f.integer("topk_group", 1, groups, min(1, groups))
    if groups == 1:
        return 1, 1
    if experts % groups or experts // groups < 2:
        raise f.wrong("n_group", groups, f"a divisor of {experts} experts, 2 or more in a group")
    if top_k > top_groups * (experts // groups):
        room = top_groups * (experts // groups)
        raise f.wrong("num_experts_per_tok", top_k, f"at most the {room} experts of topk_group")
    return groups, top_groups


def _moe_layers(f: _Fields, family: Family, layers: int) -> tuple[int, ...]:
    if family.dense_rule == "all":
        return ()
    if family.dense_rule == "first_k":
        first = f.integer("first_k_dense_replace", 0, MAX_LAYERS, 1)
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


def _ids(f: _Fields, key: str) -> tuple[int, ...]:
    """Token ids given as a number or a list of numbers; ids that cannot occur are dropped."""
    value = f.raw.get(key)
    if value is None:
        return ()
    listed = value if isinstance(value, list) else [value]
    if len(listed) > MAX_STOP_IDS:
        raise f.wrong(key, value, f"at most {MAX_STOP_IDS} ids")
    for item in listed:
        if isinstance(item, bool) or not isinstance(item, int):
            raise f.wrong(key, item, "a token id or a list of them")
    return tuple(i for i in dict.fromkeys(listed) if 0 <= i < MAX_VOCAB)
