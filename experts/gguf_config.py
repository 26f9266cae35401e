"""A GGUF's metadata as the config.json that the hub has for the same model.

The rule of this file: a config says what the file says, in the hub's words; whatever a program
would otherwise have to guess is taken from the tensors (is there a head of its own, are there
biases, which layers have experts). What GGUF leaves to the program that runs it (gpt-oss's clamp,
whether Qwen3 normalises its weights) is that model's published constant.
"""

from collections.abc import Callable, Mapping
from typing import Any

from diskmoe.experts.errors import BadModel
from diskmoe.experts.gguf_file import Metadata
from diskmoe.experts.safetensors_io import TensorInfo, shown

Tensors = Mapping[str, TensorInfo]
Config = dict[str, Any]

SOFTMAX, SIGMOID = 1, 2  # expert_gating_func
MOST_LAYERS = 1024


class Facts:
    """The entries of one model, without their architecture's name before them."""

    def __init__(self, metadata: Metadata, tensors: Tensors) -> None:
        self.metadata, self.tensors = metadata, tensors
        self.architecture: str = metadata.value("general.architecture", str)

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def has(self, name: str) -> bool:
        return self.metadata.has(self.key(name))

    def integer(self, name: str, default: int | None = None) -> int:
        return self.metadata.integer(self.key(name), default)

    def number(self, name: str, default: float | None = None) -> float:
        return self.metadata.number(self.key(name), default)

    def flag(self, name: str, default: bool) -> bool:
        return self.metadata.get(self.key(name), bool, default)

    def bad(self, name: str, what: str) -> BadModel:
        return self.metadata.bad(self.key(name), what)

    @property
    def layers(self) -> int:
        """Layers without those of an MTP head."""
        found = self.integer("block_count") - self.integer("nextn_predict_layers", 0)
        if not 1 <= found <= MOST_LAYERS:
            raise self.bad("block_count", f"leaves {found} layers, expected 1 to {MOST_LAYERS}")
        return found

    def layers_with(self, ending: str) -> list[int]:
        """The layers that have a tensor ``blk.LAYER.ending``."""
        return [i for i in range(self.layers) if f"blk.{i}.{ending}" in self.tensors]

    @property
    def head_dim(self) -> int:
        heads = self.integer("attention.head_count")
        default = self.integer("embedding_length") // max(heads, 1)
        found = self.integer("attention.key_length", default)
        values = self.integer("attention.value_length", default)
        if values != found:
            raise self.bad("attention.value_length", f"is {values}, and {found} of keys: different")
        return found


def common(facts: Facts) -> Config:
    """What all families have."""
    embedding = facts.tensors.get("token_embd.weight")
    if embedding is None:
        raise BadModel(f"{facts.metadata.path}: tensor 'token_embd.weight' is missing")
    config: Config = {
        "vocab_size": embedding.shape[0],
        "hidden_size": facts.integer("embedding_length"),
        "num_hidden_layers": facts.layers,
        "num_attention_heads": facts.integer("attention.head_count"),
        "num_key_value_heads": facts.integer(
            "attention.head_count_kv", facts.integer("attention.head_count")
        ),
        "max_position_embeddings": facts.integer("context_length"),
        "rms_norm_eps": facts.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": facts.number("rope.freq_base", 10_000.0),
        "num_experts_per_tok": facts.integer("expert_used_count"),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in facts.tensors,
        "torch_dtype": "bfloat16",
    }
    for name in ("bos", "eos"):
        key = f"tokenizer.ggml.{name}_token_id"
        if facts.metadata.has(key):
            config[f"{name}_token_id"] = facts.metadata.value(key, int)
    scaling = _rope_scaling(facts)
    return config if scaling is None else {**config, "rope_scaling": scaling}


def _rope_scaling(facts: Facts) -> Config | None:
    kind = facts.metadata.get(facts.key("rope.scaling.type"), str, "none")
    factor = facts.number("rope.scaling.factor", 1.0)
    if kind == "none" and (factor == 1.0 or not facts.has("rope.scaling.factor")):
        return None
    if kind != "yarn":
        raise facts.bad(
            "rope.scaling.type", f"is {shown(kind, 40)}; plain rope and 'yarn' are supported"
        )
    scaling: Config = {"rope_type": "yarn", "factor": factor}
    trained = facts.integer("rope.scaling.original_context_length", 0)
    if trained:
        scaling["original_max_position_embeddings"] = trained
    for ours, theirs in (
        ("beta_fast", "yarn_beta_fast"),
        ("beta_slow", "yarn_beta_slow"),
        ("attention_factor", "yarn_attn_factor"),
    ):
        if facts.has(f"rope.scaling.{theirs}"):
            scaling[ours] = facts.number(f"rope.scaling.{theirs}")
    return scaling


def _grouped_query(facts: Facts) -> Config:
    """Of families with ordinary attention."""
    return {
        "head_dim": facts.head_dim,
        "attention_bias": "blk.0.attn_q.bias" in facts.tensors,
        **common(facts),
    }


def _whole_rope(facts: Facts) -> None:
    """BadModel when only a part of a head turns, in a family whose heads turn whole."""
    dims = facts.integer("rope.dimension_count", facts.head_dim)
    if dims != facts.head_dim:
        raise facts.bad(
            "rope.dimension_count", f"is {dims}, expected the {facts.head_dim} of a head"
        )


def _softmax(facts: Facts) -> None:
    """BadModel for another router than softmax over all experts."""
    kind = facts.integer("expert_gating_func", SOFTMAX)
    if kind != SOFTMAX or facts.number("expert_weights_scale", 1.0) not in (0.0, 1.0):
        raise facts.bad(
            "expert_gating_func", f"is {kind}, with a scale or not: this family has plain softmax"
        )


def _qwen3moe(facts: Facts) -> Config:
    _whole_rope(facts)
    _softmax(facts)
    with_experts = facts.layers_with("ffn_gate_inp.weight")
    return {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        **_grouped_query(facts),
        "num_experts": facts.integer("expert_count"),
        "moe_intermediate_size": facts.integer("expert_feed_forward_length"),
        "intermediate_size": facts.integer("feed_forward_length"),
        "norm_topk_prob": facts.flag("expert_weights_norm", True),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [i for i in range(facts.layers) if i not in with_experts],
    }


def _olmoe(facts: Facts) -> Config:
    _whole_rope(facts)
    _softmax(facts)
    config = {
        "model_type": "olmoe",
        "architectures": ["OlmoeForCausalLM"],
        **_grouped_query(facts),
        "num_experts": facts.integer("expert_count"),
        "intermediate_size": facts.integer(
            "expert_feed_forward_length", facts.integer("feed_forward_length")
        ),
        "norm_topk_prob": facts.flag("expert_weights_norm", False),
    }
    if facts.has("attention.clamp_kqv"):
        config["clip_qkv"] = facts.number("attention.clamp_kqv")
    return config


def _glm4moe(facts: Facts) -> Config:
    if facts.integer("expert_gating_func", SIGMOID) != SIGMOID:
        raise facts.bad("expert_gating_func", "is not 2 (sigmoid), which this family has")
    return {
        "model_type": "glm4_moe",
        "architectures": ["Glm4MoeForCausalLM"],
        **_grouped_query(facts),
        "partial_rotary_factor": facts.integer("rope.dimension_count") / facts.head_dim,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in facts.tensors,
        "n_routed_experts": facts.integer("expert_count"),
        "n_shared_experts": facts.integer("expert_shared_count"),
        "moe_intermediate_size": facts.integer("expert_feed_forward_length"),
        "intermediate_size": facts.integer("feed_forward_length"),
        "first_k_dense_replace": facts.integer("leading_dense_block_count", 0),
        "n_group": max(facts.integer("expert_group_count", 1), 1),
        "topk_group": max(facts.integer("expert_group_used_count", 1), 1),
        "norm_topk_prob": facts.flag("expert_weights_norm", True),
        "routed_scaling_factor": facts.number("expert_weights_scale", 1.0),
        "num_nextn_predict_layers": facts.integer("nextn_predict_layers", 0),
    }


def _gpt_oss(facts: Facts) -> Config:
    _whole_rope(facts)
    config = {
        "model_type": "gpt_oss",
        "architectures": ["GptOssForCausalLM"],
        **_grouped_query(facts),
        "num_local_experts": facts.integer("expert_count"),
        "intermediate_size": facts.integer("expert_feed_forward_length"),
        "sliding_window": facts.integer("attention.sliding_window"),
        "layer_types": _layer_types(facts),
        "swiglu_limit": 7.0,
    }
    if "rope_scaling" in config:
        config["rope_scaling"]["truncate"] = False
    else:
        config["rope_scaling"] = {"rope_type": "default"}  # none is not the family's default
    with_experts = facts.tensors.get("blk.0.ffn_gate_exps.weight")
    if with_experts is not None and with_experts.dtype == "MXFP4":
        config["quantization_config"] = {"quant_method": "mxfp4"}
    return config


def _layer_types(facts: Facts) -> list[str]:
    """Which layers see a window only; every other one, from the first, where the file is silent."""
    kinds = ("full_attention", "sliding_attention")
    listed = facts.metadata.entries.get(facts.key("attention.sliding_window_pattern"), 2)
    if type(listed) is int and listed > 0:
        return [kinds[layer % listed < listed - 1] for layer in range(facts.layers)]
    if not isinstance(listed, list) or len(listed) < facts.layers:
        raise facts.bad(
            "attention.sliding_window_pattern", f"is {shown(listed, 60)}, no list of all layers"
        )
    return [kinds[bool(seen)] for seen in listed[: facts.layers]]


CONFIGS: Mapping[str, Callable[[Facts], Config]] = {
    "qwen3moe": _qwen3moe,
    "olmoe": _olmoe,
    "glm4moe": _glm4moe,
    "gpt-oss": _gpt_oss,
}


def config_of(metadata: Metadata, tensors: Tensors) -> Config:
    """The config.json of a model; BadModel for an architecture that is not supported."""
    facts = Facts(metadata, tensors)
    make = CONFIGS.get(facts.architecture)
    if make is None:
        raise metadata.bad(
            "general.architecture",
            f"is {shown(facts.architecture, 40)}; supported are: {', '.join(CONFIGS)}",
        )
    return make(facts)
