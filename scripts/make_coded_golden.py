"""Make the golden fixtures of tests/golden/coded: tiny models in codes and scales, and their answers.

    pip install -e ".[oracle]" compressed-tensors
    python scripts/make_coded_golden.py [NAME ...]      # rewrites tests/golden/coded/<name>/

Each is a random model whose matrices are coded as published ones are, by torch (FP8) or by
compressed-tensors (packed int4), and ``expected.json``: a prompt, the logits of its rows and 32
greedy tokens as transformers computes them in f32 from the coded files, or where it does not read
such files, from the numbers that the codes stand for.
"""

import argparse
import json
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from make_golden import LARGEST_FILE, LEAST_DISTINCT, PROMPT, answer, random_model, rows_text
from safetensors.torch import load_file, save_file

SEEDS = 200
LEAST_MARGIN = 0.01
BLOCK, GROUP = 128, 32

Tensors = dict[str, torch.Tensor]
# (matrix) -> (parts by the ending of their name, what they stand for)
Coder = Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]

_MATRIX = re.compile(r"layers\.\d+\..*_proj\.weight$")
_EXPERT = re.compile(r"\.experts\.\d+\..*_proj\.weight$")


def fp8_by_block(weights: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    rows, cols = (-(-n // BLOCK) for n in weights.shape)
    whole = torch.zeros(rows * BLOCK, cols * BLOCK)
    whole[: weights.shape[0], : weights.shape[1]] = weights
    scales = whole.view(rows, BLOCK, cols, BLOCK).abs().amax(dim=(1, 3)) / 448
    wide = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    wide = wide[: weights.shape[0], : weights.shape[1]]
    codes = (weights / wide).to(torch.float8_e4m3fn)
    return {"": codes, "_scale_inv": scales}, codes.float() * wide


def fp8_by_row(weights: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scales = (weights.abs().amax(dim=1, keepdim=True) / 448).bfloat16()
    codes = (weights / scales.float()).to(torch.float8_e4m3fn)
    return {"": codes, "_scale": scales}, codes.float() * scales.float()


def packed_int4(weights: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """With scales of five bits, so that all is exact in bf16, as which transformers holds it."""
    groups = weights.view(len(weights), -1, GROUP)
    fractions, exponents = torch.frexp(groups.abs().amax(dim=2) / 7.5)
    scales = torch.ldexp((fractions * 32).round() / 32, exponents)
    codes = (groups / scales[..., None]).round().clamp(-8, 7)
    exact = (codes * scales[..., None]).view(weights.shape)
    packed = pack_to_int32(codes.to(torch.int8).view(weights.shape), 4)
    shape = torch.tensor(weights.shape, dtype=torch.int32)
    return {"_packed": packed, "_scale": scales.bfloat16(), "_shape": shape}, exact


def compressed(form: str, weights: dict[str, Any], plain: list[str]) -> dict[str, Any]:
    group = {"weights": {"symmetric": True, **weights}, "targets": ["Linear"]}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": plain,
    }


_SIZES: dict[str, Any] = {"num_hidden_layers": 2, "rope_theta": 1e5}
_LATENT: dict[str, Any] = {
    **_SIZES,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "intermediate_size": 64,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
    "routed_scaling_factor": 2.5,
}
_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 1.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 64,
}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
FP8 |= {"weight_block_size": [BLOCK, BLOCK], "modules_to_not_convert": ["lm_head", "gate"]}
FP8_BY_ROW = {"num_bits": 8, "type": "float", "strategy": "channel"}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
NOT_EXPERTS = ["lm_head", "re:.*self_attn.*", "re:.*gate$", "re:.*shared.*", "re:.*layers.0.mlp.*"]
# (family, settings, coder, which matrices, quantization_config, does transformers read it?)
FIXTURES: dict[str, tuple[str, dict[str, Any], Coder, re.Pattern[str], dict[str, Any], bool]] = {
    "fp8_deepseek_v3": (
        "deepseek_v3",
        {
            **_LATENT,
            "hidden_size": 256,
            "moe_intermediate_size": 32,
            "intermediate_size": 32,
            "q_lora_rank": 16,
            "n_group": 2,
            "topk_group": 1,
        },
        fp8_by_block,
        _MATRIX,
        FP8,
        True,
    ),
    "int4_kimi_k2": (
        "deepseek_v3",
        {
            **_LATENT,
            "moe_intermediate_size": 64,
            "hidden_size": 64,
            "n_routed_experts": 6,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 2.827,
            "rope_scaling": _YARN,
        },
        packed_int4,
        _EXPERT,
        compressed("pack-quantized", INT4, NOT_EXPERTS),
        True,
    ),
    "fp8_by_row_qwen3_moe": (
        "qwen3_moe",
        {
            **_SIZES,
            "head_dim": 16,
            "num_experts": 6,
            "moe_intermediate_size": 32,
            "intermediate_size": 64,
            "norm_topk_prob": True,
        },
        fp8_by_row,
        _MATRIX,
        compressed("float-quantized", FP8_BY_ROW, ["lm_head", "re:.*mlp.gate$"]),
        False,
    ),
}
CALLED = {"int4_kimi_k2": "kimi_k2"}  # as its own config.json says; transformers knows the family


def write_model(name: str, folder: Path, exact_folder: Path, seed: int) -> None:
    """The coded model, and the numbers that it stands for in f32."""
    family, settings, coder, which, method, _ = FIXTURES[name]
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as plain:
        random_model(family, settings, seed).save_pretrained(plain)
        config = json.loads((Path(plain) / "config.json").read_text())
        tensors = load_file(Path(plain) / "model.safetensors")
    stored: Tensors = {}
    exact: Tensors = {}
    for key, tensor in tensors.items():
        if not which.search(key):
            stored[key], exact[key] = tensor, tensor.float()
            continue
        parts, exact[key] = coder(tensor.float())
        stored |= {key + ending: part.contiguous() for ending, part in parts.items()}
    exact = {key: tensor.contiguous() for key, tensor in exact.items()}
    for place, contents, more in (
        (folder, stored, {"quantization_config": method}),
        (exact_folder, exact, {}),
    ):
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text(json.dumps(config | more, indent=1) + "\n")
        save_file(contents, place / "model.safetensors", metadata={"format": "pt"})
        (place / "model.safetensors").chmod(0o644)


def make(folder: Path, name: str) -> None:
    """The first seed whose greedy answer has no near tie."""
    read = FIXTURES[name][-1]
    for seed in range(SEEDS):
        with tempfile.TemporaryDirectory() as exact:
            write_model(name, folder, Path(exact), seed)
            logits, tokens, margin = answer(Path(exact))
            if margin < LEAST_MARGIN or len(set(tokens)) < LEAST_DISTINCT:
                continue
            if read and answer(folder) != (logits, tokens, margin):
                raise SystemExit(f"{name}: transformers reads other numbers from the codes")
            break
    else:
        raise SystemExit(f"{name}: no seed of {SEEDS} has a margin of {LEAST_MARGIN}")
    if name in CALLED:
        path = folder / "config.json"
        path.write_text(path.read_text().replace(f'"{FIXTURES[name][0]}"', f'"{CALLED[name]}"'))
    expected = {"prompt": PROMPT, "greedy": tokens, "least_margin": round(margin, 5)}
    text = json.dumps(expected)[:-1] + f', "logits": [\n  {rows_text(logits)}\n]}}\n'
    (folder / "expected.json").write_text(text, encoding="utf-8", newline="\n")
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    if max(sizes.values()) > LARGEST_FILE:
        raise SystemExit(f"{folder}: too large for git: {sizes}")
    print(f"{name}: seed {seed}, margin {margin:.4f}, {sum(sizes.values())} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    default = Path(__file__).resolve().parents[1] / "tests" / "golden" / "coded"
    parser.add_argument("--out", type=Path, default=default, help="folder of the fixtures")
    parser.add_argument("names", nargs="*", default=[*FIXTURES], help="which (default: all)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.names:
        make(args.out / name, name)


if __name__ == "__main__":
    main()
