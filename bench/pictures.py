"""The pictures of a benchmark: each draws what it is given on axes, and knows no files.

The rule of this file: bars and speeds begin at zero, shares go from 0 to 100 %, what a value is in
stands at its axis, and a line under the title says of how many runs it is and how their cache was.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.ticker import FuncFormatter, MaxNLocator

from diskmoe.bench.svg import COLOURS, HEAT, INK, MARKERS, MUTED, PAPER, REST

Counts = npt.NDArray[np.int64]
SURE = 1.96  # standard deviations to each side of a 95 % interval
_NOTE_WIDTH = 60  # characters: what stands beside long names of bars


@dataclass(frozen=True)
class Point:
    """Runs that were alike. x: what was varied, values: one of each run."""

    x: float
    values: tuple[float, ...]


def draw_speeds(
    axes: Axes, arms: Mapping[str, Sequence[Point]], x_label: str, note: str = ""
) -> None:
    """Tokens per second against what was varied: a line through medians, least to most of the runs
    as a bar, every run as a dot."""
    places = sorted({point.x for points in arms.values() for point in points})
    for place, (label, points) in enumerate(arms.items()):
        colour, marker = _look(place)
        middles = [median(point.values) for point in points]
        aside = 0.012 * max(places) * (place - (len(arms) - 1) / 2)  # or bars hide each other
        xs = [point.x + aside for point in points]
        axes.vlines(
            xs,
            [min(point.values) for point in points],
            [max(point.values) for point in points],
            colors=colour,
            linewidth=1.2,
        )
        every = [(point.x + aside, value) for point in points for value in point.values]
        axes.plot(*zip(*every, strict=True), ".", color=colour, markersize=3, label="_runs")
        axes.plot(xs, middles, color=colour, marker=marker, label=label)
    axes.set_xticks(places, [f"{x:g}" for x in places])
    axes.set_xlim(left=0)
    _finish(axes, "Tokens per second", note, x_label, "tokens/s")
    axes.set_ylim(bottom=0)
    _legend(axes)


def draw_speed_bars(axes: Axes, arms: Mapping[str, Sequence[float]], note: str = "") -> None:
    """Tokens per second of each arm: a bar to the median, every run as a dot."""
    labels = list(arms)
    colours = [_look(place)[0] for place in range(len(labels))]
    axes.barh(labels, [median(values) for values in arms.values()], color=colours, height=0.6)
    for place, values in enumerate(arms.values()):
        axes.plot(values, [place] * len(values), "|", color=INK, markersize=9, label="_runs")
    _finish(axes, "Tokens per second", note, "tokens/s", "")
    _bars_from_above(axes)


def draw_hit_rates(
    axes: Axes,
    policies: Mapping[str, Sequence[tuple[int, float]]],
    best: Sequence[tuple[int, float]],
    measured: Sequence[tuple[int, float]] = (),
    note: str = "",
) -> None:
    """Hit rate (0 to 1) against slots per layer: each policy in a replay, the best possible, and
    what runs had."""
    axes.plot(*_percent(best), color=INK, linestyle="--", label="Belady (knows the future)")
    for place, (name, points) in enumerate(policies.items()):
        colour, marker = _look(place)
        axes.plot(*_percent(points), color=colour, marker=marker, markersize=4, label=name)
    if measured:
        axes.plot(
            *_percent(measured),
            "*",
            color=INK,
            markersize=11,
            markeredgecolor=PAPER,
            label="measured in runs",
        )
    _finish(axes, "Hit rate by slots and policy", note, "slots per layer", "hit rate")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(left=0)
    _percent_axis(axes)
    _legend(axes)


def draw_acceptance(
    axes: Axes, sources: Mapping[str, Sequence[tuple[int, int]]], note: str = ""
) -> None:
    """Accepted of the judged drafts by their position in what a source drafted, with 95 % intervals.

    sources: by label, (judged, accepted) of the first, second, ... draft.
    """
    most = 1
    for place, (label, counts) in enumerate(sources.items()):
        colour, marker = _look(place)
        seen = [(i, judged, right) for i, (judged, right) in enumerate(counts, 1) if judged]
        if not seen:
            continue
        most = max(most, seen[-1][0])
        xs = [i + 0.06 * (place - (len(sources) - 1) / 2) for i, _, _ in seen]
        shares = [100 * right / judged for _, judged, right in seen]
        bounds = [share_interval(right, judged) for _, judged, right in seen]
        axes.vlines(
            xs,
            [100 * low for low, _ in bounds],
            [100 * high for _, high in bounds],
            colors=colour,
            linewidth=1.2,
        )
        total = sum(judged for _, judged, _ in seen)
        axes.plot(xs, shares, color=colour, marker=marker, label=f"{label} ({total} judged)")
    _finish(axes, "Acceptance by position", note, "draft of the source in a forward", "accepted")
    axes.set_xlim(0.5, most + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True))
    _percent_axis(axes)
    _legend(axes)


@dataclass(frozen=True)
class Parts:
    """Seconds of a token: waiting for reads, computing, and neither."""

    read_wait: float
    compute: float
    other: float


def draw_times(axes: Axes, arms: Mapping[str, Parts], note: str = "") -> None:
    """What a token's time goes into, in milliseconds: one stacked bar for each arm."""
    labels = list(arms)
    begins = np.zeros(len(labels))
    for title, colour, seconds in (
        ("read wait", COLOURS[1], [parts.read_wait for parts in arms.values()]),
        ("compute", COLOURS[0], [parts.compute for parts in arms.values()]),
        ("other", REST, [parts.other for parts in arms.values()]),
    ):
        wide = 1000 * np.asarray(seconds)
        axes.barh(labels, wide, left=begins, color=colour, label=title, height=0.6, edgecolor=PAPER)
        begins = begins + wide
    for place, total in enumerate(begins):
        axes.annotate(
            f"{total:.3g} ms",
            (total, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=10,
        )
    _finish(axes, "Time of a token", note, "milliseconds per token", "")
    _bars_from_above(axes)
    axes.set_xlim(0, 1.18 * max(begins, default=0.0) or 1.0)
    _legend(axes)


def draw_experts(axes: Axes, counts: Counts, layers: Sequence[int], note: str = "") -> None:
    """How often each expert of each layer was chosen, as a share of its layer's choices.

    counts: i64 (layers, experts).
    """
    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    scale = PowerNorm(0.5, vmin=0)  # most are seldom chosen and would all look the same
    image = axes.imshow(shares, aspect="auto", interpolation="none", cmap=HEAT, norm=scale)
    axes.grid(visible=False)
    step = max(1, math.ceil(len(layers) / 12))
    axes.set_yticks(range(0, len(layers), step), [str(layer) for layer in layers[::step]])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    bar = axes.figure.colorbar(image, ax=axes, pad=0.02)
    bar.set_label("% of the layer's choices, root scale")
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    _finish(axes, "Experts that were chosen", note, "expert", "layer")


def share_interval(right: int, judged: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, from 0 to 1."""
    share, square = right / judged, SURE * SURE / judged
    middle = share + square / 2
    spread = SURE * math.sqrt(share * (1 - share) / judged + square / (4 * judged))
    return max(0.0, (middle - spread) / (1 + square)), min(1.0, (middle + spread) / (1 + square))


def _look(place: int) -> tuple[str, str]:
    """Colour and marker of the line at a place."""
    return COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]


def _percent(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [x for x, _ in points], [100 * share for _, share in points]


def _percent_axis(axes: Axes) -> None:
    axes.set_ylim(0, 102)  # a line along the top is still seen
    axes.set_yticks(range(0, 101, 20))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:g} %"))


def _bars_from_above(axes: Axes) -> None:
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(left=0)


def _legend(axes: Axes) -> None:
    """Below the axes, where it hides nothing, in as many columns as the figure is wide for."""
    handles, labels = axes.get_legend_handles_labels()
    for columns in range(min(3, len(labels)), 0, -1):
        legend = axes.figure.legend(handles, labels, loc="outside lower left", ncols=columns)
        if columns == 1 or legend.get_window_extent().width <= axes.figure.bbox.width:
            break
        legend.remove()


def _finish(axes: Axes, title: str, note: str, x_label: str, y_label: str) -> None:
    lines = textwrap.wrap(note, _NOTE_WIDTH)
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=8 + 12 * len(lines))
    below = axes.annotate(
        "\n".join(lines),
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, 5),
        textcoords="offset points",
        fontsize=9,
        color=MUTED,
        va="bottom",
    )
    below.set_in_layout(False)  # or its width would move what stands beside the axes
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
