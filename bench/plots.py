"""Which pictures a directory of results gives, from its runs and its recorded routing alone.

The rule of this file: a picture that has nothing to show is left out, and what a file says beside its
schema (a run's ``report``) is believed only where it is what it should be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from types import MappingProxyType

import numpy as np
from matplotlib.axes import Axes

from diskmoe.bench.comparing import summary
from diskmoe.bench.page import Picture
from diskmoe.bench.pictures import (
    Counts,
    Parts,
    Point,
    draw_acceptance,
    draw_experts,
    draw_hit_rates,
    draw_speed_bars,
    draw_speeds,
    draw_times,
)
from diskmoe.bench.replay import SLOTS_PER_EXPERT, replay
from diskmoe.bench.results import Arm, Experiment, Results, Run
from diskmoe.bench.svg import svg_of
from diskmoe.bench.trace import Recording
from diskmoe.engine.settings import BY_NAME
from diskmoe.experts.policy import POLICIES
from diskmoe.experts.trace import DECODE

AXES: Mapping[str, str] = MappingProxyType(
    {"CAP": "slots per layer", "RAM_GB": "memory budget (RAM_GB), GiB", "DISK_BPS": "disk, bytes/s"}
)
CACHES: Mapping[str, str] = MappingProxyType(
    {
        "dropped": "cold: page cache emptied before each run",
        "warm": "warm: model in the page cache",
        "as found": "page cache as found",
    }
)
MOST_UNIONS = 40_000  # of a recorded routing, that are replayed for each policy and number of slots
MOST_CELLS = 1 << 20  # of the heat map
_BAR, _BESIDE_BARS = 0.36, 1.5  # inches


def pictures_of(results: Results, recording: Recording | None) -> list[Picture]:
    """All that can be drawn, in the order in which to look at it."""
    found = [*_speeds(results), *_times(results), *_acceptance(results)]
    if recording is not None:
        found += [*_hit_rates(results, recording), *_experts(results, recording)]
    return found


def hit_rates(recording: Recording, counts: Sequence[int]) -> dict[str, list[tuple[int, float]]]:
    """(slots, hit rate of decoding) of each policy by name, and of "belady"."""
    policies = {**POLICIES, "belady": None}
    return {
        name: [(n, replay(recording, n, policy)[DECODE].rate) for n in counts]
        for name, policy in policies.items()
    }


def choices(recording: Recording, experts: int) -> Counts:
    """i64 (layers, experts): how often decoded rows chose each."""
    counts = np.zeros((len(recording.layers), experts), np.int64)
    for place, forwards in enumerate(recording.layers.values()):
        for forward in forwards:
            if forward.phase == DECODE:
                np.add.at(counts[place], np.array(forward.rows), 1)
    return counts


def rung_axis(experiment: Experiment) -> tuple[str, list[float]] | None:
    """(what was varied, its value at each rung); None where rungs are no numbers of one setting."""
    pairs = [rung.partition("=")[::2] for rung in experiment.rungs]
    names = {name for name, _ in pairs}
    name = next(iter(names))
    if len(names) != 1 or name not in BY_NAME or len(pairs) < 2:
        return None
    values: list[float] = []
    for _, text in pairs:
        try:
            value = BY_NAME[name].parse(text)
        except ValueError:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        values.append(value)
    return AXES.get(name, name), values


def time_parts(runs: Sequence[Run]) -> Parts | None:
    """Seconds of a mean token of these runs; None where no run says them all."""
    tokens, wait, compute, whole = 0, 0.0, 0.0, 0.0
    for run in runs:
        figures = run.figures
        parts = (figures.read_wait_seconds, figures.compute_seconds, figures.decode_seconds)
        if not figures.tokens or any(part is None for part in parts):
            continue
        tokens += figures.tokens
        wait += parts[0] or 0.0
        compute += parts[1] or 0.0
        whole += parts[2] or 0.0
    if tokens <= 0:
        return None
    return Parts(wait / tokens, compute / tokens, max(0.0, whole - wait - compute) / tokens)


def _speeds(results: Results) -> Iterator[Picture]:
    axis = rung_axis(results.experiment)
    speeds = {
        (arm.name, rung): tuple(
            run.figures.tok_per_s for run in runs if run.figures.tok_per_s is not None
        )
        for (arm, rung), runs in _cells(results)
    }
    speeds = {cell: values for cell, values in speeds.items() if values}
    if not speeds:
        return
    note = _note(results, [len(values) for values in speeds.values()])
    if axis is None:
        bars = {_label(results, arm, rung): values for (arm, rung), values in speeds.items()}
        yield _picture(
            "speed",
            "Tokens per second of each arm",
            lambda axes: draw_speed_bars(axes, bars, f"{note}; bars: medians, strokes: runs"),
            len(bars),
        )
        return
    label, values = axis
    lines: dict[str, list[Point]] = defaultdict(list)
    for (arm, rung), found in sorted(speeds.items(), key=lambda cell: values[cell[0][1]]):
        lines[arm].append(Point(values[rung], found))
    arms = {arm.name: lines[arm.name] for arm in results.experiment.arms if arm.name in lines}
    yield _picture(
        "speed",
        f"Tokens per second against {label}",
        lambda axes: draw_speeds(
            axes, arms, label, f"{note}; through medians, from least to most, dots: runs"
        ),
    )


def _times(results: Results) -> Iterator[Picture]:
    bars: dict[str, Parts] = {}
    counts = []
    for (arm, rung), runs in _cells(results):
        parts = time_parts(runs)
        if parts is not None:
            bars[_label(results, arm.name, rung)] = parts
            counts.append(len(runs))
    if bars:
        note = f"{_note(results, counts)}; means over all tokens"
        yield _picture(
            "time",
            "What a token's time goes into",
            lambda axes: draw_times(axes, bars, note),
            len(bars),
        )


def _acceptance(results: Results) -> Iterator[Picture]:
    sources: dict[str, list[tuple[int, int]]] = {}
    for arm in results.experiment.arms:
        runs = [run for run in results.runs if run.arm == arm.name]
        for name, found in summary(results.experiment, arm.name, runs).acceptance.items():
            places = [(judged, right) for judged, right in found.by_position]
            if any(judged for judged, _ in places):
                sources[f"{arm.name}: {name}"] = places
    if sources:
        note = f"{len(results.runs)} runs, all rungs and prompts together; 95 % intervals"
        yield _picture(
            "acceptance",
            "Acceptance of drafts by position",
            lambda axes: draw_acceptance(axes, sources, note),
        )


def _hit_rates(results: Results, recording: Recording) -> Iterator[Picture]:
    short, cut = _shortened(recording)
    if not any(f.phase == DECODE for forwards in short.layers.values() for f in forwards):
        return
    experts = _experts_of(results, recording)
    slots = [int(times * recording.top_k) for times in SLOTS_PER_EXPERT]
    counts = sorted({n for n in slots if 0 < n <= experts}) or [1]
    found = hit_rates(short, counts)
    best = found.pop("belady")
    name, prompt = _traced(results)
    measured = _measured(results)
    note = f"replay of the routing of arm {name}, prompt {prompt}, decoding only{cut}"
    yield _picture(
        "hits",
        "Hit rate by slots and policy",
        lambda axes: draw_hit_rates(axes, found, best, measured, note),
    )


def _experts(results: Results, recording: Recording) -> Iterator[Picture]:
    experts = _experts_of(results, recording)
    if experts * len(recording.layers) > MOST_CELLS:
        return
    counts = choices(recording, experts)
    if not counts.any():
        return
    name, prompt = _traced(results)
    rows = int(counts.sum(axis=1).max()) // max(1, recording.top_k)
    note = (
        f"arm {name}, prompt {prompt}: {rows} decoded rows; evenly it would be "
        f"{100 / experts:.3g} % each"
    )
    yield _picture(
        "experts",
        "Which experts were chosen, layer by layer",
        lambda axes: draw_experts(axes, counts, list(recording.layers), note),
    )


def _picture(name: str, title: str, draw: Callable[[Axes], None], bars: int = 0) -> Picture:
    """bars: how many lie one below the other; 0: the picture is no stack of bars."""
    if bars:
        return Picture(name, title, svg_of(draw, name, title, height=_BESIDE_BARS + _BAR * bars))
    return Picture(name, title, svg_of(draw, name, title))


def _cells(results: Results) -> list[tuple[tuple[Arm, int], list[Run]]]:
    """((arm, rung), its runs), where there are any, rung by rung."""
    experiment = results.experiment
    cells = [(arm, rung) for rung in range(len(experiment.rungs)) for arm in experiment.arms]
    found = [
        (cell, [run for run in results.runs if (run.arm, run.rung) == (cell[0].name, cell[1])])
        for cell in cells
    ]
    return [(cell, runs) for cell, runs in found if runs]


def _label(results: Results, arm: str, rung: int) -> str:
    given = results.experiment.rungs[rung]
    return f"{arm}  {given[:24]}" if given else arm


def _note(results: Results, counts: Sequence[int]) -> str:
    """How the cache was, and of how many runs each value is."""
    few, many = min(counts), max(counts)
    runs = f"{few}" if few == many else f"{few} to {many}"
    return f"{CACHES[results.experiment.cache]}; n = {runs} runs each"


def _traced(results: Results) -> tuple[str, str]:
    """Arm and prompt whose routing was recorded."""
    experiment = results.experiment
    prompt = experiment.prompts[0].name[:40] if experiment.prompts else "none"
    return (experiment.arms[0].name if experiment.arms else "none"), prompt


def _measured(results: Results) -> list[tuple[int, float]]:
    """(slots, median hit rate) of the runs of the arm and the prompt whose routing was recorded."""
    name, _ = _traced(results)
    rates: dict[int, list[float]] = defaultdict(list)
    for run in results.runs:
        slots, rate = run.report.get("slots_per_layer"), run.figures.hit_rate
        if run.arm == name and run.prompt == 0 and type(slots) is int and rate is not None:
            rates[slots].append(rate)
    return [(slots, median(found)) for slots, found in sorted(rates.items())]


def _experts_of(results: Results, recording: Recording) -> int:
    """Experts of a layer: as the runs say, and at least those that were chosen."""
    chosen = 1 + max(
        expert
        for forwards in recording.layers.values()
        for forward in forwards
        for row in forward.rows
        for expert in row
    )
    told = [run.report.get("model") for run in results.runs]
    counts = [model.get("experts") for model in told if isinstance(model, Mapping)]
    return max([chosen, *(n for n in counts if type(n) is int and 0 < n < 1 << 16)])


def _shortened(recording: Recording) -> tuple[Recording, str]:
    """As much of it as is replayed in seconds, and a word where that is not all."""
    each = max(1, MOST_UNIONS // len(recording.layers))
    if all(len(forwards) <= each for forwards in recording.layers.values()):
        return recording, ""
    layers = {layer: forwards[:each] for layer, forwards in recording.layers.items()}
    return replace(recording, layers=layers), f", the first {each} forwards"
