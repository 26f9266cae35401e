"""config.json of tiny models, by family."""

from typing import Any

_COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "num_experts_per_tok": 3,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# layers 0 and 2 have a delta rule, layer 1 has attention
_HYBRID: dict[str, Any] = {
    # what a random state answers may be near 0, which a norm without this would make rounding of
    "rms_norm_eps": 1e-2,
    "head_dim": 32,
    "num_experts": 8,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 40,
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.25,
}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 40,
    "kv_lora_rank": 48,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 48,
    "intermediate_size": 96,
    "first_k_dense_replace": 1,
}
# what Kimi K2's has beside DeepSeek V3's
KIMI: dict[str, Any] = {
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.827,
    "rope_scaling": {
        "type": "yarn",
        "factor": 32.0,
        "beta_fast": 1.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 64,
    },
}
_FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_next": {**_HYBRID, "norm_topk_prob": True, "intermediate_size": 96},
    "qwen3_5_moe": _HYBRID,
    "qwen3_5_moe_text": _HYBRID,
    "qwen3_moe": {
        "head_dim": 32,
        "num_experts": 8,
        "moe_intermediate_size": 48,
        "intermediate_size": 96,
        "norm_topk_prob": True,
        "rope_theta": 1e6,
    },
    "qwen3": {"head_dim": 32, "intermediate_size": 96, "num_experts_per_tok": None},
    "qwen2": {"intermediate_size": 96, "num_experts_per_tok": None, "attention_bias": None},
    "llama": {"intermediate_size": 96, "num_experts_per_tok": None},
    "olmoe": {"num_experts": 8, "intermediate_size": 48, "norm_topk_prob": False},
    "glm4_moe": {
        "head_dim": 32,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "moe_intermediate_size": 48,
        "intermediate_size": 96,
        "attention_bias": True,
        "use_qk_norm": True,
        "partial_rotary_factor": 0.5,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "num_nextn_predict_layers": 0,
    },
    "gpt_oss": {
        "head_dim": 32,
        "num_local_experts": 8,
        "intermediate_size": 48,
        "attention_bias": True,
        "sliding_window": 4,
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 64,
            "truncate": False,
        },
        "swiglu_limit": 0.5,
    },
    "mixtral": {"num_local_experts": 8, "intermediate_size": 48, "rope_theta": 1e6},
    "qwen2_moe": {
        "num_experts": 8,
        "moe_intermediate_size": 48,
        "intermediate_size": 96,
        "shared_expert_intermediate_size": 40,
        "norm_topk_prob": False,
        "rope_theta": 1e6,
        "attention_bias": None,
    },
    "granitemoe": {
        "num_local_experts": 8,
        "intermediate_size": 48,
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.1,
        "logits_scaling": 6.0,
    },
    "minimax_m2": {
        "head_dim": 32,
        "rotary_dim": 16,
        "num_local_experts": 8,
        "intermediate_size": 48,
        "rope_theta": 1e5,
    },
    "deepseek_v2": {
        **_LATENT,
        "q_lora_rank": None,
        "n_shared_experts": 2,
        "topk_method": "greedy",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
    },
    "deepseek_v3": {
        **_LATENT,
        "num_nextn_predict_layers": 0,
        "rope_interleave": True,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 2.5,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 40.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 64,
        },
    },
    "glm4_moe_lite": {
        **_LATENT,
        "v_head_dim": 48,
        "num_nextn_predict_layers": 0,
        "n_group": 1,
        "topk_group": 1,
        "rms_norm_eps": 1e-5,
        "routed_scaling_factor": 1.8,
        "rope_theta": 1e6,
    },
}
_FAMILIES["glm_moe_dsa"] = {
    **_FAMILIES["glm4_moe_lite"],
    "indexer_types": ["full", "shared", "full"],
    "index_n_heads": 8,  # so many that hardly any score is 0, where all keys would be equal
    "index_head_dim": 24,
    "index_topk": 8,
}
_FAMILIES["deepseek_v32"] = {
    **{k: v for k, v in _FAMILIES["deepseek_v3"].items() if k != "rope_interleave"},
    "index_n_heads": 8,
    "index_head_dim": 24,
    "index_topk": 8,
}
_FAMILIES["granitemoeshared"] = {**_FAMILIES["granitemoe"], "shared_intermediate_size": 80}
_FAMILIES["kimi_k2"] = {**_FAMILIES["deepseek_v3"], "n_group": 1, "topk_group": 1}
_FAMILIES["kimi_k25"] = _FAMILIES["kimi_k2"]


def tiny_config(family: str, **changes: Any) -> dict[str, Any]:
    """A config.json of a tiny model; a change to ``None`` takes a key away."""
    merged = {"model_type": family, **_COMMON, **_FAMILIES[family], **changes}
    config = {k: v for k, v in merged.items() if v is not None or k not in changes}
    if family == "qwen3_5_moe":
        return {"model_type": family, "text_config": config | {"model_type": f"{family}_text"}}
    return config
