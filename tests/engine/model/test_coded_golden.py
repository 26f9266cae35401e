"""Committed models in codes and what transformers said of them (scripts/make_coded_golden.py)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import running
from tiny_runs import converted, greedy, recorded_routing, repeat_routing

TOLERANCE = 1e-4
GOLDEN = Path(__file__).parents[2] / "golden" / "coded"
WAYS = [
    *(
        (name, way)
        for name in ("fp8_deepseek_v3", "fp8_by_row_qwen3_moe")
        for way in ("as it is", "kept")
    ),
    ("int4_kimi_k2", "as it is"),
    *((name, "f32") for name in ("fp8_deepseek_v3", "fp8_by_row_qwen3_moe", "int4_kimi_k2")),
]


def golden(name: str) -> tuple[Path, dict[str, Any]]:
    folder = GOLDEN / name
    return folder, json.loads((folder / "expected.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_logits_and_greedy_tokens_equal_those_of_transformers(tmp_path, name, way):
    """As the files are, converted with their codes kept, and converted to numbers; int4 is
    dequantised always, since its kernels round rows."""
    folder, expected = golden(name)
    assert len(expected["greedy"]) == 32 and expected["least_margin"] > 10 * TOLERANCE
    options = {"expert_format": "f32"} if name.startswith("int4") else {}
    if way != "as it is":
        folder = converted(folder, None if way == "kept" else way, out=tmp_path / "model")
    with running(folder, slots=2, **options) as model:
        found = model.forward(expected["prompt"], "all")
    assert np.abs(found - np.array(expected["logits"], np.float32)).max() < TOLERANCE
    for slots, at_once in ((1, True), (6, False)):  # of two for a row
        tokens = greedy(folder, expected["prompt"], 32, at_once, slots=slots, **options)
        assert tokens == expected["greedy"]


def test_kept_int4_is_as_far_away_as_rows_are_rounded(tmp_path):
    folder, expected = golden("int4_kimi_k2")
    with running(folder, expert_format="f32") as model:
        chosen = recorded_routing(model)
        exact = model.forward(expected["prompt"], "all")
    with running(converted(folder, None, "bf16", tmp_path / "model"), slots=2) as model:
        repeat_routing(model, chosen)
        found = model.forward(expected["prompt"], "all")
    assert 0 < np.abs(found - exact).max() < 2e-2 * np.abs(exact).max()
