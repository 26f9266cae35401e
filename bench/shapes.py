"""The shapes that ``bench synth`` can write: the public configs of real models, restated.

Each is the model's own ``config.json`` as far as it says anything about shapes and arithmetic, so
that a synthetic model goes through the same code as the real one. Sources: the configs published
with the models (Qwen/Qwen3-30B-A3B, allenai/OLMoE-1B-7B-0924, zai-org/GLM-4.5-Air,
openai/gpt-oss-20b, mistralai/Mixtral-8x7B-v0.1, Qwen/Qwen1.5-MoE-A2.7B, MiniMaxAI/MiniMax-M2,
ibm-granite/granite-3.1-3b-a800m-base; others in `latent_shapes.py` and `hybrid_shapes.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from diskmoe.bench.hybrid_shapes import QWEN3_5_35B, QWEN3_NEXT_80B
from diskmoe.bench.latent_shapes import (
    DEEPSEEK_V2_LITE,
    DEEPSEEK_V3,
    GLM_4_7_FLASH,
    GLM_5,
    KIMI_K2,
)


@dataclass(frozen=True)
class Shape:
    """A model's config, and what GGUF calls its architecture."""

    name: str
    config: Mapping[str, Any]
    gguf_arch: str | None  # None: it is not written as GGUF

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
        "deepseek-v2-lite": Shape("deepseek-v2-lite", DEEPSEEK_V2_LITE, None),
        "deepseek-v3": Shape("deepseek-v3", DEEPSEEK_V3, None),
        "kimi-k2": Shape("kimi-k2", KIMI_K2, None),
        "glm-4.7-flash": Shape("glm-4.7-flash", GLM_4_7_FLASH, None),
        "glm-5": Shape("glm-5", GLM_5, None),
        "mixtral-8x7b": Shape(
            "mixtral-8x7b",
            {
                **_COMMON,
                "architectures": ["MixtralForCausalLM"],
                "model_type": "mixtral",
                "vocab_size": 32000,
                "hidden_size": 4096,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "intermediate_size": 14336,
                "num_local_experts": 8,
                "num_experts_per_tok": 2,
                "max_position_embeddings": 32768,
                "rope_theta": 1000000.0,
                "rms_norm_eps": 1e-5,
            },
            None,
        ),
        "qwen1.5-moe": Shape(
            "qwen1.5-moe",
            {
                **_COMMON,
                "architectures": ["Qwen2MoeForCausalLM"],
                "model_type": "qwen2_moe",
                "vocab_size": 151936,
                "hidden_size": 2048,
                "num_hidden_layers": 24,
                "num_attention_heads": 16,
                "num_key_value_heads": 16,
                "intermediate_size": 5632,
                "moe_intermediate_size": 1408,
                "shared_expert_intermediate_size": 5632,
                "num_experts": 60,
                "num_experts_per_tok": 4,
                "norm_topk_prob": False,
                "decoder_sparse_step": 1,
                "use_sliding_window": False,
                "max_position_embeddings": 8192,
                "rope_theta": 1000000.0,
                "rms_norm_eps": 1e-6,
            },
            None,
        ),
        "minimax-m2": Shape(
            "minimax-m2",
            {
                **_COMMON,
                "architectures": ["MiniMaxM2ForCausalLM"],
                "model_type": "minimax_m2",
                "vocab_size": 200064,
                "hidden_size": 3072,
                "num_hidden_layers": 62,
                "num_attention_heads": 48,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "rotary_dim": 64,
                "intermediate_size": 1536,
                "num_local_experts": 256,
                "num_experts_per_tok": 8,
                "scoring_func": "sigmoid",
                "use_qk_norm": True,
                "max_position_embeddings": 196608,
                "rope_theta": 5000000,
                "rms_norm_eps": 1e-6,
            },
            None,
        ),
        "granite-3.1-3b-a800m": Shape(
            "granite-3.1-3b-a800m",
            {
                **_COMMON,
                "architectures": ["GraniteMoeForCausalLM"],
                "model_type": "granitemoe",
                "tie_word_embeddings": True,
                "vocab_size": 49155,
                "hidden_size": 1536,
                "num_hidden_layers": 32,
                "num_attention_heads": 24,
                "num_key_value_heads": 8,
                "intermediate_size": 512,
                "num_local_experts": 40,
                "num_experts_per_tok": 8,
                "embedding_multiplier": 12.0,
                "residual_multiplier": 0.22,
                "attention_multiplier": 0.015625,
                "logits_scaling": 6.0,
                "attention_bias": False,
                "max_position_embeddings": 131072,
                "rope_theta": 10000000.0,
                "rms_norm_eps": 1e-6,
            },
            None,
        ),
        "qwen3-next-80b": Shape("qwen3-next-80b", QWEN3_NEXT_80B, None),
        "qwen3.5-35b": Shape("qwen3.5-35b", QWEN3_5_35B, None),
    }
)
