"""Make the golden fixtures of tests/golden/mtp: tiny models with an MTP head, and its drafts.

    pip install -e ".[oracle]"
    python scripts/make_mtp_golden.py [NAME ...]      # rewrites tests/golden/mtp/<name>/

Each is a random model in bf16 as the hub has them, with the head in its files, and ``expected.json``:
a text (a prompt and the model's own greedy tokens), and for some places in it the four drafts that
follow, with their logits in f32 as transformers computes them (``mtp_oracle.py``).
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from golden_models import FIXTURES as MODELS
from make_golden import LARGEST_FILE, LEAST_MARGIN, PROMPT, random_model, rows_text
from mtp_oracle import MtpOracle
from safetensors.torch import load_file, save_file

from diskmoe.engine.model.families import FAMILIES

SEEDS = 200
TOKENS = 16
DEPTH = 4
PLACES = (2, 8, 9, 17)  # tokens before the drafts
LAYERS = 2  # of the model; the one behind them becomes the head's


HYBRID = {"layer_types": ["linear_attention", "full_attention", "full_attention"]}
FIXTURES = {
    "glm4_moe": {},
    "deepseek_v3": {},
    "glm4_moe_lite": {},
    "glm_moe_dsa": {"indexer_types": ["full", "shared", "shared"]},
    "qwen3_next": HYBRID | {"mlp_only_layers": []},
    "qwen3_5_moe_text": HYBRID,
}


def write_model(folder: Path, family: str, seed: int) -> None:
    """A model of three layers whose last one is made the head's."""
    settings = MODELS[family][1] | FIXTURES[family] | {"num_hidden_layers": LAYERS + 1}
    with tempfile.TemporaryDirectory() as name:
        random_model(family, settings, seed).save_pretrained(name)
        config = json.loads((Path(name) / "config.json").read_text())
        tensors = load_file(Path(name) / "model.safetensors")
    told: dict[str, Any] = {"num_hidden_layers": LAYERS, "num_nextn_predict_layers": 1}
    told |= {key: config[key][:LAYERS] for key in config if key.endswith("_types")}
    config |= told
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    names = FAMILIES[family].names
    last, block = f"model.layers.{LAYERS}.", names.mtp_layer.format(L=LAYERS, M=0)
    tensors = {name.replace(last, block): tensor for name, tensor in tensors.items()}
    centre = 0.0 if FAMILIES[family].zero_centred else 1.0
    hidden = config["hidden_size"]
    for template, shape in (
        (names.mtp_embedding_norm, (hidden,)),
        (names.mtp_hidden_norm, (hidden,)),
        (names.mtp_projection, (hidden, 2 * hidden)),
        (names.mtp_final_norm, (hidden,)),
    ):
        values = 0.1 * torch.randn(shape) + (centre if len(shape) == 1 else 0.0)
        tensors[template.format(L=LAYERS, M=0)] = values.to(torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def expectation(folder: Path) -> tuple[dict[str, Any], float]:
    """(expected.json, the least margin of a draft)."""
    oracle = MtpOracle(folder)
    greedy = oracle.greedy(PROMPT, TOKENS)
    text, margin, drafts = PROMPT + greedy, float("inf"), []
    for place in PLACES:
        tokens, logits = oracle.drafts(text[:place], DEPTH)
        second, best = np.sort(logits, axis=1)[:, -2:].T
        margin = min(margin, float((best - second).min()))
        drafts.append({"after": place, "tokens": tokens, "logits": logits.tolist()})
    return {"text": text, "drafts": drafts}, margin


def make(folder: Path, family: str) -> None:
    """The first seed with no near tie among its drafts."""
    for seed in range(SEEDS):
        shutil.rmtree(folder, ignore_errors=True)
        write_model(folder, family, seed)
        expected, margin = expectation(folder)
        tokens = {token for draft in expected["drafts"] for token in draft["tokens"]}
        if margin >= LEAST_MARGIN and len(tokens) >= len(PLACES) * DEPTH // 2:
            break
    else:
        raise SystemExit(f"{family}: no seed of {SEEDS} has a margin of {LEAST_MARGIN}")
    lines = [
        f'{{"after": {draft["after"]}, "tokens": {draft["tokens"]}, "logits": [\n  '
        f"{rows_text(draft['logits'])}\n]}}"
        for draft in expected["drafts"]
    ]
    text = f'{{"text": {expected["text"]}, "drafts": [\n' + ",\n".join(lines) + "\n]}\n"
    (folder / "expected.json").write_text(text, encoding="utf-8", newline="\n")
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    if max(sizes.values()) > LARGEST_FILE:
        raise SystemExit(f"{folder}: too large for git: {sizes}")
    print(f"{family}: seed {seed}, margin {margin:.4f}, {sum(sizes.values())} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    default = Path(__file__).resolve().parents[1] / "tests" / "golden" / "mtp"
    parser.add_argument("--out", type=Path, default=default, help="folder of the fixtures")
    parser.add_argument("names", nargs="*", default=[*FIXTURES], help="which (default: all)")
    args = parser.parse_args()
    for name in args.names:
        make(args.out / name, name)


if __name__ == "__main__":
    main()
