"""``diskmoe bench disk``: our reader against one blocking read after another."""

from __future__ import annotations

import json
import mmap
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from diskmoe.bench.model_files import drop_from_cache, expert_files, record_bytes
from diskmoe.bench.words import understood
from diskmoe.engine.errors import BadRequest, DiskFull, ReadFailed
from diskmoe.engine.places import as_path

Say = Callable[[str], None]

USAGE = """\
usage: diskmoe bench disk MODEL|DIR [options]

Reads blocks at random places of a model's files (or of a file of random bytes that is written into
DIR for the while) and prints GB/s: our reader, with 1, 2 and 4 threads, past the page cache and
through it, and beside it what `fio --ioengine=psync --direct=1` does: one thread, one blocking
direct read after another, into ordinary memory. All take turns, several times; medians. The page
cache is emptied of the files before each window that reads through it. fio itself is run too where
it is installed. `bench disk` says nothing of reads that the page cache answers.

  --block N          bytes of a read, a multiple of 4096 (default: the model's record, or 2658304)
  --threads LIST     of 1 to 64 (default 1,2,4)
  --seconds S        of each window (default 0.25)
  --rounds N         windows of each kind (default 7)
  --mib N            size of the file written into DIR (default 3072)
  --json             one JSON object: block, files, bytes, baseline, rows
"""
FLAGS = {
    "--block": True,
    "--threads": True,
    "--seconds": True,
    "--rounds": True,
    "--mib": True,
}
SETTINGS = ("JSON", "DEBUG", "VERBOSE")
FEWEST_BLOCKS = 8
FIO_FILES = 32  # as many as a command line takes easily


@dataclass(frozen=True)
class Row:
    """A line of the result. gb_s: 1e9 bytes a second; of_psync: its multiple of the baseline's."""

    how: str
    direct: bool
    threads: int
    gb_s: float
    of_psync: float

    def line(self) -> str:
        return (
            f"{self.how:<7} {'past it' if self.direct else 'through':<10} {self.threads:>7} "
            f"{self.gb_s:>6.2f} {self.of_psync:>8.2f}"
        )


HEADING = "reader  page cache threads   GB/s  x psync"


def command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """Runs ``bench disk``; returns the exit code."""
    line = understood("disk", words, env, FLAGS, SETTINGS)
    if len(line.places) != 1:
        raise BadRequest(
            f"bench disk takes one model or directory, and got {len(line.places)}; see "
            "diskmoe bench disk --help"
        )
    place = as_path(line.places[0])
    if not place.is_dir():
        raise BadRequest(f"{place}: no directory; name a model, or where a file may be written")
    block = line.whole("--block", 4096, 1 << 30, 0)
    if block % 4096:
        raise BadRequest(f"--block is {block}; it must be a multiple of 4096")
    threads = line.wholes("--threads", 1, 64, (1, 2, 4))
    seconds = line.number("--seconds", 0, 60, 0.25)
    rounds = line.whole("--rounds", 1, 1000, 7)
    mib = line.whole("--mib", 16, 1 << 20, 3072)
    with _files(place, mib << 20, say) as files:
        block = block or record_bytes(place)
        run = Windows(files, block, seconds, rounds)
        say(f"disk      {run.total >> 20} MiB in {len(files)} file(s), reads of {block} bytes")
        say(f"disk      {run.way}")
        if not run.fio:
            say("disk      fio is not installed: the baseline is this program's own loop alone")
        rows = run.measure(threads)
    if line.values["JSON"].value:
        result = {"block": block, "files": len(files), "bytes": run.total, "way": run.way}
        print(json.dumps({**result, "rows": [asdict(row) for row in rows]}))
    else:
        print("\n".join([HEADING, *(row.line() for row in rows)]))
    return 0


@contextmanager
def _files(place: Path, nbytes: int, say: Say) -> Iterator[list[Path]]:
    """A model's weight files, or a file of random bytes that is gone afterwards."""
    found = expert_files(place)
    if found:
        yield found
        return
    free = shutil.disk_usage(place).free
    if nbytes > free:
        raise DiskFull(f"{place}: {nbytes} bytes are to be written, {free} are free: see --mib")
    say(f"disk      writing {nbytes >> 20} MiB into {place}, to be removed at the end")
    with tempfile.NamedTemporaryFile(dir=place, prefix="diskmoe-bench-") as file:
        noise = np.random.default_rng().bytes(16 << 20)  # a file system may compress what is even
        for _ in range(0, nbytes, len(noise)):
            file.write(noise)
        file.flush()
        os.fsync(file.fileno())
        yield [Path(file.name)]


class Windows:
    """Windows of each kind of reading, in turn."""

    def __init__(self, files: Sequence[Path], block: int, seconds: float, rounds: int) -> None:
        from diskmoe.experts.direct import direct_way, probe_direct
        from diskmoe.experts.disk import blocks_of

        self._files, self._block = files, block
        self._seconds, self._rounds = seconds, rounds
        self.total = sum(path.stat().st_size for path in files)
        self._blocks = blocks_of(files, block)
        if len(self._blocks) < FEWEST_BLOCKS:
            raise BadRequest(
                f"{files[0].parent}: {len(self._blocks)} blocks of {block} bytes are too few to "
                f"measure, at least {FEWEST_BLOCKS} are needed; name a larger model, or --block"
            )
        self._direct, reason = probe_direct(files[0])
        self.way = f"{direct_way() if self._direct else 'no direct reads'}: {reason}"
        self.fio = shutil.which("fio") if self._direct else None

    def measure(self, threads: Sequence[int]) -> list[Row]:
        """The medians, the baseline first. Raises ReadFailed."""
        kinds: dict[tuple[str, bool, int], Callable[[], float]] = {
            ("psync", self._direct, 1): self._psync
        }
        if self.fio:
            kinds["fio", True, 1] = partial(self._run_fio, self.fio)
        medians = self._medians({**kinds, **self._our_kinds(threads)})
        base = medians["psync", self._direct, 1]
        return [
            Row(*kind, round(speed / 1e9, 3), round(speed / base, 2))
            for kind, speed in medians.items()
        ]

    def ours(self, threads: Sequence[int]) -> dict[tuple[bool, int], float]:
        """Our reader alone: bytes a second by (past the page cache, threads). Raises ReadFailed."""
        medians = self._medians(self._our_kinds(threads))
        return {(direct, count): speed for (_, direct, count), speed in medians.items()}

    def _our_kinds(
        self, threads: Sequence[int]
    ) -> dict[tuple[str, bool, int], Callable[[], float]]:
        return {
            ("ours", direct, count): partial(self._ours, count, direct)
            for direct in ((True, False) if self._direct else (False,))
            for count in threads
        }

    def _medians(
        self, kinds: Mapping[tuple[str, bool, int], Callable[[], float]]
    ) -> dict[tuple[str, bool, int], float]:
        speeds: dict[tuple[str, bool, int], list[float]] = {kind: [] for kind in kinds}
        for _ in range(self._rounds):
            for kind, window in kinds.items():
                speeds[kind].append(window())
        return {kind: statistics.median(found) for kind, found in speeds.items()}

    def _ours(self, threads: int, direct: bool) -> float:
        """Bytes a second of the reader that runs use."""
        from diskmoe.experts.disk import read_speed
        from diskmoe.experts.reader import FileReader

        if not direct:
            self._empty_cache()
        reader = FileReader(direct)
        try:
            return read_speed(
                reader.read_into, self._shuffled(), self._block, threads, self._seconds
            )
        finally:
            reader.close()

    def _psync(self) -> float:
        """Bytes a second of one thread that reads and does nothing else, into ordinary pages."""
        from diskmoe.experts.reader import FileReader

        if not self._direct:
            self._empty_cache()
        # page-aligned and not huge: a large array of NumPy's would be
        memory = np.frombuffer(mmap.mmap(-1, self._block), np.uint8)
        memory[:] = 0
        reader, nbytes = FileReader(self._direct), 0
        begin = time.perf_counter()
        for path, offset in self._shuffled():
            reader.read_into(path, offset, memory)
            nbytes += self._block
            if time.perf_counter() - begin >= self._seconds:
                break
        took = time.perf_counter() - begin
        reader.close()
        return nbytes / took

    def _run_fio(self, fio: str) -> float:
        files = ":".join(str(path).replace(":", "\\:") for path in self._files[:FIO_FILES])
        done = subprocess.run(
            [
                fio, "--name=psync", "--readonly", "--ioengine=psync", "--direct=1",
                "--rw=randread", f"--bs={self._block}", f"--filename={files}", "--time_based",
                f"--runtime={max(1, round(1000 * self._seconds))}ms", "--output-format=json",
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        try:
            return float(json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"])
        except (ValueError, LookupError):
            said = " ".join((done.stderr or done.stdout).split())[:200]
            raise ReadFailed(f"fio ended with code {done.returncode}: {said}") from None

    def _shuffled(self) -> Iterator[tuple[Path, int]]:
        return iter(random.sample(self._blocks, len(self._blocks)))

    def _empty_cache(self) -> None:
        drop_from_cache(self._files)
