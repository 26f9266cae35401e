"""Make the GGUF fixtures of tests/golden: tiny models and what llama.cpp says of them.

    pip install -e ".[oracle]" llama-cpp-python          # or its sources on PYTHONPATH
    PYTHONPATH=LLAMA_CPP:LLAMA_CPP/gguf-py:tests python scripts/make_gguf_golden.py [NAME ...]

LLAMA_CPP is a source tree of llama.cpp. Its converter (``conversion/``) writes the GGUF of a random
checkpoint in the hub's layout, in f32, so that names, metadata and the order of rows are its own.
``NAME.json`` has what the checkpoint was drawn from (a config and a seed: tests draw the same one
again) and the greedy tokens after a prompt that llama.cpp gives, with the least gap between the
best and the second best logit. Plain test runs need neither llama.cpp nor torch.

Those of ``golden/gguf`` are in f32. Names with a type, as ``qwen3_moe-Q4_0``, are of the same models,
two blocks wide and in that type, in ``golden/gguf_blocks``: llama.cpp then rounds activations, to f16
scales where ours are f32, and a choice has to be clearer.
"""

from __future__ import annotations

import argparse
import importlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tiny_gguf import golden_tensors, rewrite
from tiny_model import write_checkpoint
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

PROMPT = [3, 17, 42, 8, 29, 51, 11, 60, 200, 9]
TOKENS = 24
SEEDS = 500
LEAST_MARGIN = 0.02
LEAST_MARGIN_OF_BLOCKS = 0.15
LEAST_DISTINCT = 8
BLOCKS = ("qwen3_moe-Q4_0", "qwen3_moe-Q4_1")
WIDE = {"hidden_size": 64, "moe_intermediate_size": 64, "rope_scaling": None}
LARGEST_FILE = 400_000  # bytes: fixtures live in git
SPECIAL = ("<|endoftext|>", "[gMASK]", "<|user|>", "<|observation|>", "<|im_end|>")

_COMMON: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
    "num_experts_per_tok": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 64,
}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 2,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "intermediate_size": 64,
    "first_k_dense_replace": 1,
}
# a layer with a delta rule, whose heads of keys have two of values each, and one with attention
_HYBRID: dict[str, Any] = {
    "head_dim": 16,
    "num_experts": 4,
    "moe_intermediate_size": 32,
    "intermediate_size": 64,
    "shared_expert_intermediate_size": 48,
    "rms_norm_eps": 1e-6,
    "layer_types": ["linear_attention", "full_attention"],
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "partial_rotary_factor": 0.25,
}
FIXTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        {
            "model_type": "qwen3_moe",
            "head_dim": 16,
            "num_experts": 4,
            "moe_intermediate_size": 32,
            "intermediate_size": 64,
            "norm_topk_prob": True,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "olmoe": (
        "OlmoeForCausalLM",
        {
            "model_type": "olmoe",
            "num_key_value_heads": 2,
            "num_experts": 4,
            "intermediate_size": 32,
            "norm_topk_prob": False,
        },
    ),
    "glm4_moe": (
        "Glm4MoeForCausalLM",
        {
            "model_type": "glm4_moe",
            "head_dim": 16,
            "partial_rotary_factor": 0.5,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "moe_intermediate_size": 32,
            "intermediate_size": 64,
            "attention_bias": True,
            "use_qk_norm": True,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.5,
            "num_nextn_predict_layers": 1,
        },
    ),
    "gpt_oss": (
        "GptOssForCausalLM",
        {
            "model_type": "gpt_oss",
            "head_dim": 16,
            "num_local_experts": 4,
            "intermediate_size": 32,
            "attention_bias": True,
            "sliding_window": 4,
            "swiglu_limit": 7.0,
            # yarn's ramp goes from pair 1.000 to 3.998 of the dims: llama.cpp rounds both outwards,
            # gpt-oss does not
            "rope_theta": 10388.0,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "original_max_position_embeddings": 639,
                "truncate": False,
            },
        },
    ),
    "mixtral": (
        "MixtralForCausalLM",
        {"model_type": "mixtral", "num_local_experts": 4, "intermediate_size": 32},
    ),
    "llama": ("LlamaForCausalLM", {"model_type": "llama", "intermediate_size": 64}),
    "qwen2": (
        "Qwen2ForCausalLM",
        {"model_type": "qwen2", "intermediate_size": 64, "tie_word_embeddings": True},
    ),
    "qwen3": (
        "Qwen3ForCausalLM",
        {"model_type": "qwen3", "head_dim": 16, "intermediate_size": 64, "num_key_value_heads": 2},
    ),
    "qwen2_moe": (
        "Qwen2MoeForCausalLM",
        {
            "model_type": "qwen2_moe",
            "num_experts": 4,
            "moe_intermediate_size": 32,
            "intermediate_size": 64,
            "shared_expert_intermediate_size": 48,
            "norm_topk_prob": False,
        },
    ),
    "minimax_m2": (
        "MiniMaxM2ForCausalLM",
        {
            "model_type": "minimax_m2",
            "head_dim": 16,
            "rotary_dim": 8,
            "num_local_experts": 4,
            "intermediate_size": 32,
            "scoring_func": "sigmoid",
        },
    ),
    "granitemoe": (
        "GraniteMoeForCausalLM",
        {
            "model_type": "granitemoe",
            "num_local_experts": 4,
            "intermediate_size": 32,
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.125,
            "logits_scaling": 2.0,
        },
    ),
    "deepseek_v2": (
        "DeepseekV2ForCausalLM",
        {
            "model_type": "deepseek_v2",
            **_LATENT,
            "n_shared_experts": 2,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "greedy",
            "scoring_func": "softmax",
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.0,
            "rope_scaling": {**_YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
        },
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        {
            "model_type": "deepseek_v3",
            **_LATENT,
            "n_group": 2,
            "topk_group": 1,
            "scoring_func": "sigmoid",
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "rope_scaling": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "glm4_moe_lite": (
        "Glm4MoeLiteForCausalLM",
        {
            "model_type": "glm4_moe_lite",
            **_LATENT,
            "mlp_layer_types": ["dense", "sparse"],
            "n_group": 1,
            "topk_group": 1,
            "scoring_func": "sigmoid",
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.8,
            "num_nextn_predict_layers": 1,
        },
    ),
    "glm_moe_dsa": (
        "GlmMoeDsaForCausalLM",
        {
            "model_type": "glm_moe_dsa",
            **_LATENT,
            "n_group": 1,
            "topk_group": 1,
            "scoring_func": "sigmoid",
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "index_n_heads": 8,
            "index_head_dim": 64,
            "index_topk": 8,
            "indexer_types": ["full", "shared"],
            "num_nextn_predict_layers": 1,
        },
    ),
    "qwen3_next": (
        "Qwen3NextForCausalLM",
        {
            "model_type": "qwen3_next",
            **_HYBRID,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
    ),
    "qwen3_5_moe": (
        "Qwen3_5MoeForCausalLM",
        {
            "model_type": "qwen3_5_moe_text",
            **_HYBRID,
            "mtp_num_hidden_layers": 1,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.25,
                "mrope_section": [1, 1, 0],  # of pictures: a text has one position for all three
            },
        },
    ),
}


def write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer with a merge or two and the special tokens that converters ask for."""
    vocab = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("t", "h"), ("th", "e"), ("\u0120", "the")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    template = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def converted(folder: Path, architecture: str, out: Path) -> None:
    """The checkpoint as a GGUF, by llama.cpp's own converter."""
    import gguf
    import torch

    conversion: Any = importlib.import_module("conversion")
    made = conversion.get_model_class(architecture)
    pre = "glm4" if architecture.startswith("Glm") else "gpt-2"
    made.get_vocab_base_pre = lambda self, tokenizer: pre  # known by a hash of the hub's files
    with torch.inference_mode():
        made(folder, gguf.LlamaFileType.ALL_F32, out).write()


def answer(path: Path, least_margin: float) -> tuple[list[int], float]:
    """(greedy tokens, least margin) of llama.cpp, with its caches in f32."""
    import llama_cpp

    model = llama_cpp.Llama(
        str(path), n_ctx=128, n_threads=1, type_k=0, type_v=0, logits_all=True, verbose=False
    )
    model.eval(PROMPT)
    tokens: list[int] = []
    margin = float("inf")
    for _ in range(TOKENS):
        logits = np.array(model.scores[model.n_tokens - 1])
        second, best = np.sort(logits)[-2:]
        margin = min(margin, float(best - second))
        tokens.append(int(logits.argmax()))
        if margin < least_margin:
            break
        model.eval(tokens[-1:])
    model.close()
    return tokens, margin


def make(name: str, out: Path) -> None:
    family, _, kind = name.partition("-")
    architecture, settings = FIXTURES[family]
    config = {"architectures": [architecture], **_COMMON, **settings, **(WIDE if kind else {})}
    types = {"norm": "F32", "ffn_gate_inp": "F32", "attn_output": kind, "output": "Q8_0", "": kind}
    least_margin = LEAST_MARGIN_OF_BLOCKS if kind else LEAST_MARGIN
    mtp = any(config.get(key) for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers"))
    mtp = mtp or name == "qwen3_next"  # whose config does not announce it
    target = out / ("gguf_blocks" if kind else "gguf") / f"{name}.gguf"
    target.parent.mkdir(exist_ok=True)
    for seed in range(SEEDS):
        with tempfile.TemporaryDirectory() as folder:
            write_checkpoint(Path(folder), config, golden_tensors(config, seed, mtp))
            write_tokenizer(Path(folder))
            plain = Path(folder) / "plain.gguf" if kind else target
            converted(Path(folder), architecture, plain)
            if kind:
                rewrite(plain, target, types)
        tokens, margin = answer(target, least_margin)
        if margin >= least_margin and len(set(tokens)) >= LEAST_DISTINCT:
            break
    else:
        raise SystemExit(f"{name}: no seed below {SEEDS} is clear enough")
    if target.stat().st_size > LARGEST_FILE:
        raise SystemExit(f"{target} has {target.stat().st_size} bytes, more than {LARGEST_FILE}")
    told = {
        "config": config,
        "seed": seed,
        "mtp": mtp,
        "prompt": PROMPT,
        "greedy": tokens,
        "least_margin": margin,
    }
    target.with_suffix(".json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(f"{name}: seed {seed}, margin {margin:.3f}, {len(set(tokens))} tokens differ")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the GGUF fixtures of tests/golden.")
    parser.add_argument("names", nargs="*")
    names = parser.parse_args().names or [*FIXTURES, *BLOCKS]
    out = Path(__file__).resolve().parents[1] / "tests" / "golden"
    for name in names:
        make(name, out)


if __name__ == "__main__":
    main()
