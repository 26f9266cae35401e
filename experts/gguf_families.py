"""A GGUF's metadata as the config.json that the hub has for the same model, by architecture.

The rule of this file: what GGUF leaves to the program that runs it (gpt-oss's clamp, whether Qwen3
normalises its weights) is that model's published constant; what a family cannot have is refused.
"""

from collections.abc import Callable, Mapping

from diskmoe.experts.gguf_config import (
    MOST_WIDTH,
    SIGMOID,
    SOFTMAX,
    Config,
    Facts,
    Tensors,
    common,
)
from diskmoe.experts.gguf_file import Metadata
from diskmoe.experts.safetensors_io import shown


def _grouped_query(facts: Facts) -> Config:
    """Of families with ordinary attention."""
    return {
        "head_dim": facts.head_dim,
        "attention_bias": any(facts.layers_with(f"attn_{parts}.bias") for parts in ("q", "qkv")),
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
    return {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        **_grouped_query(facts),
        "num_experts": facts.integer("expert_count"),
        "moe_intermediate_size": facts.integer("expert_feed_forward_length"),
        "intermediate_size": facts.integer("feed_forward_length"),
        "norm_topk_prob": facts.flag("expert_weights_norm", True),
        "decoder_sparse_step": 1,
        "mlp_only_layers": _dense_layers(facts),
    }


def _olmoe(facts: Facts) -> Config:
    _whole_rope(facts)
    _softmax(facts)
    config = {
        "model_type": "olmoe",
        "architectures": ["OlmoeForCausalLM"],
        **_grouped_query(facts),
        "num_experts": facts.integer("expert_count"),
        "intermediate_size": _expert_width(facts),
        "norm_topk_prob": facts.flag("expert_weights_norm", False),
    }
    if facts.has("attention.clamp_kqv"):
        config["clip_qkv"] = facts.number("attention.clamp_kqv")
    return config


def _glm4moe(facts: Facts) -> Config:
    _sigmoid(facts)
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


def _dense(facts: Facts, model_type: str, name: str) -> Config:
    """Of models without experts, which draft for others."""
    _whole_rope(facts)
    if facts.integer("expert_count", 0):
        raise facts.bad("expert_count", f"is not 0, and a {model_type} has no experts")
    return {
        "model_type": model_type,
        "architectures": [f"{name}ForCausalLM"],
        **_grouped_query(facts),
        "intermediate_size": facts.integer("feed_forward_length"),
    }


def _llama(facts: Facts) -> Config:
    """Mixtral's files have the same name."""
    if not facts.integer("expert_count", 0):
        return _dense(facts, "llama", "Llama")
    _whole_rope(facts)
    _softmax(facts)
    return {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        **_without(_grouped_query(facts), "attention_bias"),
        "num_local_experts": facts.integer("expert_count"),
        "intermediate_size": _expert_width(facts),
    }


def _granitemoe(facts: Facts) -> Config:
    _whole_rope(facts)
    _softmax(facts)
    return {
        "model_type": "granitemoe",
        "architectures": ["GraniteMoeForCausalLM"],
        **_without(_grouped_query(facts), "head_dim"),
        "num_local_experts": facts.integer("expert_count"),
        "intermediate_size": _expert_width(facts),
        "embedding_multiplier": facts.number("embedding_scale", 1.0),
        "residual_multiplier": facts.number("residual_scale", 1.0),
        "attention_multiplier": facts.number("attention.scale", facts.head_dim**-0.5),
        "logits_scaling": facts.number("logit_scale", 1.0),
    }


def _minimax_m2(facts: Facts) -> Config:
    _sigmoid(facts)
    return {
        "model_type": "minimax_m2",
        "architectures": ["MiniMaxM2ForCausalLM"],
        **_without(_grouped_query(facts), "attention_bias"),
        "num_local_experts": facts.integer("expert_count"),
        "intermediate_size": _expert_width(facts),
        "rotary_dim": facts.integer("rope.dimension_count"),
        "scoring_func": "sigmoid",
        "use_qk_norm": True,
        "qk_norm_type": "per_layer",
    }


def _qwen2moe(facts: Facts) -> Config:
    _whole_rope(facts)
    _softmax(facts)
    config = _grouped_query(facts)
    biased = config.pop("attention_bias")
    return {
        "model_type": "qwen2_moe",
        "architectures": ["Qwen2MoeForCausalLM"],
        **config,
        "qkv_bias": biased,
        "norm_topk_prob": facts.flag("expert_weights_norm", False),
        **_shared_one(facts),
    }


def _shared_one(facts: Facts) -> Config:
    """The widths of Qwen's experts beside a shared one."""
    shared = facts.tensors.get("blk.0.ffn_up_shexp.weight")
    dense = facts.integer("feed_forward_length", 0)  # of layers without experts, if there are any
    return {
        **({"intermediate_size": dense} if dense else {}),
        "num_experts": facts.integer("expert_count"),
        "moe_intermediate_size": facts.integer("expert_feed_forward_length"),
        "shared_expert_intermediate_size": facts.integer(
            "expert_shared_feed_forward_length", shared.shape[0] if shared is not None else 0
        ),
        "decoder_sparse_step": 1,
        "mlp_only_layers": _dense_layers(facts),
    }


def _hybrid(facts: Facts) -> Config:
    """Of Qwen3-Next and Qwen3.5."""
    _softmax(facts)
    delta = facts.layers_with("ssm_conv1d.weight")
    kinds = ("full_attention", "linear_attention")
    keys, values = facts.integer("ssm.group_count"), facts.integer("ssm.time_step_rank")
    key_dim, inner = facts.integer("ssm.state_size"), facts.integer("ssm.inner_size")
    if not 1 <= keys <= values <= inner <= MOST_WIDTH or not 1 <= key_dim <= MOST_WIDTH:
        raise facts.bad(
            "ssm.group_count",
            f"is {keys}, with {values} heads of values, keys of {key_dim} and values of {inner} "
            "numbers in all: no such layer",
        )
    return {
        **_grouped_query(facts),
        **_without(_shared_one(facts), "mlp_only_layers", "decoder_sparse_step"),
        "layer_types": [kinds[layer in delta] for layer in range(facts.layers)],
        "partial_rotary_factor": facts.integer("rope.dimension_count") / facts.head_dim,
        "linear_conv_kernel_dim": facts.integer("ssm.conv_kernel"),
        "linear_key_head_dim": key_dim,
        "linear_num_key_heads": keys,
        "linear_num_value_heads": values,
        "linear_value_head_dim": inner // values,
    }


def _qwen3next(facts: Facts) -> Config:
    return {
        "model_type": "qwen3_next",
        "architectures": ["Qwen3NextForCausalLM"],
        **_hybrid(facts),
        "norm_topk_prob": facts.flag("expert_weights_norm", True),
        "decoder_sparse_step": 1,
        "mlp_only_layers": _dense_layers(facts),
    }


def _qwen35moe(facts: Facts) -> Config:
    return {
        "model_type": "qwen3_5_moe_text",
        "architectures": ["Qwen3_5MoeForCausalLM"],
        **_hybrid(facts),
        "mtp_num_hidden_layers": facts.integer("nextn_predict_layers", 0),
    }


def _latent(facts: Facts) -> Config:
    """Of families with MLA. Files from before 2025 have keys and values of all heads in one tensor,
    and the sizes of a head under the names that others have them."""
    heads = facts.integer("attention.head_count")
    turning = facts.integer("rope.dimension_count")
    apart = facts.has("attention.key_length_mla")
    ending = "_mla" if apart else ""
    config = {
        **common(facts),
        "num_key_value_heads": heads,
        "q_lora_rank": facts.integer("attention.q_lora_rank", 0) or None,
        "kv_lora_rank": facts.integer("attention.kv_lora_rank"),
        "qk_nope_head_dim": facts.integer(f"attention.key_length{ending}") - turning,
        "qk_rope_head_dim": turning,
        "v_head_dim": facts.integer(f"attention.value_length{ending}"),
        "n_routed_experts": facts.integer("expert_count"),
        "n_shared_experts": facts.integer("expert_shared_count", 0),
        "moe_intermediate_size": facts.integer("expert_feed_forward_length"),
        "intermediate_size": facts.integer("feed_forward_length"),
        "first_k_dense_replace": facts.integer("leading_dense_block_count", 0),
        "n_group": max(facts.integer("expert_group_count", 1), 1),
        "topk_group": max(facts.integer("expert_group_used_count", 1), 1),
        "norm_topk_prob": facts.flag("expert_weights_norm", False),
        "routed_scaling_factor": facts.number("expert_weights_scale", 1.0),
        "attention_bias": False,
        "num_nextn_predict_layers": facts.integer("nextn_predict_layers", 0),
    }
    if "rope_scaling" in config and facts.has("rope.scaling.yarn_log_multiplier"):
        mscale = round(facts.number("rope.scaling.yarn_log_multiplier") * 10, 6)
        config["rope_scaling"] |= {"mscale": mscale, "mscale_all_dim": mscale}
    return config


def _deepseek2(facts: Facts) -> Config:
    config = _latent(facts)
    kind = facts.integer("expert_gating_func", SOFTMAX)
    pre = facts.metadata.get("tokenizer.ggml.pre", str, "")
    if kind == SIGMOID and pre in ("glm4", "glm5", "chatglm-bpe"):  # the same arithmetic
        return {
            "model_type": "glm4_moe_lite",
            "architectures": ["Glm4MoeLiteForCausalLM"],
            **config,
        }
    if kind == SIGMOID:
        return {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], **config}
    if kind != SOFTMAX:
        raise facts.bad("expert_gating_func", f"is {kind}; 1 (softmax) and 2 (sigmoid) are known")
    grouped = config["n_group"] > 1
    return {
        "model_type": "deepseek_v2",
        "architectures": ["DeepseekV2ForCausalLM"],
        **config,
        "topk_method": "group_limited_greedy" if grouped else "greedy",
    }


def _glm_dsa(facts: Facts) -> Config:
    _sigmoid(facts)
    config = {
        "model_type": "glm_moe_dsa",
        "architectures": ["GlmMoeDsaForCausalLM"],
        **_latent(facts),
        "index_n_heads": facts.integer("attention.indexer.head_count"),
        "index_head_dim": facts.integer("attention.indexer.key_length"),
        "index_topk": facts.integer("attention.indexer.top_k"),
    }
    choosing = facts.layers_with("indexer.attn_q_b.weight")  # for files that do not list them
    types = facts.metadata.get(facts.key("attention.indexer.types"), list)
    if types is None:
        types = [layer in choosing for layer in range(facts.layers)]
    config["indexer_types"] = [("shared", "full")[bool(full)] for full in types[: facts.layers]]
    return config


def _sigmoid(facts: Facts) -> None:
    if facts.integer("expert_gating_func", SIGMOID) != SIGMOID:
        raise facts.bad("expert_gating_func", "is not 2 (sigmoid), which this family has")


def _dense_layers(facts: Facts) -> list[int]:
    with_experts = facts.layers_with("ffn_gate_inp.weight")
    return [layer for layer in range(facts.layers) if layer not in with_experts]


def _expert_width(facts: Facts) -> int:
    """Of families whose files may have it as the width of any feed-forward."""
    default = (
        None if facts.has("expert_feed_forward_length") else facts.integer("feed_forward_length")
    )
    return facts.integer("expert_feed_forward_length", default)


def _without(config: Config, *keys: str) -> Config:
    return {key: value for key, value in config.items() if key not in keys}


CONFIGS: Mapping[str, Callable[[Facts], Config]] = {
    "qwen3moe": _qwen3moe,
    "olmoe": _olmoe,
    "glm4moe": _glm4moe,
    "gpt-oss": _gpt_oss,
    "llama": _llama,
    "qwen2": lambda facts: _dense(facts, "qwen2", "Qwen2"),
    "qwen3": lambda facts: _dense(facts, "qwen3", "Qwen3"),
    "qwen2moe": _qwen2moe,
    "minimax-m2": _minimax_m2,
    "granitemoe": _granitemoe,
    "deepseek2": _deepseek2,
    "glm-dsa": _glm_dsa,
    "qwen3next": _qwen3next,
    "qwen35moe": _qwen35moe,
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
