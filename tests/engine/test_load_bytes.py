"""Loading reads headers and dense weights, however many experts there are."""

import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_model import random_tensors, tiny_config, write_checkpoint

from diskmoe.engine.api import Model, Options
from diskmoe.engine.cli import main

HEADER_BYTES = 1024  # of an expert's three tensors in a checkpoint, or of its record
FFN = 512


def bytes_read() -> int:
    """What this process has asked of files so far, cached or not."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    raise AssertionError("no rchar")


def bytes_to_load(path: Path) -> tuple[int, int]:
    """(bytes read until the model is loaded, bytes of an expert)."""
    options = Options(cap=2, ctx=32, threads=1)
    Model.load(path, options).close()  # kernels and libraries
    before = bytes_read()
    with Model.load(path, options) as model:
        return bytes_read() - before, model.facts.expert_bytes


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/self/io")
@pytest.mark.parametrize("converted", [False, True])
def test_more_experts_cost_headers_only(tmp_path: Path, converted: bool) -> None:
    found: dict[int, int] = {}
    expert = 0
    for experts in (4, 36):
        raw: dict[str, Any] = tiny_config(
            "qwen3_moe", num_experts=experts, moe_intermediate_size=FFN, num_hidden_layers=1
        )
        path = write_checkpoint(tmp_path / f"{experts}", raw, random_tensors(raw, 1), "bf16")
        if converted:
            assert main(["convert", str(path), str(tmp_path / f"q{experts}")]) == 0
            path = tmp_path / f"q{experts}"
        found[experts], expert = bytes_to_load(path)
    router = 32 * 64 * (4 if converted else 2)  # a row of it for each expert
    assert found[36] - found[4] <= 32 * HEADER_BYTES + router
    assert 32 * HEADER_BYTES < 32 * expert / 16
