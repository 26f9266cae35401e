"""Knobs: which one is named, and that its number follows from what was measured."""

from dataclasses import replace

import pytest

from diskmoe.bench.knobs import Reading, Situation, knobs
from diskmoe.engine.predict import Speeds, TokenWork

# a token: 1 s of dense weights, 1 s of experts; 2 s of reads if none hits
NOW = Situation(
    work=TokenWork(dense_bytes=1000, expert_bytes=100, read_bytes=100, top_k=5, moe_layers=2),
    speeds=Speeds(1000.0, 1000.0, 500.0, "reads"),
    tok_per_s=0.25,  # 4 s: 1 s waiting, 1 s of rest beside the weights
    wait_seconds=1.0,
    hit_rate=0.5,
    slots=10,
    replayed={10: 0.4, 20: 0.7, 40: 1.0},
    budget_bytes=1 << 30,
    fixed_bytes=0,
    set_bytes=(1 << 30) // 10,
    most_bytes=1 << 30,
    threads=2,
    cores=2,
)


def first(now: Situation) -> tuple[str, str]:
    knob = knobs(now)[0]
    return knob.setting, knob.value


def test_more_memory_takes_waiting_away_as_a_replay_says() -> None:
    now = replace(NOW, most_bytes=2 << 30)
    (knob, *_) = (k for k in knobs(now) if k.setting == "RAM_GB")
    # 20 slots: misses .6 -> .3 in the replay, so .5 -> .25 in the run, and half of the waiting
    assert knob.value == "2.0"
    assert knob.tok_per_s == pytest.approx(1 / 3.5)
    assert "20 slots a layer instead of 10 would hit 75 % instead of 50 %" in knob.reason


def test_room_in_the_budget_comes_before_more_memory() -> None:
    assert first(replace(NOW, set_bytes=1000, most_bytes=2 << 30)) == ("CAP", "40")


def test_no_more_slots_are_asked_for_than_bring_nearly_all() -> None:
    now = replace(NOW, set_bytes=1000, replayed={10: 0.4, 20: 0.98, 40: 1.0})
    assert first(now) == ("CAP", "20")


def test_memory_that_the_machine_has_not_is_never_the_knob() -> None:
    last = knobs(NOW)[-1]
    assert [knob.within for knob in knobs(NOW) if knob.setting == "RAM_GB"] == [False]
    assert last.setting == "RAM_GB" and "this machine would give 1.0 GiB" in last.reason


def test_a_faster_way_to_read_shortens_the_waiting() -> None:
    slow, fast = Reading(False, 4, 500.0), Reading(True, 8, 1000.0)
    now = replace(NOW, reading=slow, readings=(slow, fast))
    (knob,) = [knob for knob in knobs(now) if knob.setting == "DIRECT"]
    assert knob.value == "1" and knob.tok_per_s == pytest.approx(1 / 3.5)
    now = replace(now, readings=(slow, replace(fast, direct=False)))
    assert ("IO_THREADS", "8") in [(knob.setting, knob.value) for knob in knobs(now)]


def test_threads_that_were_set_too_few_are_named() -> None:
    twice = Speeds(2000.0, 2000.0, None, "")
    now = replace(NOW, threads=1, speeds_on_cores=twice)
    (knob,) = [knob for knob in knobs(now) if knob.setting == "THREADS"]
    assert knob.value == "2" and knob.tok_per_s == pytest.approx(1 / 3)


def test_a_smaller_format_changes_the_text_and_comes_after_what_does_not() -> None:
    now = replace(NOW, smaller=("q4", 50), set_bytes=1000)
    settings = [knob.setting for knob in knobs(now)]
    assert settings.index("CAP") < settings.index("convert --experts")
    (knob,) = [knob for knob in knobs(now) if not knob.same_text]
    # half the bytes in twice the slots: a quarter of the waiting, and half of the experts' second
    assert knob.tok_per_s == pytest.approx(1 / (0.25 + 1 + 1.5))
    assert knob.line().startswith("convert --experts q4: ")


def test_drafts_share_dense_weights_and_experts_and_depend_on_the_text() -> None:
    now = replace(NOW, unique=10.0, fewer_misses=0.5)
    (knob,) = [knob for knob in knobs(now) if not knob.certain]
    # of 4 rows: dense 1 s and 2 x 10 experts 2 s; half of the waiting each
    assert knob.tok_per_s == pytest.approx(1 / (0.5 + 1 + 3 / 4))


def test_what_is_worth_less_than_a_twentieth_is_not_told() -> None:
    settled = replace(NOW, hit_rate=1.0, wait_seconds=0.0, tok_per_s=1 / 3, replayed={10: 1.0})
    settled = replace(
        settled, unique=5 * 4, fewer_misses=1.0, work=replace(NOW.work, dense_bytes=1)
    )
    assert knobs(settled) == []


def test_kernels_that_were_faster_than_measured_alone_leave_no_negative_rest() -> None:
    now = replace(NOW, tok_per_s=1.0, wait_seconds=0.5)  # half a second for weights of two
    assert now.expected() == pytest.approx(1.0)
    assert now.expected(hit_rate=1.0) == pytest.approx(2.0)
