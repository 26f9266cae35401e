"""What is made of runs: medians, verdicts, and what a reader must be warned of."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tiny_results import experiment, figures, run, timed

from diskmoe.bench import tables
from diskmoe.bench.comparing import Comparison, as_json, compare
from diskmoe.bench.results import Acceptance, Arm, Experiment, Results, Run, Setting

NOISE = (1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.99)


def results(runs: Sequence[Run], **changes) -> Results:
    return Results(Path("out"), experiment(**changes), runs)


def at(b_speeds: Sequence[float], **b_changes) -> list[Run]:
    """Pairs of runs at rung 0, prompt 0: a with 100 tok/s and some noise, b as given."""
    runs = []
    for repeat, speed in enumerate(b_speeds):
        place = (repeat, 0, 0)
        runs += [
            timed("a", 100 * NOISE[-1 - repeat % 8], place),
            timed("b", speed, place, **b_changes),
        ]
    return runs


def only(runs: Sequence[Run], **changes) -> Comparison:
    return compare(results(runs, **{"rungs": ("",), **changes}))[0]


@pytest.mark.parametrize(
    ("times", "verdict"), [(1.0, "no difference"), (0.8, "a faster"), (1.2, "b faster")]
)
def test_a_verdict_stands_where_the_interval_leaves_no_room_for_one(
    times: float, verdict: str
) -> None:
    found = only(at([100 * times * noise for noise in NOISE]))
    assert found.verdict == verdict and found.ratio is not None and found.ratio.interval is not None
    assert found.ratio.value == pytest.approx(times, rel=0.02)
    low, high = found.ratio.interval
    assert (low <= 1 <= high) is (verdict == "no difference")


def test_a_difference_within_the_noise_is_none() -> None:
    assert only(at([60, 150, 90, 120, 70, 140, 100, 80])).verdict == "no difference"


def test_other_token_ids_are_the_verdict_whatever_the_speed() -> None:
    runs = at([200.0] * 8)
    runs[5] = timed("b", 200.0, (2, 0, 0), token_ids=(1, 3))
    found = only(runs)
    assert found.verdict == "outputs differ" and found.same_ids is False
    assert found.differing == ("one",)


def test_where_a_program_hides_its_ids_nothing_is_said_of_them() -> None:
    found = only(at([200.0] * 8, token_ids=None, program="llama.cpp"))
    assert found.same_ids is None and found.verdict == "b faster"


def test_one_pair_or_none_has_no_difference() -> None:
    one = only(at([300.0]))
    assert one.verdict == "no difference" and one.ratio is not None and one.ratio.interval is None
    none = only([timed("a", 100.0, (0, 0, 0))])
    assert none.verdict is None and none.ratio is None and none.pairs == 0
    assert "no pair" in tables.verdict_lines(none)[0]


def test_runs_without_text_have_no_speed_and_are_left_out_of_the_ratio() -> None:
    found = only([*at([100.0] * 6), timed("a", None, (6, 0, 0)), timed("b", 50.0, (6, 0, 0))])
    assert found.pairs == 6 and found.a.runs == 7
    silent = only([timed("a", None, (0, 0, 0)), timed("b", None, (0, 0, 0))])
    assert silent.verdict == "no difference" and silent.ratio is None


def test_each_rung_and_each_further_arm_is_compared_with_the_first_at_that_rung() -> None:
    arms = (Arm("a", "diskmoe", ""), Arm("b", "diskmoe", "CAP=4"), Arm("b2", "diskmoe", "CAP=2"))
    runs = [
        timed(arm, speed * (1 + rung), (repeat, rung, 0))
        for repeat in range(6)
        for rung in (0, 1)
        for arm, speed in (("a", 10.0), ("b", 20.0), ("b2", 5.0))
    ]
    found = compare(results(runs, arms=arms, rungs=("RAM_GB=1", "RAM_GB=2")))
    assert [(c.rung_given, c.b.name, c.verdict) for c in found] == [
        ("RAM_GB=1", "b", "b faster"),
        ("RAM_GB=1", "b2", "a faster"),
        ("RAM_GB=2", "b", "b faster"),
        ("RAM_GB=2", "b2", "a faster"),
    ]
    assert found[2].b.medians["tok_per_s"] == 40.0
    rows = tables.rows_of(found)
    assert [row[:2] for row in rows] == [
        [rung, arm] for rung in ("RAM_GB=1", "RAM_GB=2") for arm in ("a", "b", "b2")
    ]


def test_medians_pass_over_what_a_run_cannot_say_and_drafts_are_added_up() -> None:
    first = figures(tok_per_s=10.0, hit_rate=0.5, acceptance={"mtp": Acceptance(2, 1, ((2, 1),))})
    second = figures(tok_per_s=30.0, acceptance={"mtp": Acceptance(5, 4, ((3, 3), (2, 1)))})
    runs = [run(arm="a", rung=0, repeat=n, figures=f) for n, f in enumerate((first, second))]
    found = only(runs).a
    assert found.medians["tok_per_s"] == 20.0 and found.medians["hit_rate"] == 0.5
    assert found.medians["ttft_seconds"] is None
    assert found.acceptance == {"mtp": Acceptance(7, 5, ((5, 4), (2, 1)))}
    assert found.quartiles == (15.0, 25.0)


def test_ratios_by_prompt_show_whom_an_arm_helps() -> None:
    runs = [
        timed(arm, speed, (repeat, 0, prompt))
        for repeat in range(3)
        for prompt, times in enumerate((1, 2))
        for arm, speed in (("a", 10.0), ("b", 10.0 * times))
    ]
    assert only(runs).by_prompt == pytest.approx({"one": 1.0, "two": 2.0})


def settings(**values) -> Mapping[str, Setting]:
    return {name: Setting(value, "auto") for name, value in values.items()}


@pytest.mark.parametrize(
    ("given", "b_settings", "said"),
    [
        ("CAP=4", {"CAP": 4, "RAM_GB": 2}, []),
        (
            "CAP=4",
            {"CAP": 4, "RAM_GB": 3},
            ["settings differ in more than what was asked for: RAM_GB (2 and 3)"],
        ),
        (
            "CAP=8",
            {"CAP": 8, "RAM_GB": 2},
            ["CAP of b changed nothing: both arms had the same value"],
        ),
        ("", {"CAP": 8, "RAM_GB": 2}, ["a and b are the same: what is measured is the noise"]),
    ],
)
def test_more_or_less_than_what_was_asked_for_is_warned_of(
    given: str, b_settings: dict, said: list[str]
) -> None:
    arms = (Arm("a", "diskmoe", ""), Arm("b", "diskmoe", given))
    runs = []
    for repeat in range(6):
        runs.append(timed("a", 10.0, (repeat, 0, 0), settings=settings(CAP=8, RAM_GB=2)))
        runs.append(timed("b", 10.0, (repeat, 0, 0), settings=settings(**b_settings)))
    assert list(only(runs, arms=arms).warnings) == said


def test_a_busy_machine_and_a_full_page_cache_are_warned_of() -> None:
    runs = at([100.0] * 6, others_cpu=0.9, cached_share=0.8)
    said = " ".join(only(runs, cache="dropped").warnings)
    assert "others kept 46 % of its processors busy" in said
    assert "the page cache kept 40 % of the model's files" in said
    assert "page cache" not in " ".join(only(runs, cache="warm").warnings)


def test_json_has_what_was_promised_and_every_comparison() -> None:
    runs = [*at([200 * noise for noise in NOISE])]
    told = json.loads(json.dumps(as_json(compare(results(runs, rungs=("",)))), allow_nan=False))
    assert set(told["arms"]) == {"a", "b"}
    assert told["arms"]["a"]["medians"]["hit_rate"] == 0.75
    assert told["arms"]["b"]["settings"]["CAP"] == 8
    assert told["verdict"] == "b faster" and told["same_ids"] is True
    assert told["compared"] == ["a", "b"]
    assert told["interval"][0] < told["ratio"] < told["interval"][1]
    assert told["comparisons"] == [{k: v for k, v in told.items() if k != "comparisons"}]


def test_the_table_the_verdict_and_the_circumstances_are_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = results(at([200 * noise for noise in NOISE]), rungs=("",))
    tables.show(made, compare(made))
    shown = capsys.readouterr().out
    assert all(title in shown for title in tables.HEADS)
    assert "b is faster" in shown and "token ids equal in all runs" in shown
    assert "75.0 %" in shown and "ngram 75 % of 32" in shown and "machine" in shown
    text = tables.markdown(made, compare(made))
    heads, marks, *rows = text.splitlines()[:4]
    assert {line.count("|") for line in (heads, marks, *rows)} == {len(tables.HEADS) + 1}
    assert "**b / a 2.0" in text


def test_a_table_shows_a_dash_for_what_nobody_could_say() -> None:
    row = tables.rows_of([only([timed("a", 10.0, (0, 0, 0))])])[0]
    assert row[tables.HEADS.index("ttft")] == "-"


def test_an_experiment_of_one_arm_has_nothing_to_compare() -> None:
    made: Experiment = experiment(arms=(Arm("a", "diskmoe", ""),))
    assert compare(Results(Path("out"), made, [])) == []
