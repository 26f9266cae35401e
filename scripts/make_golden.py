"""Make the golden fixtures of tests/golden: tiny models and what transformers says of them.

    pip install -e ".[oracle]"
    python scripts/make_golden.py [NAME ...]      # rewrites tests/golden/<name>/

Each fixture is a random model of one family as its own ``save_pretrained`` writes it, or as the hub
has it, in bf16, and ``expected.json``: the prompt, the logits of every prompt row in f32, and the
greedy tokens after it with the least gap between the best and the second best logit; and, for the
model converted to q8/q8 and q4/q8, the logits that transformers gives with the dequantised weights.
The plain test run checks them without torch, so that a machine without the oracle still notices a
wrong forward. Numbers come from torch on the CPU in f32; another torch version may change their last
digits, the committed files are the reference.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from golden_models import COMMON, FIXTURES
from hub_layout import to_hub_layout
from transformers import AutoConfig, AutoModelForCausalLM

from diskmoe.engine.model.config import read_config
from diskmoe.engine.model.tensors import tensor_plan
from diskmoe.experts.checkpoint import Checkpoint
from diskmoe.experts.container import Container
from diskmoe.experts.convert import convert
from diskmoe.experts.export import export_checkpoint

PROMPT = [3, 17, 42, 8, 29, 51, 11, 60]
TOKENS = 32
SEEDS = 2000
LEAST_MARGIN = 0.01
LEAST_CHOICE_MARGIN = 0.02  # of router logits: rounding must not send a row to another expert
LEAST_LATENT_CHOICE_MARGIN = 0.1  # of models with one more matrix, and its rounding, in a row
LEAST_DISTINCT = 8  # different tokens in the answer: one that repeats itself proves little
QUANTISED = (("q8", "q8"), ("q4", "q8"))  # experts, dense
LARGEST_FILE = 300_000  # bytes: fixtures live in git

ZERO_CENTRED = ("qwen3_next", "qwen3_5_moe_text")  # norms, but those of delta layers
AS_ON_THE_HUB = ("qwen3_5_moe",)  # fixtures that are rewritten from what save_pretrained writes


def random_model(family: str, settings: dict[str, Any], seed: int) -> Any:
    """Weights of spread 0.08, norms about 1, biases and correction biases not 0; all bf16."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **(COMMON | settings))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith("inv_freq"):
                continue
            spread, centre = (0.1, 1.0) if "norm" in name else (0.08, 0.0)
            if name.endswith(("mlp.gate.weight", "router.weight")):
                spread = 0.2
            elif name.endswith(("sinks", "dt_bias", "A_log")):
                spread = 1.0
            elif name.endswith("conv1d.weight"):
                spread = 0.3
            elif "norm" in name and config.model_type in ZERO_CENTRED:
                centre = 1.0 if "linear_attn" in name else 0.0
            tensor.copy_(centre + spread * torch.randn_like(tensor))
    return model.to(torch.bfloat16)


def answer(folder: Path) -> tuple[list[list[float]], list[int], float]:
    """(logits of the prompt's rows, greedy tokens, least margin) in f32 from the saved files."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    torch.nn.Module.float(model)  # what was made of codes may be bf16 still
    ids, margin, prompt_logits = list(PROMPT), float("inf"), []
    with torch.no_grad():
        for _ in range(TOKENS):
            logits = model(torch.tensor([ids]), use_cache=False).logits[0]
            if not prompt_logits:
                prompt_logits = logits.numpy().tolist()
            second, best = np.sort(logits[-1].numpy())[-2:]
            margin = min(margin, float(best - second))
            ids.append(int(logits[-1].argmax()))
    return prompt_logits, ids[len(PROMPT) :], margin


def choice_margin(folder: Path) -> float:
    """The least gap between the last expert that a row of the prompt goes to and the next one, and
    between the last of its groups and the next, in units of logits.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        output = model(torch.tensor([PROMPT]), use_cache=False, output_router_logits=True)
    margin, config = float("inf"), model.config
    named = dict(model.named_buffers())
    biases = [named[name] for name in named if name.endswith("e_score_correction_bias")]
    for layer, scores in enumerate(getattr(output, "router_logits", None) or ()):
        best = 1
        if biases:
            scores = 4 * (scores.sigmoid() + biases[layer])  # a sigmoid rises by 1/4 at most
            best = 2
        if biases or getattr(config, "topk_method", None) == "group_limited_greedy":
            groups = scores.unflatten(-1, (config.n_group, -1))
            values = groups.topk(best, dim=-1).values.sum(dim=-1)
            margin = min(margin, gap(values, config.topk_group))
            last = values.topk(config.topk_group, dim=-1).values[:, -1:]
            scores = groups.masked_fill((values < last)[..., None], -torch.inf).flatten(1)
        margin = min(margin, gap(scores, config.num_experts_per_tok))
    return margin


def gap(scores: torch.Tensor, chosen: int) -> float:
    """scores (rows, choices): the least distance from the last of the chosen to the next."""
    if chosen == scores.shape[1]:
        return float("inf")
    ordered = scores.sort(dim=-1, descending=True).values
    return float((ordered[:, chosen - 1] - ordered[:, chosen]).min())


def make(folder: Path, family: str, settings: dict[str, Any]) -> None:
    """Write one fixture: the first seed whose greedy answer and experts have no near tie."""
    least_choice = LEAST_LATENT_CHOICE_MARGIN if "kv_lora_rank" in settings else LEAST_CHOICE_MARGIN
    for seed in range(SEEDS):
        shutil.rmtree(folder, ignore_errors=True)
        random_model(family, settings, seed).save_pretrained(folder)
        if folder.name in AS_ON_THE_HUB:
            to_hub_layout(folder, mtp=False)
        (folder / "generation_config.json").unlink(missing_ok=True)
        for path in folder.iterdir():
            path.chmod(0o644)
        if choice_margin(folder) < least_choice:
            continue
        logits, tokens, margin = answer(folder)
        if margin < LEAST_MARGIN or len(set(tokens)) < LEAST_DISTINCT:
            continue
        quantised = {formats: quantised_logits(folder, *formats) for formats in QUANTISED}
        if all(choices >= least_choice for _, choices in quantised.values()):
            break
    else:
        raise SystemExit(
            f"{folder.name}: no seed of {SEEDS} has a margin of {LEAST_MARGIN} and"
            f" {LEAST_DISTINCT} different tokens"
        )
    expected = {"prompt": PROMPT, "greedy": tokens, "least_margin": round(margin, 5)}
    text = json.dumps(expected)[:-1] + f', "logits": [\n  {rows_text(logits)}\n]'
    for (experts, dense), (rows, _) in quantised.items():
        text += f', "logits {experts}/{dense}": [\n  {rows_text(rows)}\n]'
    text += "}\n"
    (folder / "expected.json").write_text(text, encoding="utf-8", newline="\n")
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    if max(sizes.values()) > LARGEST_FILE:
        raise SystemExit(f"{folder}: too large for git: {sizes}")
    print(
        f"{folder.name}: seed {seed}, margin {margin:.4f}, {len(set(tokens))} tokens, {sum(sizes.values())} bytes"
    )


def quantised_logits(folder: Path, experts: str, dense: str) -> tuple[list[list[float]], float]:
    """What transformers says of the prompt, given the numbers that quantised weights stand for,
    and the choice margin of that."""
    checkpoint = Checkpoint.open(folder)
    plan = tensor_plan(read_config(checkpoint.config, str(folder)), checkpoint.has)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        convert(checkpoint, plan, work / "converted", experts, dense)
        export_checkpoint(Container.open(work / "converted"), plan, work / "exported")
        return answer(work / "exported")[0], choice_margin(work / "exported")


def rows_text(logits: list[list[float]]) -> str:
    return ",\n  ".join(json.dumps([round(value, 7) for value in row]) for row in logits)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    default = Path(__file__).resolve().parents[1] / "tests" / "golden"
    parser.add_argument("--out", type=Path, default=default, help="folder of the fixtures")
    parser.add_argument("names", nargs="*", default=[*FIXTURES], help="which (default: all)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.names:
        make(args.out / name, *FIXTURES[name])


if __name__ == "__main__":
    main()
