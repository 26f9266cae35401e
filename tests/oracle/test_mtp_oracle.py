"""MTP drafts equal those of transformers: the head's own logits, and those of a run that uses it."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import random_tensors, running_head, tiny_config, write_checkpoint

from diskmoe.mtp.head import MOST_DEPTH, MtpSource

pytestmark = pytest.mark.oracle

PROMPT = [5, 9, 33, 2, 50, 7, 8, 41, 3, 77, 20, 6]
TOLERANCE = 1e-4

_HYBRID = {"layer_types": ["linear_attention", "linear_attention", "full_attention"]}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "glm4": ("glm4_moe", {}),
    "glm4-no-norms-grouped": (
        "glm4_moe",
        {"use_qk_norm": False, "attention_bias": False, "n_group": 4, "topk_group": 2},
    ),
    "deepseek3": ("deepseek_v3", {}),
    "glm4-lite": ("glm4_moe_lite", {}),
    "glm-dsa": ("glm_moe_dsa", {}),
    "qwen3-next": ("qwen3_next", _HYBRID),
    "qwen3.5": ("qwen3_5_moe_text", _HYBRID),
}


@pytest.fixture(params=CASES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    family, changes = CASES[request.param]
    raw = tiny_config(family, num_nextn_predict_layers=1, **changes)
    return write_checkpoint(tmp_path, raw, random_tensors(raw, 2, mtp=True), "bf16")


def test_drafts_and_logits_equal_those_of_transformers(folder: Path) -> None:
    """At every depth, after texts of several lengths; and the first drafts of a whole run, where
    transformers lets a model run with its head: not those with recurrent states or chosen keys."""
    from mtp_oracle import MtpOracle

    oracle = MtpOracle(folder)
    config = oracle.model.config.to_dict()
    if "linear_attention" in config.get("layer_types", ()) or "index_topk" in config:
        tokens, drafted = oracle.greedy(PROMPT, 24), {}
    else:
        tokens, drafted = oracle.generate(PROMPT, 24)
        assert len(drafted) > 8
    text = PROMPT + tokens
    with running_head(folder, slots=3) as (model, layer):
        seen: list[np.ndarray] = []
        logits = layer.logits
        layer.logits = lambda state: (seen.append(logits(state)), seen[-1])[1]
        source = MtpSource(layer, model.config.hidden)
        checked = 0
        for end in range(1, len(text)):
            model.forward(text[end - 1 : end])
            source.absorb([text[end]], model.hidden)
            seen.clear()
            found = [draft.token for draft in islice(source.drafts([]), MOST_DEPTH)]
            if end + 1 in drafted:
                assert found[0] == drafted[end + 1]
                checked += 1
            if end % 7 == 2:
                expected, rows = oracle.drafts(text[: end + 1], MOST_DEPTH)
                assert found == expected
                assert np.abs(np.array(seen) - rows).max() < TOLERANCE
        assert checked == len(drafted)
