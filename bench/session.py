"""An experiment as it is carried out: a plan, its directory, and one process after another.

The rule of this file: arms take turns, and a run that has ended is on disk before the next begins.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from diskmoe.bench.arms import Laptop, Settings, flags_of, shown_settings
from diskmoe.bench.laptop import Box, limits
from diskmoe.bench.launch import ENGINE, Ended, Launcher
from diskmoe.bench.machine import BUSY, machine_line, machine_of
from diskmoe.bench.model_files import can_drop, model_id, weight_files
from diskmoe.bench.results import (
    EXPERIMENT_FILE,
    VERSION,
    Arm,
    BadResults,
    Cache,
    Experiment,
    Limits,
    Machine,
    Prompt,
    Results,
    Run,
)
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.places import as_path
from diskmoe.experts.lockfile import locked

Say = Callable[[str], None]
TRACE_FILE = "trace.csv"
USAGE_FOLDER = "usage"
LOCK_NAME = "bench.lock"


@dataclass(frozen=True)
class Plan:
    """What is to be compared. programs: by arm, for tests of the benchmark itself."""

    model: Path
    suite: str
    prompts: Sequence[Prompt]
    arms: Mapping[str, Settings]
    rungs: Sequence[Settings]
    common: Settings
    repeat: int = 5
    cache: Cache = "dropped"
    laptop: Laptop | None = None
    usage: Path | None = None  # where the history of the user's runs is
    words: Sequence[str] = ()
    programs: Mapping[str, Sequence[str]] = field(default_factory=dict)


class Session:
    """An experiment in its directory, with what is left to be done of it."""

    def __init__(self, plan: Plan, results: Results, launcher: Launcher) -> None:
        self.plan = plan
        self.results = results
        self._launcher = launcher
        self._places = list(_in_turns(plan))
        done = {(run.repeat, run.rung, run.prompt, run.arm) for run in results.runs}
        self._left = [place for place in self._places if place not in done]

    @property
    def progress(self) -> str:
        """``12 of 60``."""
        return f"{len(self.results.runs)} of {len(self._places)}"

    @classmethod
    def begin(cls, plan: Plan, folder: Path, stack: ExitStack, say: Say, strict: bool) -> Session:
        """Looks at the machine and the directory, and warms up; `stack` ends what is begun here.

        Raises:
            BadRequest: the directory holds another experiment; the machine is busy, and `strict`.
            BadOutput: another process is at work in the directory.
            BadResults: what is there cannot be used, or nothing can be written.
            RunFailed: an arm does not run.
        """
        _claim(folder, stack)
        earlier = Results.open(folder) if (folder / EXPERIMENT_FILE).exists() else None
        machine = machine_of(plan.model)
        say(f"machine   {machine_line(machine)}")
        if machine.busy is not None and machine.busy > BUSY:
            busy = f"others keep {100 * machine.busy:.0f} % of the processors busy"
            if strict:
                raise BadRequest(f"busy machine: {busy}, and --strict was given")
            say(f"note      busy machine: {busy}; intervals will be wide")
        box, limited, common = _boxed(plan, stack, say)
        plan = replace(plan, common=common)
        if plan.cache == "dropped" and not can_drop():
            plan = replace(plan, cache="as found")
            say(
                "note      this system has no way to empty the page cache of a file: it is left alone"
            )
        experiment = _experiment(plan, machine, limited)
        launcher = Launcher(box, folder / USAGE_FOLDER, _all_files(plan), plan.cache)
        if earlier is None:
            _freeze(plan.usage, folder)
            session = cls(plan, Results(folder, experiment, []), launcher)
            decided = session._warm_up({}, say)
            session.results = Results.create(folder, replace(experiment, decided=decided))
            return session
        refuse_another(folder, earlier.experiment, experiment)
        session = cls(plan, earlier, launcher)
        say(f"resume    {folder} has {session.progress} runs")
        if session._left:
            now = replace(earlier.experiment, repeat=plan.repeat, command=tuple(plan.words))
            earlier.update(now)
            session._warm_up(earlier.experiment.decided, say)
        return session

    def _warm_up(self, decided: Settings, say: Say) -> Settings:
        """A run of each arm that is not counted: kernels are compiled, and the first decides on
        memory for all where nobody has. Returns what is decided."""
        for number, arm in enumerate(self.plan.arms):
            say(f"warm-up   {arm}: {shown_settings(self.plan.arms[arm]) or 'the common settings'}")
            trace = [f"--trace={self.results.folder / TRACE_FILE}"] if number == 0 else []
            memory = self._run(arm, 0, 0, decided, trace).settings["RAM_GB"]
            if number == 0 and memory.source == "auto":
                decided = {"RAM_GB": str(memory.value)}
                say(f"memory    {memory.value} GiB for all runs, as the first one decided")
        return decided

    def finish(self, say: Say) -> None:
        """The runs that are left, each kept as soon as it has ended."""
        began, all_left = time.perf_counter(), len(self._left)
        while self._left:
            repeat, rung, prompt, arm = self._left[0]
            ended = self._run(arm, rung, prompt, self.results.experiment.decided, [])
            run = Run(
                version=VERSION,
                program="diskmoe",
                arm=arm,
                rung=rung,
                prompt=prompt,
                repeat=repeat,
                order=1 + max((run.order for run in self.results.runs), default=-1),
                **ended.kept,
            )
            self.results.add(run)
            self._left.pop(0)
            each = (time.perf_counter() - began) / (all_left - len(self._left))
            say(f"run       {self.progress}: {self._told(run)}; {_left(each * len(self._left))}")

    def _told(self, run: Run) -> str:
        what = self._named(run.arm, run.rung, run.prompt)
        speed, rate = run.figures.tok_per_s, run.figures.hit_rate
        return (
            what
            + (", no text" if speed is None else f", {speed:.2f} tok/s")
            + ("" if rate is None else f", hit rate {100 * rate:.1f} %")
        )

    def _named(self, arm: str, rung: int, prompt: int) -> str:
        experiment = self.results.experiment
        return " ".join(f"{arm} {experiment.rungs[rung]} {experiment.prompts[prompt].name}".split())

    def _run(
        self, arm: str, rung: int, prompt: int, decided: Settings, more: Sequence[str]
    ) -> Ended:
        plan = self.plan
        settings = {**plan.common, **decided, **plan.rungs[rung], **plan.arms[arm]}
        what = f"arm {self._named(arm, rung, prompt)}"
        program = plan.programs.get(arm, ENGINE)
        flags = [*flags_of(settings), *more]
        return self._launcher.run(program, flags, plan.prompts[prompt].text, what)


def _in_turns(plan: Plan) -> Iterator[tuple[int, int, int, str]]:
    """(repeat, rung, prompt, arm) of every run: A B B A ..., where no place has an order of its own."""
    arms = list(plan.arms)
    for repeat in range(plan.repeat):
        for rung in range(len(plan.rungs)):
            for prompt in range(len(plan.prompts)):
                back = (repeat + rung + prompt) % 2
                for arm in reversed(arms) if back else arms:
                    yield repeat, rung, prompt, arm


def _boxed(plan: Plan, stack: ExitStack, say: Say) -> tuple[Box, Limits | None, Settings]:
    """Where runs are kept to the limits of a smaller machine, what these are, and the settings of
    all arms with them."""
    laptop = plan.laptop or Laptop(None, None)
    # experts are read no faster than DISK_BPS in any case: evenly, which a control group's is not
    box = stack.enter_context(limits(laptop.ram_bytes, None, plan.model))
    if plan.laptop is None:
        return box, None, plan.common
    how, more = [], {}
    if laptop.ram_bytes and box.ram:
        how.append(box.how)
    elif laptop.ram_bytes:
        more["RAM_GB"] = f"{laptop.ram_bytes / 2**30:g}"
        how.append(f"RAM_GB={more['RAM_GB']}, {box.how}")
    if laptop.disk_bps:
        more["DISK_BPS"] = str(laptop.disk_bps)
        how.append(f"DISK_BPS={laptop.disk_bps} for reads of experts")
    found = Limits(laptop.ram_bytes, laptop.disk_bps, "; ".join(how) or "no limits")
    say(f"laptop    {found.how}")
    return box, found, {**plan.common, **more}


def _experiment(plan: Plan, machine: Machine, limited: Limits | None) -> Experiment:
    return Experiment(
        version=VERSION,
        kind="ab",
        made=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        command=tuple(plan.words),
        model=plan.model.resolve().name,
        model_id=model_id(plan.model),
        suite=plan.suite,
        prompts=tuple(plan.prompts),
        arms=tuple(
            Arm(name, "diskmoe", shown_settings(settings)) for name, settings in plan.arms.items()
        ),
        settings={name: text for name, text in plan.common.items() if name != "MODEL"},
        decided={},
        rungs=tuple(shown_settings(rung) for rung in plan.rungs),
        repeat=plan.repeat,
        cache=plan.cache,
        limits=limited,
        machine=machine,
    )


def refuse_another(folder: Path, earlier: Experiment, now: Experiment) -> None:
    """BadRequest when a directory has runs that do not belong beside those that are to come."""

    def of(experiment: Experiment) -> dict[str, object]:
        machine = experiment.machine
        return {
            "command": experiment.kind,
            "model": (experiment.model, experiment.model_id[:8]),
            "prompts": [(prompt.name, prompt.text) for prompt in experiment.prompts],
            "arms": " ".join(f'--{arm.name} "{arm.given}"' for arm in experiment.arms),
            "rungs": " ".join(experiment.rungs) or "of none",
            "settings": dict(sorted(experiment.settings.items())),
            "page cache": experiment.cache,
            "limits": experiment.limits,
            "processor": (machine.cpu, machine.processors, machine.cores, machine.kernels),
            "version": dict(machine.versions),
            "commit": machine.commit,
        }

    theirs, ours = of(earlier), of(now)
    for name, before in theirs.items():
        if before != ours[name]:
            told = _short(before, ours[name]), _short(ours[name], before)
            values = "that are others" if told[0] == told[1] else f"{told[0]}, not {told[1]}"
            raise BadRequest(
                f"--out {folder} has runs with {name} {values}: give the same as then, or another "
                "directory"
            )
    if now.repeat < earlier.repeat:
        raise BadRequest(
            f"--out {folder} has runs for --repeat {earlier.repeat}, not {now.repeat}: give at "
            "least as many, or another directory"
        )


def _short(value: object, other: object) -> str:
    """A value, or what of it is not in another."""
    if isinstance(value, dict) and isinstance(other, dict):
        differing = [f"{k}={v}" for k, v in value.items() if other.get(k, value) != v]
        value = " ".join(differing) or "that are fewer"
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _all_files(plan: Plan) -> list[Path]:
    """The weights of every model that some run has."""
    places = {
        settings[name]: None
        for settings in (plan.common, *plan.arms.values(), *plan.rungs)
        for name in ("MODEL", "DRAFT_MODEL")
        if name in settings
    }
    return [path for text in places for path in weight_files(as_path(text))]


def _claim(folder: Path, stack: ExitStack) -> None:
    """Makes the directory if need be; no other process works in it as long as `stack` is open."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(locked(folder, folder, LOCK_NAME))
    except OSError as error:
        raise BadResults(f"{folder}: cannot be written ({error.strerror or error})") from None


def _freeze(usage: Path | None, folder: Path) -> None:
    """The usage history as it is now, kept for all runs. BadResults when it cannot be."""
    if usage is None or not usage.is_dir():
        return
    try:
        shutil.copytree(usage, folder / USAGE_FOLDER, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise BadResults(f"{folder}: no copy of {usage} ({str(error)[:200]})") from None


def _left(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"about {minutes}:{rest:02} left" if minutes or rest else "done"
