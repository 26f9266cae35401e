"""Comparisons as tables: for a terminal (rich), and as Markdown."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from diskmoe.bench.columns import COLUMNS
from diskmoe.bench.comparing import ArmSummary, Comparison
from diskmoe.bench.machine import machine_line
from diskmoe.bench.ratios import LEVEL
from diskmoe.bench.results import Experiment, Results

_SHOWN = 1000  # a ratio above it says that there are too few pairs
WIDE = 220  # columns, where the output is no terminal: a table must not be folded in a file
HEADS = (
    "rung",
    "arm",
    "runs",
    f"{COLUMNS[0].title} (quartiles)",
    f"{100 * LEVEL:.0f} % of median",
    *(column.title for column in COLUMNS[1:]),
    "accepted drafts",
)


def rows_of(comparisons: Sequence[Comparison]) -> list[list[str]]:
    """A row for each arm at each rung; the first arm stands once in a rung."""
    rows, seen = [], set()
    for comparison in comparisons:
        for arm in (comparison.a, comparison.b):
            if (comparison.rung, arm.name) not in seen:
                seen.add((comparison.rung, arm.name))
                rows.append(_row(comparison.rung_given, arm))
    return rows


def _row(rung: str, arm: ArmSummary) -> list[str]:
    speed, *cells = [column.shown(arm.medians[column.figure]) for column in COLUMNS]
    if arm.quartiles is not None:
        speed += f" ({_span(arm.quartiles)})"
    drafts = [
        f"{name} {100 * found.accepted / found.judged:.0f} % of {found.judged}"
        for name, found in arm.acceptance.items()
        if found.judged
    ]
    sure = "-" if arm.interval is None else _span(arm.interval)
    told = ", ".join(drafts) or "-"
    return [rung or "-", arm.name, str(arm.runs), speed, sure, *cells, told]


def _span(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.2f} to {ends[1]:.2f}"


def verdict_lines(comparison: Comparison) -> list[str]:
    """The verdict in a sentence, and what must be known beside it."""
    a, b, ratio = comparison.a.name, comparison.b.name, comparison.ratio
    at = f"{comparison.rung_given}: " if comparison.rung_given else ""
    if comparison.verdict is None or ratio is None:
        return [f"{at}{b} beside {a}: no pair of runs has speeds"]
    verdict = comparison.verdict
    named = {"a faster": f"{a} is faster", "b faster": f"{b} is faster"}.get(verdict, verdict)
    sure = "no interval"
    if ratio.interval is not None:
        low, high = ratio.interval
        end = f"{high:.3f}" if high < _SHOWN else f"over {_SHOWN}"
        sure = f"{100 * LEVEL:.0f} % interval {low:.3f} to {end}"
    told = f"{b} / {a} {ratio.value:.3f} tok/s ({sure}, {comparison.pairs} pairs): {named}"
    lines = [at + told]
    same = {True: "equal in all runs", None: "not known of both", False: "DIFFERENT in "}
    lines.append(f"  token ids {same[comparison.same_ids]}{', '.join(comparison.differing)}")
    if len(comparison.by_prompt) > 1:
        each = ", ".join(f"{name} {found:.3f}" for name, found in comparison.by_prompt.items())
        lines.append(f"  by prompt: {each}")
    return [*lines, *(f"  warning: {warning}" for warning in comparison.warnings)]


def about(experiment: Experiment) -> list[str]:
    """What was compared and where, in lines."""
    arms = [f"{arm.name}: {arm.given or 'the common settings'}" for arm in experiment.arms]
    common = ", ".join(
        f"{name}={value}" for name, value in {**experiment.settings, **experiment.decided}.items()
    )
    limits = experiment.limits
    return [
        (
            f"model {experiment.model}; {experiment.suite}, {len(experiment.prompts)} prompts x "
            f"{experiment.repeat} repeats; page cache {experiment.cache}"
        ),
        f"arms {'; '.join(arms)}; for all {common}",
        *([] if limits is None else [f"limits {limits.how}"]),
        f"machine {machine_line(experiment.machine)}",
    ]


def markdown(results: Results, comparisons: Sequence[Comparison]) -> str:
    """Table, verdicts and circumstances."""
    table = [HEADS, ["---"] * len(HEADS), *rows_of(comparisons)]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]
    lines.append("")
    for comparison in comparisons:
        first, *more = verdict_lines(comparison)
        lines += [f"- **{first}**", *(f"  - {line.strip()}" for line in more)]
    return "\n".join([*lines, "", *(f"> {line}  " for line in about(results.experiment))])


def show(results: Results, comparisons: Sequence[Comparison]) -> None:
    """The same on stdout, as wide as the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)
    table = Table()
    for number, title in enumerate(HEADS):
        table.add_column(title, justify="left" if number < 2 else "right")
    for row in rows_of(comparisons):
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    for comparison in comparisons:
        style = {"no difference": "", "outputs differ": "bold red"}.get(
            comparison.verdict or "", "bold green"
        )
        first, *more = verdict_lines(comparison)
        console.print(Text(first, style))
        for line in more:
            console.print(Text(line, "yellow" if "warning:" in line else ""))
    for line in about(results.experiment):
        console.print(Text(line, "dim"))
