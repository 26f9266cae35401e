"""Synthetic models that are small enough for a test."""

from diskmoe.bench.model import Synthetic
from diskmoe.bench.shapes import SHAPES, Shape

TINY = {
    "vocab_size": 600,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 96,
    "rotary_dim": 16,
    "intermediate_size": 128,
    "num_experts": 32,
    "num_local_experts": 32,
    "sliding_window": 16,
    "n_routed_experts": 32,
    "num_experts_per_tok": 4,
    "max_position_embeddings": 512,
    "q_lora_rank": 64,
    "kv_lora_rank": 96,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "linear_key_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 32,
    "full_attention_interval": 2,
}


def tiny_shape(name: str = "qwen3-30b-a3b") -> Shape:
    """A shape of the same family with small numbers."""
    real = SHAPES[name]
    own = {key: value for key, value in TINY.items() if key in real.config}
    if name in ("olmoe", "qwen1.5-moe") or "kv_lora_rank" in real.config:
        own["num_key_value_heads"] = 4
    return Shape(name, {**real.config, **own}, real.gguf_arch)


def tiny_model(
    name: str = "qwen3-30b-a3b",
    routing: str = "uniform",
    experts: str = "q4",
    dense: str = "q8",
    seed: int = 0,
    layers: int = 2,
) -> Synthetic:
    return Synthetic.make(tiny_shape(name), layers, routing, experts, dense, seed)
