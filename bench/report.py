"""``diskmoe bench report``: a page of what a directory of results holds, and of nothing else.

The rule of this file: the page is a function of the directory. The same files give the same bytes,
whenever and wherever it is made; what a number means is said where it is defined (`bench.schema`).
"""

from __future__ import annotations

import os
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from diskmoe.bench.columns import COLUMNS
from diskmoe.bench.comparing import ArmSummary, Comparison, compare
from diskmoe.bench.machine import BUSY
from diskmoe.bench.page import (
    Block,
    Code,
    Heading,
    Lines,
    Listing,
    Pictures,
    Table,
    Text,
    html_of,
    markdown_of,
)
from diskmoe.bench.ratios import LEVEL, Ratio
from diskmoe.bench.results import Acceptance, Experiment, Figures, Results, Run, run_name
from diskmoe.bench.schema import meanings
from diskmoe.bench.session import TRACE_FILE
from diskmoe.bench.tables import HEADS, about, markdown, rows_of, verdict_lines
from diskmoe.bench.words import understood
from diskmoe.engine.errors import BadModel, BadRequest, WriteFailed
from diskmoe.engine.places import as_path
from diskmoe.experts.whole import write_whole

if TYPE_CHECKING:
    from diskmoe.bench.trace import Recording

Say = Callable[[str], None]

USAGE = """\
usage: diskmoe bench report DIR [options]

Makes a page of a directory of results (bench ab --out DIR, bench peer --out DIR): what was compared
and where, verdicts, warnings, tables with every number, every run, pictures, and what the numbers
mean. It needs nothing but the directory's files; the same files always give the same page. Runs that
are damaged or belong elsewhere are named, on the page too, and left out.

Written are report.html (one file, no network, light and dark), report.md and the pictures beside it
(*.svg), into DIR.

  --out DIR          where to write them instead
  --readme           write nothing: print tables, verdicts, command and machine as Markdown
"""
FLAGS = {"--out": True, "--readme": False}
SETTINGS = ("DEBUG", "VERBOSE")
RUN_NUMBERS = ("seconds", "cpu_seconds", "others_cpu", "load", "cached_share")
_BEGIN_OF_TEXT = 80  # characters of a prompt that are shown


def command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """Runs ``bench report``; returns the exit code."""
    line = understood("report", words, env, FLAGS, SETTINGS)
    if len(line.places) != 1 or not line.places[0]:
        raise BadRequest(
            f"bench report takes one DIR, and got {len(line.places)}; see diskmoe bench report --help"
        )
    folder = as_path(line.places[0])
    faults: list[str] = []
    results = Results.open(folder, faults.append)
    if "--readme" in line.flags:
        print(in_short(results))
        return 0
    out = as_path(line.flags["--out"]) if "--out" in line.flags else folder
    recording = recorded(folder, faults.append)
    for fault in faults:
        say(f"note      left out: {fault}")
    # the page says the same wherever the directory lies
    faults = [fault.replace(f"{folder}{os.sep}", "") for fault in faults]
    for path in write(out, results, recording, faults):
        say(f"written   {path}")
    print(out / "report.html")
    return 0


def in_short(results: Results) -> str:
    """The command and what came of it, in Markdown."""
    return f"    {command_line(results.experiment)}\n\n{markdown(results, compare(results))}"


def recorded(folder: Path, skipped: Callable[[str], None]) -> Recording | None:
    """The routing that a directory has; `skipped` is told what is wrong with it."""
    from diskmoe.bench.trace import read_recording

    path = folder / TRACE_FILE
    if not path.exists():
        return None
    try:
        return read_recording(path)
    except BadModel as error:
        skipped(str(error))
        return None


def write(
    out: Path, results: Results, recording: Recording | None, faults: Sequence[str]
) -> list[Path]:
    """The page in both forms and its pictures. Raises WriteFailed."""
    from diskmoe.bench.plots import pictures_of  # imports matplotlib
    from diskmoe.bench.svg import alone

    pictures = pictures_of(results, recording)
    blocks = page_blocks(results, Pictures(pictures), faults)
    files = {f"{picture.name}.svg": alone(picture.svg) for picture in pictures}
    files["report.md"] = markdown_of(blocks)
    files["report.html"] = html_of(title_of(results.experiment), blocks)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_whole(out / name, [text.encode()])
    except OSError as error:
        raise WriteFailed(
            f"{out}: the page cannot be written there ({error.strerror or error}); name another "
            "place with --out"
        ) from None
    return [out / name for name in files]


def title_of(experiment: Experiment) -> str:
    return f"diskmoe bench {experiment.kind}: {experiment.model}"


def page_blocks(results: Results, pictures: Pictures, faults: Sequence[str]) -> list[Block]:
    """Everything that the page says, in order."""
    experiment, comparisons = results.experiment, compare(results)
    blocks: list[Block] = [
        Heading(title_of(experiment), 1),
        Text(f"Begun {experiment.made}; {len(results.runs)} runs."),
        Listing(warnings(results, comparisons, faults), loud=True),
        *_verdicts(comparisons),
        Heading("How it was made"),
        Lines([command_line(experiment), "diskmoe bench report DIR"]),
        Listing([_capital(part) for part in about(experiment)]),
    ]
    if pictures.pictures:
        blocks += [Heading("Pictures"), pictures]
    blocks += [
        Heading("Medians of the runs"),
        Table(HEADS, rows_of(comparisons), names=2),
        *_ratios(comparisons),
        Heading("Arms and prompts"),
        _arms(experiment),
        *_settings(comparisons),
        _prompts(experiment),
        Heading("Every run"),
        _runs(results),
        Heading("What the numbers mean"),
        _glossary(),
    ]
    return blocks


def command_line(experiment: Experiment) -> str:
    """The words that made the runs, as they would be typed."""
    return shlex.join(["diskmoe", *experiment.command])


def warnings(
    results: Results, comparisons: Sequence[Comparison], faults: Sequence[str]
) -> list[str]:
    """What a reader must know beside the numbers."""
    experiment, machine = results.experiment, results.experiment.machine
    found = []
    if machine.busy is not None and machine.busy > BUSY:
        found.append(
            f"Busy machine: others kept {100 * machine.busy:.0f} % of its processors busy when it began."
        )
    cells = len(experiment.arms) * len(experiment.rungs) * len(experiment.prompts)
    wanted = cells * experiment.repeat
    if len(results.runs) < wanted:
        found.append(f"{len(results.runs)} of {wanted} runs are there: the others are missing.")
    told: dict[str, list[str]] = defaultdict(list)  # rungs where it holds, by what is said
    for comparison in comparisons:
        own = list(comparison.warnings)
        if comparison.same_ids is False:
            differing = ", ".join(comparison.differing)
            own.insert(
                0, f"the token ids differ in {differing}: their speeds are not of the same work"
            )
        for warning in own:
            said = f"{comparison.a.name} and {comparison.b.name}: {warning}"
            told[said].append(comparison.rung_given)
    for said, rungs in told.items():
        at = f" ({', '.join(rungs)})" if any(rungs) else ""
        found.append(f"{said}{at}.")
    return [*found, *(f"Left out: {fault}" for fault in faults)]


def _verdicts(comparisons: Sequence[Comparison]) -> Iterator[Block]:
    """Each in words; warnings stand elsewhere."""
    points = []
    for comparison in comparisons:
        lines = [line.strip() for line in verdict_lines(comparison)]
        points.append("; ".join(line for line in lines if not line.startswith("warning:")))
    if points:
        yield Listing(points)


def _ratios(comparisons: Sequence[Comparison]) -> Iterator[Block]:
    head = ["rung", "arms", "ratio of tok/s", f"{100 * LEVEL:.0f} % interval"]
    head += ["pairs", "token ids", "verdict", "by prompt"]
    same = {True: "equal", False: "differ", None: "not known"}
    rows = [
        [
            comparison.rung_given or "-",
            f"{comparison.b.name} / {comparison.a.name}",
            *_ratio(comparison.ratio),
            str(comparison.pairs),
            same[comparison.same_ids],
            comparison.verdict or "-",
            ", ".join(f"{name} {ratio:.3f}" for name, ratio in comparison.by_prompt.items()) or "-",
        ]
        for comparison in comparisons
    ]
    if rows:
        yield Heading("Ratios")
        yield Table(head, rows, names=2)


def _ratio(ratio: Ratio | None) -> tuple[str, str]:
    """A ratio and its interval."""
    if ratio is None or ratio.interval is None:
        return ("-" if ratio is None else f"{ratio.value:.4f}"), "-"
    low, high = ratio.interval
    return f"{ratio.value:.4f}", f"{low:.4f} to {high:.4f}"


def _arms(experiment: Experiment) -> Table:
    rows = [[arm.name, arm.program, Code(arm.given)] for arm in experiment.arms]
    return Table(["arm", "program", "given"], rows, names=3)


def _settings(comparisons: Sequence[Comparison]) -> Iterator[Block]:
    """Effective settings of the arms' first runs."""
    arms = {}
    for comparison in comparisons:
        for arm in (comparison.a, comparison.b):
            if arm.runs:
                arms.setdefault(arm.name, arm.settings)
    names = sorted(
        {name for settings in arms.values() for name in settings if settings[name] is not None}
    )
    rows = [
        [Code(name), *(Code(_plain(settings.get(name))) for settings in arms.values())]
        for name in names
    ]
    if rows:
        fold = "Effective settings of each arm's first run"
        yield Table(["setting", *arms], rows, names=1 + len(arms), folded=fold)


def _plain(value: object) -> str:
    return "-" if value is None else str(value)


def _prompts(experiment: Experiment) -> Table:
    rows = []
    for prompt in experiment.prompts:
        begin = " ".join(prompt.text.split())
        shown = begin if len(begin) <= _BEGIN_OF_TEXT else begin[: _BEGIN_OF_TEXT - 3] + "..."
        dense = "-" if prompt.density is None else f"{100 * prompt.density:.0f} %"
        rows.append([prompt.name, Code(shown), dense, str(len(prompt.text))])
    return Table(["prompt", "begins", "density", "characters"], rows, names=2)


def _runs(results: Results) -> Table:
    """A row for each file, with all of its numbers."""
    shown = {column.figure: column for column in COLUMNS}
    figures = [name for name in meanings(Figures) if name != "acceptance"]
    titles = [shown[name].title if name in shown else _spoken(name) for name in figures]
    head = ["file", "started", *titles, "accepted drafts", *map(_spoken, RUN_NUMBERS)]
    rows = [
        [
            Code(run_name(run)),
            run.started,
            *(
                shown[name].shown(value) if name in shown else _number(value)
                for name in figures
                for value in (getattr(run.figures, name),)
            ),
            _drafts(run),
            *(_number(getattr(run, name)) for name in RUN_NUMBERS),
        ]
        for run in results.runs
    ]
    return Table(head, rows, names=2, folded=f"{len(rows)} runs, in the order in which they ran")


def _drafts(run: Run) -> str:
    accepted = [
        f"{name} {found.accepted} of {found.judged}"
        for name, found in run.figures.acceptance.items()
    ]
    return ", ".join(accepted) or "-"


def _glossary() -> Table:
    """Every number's one definition, from the classes that hold them."""
    titles = {column.figure: column.title for column in COLUMNS}
    of_runs = {name: says for name, says in meanings(Run).items() if name in RUN_NUMBERS}
    parts = [meanings(Figures), meanings(Acceptance), of_runs, meanings(ArmSummary)]
    rows = [
        [Code(name), titles.get(name, _spoken(name)), says]
        for part in (*parts, meanings(Comparison))
        for name, says in part.items()
    ]
    return Table(["key", "in tables", "meaning"], rows, names=3)


def _spoken(name: str) -> str:
    return name.replace("_", " ")


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
