"""Two programs in turns on the same work: what each is told, and what its process said."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from diskmoe.bench.arms import flags_of
from diskmoe.bench.laptop import Box
from diskmoe.bench.launch import ENGINE, Launcher, Process, figures_of, rest_of
from diskmoe.bench.llama_cpp import Peer, PeerFailed, Timings, tail
from diskmoe.bench.model_files import weight_files
from diskmoe.bench.results import VERSION, Figures, Program, Results, Run, Setting

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


def carry_out(match: Match, box: Box, results: Results, say: Say) -> None:
    """The runs that are missing, in turns."""
    experiment = results.experiment
    files = [*weight_files(match.model), match.gguf]
    launcher = Launcher(box, results.folder / "usage", files, experiment.cache)
    there = {(run.arm, run.repeat) for run in results.runs}
    for repeat in range(experiment.repeat):
        for arm in (OURS, THEIRS) if repeat % 2 == 0 else (THEIRS, OURS):
            if (arm, repeat) in there:
                continue
            what = f"run {repeat + 1} of {arm}"
            run = _ours(match, launcher, what) if arm == OURS else _theirs(match, launcher, what)
            order = max((each.order for each in results.runs), default=-1) + 1
            results.add(replace(run, repeat=repeat, order=order))
            say(
                f"run       {repeat + 1} of {experiment.repeat}, {arm}: "
                f"{run.figures.tok_per_s or 0:.2f} tok/s"
            )


def _ours(match: Match, launcher: Launcher, what: str) -> Run:
    text = f"{match.prompt}\n" if match.peer.kind == "text" else ""
    ended = launcher.reported(launcher.process(match.ours(), text, what, match.seconds), what)
    report = ended.report
    return _run(
        OURS,
        ended,
        settings=ended.settings,
        token_ids=tuple(report["token_ids"]),
        text=report["text"],
        figures=figures_of(report),
        report=rest_of(report),
    )


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
        started=ended.started,
        command=ended.command,
        seconds=ended.seconds,
        cpu_seconds=ended.cpu_seconds,
        others_cpu=ended.others_cpu,
        load=ended.load,
        cached_share=ended.cached_share,
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
