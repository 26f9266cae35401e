"""What a benchmark leaves behind: a directory with one file about it and one file for each run.

``bench.json`` is an `Experiment`: what was compared, how, and on which machine. ``run-ARM-RUNG-PROMPT-
REPEAT.json`` is a `Run`: one process, from its start to its end. The rule of this file: the classes
below are the schema. Files are checked against them, and the tables of docs/bench-results.md and
``results.schema.json`` are made from them (`bench.schema`), so nothing is said twice.

>>> directory = Results.open(Path("out"))                                   # doctest: +SKIP
>>> [run.figures.hit_rate for run in directory.runs if run.arm == "a"]      # doctest: +SKIP
"""

from __future__ import annotations

import json
import math
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from diskmoe.engine.errors import DiskMoeError
from diskmoe.engine.settings import did_you_mean
from diskmoe.experts.whole import write_whole

VERSION = 1
EXPERIMENT_FILE = "bench.json"
MOST_BYTES = 64 << 20  # of a file
ARM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._]{0,39}")  # it is a part of file names
Program = Literal["diskmoe", "llama.cpp"]
Cache = Literal["dropped", "warm", "as found"]
T = TypeVar("T")
_MOST = 1e300  # of any number


class BadResults(DiskMoeError):
    """A file of results that cannot be used: what is wrong, in which file and where in it."""

    exit_code = 2


@dataclass(frozen=True)
class Setting:
    """A setting as a run had it."""

    value: Annotated[Any, "a number, a text, true or false, or null for none"]
    source: Annotated[str, "where it comes from: default, auto, flag --cap, env CAP, ..."]


@dataclass(frozen=True)
class Acceptance:
    """What became of the drafts of one source."""

    judged: Annotated[int, "drafts up to and including the first rejected one of each forward"]
    accepted: Annotated[int, "of these, the right ones"]
    by_position: Annotated[
        tuple[tuple[int, ...], ...],
        "[judged, accepted] of its first, second, ... draft in a forward; []: not told",
    ]


@dataclass(frozen=True)
class Figures:
    """The numbers of one run. null: this program cannot say, or there was nothing to count."""

    tok_per_s: Annotated[
        float | None, "emitted tokens / seconds from the end of the prompt to the last token"
    ]
    tokens: Annotated[int | None, "emitted"]
    prompt_tokens: Annotated[int | None, "of the prompt"]
    tokens_per_forward: Annotated[float | None, "emitted tokens / forwards after the prompt"]
    hit_rate: Annotated[
        float | None,
        "hits / (hits + misses) while decoding: per forward and layer, per unique expert, resident "
        "when the layer asked or not",
    ]
    misses_per_token: Annotated[float | None, "misses / emitted tokens"]
    miss_bytes_per_token: Annotated[float | None, "bytes that misses read / emitted tokens"]
    acceptance: Annotated[Mapping[str, Acceptance], "by source of drafts: grammar, mtp, ngram, ..."]
    ttft_seconds: Annotated[float | None, "from the prompt's tokens to the first token of the text"]
    prefill_tok_per_s: Annotated[float | None, "prompt tokens / seconds of reading the prompt"]
    peak_rss_bytes: Annotated[int | None, "the most memory the process had resident"]
    decode_seconds: Annotated[float | None, "from the end of the prompt to the last token"]
    read_wait_seconds: Annotated[
        float | None, "of these, those in which computing had nothing to do but wait for a read"
    ]
    compute_seconds: Annotated[
        float | None, "of these, those inside forwards without the waits; the rest is neither"
    ]
    read_wait_share: Annotated[float | None, "read_wait_seconds / decode_seconds"]


@dataclass(frozen=True)
class Run:
    """One process: one arm, one rung, one prompt, one repeat."""

    version: Annotated[int, f"of this schema: {VERSION}"]
    program: Annotated[Program, "whose process it was"]
    arm: Annotated[str, "name of the arm, one of the experiment's"]
    rung: Annotated[int, "number of the rung, from 0 on"]
    prompt: Annotated[int, "number of the prompt, from 0 on"]
    repeat: Annotated[int, "from 0 on"]
    order: Annotated[int, "how many runs of this directory were started before it"]
    started: Annotated[str, "date and time, UTC, as in 2026-01-31T12:00:00Z"]
    command: Annotated[tuple[str, ...], "the process's words, without the prompt"]
    seconds: Annotated[float, "from the start of the process to its end"]
    cpu_seconds: Annotated[float | None, "processor time of the process, all threads"]
    others_cpu: Annotated[
        float | None, "share of the machine's processors that others kept busy meanwhile"
    ]
    load: Annotated[float | None, "load average of the last minute, before it started"]
    cached_share: Annotated[
        float | None, "share of the model's files in the page cache, before it started"
    ]
    settings: Annotated[Mapping[str, Setting], "all effective settings, by name"]
    token_ids: Annotated[tuple[int, ...] | None, "of the text; null where a program hides them"]
    text: Annotated[str | None, "the text that was generated"]
    figures: Annotated[Figures, "the numbers"]
    report: Annotated[
        Mapping[str, Any],
        "what else the program's own JSON report says (planner, prefill, model, ...): not a part of "
        "this schema",
    ]


@dataclass(frozen=True)
class Arm:
    """One of the things that are compared."""

    name: Annotated[str, "letters, digits, dots and underscores: a, b, b2, llama.cpp, ..."]
    program: Annotated[Program, "what runs"]
    given: Annotated[str, "what makes it an arm, as it was given: GRAMMAR=fit.gbnf"]


@dataclass(frozen=True)
class Prompt:
    """One text to go on from."""

    name: Annotated[str, "short, told in tables"]
    text: Annotated[str, "the prompt"]
    density: Annotated[
        float | None,
        "share of the characters of the expected text that its form alone decides, 0 to 1; null: "
        "not known",
    ]


@dataclass(frozen=True)
class Limits:
    """A smaller machine than the one at hand."""

    ram_bytes: Annotated[int | None, "memory"]
    disk_bps: Annotated[int | None, "bytes a second from the disk"]
    how: Annotated[str, "what keeps the runs to it"]


@dataclass(frozen=True)
class Machine:
    """Where it ran. null: it could not be told."""

    system: Annotated[str, "name and release of the operating system"]
    cpu: Annotated[str, "name of the processor"]
    features: Annotated[tuple[str, ...], "instruction sets that kernels may use"]
    kernels: Annotated[str, "path that the kernels take: avx512, avx2, portable, ..."]
    processors: Annotated[int, "logical processors that runs may use"]
    cores: Annotated[int, "physical cores of these, or what a CPU quota leaves"]
    ram_bytes: Annotated[int, "memory of the machine"]
    available_bytes: Annotated[int, "memory that could be had when the experiment began"]
    cgroup_memory_bytes: Annotated[int | None, "memory limit of the cgroup; null: none"]
    cgroup_cpus: Annotated[float | None, "CPU quota of the cgroup, in processors; null: none"]
    disk: Annotated[str | None, "device of the model's files and its kind: nvme0n1 (solid state)"]
    disk_bps: Annotated[float | None, "bytes a second, random reads of expert records"]
    disk_how: Annotated[str, "how that was measured, or why not"]
    read_ahead_bytes: Annotated[int | None, "of that device"]
    load: Annotated[float | None, "load average of the last minute when the experiment began"]
    busy: Annotated[float | None, "share of the processors that others kept busy just then"]
    versions: Annotated[Mapping[str, str], "diskmoe, python, numpy, numba, ..."]
    commit: Annotated[str | None, "of the source tree, with + where it was changed; null: none"]


@dataclass(frozen=True)
class Experiment:
    """What was compared, how, and on which machine."""

    version: Annotated[int, f"of this schema: {VERSION}"]
    kind: Annotated[str, "the command that made it: ab, peer, ..."]
    made: Annotated[str, "date and time, UTC"]
    command: Annotated[tuple[str, ...], "the words behind diskmoe"]
    model: Annotated[str, "name of the model's directory or file"]
    model_id: Annotated[str, "what names the model wherever it lies, 32 hex digits"]
    suite: Annotated[str, "name of the suite, or of the file of prompts"]
    prompts: Annotated[tuple[Prompt, ...], "texts, in order"]
    arms: Annotated[tuple[Arm, ...], "the first is what the others are compared with"]
    settings: Annotated[Mapping[str, str], "what all arms were given, by name, as text"]
    decided: Annotated[
        Mapping[str, str], "what the first run decided and all others were given: RAM_GB, as text"
    ]
    rungs: Annotated[tuple[str, ...], 'settings that were tried in turn, as "CAP=4"; [""]: none']
    repeat: Annotated[int, "runs of each arm, rung and prompt"]
    cache: Annotated[Cache, "page cache before each run: emptied of the model's files, filled, ..."]
    limits: Annotated[Limits | None, "null: the machine as it is"]
    machine: Annotated[Machine, "where"]


class Results:
    """A directory of results: its experiment, and its runs so far.

    Raises:
        BadResults: no such directory, or a file in it that is none of these.
    """

    def __init__(self, folder: Path, experiment: Experiment, runs: Sequence[Run]) -> None:
        self.folder = folder
        self.experiment = experiment
        self.runs = sorted(runs, key=lambda run: run.order)

    @classmethod
    def open(cls, folder: Path, skipped: Callable[[str], None] | None = None) -> Results:
        """What is there. Files of other names are not looked at.

        skipped: is told of runs that cannot be used, a line each, in place of BadResults.
        """
        path = folder / EXPERIMENT_FILE
        if not path.is_file():
            raise BadResults(f"{folder}: no {EXPERIMENT_FILE} there: it is no directory of results")
        experiment = _read(Experiment, path)
        fault = _fault(experiment)
        if fault:
            raise BadResults(f"{path}: {fault}")
        runs = []
        for found in sorted(folder.glob("run-*.json")):
            try:
                runs.append(_run_in(found, experiment))
            except BadResults as error:
                if skipped is None:
                    raise
                skipped(str(error))
        return cls(folder, experiment, runs)

    @classmethod
    def create(cls, folder: Path, experiment: Experiment) -> Results:
        """A new directory, or a new experiment in one that has none. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / EXPERIMENT_FILE, [encoded(experiment)])
        return cls(folder, experiment, [])

    def update(self, experiment: Experiment) -> None:
        """Another number of repeats, or what was decided meanwhile. Raises OSError."""
        write_whole(self.folder / EXPERIMENT_FILE, [encoded(experiment)])
        self.experiment = experiment

    def add(self, run: Run) -> None:
        """Keep a run; it is there whole or not at all. Raises OSError."""
        fault = _misplaced(run, self.experiment)
        if fault:
            raise ValueError(fault)
        write_whole(self.folder / run_name(run), [encoded(run)])
        self.runs.append(run)


def run_name(run: Run) -> str:
    """The file that a run is kept in."""
    return f"run-{run.arm}-{run.rung}-{run.prompt}-{run.repeat}.json"


def encoded(thing: Experiment | Run) -> bytes:
    """The JSON file of one of these; in ASCII, which even words that are no Unicode come through."""
    return (json.dumps(asdict(thing), allow_nan=False) + "\n").encode("ascii")


def decoded(kind: type[T], content: Any, where: str) -> T:
    """What `encoded` made, checked field by field. `where` names the file in errors."""
    version = content.get("version") if isinstance(content, dict) else None
    if isinstance(version, int) and version != VERSION:
        raise BadResults(
            f"{where}: version {version} of the schema, and this diskmoe reads version {VERSION}"
        )
    return _checked(kind, content, where, "")


def _read(kind: type[T], path: Path) -> T:
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise BadResults(f"{path}: {size} bytes, at most {MOST_BYTES} are read")
        content = json.loads(path.read_bytes(), parse_float=_number, parse_constant=_number)
    except (ValueError, RecursionError) as error:
        raise BadResults(f"{path}: this is no JSON: {str(error)[:200]}") from None
    except OSError as error:
        raise BadResults(f"{path}: cannot be read ({error.strerror or error})") from None
    return decoded(kind, content, str(path))


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is no number that can be kept")
    return number


def _fault(experiment: Experiment) -> str:
    """What of an experiment cannot be; empty when all can."""
    for name in ("arms", "rungs", "prompts"):
        if not getattr(experiment, name):
            return f"{name} is empty: there is nothing that could have run"
    arms = [arm.name for arm in experiment.arms]
    if len(set(arms)) < len(arms) or not all(map(ARM_NAME.fullmatch, arms)):
        return "arms have names of their own, of letters, digits, . and _"
    prompts = [prompt.name for prompt in experiment.prompts]
    return "" if len(set(prompts)) == len(prompts) else "two prompts have the same name"


def _run_in(path: Path, experiment: Experiment) -> Run:
    run = _read(Run, path)
    fault = _misplaced(run, experiment)
    if not fault and path.name != run_name(run):
        fault = f"the run in it belongs into {run_name(run)}"
    if fault:
        raise BadResults(f"{path}: {fault}")
    return run


def _misplaced(run: Run, experiment: Experiment) -> str:
    """What of a run cannot be one of this experiment; empty when all can."""
    if run.arm not in [arm.name for arm in experiment.arms]:
        return f"arm {run.arm[:60]!r} is none of {EXPERIMENT_FILE}'s"
    if run.rung >= len(experiment.rungs):
        return f"rung {run.rung} of {len(experiment.rungs)} in {EXPERIMENT_FILE}"
    if run.prompt >= len(experiment.prompts):
        return f"prompt {run.prompt} of {len(experiment.prompts)} in {EXPERIMENT_FILE}"
    for name, found in run.figures.acceptance.items():
        if found.accepted > found.judged:
            return f"figures.acceptance.{name[:40]}: {found.accepted} of {found.judged} accepted"
        if any(len(place) != 2 or place[1] > place[0] for place in found.by_position):
            return f"figures.acceptance.{name[:40]}.by_position: each must be [judged, accepted]"
    return ""


def _checked(kind: Any, value: Any, where: str, place: str) -> Any:
    """A value as its type, or BadResults with the place in the file."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _checked(parts[0], value, where, place)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        (kind,) = [part for part in parts if part is not type(None)]
        return None if value is None else _checked(kind, value, where, place)
    if origin is Literal:
        if value not in parts:
            raise _wrong(where, place, value, "one of " + ", ".join(parts))
        return value
    if is_dataclass(kind):
        return _checked_object(kind, value, where, place)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise _wrong(where, place, value, "a list")
        return tuple(_checked(parts[0], v, where, f"{place}[{i}]") for i, v in enumerate(value))
    if origin is not None:
        if not isinstance(value, dict):
            raise _wrong(where, place, value, "an object")
        return {k: _checked(parts[1], v, where, f"{place}.{k[:40]}") for k, v in value.items()}
    if kind is float and type(value) is int and value < _MOST:
        value = float(value)
    if type(value) is not kind:  # a bool is no number
        raise _wrong(where, place, value, _NAMES[kind])
    if kind in (int, float) and not 0 <= value < _MOST:
        raise _wrong(where, place, value, "neither negative nor endless")
    return value


_NAMES: Mapping[Any, str] = types.MappingProxyType(
    {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
)


def _checked_object(kind: Any, value: Any, where: str, place: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(where, place, value, "an object")
    hints = get_type_hints(kind, include_extras=True)
    for name in value:
        if name not in hints:
            hint = did_you_mean(name, list(hints))
            raise BadResults(f"{where}: unknown key {_at(place, name)}{hint}")
    for field in fields(kind):
        if field.name not in value and field.default is MISSING:
            raise BadResults(f"{where}: {_at(place, field.name)} is missing")
    return kind(
        **{name: _checked(hints[name], v, where, _at(place, name)) for name, v in value.items()}
    )


def _at(place: str, name: str) -> str:
    return f"{place}.{name[:40]}".lstrip(".")


def _wrong(where: str, place: str, value: Any, wanted: str) -> BadResults:
    shown = json.dumps(value, default=str)
    shown = shown if len(shown) <= 40 else shown[:37] + "..."
    return BadResults(f"{where}: {place or 'the file'} is {shown}; it must be {wanted}")
