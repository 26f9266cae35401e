"""What runs say about their arms: medians, the ratio of their speeds and how sure it is.

Everything here is a function of `Results`: a directory is compared the same today and next year.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import zip_longest
from typing import Any, Literal

from diskmoe.bench.arms import names_given
from diskmoe.bench.machine import BUSY
from diskmoe.bench.ratios import LEVEL, Ratio, median_interval, paired_ratio
from diskmoe.bench.results import Acceptance, Experiment, Figures, Results, Run
from diskmoe.engine.report import shown

Verdict = Literal["no difference", "a faster", "b faster", "outputs differ"]
NUMBERS = tuple(field.name for field in fields(Figures) if field.name != "acceptance")
FEWEST_PAIRS = 6  # below, only a great difference can be told from noise
MOST_CACHED = 0.1  # of a model's files, for the page cache to count as emptied


@dataclass(frozen=True)
class ArmSummary:
    """An arm at a rung: medians over its runs."""

    name: str
    given: str
    runs: int
    settings: Mapping[str, Any]  # effective values, in its first run
    medians: Mapping[str, float | None]  # by name of a figure; None: no run could say
    acceptance: Mapping[str, Acceptance]  # by source, all runs together
    quartiles: tuple[float, float] | None  # of tok/s
    interval: tuple[float, float] | None  # of the median of tok/s, bootstrap


@dataclass(frozen=True)
class Comparison:
    """An arm beside the first, at a rung. ratio: of tok/s, above 1 where the arm is the faster."""

    rung: int
    rung_given: str
    a: ArmSummary
    b: ArmSummary
    pairs: int
    ratio: Ratio | None  # None: no pair has speeds
    by_prompt: Mapping[str, float]  # ratio of each prompt's own pairs
    same_ids: bool | None  # None: a program hides them
    differing: tuple[str, ...]  # prompts whose ids are not the same in all runs of the two
    verdict: Verdict | None  # of the first arm as a, the other as b; None: no pair yet
    warnings: tuple[str, ...]


def compare(results: Results) -> list[Comparison]:
    """Each further arm against the first, rung by rung."""
    experiment = results.experiment
    first, *others = experiment.arms
    by_cell: dict[tuple[int, str], list[Run]] = defaultdict(list)
    for run in results.runs:
        by_cell[run.rung, run.arm].append(run)
    return [
        _compared(experiment, rung, by_cell[rung, first.name], by_cell[rung, arm.name], arm.name)
        for rung in range(len(experiment.rungs))
        for arm in others
    ]


def _compared(
    experiment: Experiment, rung: int, a: Sequence[Run], b: Sequence[Run], name: str
) -> Comparison:
    first = experiment.arms[0].name
    pairs = list(_pairs(a, b))
    logs: dict[int, list[float]] = defaultdict(list)
    for one, other in pairs:
        before, after = one.figures.tok_per_s, other.figures.tok_per_s
        if before and after:
            logs[one.prompt].append(math.log(after / before))
    ratio = paired_ratio([log for found in logs.values() for log in found]) if logs else None
    same, differing = _same_ids(experiment, [*a, *b])
    return Comparison(
        rung=rung,
        rung_given=experiment.rungs[rung],
        a=summary(experiment, first, a),
        b=summary(experiment, name, b),
        pairs=sum(map(len, logs.values())),
        ratio=ratio,
        by_prompt={
            experiment.prompts[prompt].name: math.exp(statistics.median(logs[prompt]))
            for prompt in sorted(logs)
        },
        same_ids=same,
        differing=differing,
        verdict=_verdict(ratio, same) if pairs else None,
        warnings=tuple(_warnings(experiment, pairs, first, name)),
    )


def _pairs(a: Iterable[Run], b: Iterable[Run]) -> Iterable[tuple[Run, Run]]:
    """Runs of the same prompt and repeat: they stood next to each other in time."""
    found = {(run.prompt, run.repeat): run for run in b}
    for run in sorted(a, key=lambda run: run.order):
        if (run.prompt, run.repeat) in found:
            yield run, found[run.prompt, run.repeat]


def _verdict(ratio: Ratio | None, same_ids: bool | None) -> Verdict:
    if same_ids is False:
        return "outputs differ"
    low, high = (ratio and ratio.interval) or (0.0, math.inf)
    if low > 1:
        return "b faster"
    return "a faster" if high < 1 else "no difference"


def _same_ids(experiment: Experiment, runs: Sequence[Run]) -> tuple[bool | None, tuple[str, ...]]:
    """(whether each prompt has the same ids in all runs, names of the prompts that have not)."""
    if not runs or any(run.token_ids is None for run in runs):
        return None, ()
    found: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for run in runs:
        found[run.prompt].add(run.token_ids or ())
    differing = [experiment.prompts[p].name for p, ids in sorted(found.items()) if len(ids) > 1]
    return not differing, tuple(differing)


def summary(experiment: Experiment, name: str, runs: Sequence[Run]) -> ArmSummary:
    """Medians of an arm's runs at one rung."""
    (arm,) = [arm for arm in experiment.arms if arm.name == name]
    figures = [run.figures for run in runs]
    speeds = [each.tok_per_s for each in figures if each.tok_per_s is not None]
    settings = runs[0].settings if runs else {}
    return ArmSummary(
        name=name,
        given=arm.given,
        runs=len(runs),
        settings={key: setting.value for key, setting in settings.items()},
        medians={key: _median(getattr(each, key) for each in figures) for key in NUMBERS},
        acceptance=_together(figures),
        quartiles=_quartiles(speeds),
        interval=median_interval(speeds),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _quartiles(values: Sequence[float]) -> tuple[float, float] | None:
    if len(values) < 2:
        return None
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _together(figures: Sequence[Figures]) -> dict[str, Acceptance]:
    """Drafts of all runs, by source. Places are added up as far as each run has them."""
    found: dict[str, Acceptance] = {}
    for each in figures:
        for name, more in each.acceptance.items():
            so_far = found.get(name, Acceptance(0, 0, ()))
            places = zip_longest(so_far.by_position, more.by_position, fillvalue=(0, 0))
            found[name] = Acceptance(
                so_far.judged + more.judged,
                so_far.accepted + more.accepted,
                tuple(tuple(map(sum, zip(*pair, strict=True))) for pair in places),
            )
    return found


def _warnings(
    experiment: Experiment, pairs: Sequence[tuple[Run, Run]], first: str, name: str
) -> Iterator[str]:
    """What a reader of the verdict must know beside it."""
    if not pairs:
        return
    if len({arm.program for arm in experiment.arms if arm.name in (first, name)}) == 1:
        yield from _warnings_of_settings(experiment, pairs, first, name)
    if len(pairs) < FEWEST_PAIRS:
        yield f"{len(pairs)} pairs of runs: only a great difference can be told from noise"
    runs = [run for pair in pairs for run in pair]
    busy = _median(run.others_cpu for run in runs)
    if busy is not None and busy > BUSY:
        yield f"busy machine: others kept {100 * busy:.0f} % of its processors busy during runs"
    cached = _median(run.cached_share for run in runs)
    if experiment.cache == "dropped" and cached is not None and cached > MOST_CACHED:
        yield f"the page cache kept {100 * cached:.0f} % of the model's files: others have them open"


def _warnings_of_settings(
    experiment: Experiment, pairs: Sequence[tuple[Run, Run]], first: str, name: str
) -> Iterator[str]:
    """Of two arms of this program: whether they differ in what was asked for, and only in that."""
    pair = [arm for arm in experiment.arms if arm.name in (first, name)]
    given = {arm.name: names_given(arm.given) for arm in pair}
    asked = {
        key
        for key in {*given[first], *given[name]}
        if given[first].get(key) != given[name].get(key)
    }
    found = _differing_settings(pairs)
    more = [
        f"{key} ({before} and {after})"
        for key, (before, after) in found.items()
        if key not in asked
    ]
    if more:
        yield f"settings differ in more than what was asked for: {', '.join(more)}"
    without = sorted(asked - set(found))
    if without:
        yield f"{', '.join(without)} of {name} changed nothing: both arms had the same value"
    if not asked:
        yield f"{first} and {name} are the same: what is measured is the noise"


def _differing_settings(pairs: Sequence[tuple[Run, Run]]) -> dict[str, tuple[str, str]]:
    """Effective settings that are not the same in a pair, with the values of the first such pair."""
    found: dict[str, tuple[str, str]] = {}
    for one, other in pairs:
        for key in {**one.settings, **other.settings}:
            before, after = one.settings.get(key), other.settings.get(key)
            values = (before and before.value, after and after.value)
            if values[0] != values[1] and key not in found:
                found[key] = (shown(values[0]), shown(values[1]))
    return dict(sorted(found.items()))


def as_json(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """The first comparison's keys, and under ``comparisons`` every one's."""
    told = [_one_json(comparison) for comparison in comparisons]
    return {**told[0], "comparisons": told}


def _one_json(comparison: Comparison) -> dict[str, Any]:
    ratio = comparison.ratio
    return {
        "rung": comparison.rung_given,
        "compared": [comparison.a.name, comparison.b.name],
        "arms": {arm.name: _arm_json(arm) for arm in (comparison.a, comparison.b)},
        "pairs": comparison.pairs,
        "ratio": None if ratio is None else ratio.value,
        "interval": None if ratio is None else ratio.interval,
        "level": LEVEL,
        "by_prompt": dict(comparison.by_prompt),
        "same_ids": comparison.same_ids,
        "differing_prompts": list(comparison.differing),
        "verdict": comparison.verdict,
        "warnings": list(comparison.warnings),
    }


def _arm_json(arm: ArmSummary) -> dict[str, Any]:
    return {
        "given": arm.given,
        "runs": arm.runs,
        "settings": dict(arm.settings),
        "medians": dict(arm.medians),
        "acceptance": {name: asdict(found) for name, found in arm.acceptance.items()},
        "tok_per_s_quartiles": arm.quartiles,
        "tok_per_s_interval": arm.interval,
    }
