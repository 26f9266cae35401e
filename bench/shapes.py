"""The shapes that ``bench synth`` can write: the public configs of real models, restated.

Each is the model's own ``config.json`` as far as it says anything about shapes and arithmetic, so
that a synthetic model goes through the same code as the real one. Sources: the configs published
with the models (Qwen/Qwen3-30B-A3B, allenai/OLMoE-1B-7B-0924, zai-org/GLM-4.5-Air,
openai/gpt-oss-20b, deepseek-ai/DeepSeek-V2-Lite, deepseek-ai/DeepSeek-V3,
moonshotai/Kimi-K2-Instruct, zai-org/GLM-4.7-Flash, zai-org/GLM-5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Shape:
    """A model's config, and what GGUF calls its architecture; "": no GGUF of it is written."""

    name: str
    config: Mapping[str, Any]
    gguf_arch: str

    def cut(self, layers: int | None = None, vocab: int | None = None) -> dict[str, Any]:
        """A config.json of this shape with so many layers and token ids; None: as the model has.

        The last layer always has experts, whatever the model begins with.
        """
        config = dict(self.config)
        if layers is not None:
            config["num_hidden_layers"] = layers
            if "first_k_dense_replace" in config:
                first = int(config["first_k_dense_replace"])
                config["first_k_dense_replace"] = min(first, layers - 1)
        if vocab is not None:
            config["vocab_size"] = vocab
        return config


_COMMON = {"hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": False}

_DEEPSEEK_V3: dict[str, Any] = {
    **_COMMON,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 129280,
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 3,
    "attention_bias": False,
    "max_position_embeddings": 163840,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    },
    "rms_norm_eps": 1e-6,
    "num_nextn_predict_layers": 0,
}

SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "qwen3-30b-a3b": Shape(
            "qwen3-30b-a3b",
            {
                **_COMMON,
                "architectures": ["Qwen3MoeForCausalLM"],
                "model_type": "qwen3_moe",
                "vocab_size": 151936,
                "hidden_size": 2048,
                "num_hidden_layers": 48,
                "num_attention_heads": 32,
                "num_key_value_heads": 4,
                "head_dim": 128,
                "intermediate_size": 6144,
                "moe_intermediate_size": 768,
                "num_experts": 128,
                "num_experts_per_tok": 8,
                "norm_topk_prob": True,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
                "attention_bias": False,
                "use_sliding_window": False,
                "max_position_embeddings": 40960,
                "rope_theta": 1000000.0,
                "rms_norm_eps": 1e-6,
            },
            "qwen3moe",
        ),
        "olmoe": Shape(
            "olmoe",
            {
                **_COMMON,
                "architectures": ["OlmoeForCausalLM"],
                "model_type": "olmoe",
                "vocab_size": 50304,
                "hidden_size": 2048,
                "num_hidden_layers": 16,
                "num_attention_heads": 16,
                "num_key_value_heads": 16,
                "intermediate_size": 1024,
                "num_experts": 64,
                "num_experts_per_tok": 8,
                "norm_topk_prob": False,
                "clip_qkv": None,
                "attention_bias": False,
                "max_position_embeddings": 4096,
                "rope_theta": 10000.0,
                "rms_norm_eps": 1e-5,
            },
            "olmoe",
        ),
        "glm-4.5-air": Shape(
            "glm-4.5-air",
            {
                **_COMMON,
                "architectures": ["Glm4MoeForCausalLM"],
                "model_type": "glm4_moe",
                "vocab_size": 151552,
                "hidden_size": 4096,
                "num_hidden_layers": 46,
                "num_attention_heads": 96,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "partial_rotary_factor": 0.5,
                "intermediate_size": 10944,
                "moe_intermediate_size": 1408,
                "n_routed_experts": 128,
                "n_shared_experts": 1,
                "num_experts_per_tok": 8,
                "n_group": 1,
                "topk_group": 1,
                "norm_topk_prob": True,
                "routed_scaling_factor": 1.0,
                "first_k_dense_replace": 1,
                "use_qk_norm": False,
                "attention_bias": True,
                "max_position_embeddings": 131072,
                "rope_theta": 1000000.0,
                "rms_norm_eps": 1e-5,
                "num_nextn_predict_layers": 0,
            },
            "glm4moe",
        ),
        "gpt-oss-20b": Shape(
            "gpt-oss-20b",
            {
                **_COMMON,
                "architectures": ["GptOssForCausalLM"],
                "model_type": "gpt_oss",
                "vocab_size": 201088,
                "hidden_size": 2880,
                "num_hidden_layers": 24,
                "num_attention_heads": 64,
                "num_key_value_heads": 8,
                "head_dim": 64,
                "intermediate_size": 2880,
                "num_local_experts": 32,
                "num_experts_per_tok": 4,
                "sliding_window": 128,
                "swiglu_limit": 7.0,
                "attention_bias": True,
                "max_position_embeddings": 131072,
                "rope_theta": 150000,
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 32.0,
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                    "original_max_position_embeddings": 4096,
                    "truncate": False,
                },
                "rms_norm_eps": 1e-5,
            },
            "gpt-oss",
        ),
        "deepseek-v2-lite": Shape(
            "deepseek-v2-lite",
            {
                **_DEEPSEEK_V3,
                "architectures": ["DeepseekV2ForCausalLM"],
                "model_type": "deepseek_v2",
                "vocab_size": 102400,
                "hidden_size": 2048,
                "num_hidden_layers": 27,
                "num_attention_heads": 16,
                "num_key_value_heads": 16,
                "q_lora_rank": None,
                "intermediate_size": 10944,
                "moe_intermediate_size": 1408,
                "n_routed_experts": 64,
                "n_shared_experts": 2,
                "num_experts_per_tok": 6,
                "n_group": 1,
                "topk_group": 1,
                "topk_method": "greedy",
                "scoring_func": "softmax",
                "norm_topk_prob": False,
                "routed_scaling_factor": 1.0,
                "first_k_dense_replace": 1,
                "rope_scaling": {
                    **_DEEPSEEK_V3["rope_scaling"],
                    "mscale": 0.707,
                    "mscale_all_dim": 0.707,
                },
            },
            "",
        ),
        "deepseek-v3": Shape("deepseek-v3", _DEEPSEEK_V3, ""),
        "kimi-k2": Shape(
            "kimi-k2",
            {
                **_DEEPSEEK_V3,
                "model_type": "kimi_k2",
                "vocab_size": 163840,
                "num_attention_heads": 64,
                "num_key_value_heads": 64,
                "n_routed_experts": 384,
                "n_group": 1,
                "topk_group": 1,
                "routed_scaling_factor": 2.827,
                "first_k_dense_replace": 1,
                "max_position_embeddings": 131072,
                "rope_theta": 50000.0,
                "rope_scaling": {**_DEEPSEEK_V3["rope_scaling"], "factor": 32, "beta_fast": 1},
            },
            "",
        ),
        "glm-4.7-flash": Shape(
            "glm-4.7-flash",
            {
                **_DEEPSEEK_V3,
                "architectures": ["Glm4MoeLiteForCausalLM"],
                "model_type": "glm4_moe_lite",
                "vocab_size": 154880,
                "hidden_size": 2048,
                "num_hidden_layers": 47,
                "num_attention_heads": 20,
                "num_key_value_heads": 20,
                "q_lora_rank": 768,
                "qk_nope_head_dim": 192,
                "v_head_dim": 256,
                "intermediate_size": 10240,
                "moe_intermediate_size": 1536,
                "n_routed_experts": 64,
                "num_experts_per_tok": 4,
                "n_group": 1,
                "topk_group": 1,
                "routed_scaling_factor": 1.8,
                "first_k_dense_replace": 1,
                "max_position_embeddings": 202752,
                "rope_theta": 1000000,
                "rope_scaling": None,
                "rms_norm_eps": 1e-5,
            },
            "",
        ),
        "glm-5": Shape(
            "glm-5",
            {
                **_DEEPSEEK_V3,
                "architectures": ["GlmMoeDsaForCausalLM"],
                "model_type": "glm_moe_dsa",
                "vocab_size": 154880,
                "hidden_size": 6144,
                "num_hidden_layers": 78,
                "num_attention_heads": 64,
                "num_key_value_heads": 64,
                "q_lora_rank": 2048,
                "qk_nope_head_dim": 192,
                "v_head_dim": 256,
                "intermediate_size": 12288,
                "n_group": 1,
                "topk_group": 1,
                "index_n_heads": 32,
                "index_head_dim": 128,
                "index_topk": 2048,
                "max_position_embeddings": 202752,
                "rope_theta": 1000000,
                "rope_scaling": None,
                "rms_norm_eps": 1e-5,
            },
            "",
        ),
    }
)
