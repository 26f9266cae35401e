"""One run of a benchmark: a process of its own, and what it says when it has ended.

The rule of this file: everything a run could learn from or leave behind is a copy that is thrown
away; nothing is given to it by a shell.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from diskmoe.bench.laptop import Box
from diskmoe.bench.machine import Meter, load_average
from diskmoe.bench.model_files import drop_from_cache, fill_cache
from diskmoe.bench.results import Acceptance, Cache, Figures, Setting
from diskmoe.engine.errors import DiskMoeError
from diskmoe.engine.report import REPORT_KEYS
from diskmoe.engine.settings import PREFIX
from diskmoe.engine.text.files import one_line
from diskmoe.experts.pagecache import cached_share

ENGINE = (sys.executable, "-m", "diskmoe.engine")
_NEVER = ("PROMPT", "PROMPT_IDS", "JSON", "STATS", "VERBOSE", "DEBUG", "TRACE")  # from outside


class RunFailed(DiskMoeError):
    """A run ended without a report: which one, and what it said last. exit_code: as the run's."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Process:
    """A process that has ended, well or not."""

    command: tuple[str, ...]
    started: str
    seconds: float
    cpu_seconds: float | None
    others_cpu: float | None
    load: float | None
    cached_share: float | None
    code: int
    out: bytes
    err: bytes

    @property
    def kept(self) -> dict[str, Any]:
        """What a run's file has of its process, whatever the program."""
        return {
            "started": self.started,
            "command": self.command,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "others_cpu": self.others_cpu,
            "load": self.load,
            "cached_share": self.cached_share,
        }


@dataclass(frozen=True)
class Ended(Process):
    """A process of diskmoe's that has ended well."""

    report: Mapping[str, Any]

    @property
    def kept(self) -> dict[str, Any]:
        """What a run's file has of its process and of its report."""
        return {
            **super().kept,
            "settings": self.settings,
            "token_ids": tuple(self.report["token_ids"]),
            "text": self.report["text"],
            "figures": figures_of(self.report),
            "report": rest_of(self.report),
        }

    @property
    def settings(self) -> dict[str, Setting]:
        """All effective settings but the ones that say what to run."""
        return {
            name: Setting(entry["value"], entry["source"])
            for name, entry in self.report["settings"].items()
            if name not in (*_NEVER, "STATE_DIR")
        }


@dataclass(frozen=True)
class Launcher:
    """How runs are started: what before them, and where.

    usage: the frozen history, a directory that need not be there; each run gets a copy.
    files: of the models, for the page cache.
    """

    box: Box
    usage: Path
    files: Sequence[Path]
    cache: Cache

    def run(self, program: Sequence[str], flags: Sequence[str], prompt: str, what: str) -> Ended:
        """A run of diskmoe's from its start to its end; `what` names it in errors.

        Raises:
            RunFailed: it ended with an error, or said nothing that can be understood.
            OSError: it could not be started.
        """
        # the newline is not a part of the prompt: a run takes one away
        command = (*program, "--json", "--stats=0", *flags)
        return self.reported(self.process(command, prompt + "\n", what), what)

    def process(
        self, command: Sequence[str], text: str, what: str, limit_seconds: float | None = None
    ) -> Process:
        """Any process from its start to its end, with `text` on stdin.

        Raises:
            RunFailed: it had not ended after so many seconds.
            OSError: it could not be started.
        """
        if self.cache == "dropped":
            drop_from_cache(self.files)
        elif self.cache == "warm":
            fill_cache(self.files)
        share, load = cached_share(self.files), load_average()
        with tempfile.TemporaryDirectory(prefix="diskmoe-bench-") as state:
            if self.usage.is_dir():
                shutil.copytree(self.usage, Path(state) / "usage")
            meter, started = Meter(), datetime.now(timezone.utc)
            begin = time.perf_counter()
            wrapped = self.box.wrap(command)
            code, out, err = _communicate(wrapped, text, environment(state), limit_seconds, what)
            seconds = time.perf_counter() - begin
            own, others = meter.own_seconds(), meter.others_share()
        return Process(
            command=tuple(command),
            started=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
            seconds=round(seconds, 4),
            cpu_seconds=None if own is None else round(own, 4),
            others_cpu=others,
            load=load,
            cached_share=None if share is None else round(share, 4),
            code=code,
            out=out,
            err=err,
        )

    def reported(self, process: Process, what: str) -> Ended:
        """With the report that a process of diskmoe's wrote. Raises RunFailed where it has none."""
        report = _report(process.code, process.out, process.err, what)
        return Ended(**vars(process), report=report)


def _communicate(
    command: Sequence[str],
    text: str,
    env: Mapping[str, str],
    limit_seconds: float | None,
    what: str,
) -> tuple[int, bytes, bytes]:
    """(exit code, stdout, stderr); neither the process nor its children outlive this call."""
    process = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # a script's children hold its pipes: all end together
    )
    try:
        out, err = process.communicate(text.encode(), timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        kill(process)
        _, err = process.communicate()
        said = one_line(err[-1000:].decode("utf-8", "replace"), 300) or "nothing"
        raise RunFailed(f"{what} did not end in {limit_seconds:g} s; it said: {said}") from None
    except BaseException:  # Ctrl-C: at once, whatever the run is at
        kill(process)
        process.wait()
        raise
    return process.returncode, out, err


def kill(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Ends a process that leads a session of its own, and its children with it."""
    if not hasattr(os, "killpg"):  # Windows
        process.kill()
        return
    with suppress(ProcessLookupError):  # it ended just now
        os.killpg(process.pid, signal.SIGKILL)


def environment(state: str) -> dict[str, str]:
    """Ours, without what would take the place of what the benchmark says."""
    names = {name for bare in _NEVER for name in (bare, PREFIX + bare)}
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return {**kept, PREFIX + "STATE_DIR": state}


def _report(code: int, out: bytes, err: bytes, what: str) -> Mapping[str, Any]:
    if code == 130:
        raise KeyboardInterrupt
    if code:
        lines = [line for line in err.decode("utf-8", "replace").splitlines() if line.strip()]
        said = next((line for line in reversed(lines) if line.startswith("error:")), "")
        said = (said or (lines[-1] if lines else "it said nothing"))[:400]
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        message = f"{what} {ended}: {said.removeprefix('error: ')}"
        raise RunFailed(message, 2 if code == 2 else 1)
    try:
        report = json.loads(out)
    except ValueError:
        report = None
    if not isinstance(report, dict) or set(REPORT_KEYS) - set(report):
        raise RunFailed(f"{what} wrote no report that can be read: {one_line(repr(out), 200)}")
    return report


def figures_of(report: Mapping[str, Any]) -> Figures:
    """The numbers of a report of diskmoe's."""
    tokens, decode = report["tokens"], report["decode_seconds"]
    prefill = report["prefill"]
    return Figures(
        tok_per_s=report["tok_per_s"],
        tokens=tokens,
        prompt_tokens=report["prompt_tokens"],
        tokens_per_forward=report["tokens_per_forward"],
        hit_rate=report["hit_rate"],
        misses_per_token=report["misses"] / tokens if tokens else None,
        miss_bytes_per_token=report["bytes_per_token"],
        acceptance={
            name: Acceptance(
                account["judged"],
                account["accepted"],
                tuple(tuple(pair) for pair in account.get("by_position", ())),
            )
            for name, account in report["drafts"].items()
        },
        ttft_seconds=report["ttft_seconds"] if tokens else None,
        prefill_tok_per_s=(
            prefill["rows"] / prefill["seconds"] if prefill["rows"] and prefill["seconds"] else None
        ),
        peak_rss_bytes=report["peak_rss_bytes"],
        decode_seconds=decode,
        read_wait_seconds=report["read_wait_seconds"],
        compute_seconds=report["compute_seconds"],
        read_wait_share=report["read_wait_seconds"] / decode if decode else None,
    )


def rest_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """What a report says beside what has a place of its own in a `Run`."""
    return {
        name: value
        for name, value in report.items()
        if name not in ("text", "token_ids", "settings")
    }
