"""A row's logits are the same bytes, whatever is computed with it, by whom, and from where."""

from pathlib import Path

import numpy as np
import pytest
from tiny_model import random_tensors, running, tiny_config, write_checkpoint

FORMATS = ["f32", "bf16", "q8", "q4"]
ROWS = 66
SPLITS = [1, 2, 3, 5, 8, 17, 64]
EXPERTS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_config("glm4_moe", hidden_size=80, num_hidden_layers=2, n_group=2, topk_group=2)
    folder = tmp_path_factory.mktemp("invariance")
    return write_checkpoint(folder, config, random_tensors(config, seed=3))


@pytest.fixture(scope="module")
def ids() -> np.ndarray:
    return np.random.default_rng(4).integers(0, 96, ROWS)


@pytest.fixture(autouse=True)
def _threads_share_even_tiny_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diskmoe.engine.kernels.matmul._MACS_PER_PART", 1)


def logits_in_parts(folder: Path, ids: np.ndarray, split: int, **options) -> list[bytes]:
    with running(folder, **options) as model:
        rows = [model.forward(ids[i : i + split], "all") for i in range(0, len(ids), split)]
    return [row.tobytes() for row in np.concatenate(rows)]


@pytest.fixture(scope="module", params=FORMATS)
def reference(request: pytest.FixtureRequest, folder: Path, ids: np.ndarray):
    """(format, bytes of each row's logits computed alone, one thread, everything resident)."""
    fmt = {"dense_format": request.param, "expert_format": request.param}
    return fmt, logits_in_parts(folder, ids, 1, slots=EXPERTS, threads=1, **fmt)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("split", SPLITS)
def test_logits_do_not_depend_on_the_rows_beside_them(folder, ids, reference, split, threads):
    fmt, expected = reference
    assert logits_in_parts(folder, ids, split, slots=3, threads=threads, **fmt) == expected


@pytest.mark.parametrize("slots", range(1, EXPERTS + 1))
def test_logits_do_not_depend_on_the_resident_set(folder, ids, reference, slots):
    fmt, expected = reference
    for split in (1, 17):
        found = logits_in_parts(folder, ids[:20], split, slots=slots, threads=2, **fmt)
        assert found == expected[:20]
