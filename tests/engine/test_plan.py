"""`diskmoe plan`: the prediction is the formula, the numbers are measured, nothing is loaded."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_model import random_tensors, tiny_config, write_checkpoint

from diskmoe.engine import plan, predict
from diskmoe.engine.cli import main
from diskmoe.engine.kernels.workers import Workers
from diskmoe.engine.predict import HIT_RATES, Speeds, TokenWork, token_seconds, weight_speed
from diskmoe.experts.formats import FORMATS
from diskmoe.experts.tiles import matrix_layout

# 1 GB of dense weights; 10 layers, 4 of its experts of 10 MB per token
WORK = TokenWork(1_000_000_000, 10_000_000, 10_000_000, top_k=4, moe_layers=10)
FAST_DISK = Speeds(dense=10e9, expert=5e9, disk=20e9, disk_how="")
SLOW_DISK = Speeds(dense=10e9, expert=5e9, disk=1e9, disk_how="")


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    raw = tiny_config("qwen3_moe")
    write_checkpoint(folder / "m", raw, random_tensors(raw, 1), "bf16")
    assert main(["convert", str(folder / "m"), str(folder / "q4")]) == 0
    return folder / "q4"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "weight_speed", lambda fmt, hidden, workers: 4e9)


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    capsys.readouterr()
    assert main(["plan", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_with_all_experts_resident_only_weights_count() -> None:
    assert token_seconds(WORK, SLOW_DISK, 1.0) == pytest.approx(0.1 + 10 * 4 * 0.002)


def test_a_slow_disk_hides_computing_but_for_the_last_miss() -> None:
    assert token_seconds(WORK, SLOW_DISK, 0.0) == pytest.approx(0.1 + 10 * (4 * 0.01 + 0.002))
    assert token_seconds(WORK, SLOW_DISK, 0.5) == pytest.approx(0.1 + 10 * (2 * 0.01 + 0.002))


def test_a_fast_disk_is_hidden_by_computing() -> None:
    assert token_seconds(WORK, FAST_DISK, 0.0) == token_seconds(WORK, FAST_DISK, 1.0)


def test_without_a_disk_speed_only_a_full_store_can_be_predicted() -> None:
    unknown = Speeds(10e9, 5e9, None, "why")
    assert token_seconds(WORK, unknown, 0.5) is None
    assert token_seconds(WORK, unknown, 1.0) is not None


@pytest.mark.parametrize("fmt", FORMATS)
def test_weights_of_every_format_have_a_speed(fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diskmoe.engine.predict._PIECE_BYTES", 1 << 18)
    ticks = iter(range(1000))
    with Workers(1) as workers:  # a window lasts one tick of this clock
        speed = weight_speed(fmt, 256, workers, seconds=3, clock=lambda: float(next(ticks)))
    tile = matrix_layout(fmt, 16, 256).nbytes
    assert speed == 8 * matrix_layout(fmt, (1 << 18) // tile * 16, 256).nbytes


def test_the_json_has_measured_speeds_and_a_line_per_hit_rate(converted, capsys) -> None:
    got = planned(capsys, str(converted), "--cap", "2", "--ctx", "64")
    assert set(got["speed"]) == {
        "disk_bytes_per_second",
        "disk_how",
        "dense_bytes_per_second",
        "expert_bytes_per_second",
    }
    assert got["uniform_hit_rate"] == 2 / 8
    rates = [entry["hit_rate"] for entry in got["predicted"]]
    assert rates == sorted({*HIT_RATES, 2 / 8})
    speeds = [entry["tok_per_s"] for entry in got["predicted"]]
    if got["speed"]["disk_bytes_per_second"] is not None:
        assert all(math.isfinite(s) and s > 0 for s in speeds)
        assert speeds == sorted(speeds)


def test_a_paced_disk_is_planned_as_paced(converted, capsys, monkeypatch) -> None:
    monkeypatch.setattr(plan, "measure_disk", lambda *_: (2e9, "a test"))
    free = planned(capsys, str(converted), "--ctx", "64", "--cap", "1")
    paced = planned(capsys, str(converted), "--ctx", "64", "--cap", "1", "--disk-bps", "1000000")
    assert free["speed"]["disk_bytes_per_second"] == 2e9
    assert paced["speed"]["disk_bytes_per_second"] == 1e6
    assert paced["predicted"][0]["tok_per_s"] < free["predicted"][0]["tok_per_s"]


def test_a_disk_that_cannot_be_measured_is_said(converted, capsys, monkeypatch) -> None:
    monkeypatch.setattr(plan, "measure_disk", lambda *_: (None, "half of it is cached"))
    got = planned(capsys, str(converted), "--ctx", "64", "--cap", "2")
    assert [entry["tok_per_s"] for entry in got["predicted"]] == [None] * 5
    assert main(["plan", str(converted), "--ctx", "64", "--cap", "2"]) == 0
    said = capsys.readouterr().out
    assert "disk not measured (half of it is cached)" in said
    assert "no prediction without the disk's speed" in said


def test_too_small_a_budget_is_exit_2_with_the_plan(converted, capsys) -> None:
    capsys.readouterr()
    assert main(["plan", str(converted), "--ram-gb", "0.02"]) == 2
    said = capsys.readouterr().err
    assert "is too small" in said and "RAM_GB=" in said


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """96 MiB of experts in bf16, 4 MiB each: more than the budgets of the sweep leave room for."""
    folder = tmp_path_factory.mktemp("large")
    raw = tiny_config("qwen3_moe", moe_intermediate_size=10_900, eos_token_id=None)
    write_checkpoint(folder / "m", raw, random_tensors(raw, 1), "bf16")
    assert main(["convert", str(folder / "m"), str(folder / "c"), "--experts", "keep"]) == 0
    return folder / "c"


@pytest.mark.skipif(sys.platform != "linux", reason="libraries take more elsewhere")
def test_the_peak_stays_inside_every_budget_that_is_accepted(large: Path) -> None:
    prompt = ",".join(str(3 + token % 90) for token in range(40))
    words = ["--prompt-ids", prompt, "--ngen", "8", "--ctx", "64", "--json", "--temp", "0"]
    program = [sys.executable, "-m", "diskmoe.engine", "--model", str(large), *words]
    slots = []
    for budget in ("0.05", "0.2", "0.3"):  # a process each: this one is larger
        done = subprocess.run(
            [*program, "--ram-gb", budget], capture_output=True, text=True, check=False
        )
        if budget == "0.05":
            assert done.returncode == 2 and "is too small" in done.stderr, done.stderr
            continue
        assert done.returncode == 0, done.stderr
        got = json.loads(done.stdout)
        assert got["peak_rss_bytes"] <= got["budget_bytes"]
        slots.append(got["slots_per_layer"])
    assert slots == sorted(slots) and slots[0] < slots[-1] == 8
