"""``bench roofline``: what a tiny model's page of numbers says, and bad words."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from diskmoe.bench import ceilings
from diskmoe.bench.ceilings import Compute
from diskmoe.bench.knobs import Knob, Reading
from diskmoe.bench.model import Synthetic
from diskmoe.bench.roofline import Roofline
from diskmoe.engine.cli import main
from diskmoe.engine.predict import TokenWork
from diskmoe.engine.stats import Phase, RunStats

# 1000 bytes of dense weights, two layers, of each 2 experts of 100 bytes for a token
WORK = TokenWork(dense_bytes=900, expert_bytes=100, read_bytes=100, top_k=2, moe_layers=2)
STATS = RunStats(
    tokens=10,
    decode=Phase(
        forwards=10, hits=30, misses=10, miss_bytes=1000,
        read_wait_seconds=2.0, forward_seconds=9.0, seconds=10.0,
    ),
)  # fmt: skip
MORE = Knob("RAM_GB", "2.0", 2.0, "more slots")


def roofline(**changes: object) -> Roofline:
    made = Roofline(
        model="tiny",
        context=16,
        threads=2,
        compute=Compute(2, 1000.0, 800.0, 500.0),
        read=200.0,
        read_how="reads",
        readings=(),
        work=WORK,
        kv_bytes=100,
        stats=STATS,
        slots=4,
        experts=8,
        knobs=(),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_the_ceiling_is_memory_where_all_hits_and_the_disk_where_none_does() -> None:
    line = roofline()
    # dense and KV cache 1 s; a layer computes 2 experts in 0.2 s
    assert line.ceiling(1.0) == pytest.approx(1 / 1.4) and line.limit(1.0) == "memory"
    # or reads both in 1 s and computes the last one in 0.1 s
    assert line.ceiling(0.0) == pytest.approx(1 / 3.2) and line.limit(0.0) == "disk"
    assert line.hit_rate == 0.75
    # half an expert a layer: 0.25 s and the last one's 0.1 s
    assert line.achieved == pytest.approx(1.0 / (1 / 1.7))


def test_without_a_disks_speed_there_is_no_ceiling_but_that_of_memory() -> None:
    line = roofline(read=None)
    assert line.ceiling(0.5) is None and line.limit(0.5) == "disk, not measured"
    assert line.ceiling(1.0) is not None and line.achieved is None


def test_bytes_of_a_token_are_told_by_part() -> None:
    assert roofline().bytes_per_token == {
        "dense": 900,
        "kv_cache": 100,
        "experts_from_ram": 400,
        "experts_from_disk": 100,
        "experts_from_disk_cold": 400,
    }
    assert roofline().shares == pytest.approx({"read_wait": 0.2, "compute": 0.7, "other": 0.1})


def test_one_knob_is_named_and_the_others_stand_below() -> None:
    drafts = Knob("MTP", "", 9.0, "drafts", certain=False)
    line = roofline(knobs=(MORE, drafts))
    assert line.knob == MORE
    told = line.lines()
    assert told[-2] == "knob      turn RAM_GB=2.0: more slots: 2 tok/s expected (now 1)"
    assert told[-1].startswith("also      MTP: drafts")


def test_where_nothing_is_worth_turning_the_verdict_says_how_near_the_ceiling_is() -> None:
    assert roofline().verdict() == (
        "no setting is worth 5 %, 170 % of the ceiling; what is left is compute, 70 % of the time"
    )
    beyond = replace(MORE, within=False)
    assert "; beyond that, RAM_GB=2.0: more slots" in roofline(knobs=(beyond,)).verdict()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of time that measure next to nothing."""
    monkeypatch.setattr(ceilings, "MEMORY_SECONDS", 0.0)
    monkeypatch.setattr(ceilings, "DISK_SECONDS", 0.001)
    monkeypatch.setattr(ceilings, "DISK_ROUNDS", 1)


@pytest.mark.usefixtures("quick")
def test_a_model_is_measured_and_told_as_json(
    written: tuple[Synthetic, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--tokens", "8", "--threads", "1", "--cap", "6", "--ram-gb", "4", "--json"]
    assert main(["bench", "roofline", str(written[1]), *words]) == 0
    told = json.loads(capsys.readouterr().out)
    config = written[0].config
    layers, top_k = len(config.moe_layers), config.top_k
    assert told["tokens"] == 8 and told["slots_per_layer"] == 6 and told["experts"] == 32
    assert told["bytes_per_token"]["experts_from_ram"] % (layers * top_k) == 0
    cold = told["bytes_per_token"]["experts_from_disk_cold"]
    assert told["bytes_per_token"]["experts_from_disk"] == pytest.approx(
        (1 - told["hit_rate"]) * cold, rel=1e-3
    )
    speeds = [row["tok_per_s"] for row in told["ceiling"]]
    assert speeds == sorted(speeds) and told["ceiling"][-1]["hit_rate"] == 1.0
    assert sum(told["time"].values()) == pytest.approx(1)
    assert told["knob"] is None or told["knob"]["setting"] in told["verdict"]


@pytest.mark.usefixtures("quick")
def test_a_slow_disk_is_the_limit_and_slots_are_the_knob(
    written: tuple[Synthetic, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--tokens", "24", "--threads", "1", "--cap", "6", "--ram-gb", "4"]
    assert main(["bench", "roofline", str(written[1]), *words, "--disk-bps", "20M", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["read_bytes_per_second"] == 20e6 and told["disk"] == []
    assert told["ceiling"][0]["limit"] == "disk"
    assert told["knob"]["setting"] == "CAP" and int(told["knob"]["value"]) > 6
    assert told["knob"]["tok_per_s"] > told["tok_per_s"]


def test_a_way_to_read_is_told_with_its_threads() -> None:
    line = roofline(readings=(Reading(True, 4, 2e9), Reading(False, 8, 1e9)))
    assert (
        "disk      cold: 2.00 GB/s past the page cache with 4, 1.00 GB/s through it with 8 reads at "
        "a time"
    ) in line.lines()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a", "b"], "'b' is one too many"),
        (["nowhere"], "nowhere"),
        (["x", "--tokens", "3"], "--tokens is '3'; it must be a whole number from 8"),
        (["x", "--temp", "1"], "--temp has no effect on diskmoe bench roofline"),
    ],
)
def test_bad_words_are_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "roofline", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_more_tokens_than_the_context_holds_is_one_line_with_the_numbers(
    written: tuple[Synthetic, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "roofline", str(written[1]), "--tokens", "100", "--ctx", "64"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "--tokens 100 after a prompt of 32 need CTX=132, and CTX is 64" in error
