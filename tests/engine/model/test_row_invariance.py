"""A row's logits are the same bytes, whatever is computed with it, by whom, and from where."""

from pathlib import Path

import numpy as np
import pytest
from tiny_model import random_tensors, running, tiny_config, write_checkpoint

from diskmoe.engine.model.config import read_config
from diskmoe.engine.model.tensors import tensor_plan
from diskmoe.experts.checkpoint import Checkpoint
from diskmoe.experts.convert import convert

FORMATS = ["f32", "bf16", "q8", "q4"]
CASES = [
    *(("glm4_moe", fmt) for fmt in FORMATS),
    *(("gpt_oss", "q4"), ("gpt_oss", "mxfp4")),
    *(("deepseek_v3", "bf16"), ("deepseek_v3", "q8"), ("glm_moe_dsa", "q8")),
    *(("qwen2_moe", "q8"), ("qwen2_moe", "fp8"), ("granitemoe", "q4")),
    *(("qwen3_next", "q4"), ("qwen3_next", "f32"), ("qwen3_5_moe", "q8")),
]
ROWS = 66
SPLITS = [1, 2, 3, 5, 8, 17, 64, 66]
EXPERTS = 8


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted model: a dense and a MoE layer, with groups and a shared expert; or one with
    windows, sinks, biases and clamps; with latents, in more rows than go together; with chosen
    keys; with a gated shared expert; with multipliers; or with states."""
    family, fmt = request.param
    more = {
        "glm4_moe": {"n_group": 2, "topk_group": 2},
        "glm_moe_dsa": {"indexer_types": ["full", "shared"]},
    }
    raw = tiny_config(family, hidden_size=80, num_hidden_layers=2, **more.get(family, {}))
    folder = tmp_path_factory.mktemp("invariance")
    source = write_checkpoint(folder / "source", raw, random_tensors(raw, seed=3))
    plan = tensor_plan(read_config(raw, "tiny"))
    convert(Checkpoint.open(source), plan, folder / "made", fmt, fmt)
    return folder / "made"


@pytest.fixture(scope="module")
def ids() -> np.ndarray:
    return np.random.default_rng(4).integers(0, 96, ROWS)


@pytest.fixture(autouse=True)
def _threads_share_even_tiny_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diskmoe.engine.kernels.program.MACS_PER_CLAIM", 1)


def logits_in_parts(folder: Path, ids: np.ndarray, split: int, **options) -> list[bytes]:
    with running(folder, **options) as model:
        rows = [model.forward(ids[i : i + split], "all") for i in range(0, len(ids), split)]
    return [row.tobytes() for row in np.concatenate(rows)]


@pytest.fixture(scope="module")
def reference(folder: Path, ids: np.ndarray) -> list[bytes]:
    """Each row's logits computed alone, by one thread, with everything resident."""
    return logits_in_parts(folder, ids, 1, slots=EXPERTS, threads=1)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("split", SPLITS)
def test_logits_do_not_depend_on_the_rows_beside_them(folder, ids, reference, split, threads):
    assert logits_in_parts(folder, ids, split, slots=3, threads=threads) == reference


@pytest.mark.parametrize("slots", range(1, EXPERTS + 1))
def test_logits_do_not_depend_on_the_resident_set(folder, ids, reference, slots):
    for split in (1, 17):
        found = logits_in_parts(folder, ids[:20], split, slots=slots, threads=2)
        assert found == reference[:20]


@pytest.mark.parametrize("kv_format", ["f16", "q8"])
def test_logits_of_a_smaller_cache_do_not_depend_on_the_rows_beside_them(folder, ids, kv_format):
    options = {"slots": 3, "kv_format": kv_format}
    alone = logits_in_parts(folder, ids, 1, threads=1, **options)
    for split in SPLITS[1:]:
        assert logits_in_parts(folder, ids, split, threads=2, **options) == alone


def test_a_smaller_cache_says_nearly_the_same(folder, ids, reference):
    exact = np.frombuffer(b"".join(reference), np.float32)
    for kv_format in ("f16", "q8"):
        rows = logits_in_parts(folder, ids, 17, slots=8, threads=1, kv_format=kv_format)
        found = np.frombuffer(b"".join(rows), np.float32)
        assert 0 < np.abs(found - exact).mean() < 0.02 * np.abs(exact).max()
