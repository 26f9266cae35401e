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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from make_golden import FIXTURES, LARGEST_FILE, LEAST_MARGIN, PROMPT, random_model, rows_text
from mtp_oracle import MtpOracle
from safetensors.torch import load_file, save_file

SEEDS = 200
TOKENS = 16
DEPTH = 4
PLACES = (2, 8, 9, 17)  # tokens before the drafts
LAYERS = 2  # of the model; the one behind them becomes the head's


def _extra_layer(name: str) -> str:
    return name


# how a family calls the tensors of the head, given those of layer LAYERS: (block, own)
NAMES: dict[str, tuple[Callable[[str], str], tuple[str, str, str, str]]] = {
    "glm4_moe": (
        _extra_layer,
        (
            f"model.layers.{LAYERS}.enorm.weight",
            f"model.layers.{LAYERS}.hnorm.weight",
            f"model.layers.{LAYERS}.eh_proj.weight",
            f"model.layers.{LAYERS}.shared_head.norm.weight",
        ),
    ),
}


def write_model(folder: Path, family: str, seed: int) -> None:
    """A model of three layers whose last one is made the head's."""
    settings = FIXTURES[family][1] | {"num_hidden_layers": LAYERS + 1}
    with tempfile.TemporaryDirectory() as name:
        random_model(family, settings, seed).save_pretrained(name)
        config = json.loads((Path(name) / "config.json").read_text())
        tensors = load_file(Path(name) / "model.safetensors")
    block, own = NAMES[family]
    last = f"model.layers.{LAYERS}."
    tensors = {block(n) if n.startswith(last) else n: tensor for n, tensor in tensors.items()}
    hidden = config["hidden_size"]
    for name, shape in zip(
        own, ((hidden,), (hidden,), (hidden, 2 * hidden), (hidden,)), strict=True
    ):
        centre = 1.0 if len(shape) == 1 else 0.0
        tensors[name] = (centre + 0.1 * torch.randn(shape)).to(torch.bfloat16)
    folder.mkdir(parents=True)
    told = {"num_hidden_layers": LAYERS, "num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(config | told, indent=1) + "\n")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def expectation(folder: Path) -> tuple[dict[str, Any], float]:
    """(expected.json, the least margin of a draft)."""
    oracle = MtpOracle(folder)
    greedy, _ = oracle.generate(PROMPT, TOKENS)
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
    parser.add_argument("names", nargs="*", default=[*NAMES], help="which (default: all)")
    args = parser.parse_args()
    for name in args.names:
        make(args.out / name, name)


if __name__ == "__main__":
    main()
