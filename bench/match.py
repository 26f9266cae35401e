"""Two programs in turns on the same work: what each is told, and what its process said."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from diskmoe.bench.arms import Laptop, flags_of
from diskmoe.bench.laptop import Box, limits
from diskmoe.bench.launch import ENGINE, Launcher, Process
from diskmoe.bench.llama_cpp import Peer, PeerFailed, Timings, tail
from diskmoe.bench.model_files import weight_files
from diskmoe.bench.results import VERSION, Figures, Program, Results, Run, Setting
from diskmoe.bench.session import USAGE_FOLDER

Say = Callable[[str], None]

OURS: Literal["diskmoe"] = "diskmoe"
THEIRS: Literal["llama.cpp"] = "llama.cpp"


@dataclass(frozen=True)
class Match:
    """What the two do, and how often."""

    peer: Peer
    gguf: Path
    model: Path
    tokens: int
    prompt: str | int
    threads: int
    context: int
    settings: Mapping[str, str]  # of our arm
    peer_args: tuple[str, ...]
    seconds: float  # at most, for a run

    def ours(self) -> list[str]:
        """The words of our process; its prompt, where it has one, goes to its stdin."""
        said = {**self.settings, "THREADS": str(self.threads), "CTX": str(self.context)}
        if self.peer.kind == "bench":
            words = ["bench", "decode", str(self.model), "--prompt", str(self.prompt)]
            return [*ENGINE, *words, "--tokens", str(self.tokens), "--json", *flags_of(said)]
        said |= {"MODEL": str(self.model), "NGEN": str(self.tokens), "TEMP": "0", "CHAT": "0"}
        return [*ENGINE, "--json", "--stats=0", "--ignore-eos", *flags_of(said)]

    def theirs(self) -> list[str]:
        """The words of the peer's process."""
        return self.peer.command(
            self.gguf, self.tokens, self.prompt, self.threads, self.context, self.peer_args
        )


def carry_out(match: Match, rungs: Sequence[Laptop], results: Results, say: Say) -> None:
    """The runs that are missing, in turns."""
    experiment = results.experiment
    files = [*weight_files(match.model), match.gguf]
    there = {(run.arm, run.rung, run.repeat) for run in results.runs}
    said: set[str] = set()
    for repeat, rung in product(range(experiment.repeat), range(len(rungs))):
        laptop = rungs[rung]
        with limits(laptop.ram_bytes, laptop.disk_bps, match.gguf) as box:
            if (kept := kept_by(laptop, box)) not in said:
                say(f"limits    {kept}")
                said.add(kept)
            inside = replace(match, settings=_within(match.settings, laptop, box))
            launcher = Launcher(box, results.folder / USAGE_FOLDER, files, experiment.cache)
            for arm in (OURS, THEIRS) if (repeat + rung) % 2 == 0 else (THEIRS, OURS):
                if (arm, rung, repeat) in there:
                    continue
                what = f"run {repeat + 1} of {arm} {experiment.rungs[rung]}".rstrip()
                run_one = _ours if arm == OURS else _theirs
                order = max((each.order for each in results.runs), default=-1) + 1
                run = replace(
                    run_one(inside, launcher, what), rung=rung, repeat=repeat, order=order
                )
                results.add(run)
                say(
                    f"{what.replace('run', 'run      ', 1)}: {run.figures.tok_per_s or 0:.2f} tok/s"
                )


def kept_by(laptop: Laptop, box: Box) -> str:
    """What keeps the two to a smaller machine, and what keeps ours alone."""
    loose = [
        name
        for name, wanted, kept in (
            ("memory", laptop.ram_bytes, box.ram),
            ("disk", laptop.disk_bps, box.disk),
        )
        if wanted and not kept
    ]
    return box.how + (f"; {' and '.join(loose)} of {THEIRS} NOT limited" if loose else "")


def _within(settings: Mapping[str, str], laptop: Laptop, box: Box) -> dict[str, str]:
    """Our settings, with those that keep to a limit which the system does not keep."""
    found = dict(settings)
    if laptop.ram_bytes and not box.ram:
        found.setdefault("RAM_GB", f"{laptop.ram_bytes / 2**30:g}")
    if laptop.disk_bps and not box.disk:
        found.setdefault("DISK_BPS", str(laptop.disk_bps))
    return found


def _ours(match: Match, launcher: Launcher, what: str) -> Run:
    text = f"{match.prompt}\n" if match.peer.kind == "text" else ""
    ended = launcher.process(match.ours(), text, what, match.seconds)
    return _run(OURS, launcher.reported(ended, what))


def _theirs(match: Match, launcher: Launcher, what: str) -> Run:
    ended = launcher.process(match.theirs(), "", what, match.seconds)
    out, err = ended.out.decode("utf-8", "replace"), ended.err.decode("utf-8", "replace")
    if ended.code:
        how = f"failed with code {ended.code}"
        if ended.code < 0:
            how = f"was ended by signal {-ended.code}" + (
                ", as by a lack of memory" if ended.code == -signal.SIGKILL else ""
            )
        raise PeerFailed(f"{what} {how}; it said: {tail(err) or tail(out) or 'nothing'}")
    timings = match.peer.timings(out, err)
    return _run(
        THEIRS,
        ended,
        settings={"version": Setting(match.peer.version, "--version")},
        token_ids=None,
        text=out.strip() if match.peer.kind == "text" else None,
        figures=_figures(timings),
        report={} if timings.load_seconds is None else {"load_seconds": timings.load_seconds},
    )


def _run(arm: Program, ended: Process, **measured: Any) -> Run:
    """A run of the only rung and prompt; its repeat and order are given later."""
    return Run(
        version=VERSION,
        program=arm,
        arm=arm,
        rung=0,
        prompt=0,
        repeat=0,
        order=0,
        **ended.kept,
        **measured,
    )


def _figures(timings: Timings) -> Figures:
    """Of a peer: nothing but what it says."""
    nothing = {field.name: None for field in fields(Figures)}
    told = {
        "tok_per_s": timings.tok_per_s,
        "tokens": timings.tokens,
        "decode_seconds": timings.decode_seconds,
        "prompt_tokens": timings.prompt_tokens,
        "prefill_tok_per_s": timings.prompt_tok_per_s,
        "acceptance": {},
    }
    return Figures(**{**nothing, **told})
