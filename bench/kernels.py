"""``diskmoe bench kernels``: the speed of each weight format against that of memory."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from diskmoe.bench.words import shape_of, understood
from diskmoe.engine.errors import BadRequest, OutOfBudget

Say = Callable[[str], None]

USAGE = """\
usage: diskmoe bench kernels [options]

Multiplies matrices with 1, 2, 4 and 8 rows, in each weight format, by one thread and by all, and
compares with what reading the same memory takes (a loop that only adds up, measured in turn with
each kernel; medians of short windows that the caches do not hold). GB/s counts the bytes of weights
and scales. A kernel whose outputs differ from NumPy's is an error, and has no speed.

  --formats LIST     of q4, q4g64, q4_0, q4_1, int4, q8, mxfp4, fp8, bf16, f32 (default: all)
  --batches LIST     rows at once: of 1 to 64 (default 1,2,4,8)
  --paths LIST       of the paths this processor has; default: the best one and portable
  --threads N        only so many (default: 1, and all usable cores)
  --shape RxC        rows and columns of a matrix (default 768x2048)
  --mib N            memory to walk through (default 512)
  --seconds S        per line (default 0.3)
  --json             one JSON object: ceiling, rows
"""
FLAGS = {
    "--formats": True,
    "--batches": True,
    "--paths": True,
    "--shape": True,
    "--mib": True,
    "--seconds": True,
}
SETTINGS = ("THREADS", "JSON", "DEBUG", "VERBOSE")
WINDOW_BYTES = 48 << 20  # 2 to 5 ms of reading: long beside the waking of a thread
FEWEST_PAIRS = 3
TWIN_BYTES = 32  # per weight, while a product is compared with NumPy's


@dataclass(frozen=True)
class Row:
    """A line of the result. gb_s: 1e9 bytes of weights and scales a second; us: per product."""

    format: str
    bits: int
    rows: int
    cols: int
    batch: int
    threads: int
    path: str
    gb_s: float
    of_ceiling: float
    us: float

    def line(self) -> str:
        return (
            f"{self.format:<6} {self.batch:>5} {self.threads:>7}  {self.path:<11} "
            f"{self.gb_s:>6.2f} {100 * self.of_ceiling:>6.1f} % {self.us:>9.1f}"
        )


HEADING = "format batch threads  path          GB/s  of read        us"


def command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """Runs ``bench kernels``; returns the exit code, 1 when a kernel is wrong."""
    line = understood("kernels", words, env, FLAGS, SETTINGS)
    if line.places:
        raise BadRequest(
            f"bench kernels takes no argument, and got {line.places[0]!r}; see "
            "diskmoe bench kernels --help"
        )
    rows, cols = shape_of(line.flags.get("--shape", "768x2048"))
    mib = line.whole("--mib", 1, 1 << 20, 512)
    seconds = line.number("--seconds", 0, 3600, 0.3)
    batches = line.wholes("--batches", 1, 64, (1, 2, 4, 8))
    _refuse_what_does_not_fit(rows, cols, mib << 20)

    from diskmoe.engine.cores import usable_cores  # these import Numba
    from diskmoe.engine.kernels.paths import available_paths, host_path
    from diskmoe.experts.formats import FORMATS

    known = sorted(FORMATS, key=lambda name: FORMATS[name].weight_bits)
    formats = line.several("--formats", known, known)
    best, reason = host_path()
    paths = line.several("--paths", available_paths(), list(dict.fromkeys((best, "portable"))))
    cores, why = usable_cores()
    wanted = line.values["THREADS"].value
    threads = [wanted] if wanted else sorted({1, cores})
    say(f"kernels   best path {best}: {reason}; {cores} threads: {why}")
    say(f"kernels   matrices of {rows} x {cols} in {mib} MiB, {seconds:g} s a line")
    run = _Run(rows, cols, mib << 20, seconds, say)
    for fmt in formats:
        run.format(fmt, batches, threads, paths)
    run.numpy(cores)
    streams = ", ".join(f"{n} thread(s) {speed:.2f}" for n, speed in run.streams().items())
    say(f"kernels   reading from four places at once, GB/s: {streams}")
    if line.values["JSON"].value:
        print(json.dumps({"ceiling": run.ceiling(), "rows": [asdict(row) for row in run.rows]}))
    else:
        for count, speed in run.ceiling().items():
            print(f"ceiling {count} thread(s): {speed:.2f} GB/s")
        print("\n".join([HEADING, *(row.line() for row in run.rows)]))
    return 1 if run.wrong else 0


def _refuse_what_does_not_fit(rows: int, cols: int, nbytes: int) -> None:
    """OutOfBudget when the system has not the memory: it would end this process, or others."""
    from diskmoe.experts.budget import available_memory, shown_bytes

    # two copies at least, and the twin's float64 beside a matrix in several forms
    needed = max(nbytes, 2 * 4 * rows * cols) + TWIN_BYTES * rows * cols
    available = available_memory()
    if needed > available.nbytes:
        raise OutOfBudget(
            f"--shape {rows}x{cols} and --mib {nbytes >> 20} take {shown_bytes(needed)}, "
            f"{shown_bytes(available.nbytes)} are {available.where}: ask for a smaller --shape or --mib"
        )


def _medians(speeds: Mapping[int, Sequence[float]]) -> dict[str, float]:
    """{threads: GB/s} of speeds in bytes a second."""
    return {
        str(threads): round(statistics.median(found) / 1e9, 3)
        for threads, found in sorted(speeds.items())
    }


class _Run:
    """Lines, and the read speeds they were compared with."""

    def __init__(self, rows: int, cols: int, nbytes: int, seconds: float, say: Say) -> None:
        self.shape = (rows, cols)
        self.rows: list[Row] = []
        self.wrong = 0
        self._nbytes, self._seconds, self._say = nbytes, seconds, say
        self._reads: dict[int, list[float]] = {}  # threads -> bytes a second, window by window
        self._streams: dict[int, list[float]] = {}  # the same, reading from four places at once

    def ceiling(self) -> dict[str, float]:
        """GB/s of reading alone, front to back, by number of threads."""
        return _medians(self._reads)

    def streams(self) -> dict[str, float]:
        """GB/s of reading from four places at once: some processors are faster so."""
        return _medians(self._streams)

    def format(
        self, fmt: str, batches: Sequence[int], threads: Sequence[int], paths: Sequence[str]
    ) -> None:
        """All lines of one format."""
        from diskmoe.bench.memory import Crew
        from diskmoe.bench.products import Matrices, WrongResult
        from diskmoe.experts.formats import FORMATS

        self._say(f"kernels   {fmt}")
        matrices = Matrices(fmt, *self.shape, self._nbytes)
        try:
            for count in threads:
                with Crew(count) as crew:
                    for path in paths:
                        for batch in batches:
                            try:
                                product = matrices.product(batch, path, crew)
                            except WrongResult as error:
                                self.wrong += 1
                                self._say(f"error: {error}")
                                continue
                            speed, share = self._compared(
                                crew,
                                product.seconds,
                                matrices.arena.bytes,
                                matrices.sizes.stride,
                                matrices.sizes.nbytes,
                            )
                            bits = FORMATS[fmt].weight_bits
                            self._add(fmt, bits, batch, count, path, speed, share)
        finally:
            matrices.close()

    def numpy(self, threads: int) -> None:
        """The same product by NumPy, with f32 weights and one row: a line to judge ours by.

        It may be above 100 %: a BLAS reads several rows at once.
        """
        from diskmoe.bench.memory import Crew, read_seconds
        from diskmoe.experts.arena import Arena
        from diskmoe.experts.tiles import PAGE

        rows, cols = self.shape
        stride = -(-rows * cols * 4 // PAGE) * PAGE
        slots = max(2, self._nbytes // stride)
        arena = Arena(slots, stride)
        arena.bytes.view(np.float32)[:] = 1
        x = np.ones(cols, np.float32)
        out = np.empty(rows, np.float32)

        def product(begin: int, count: int) -> float:
            started = time.perf_counter()
            for i in range(count):
                slot = arena.slot((begin + i) % slots)[: rows * cols * 4]
                np.dot(slot.view(np.float32).reshape(rows, cols), x, out=out)
            return time.perf_counter() - started

        window = max(1, min(WINDOW_BYTES // stride, slots // 2))
        if threads not in self._reads:
            with Crew(threads) as crew:
                took = [read_seconds(crew, arena.bytes, 0, window * stride) for _ in range(8)]
            self._reads[threads] = [window * stride / seconds for seconds in took]
        # not in turn: BLAS's threads wait by spinning, and would slow down the reading
        speeds, cursor = [], 0
        until = time.perf_counter() + self._seconds
        while len(speeds) < FEWEST_PAIRS or time.perf_counter() < until:
            speeds.append(window * rows * cols * 4 / product(cursor, window))
            cursor = (cursor + window) % slots
        speed = statistics.median(speeds)
        share = speed / statistics.median(self._reads[threads])
        self._add("f32", 32, 1, threads, "numpy", speed, share)
        arena.close()

    def _compared(
        self,
        crew: object,
        product: Callable[[int, int], float],
        memory: np.ndarray,
        stride: int,
        nbytes: int,
    ) -> tuple[float, float]:
        """(bytes a second of the product, share of the read speed), medians of windows in turn."""
        from diskmoe.bench.memory import Crew, read_seconds, read_sum_of_four

        assert isinstance(crew, Crew)
        slots = len(memory) // stride
        window = max(1, min(WINDOW_BYTES // stride, slots // 2))
        reads, speeds, cursor = [], [], 0
        product(0, 1)  # whatever happens at a first call
        read_seconds(crew, memory, 0, stride)
        until = time.perf_counter() + self._seconds
        while len(speeds) < FEWEST_PAIRS or time.perf_counter() < until:
            if cursor + window > slots:
                cursor = 0
            begin, end = cursor * stride, (cursor + window) * stride
            reads.append((end - begin) / read_seconds(crew, memory, begin, end))
            cursor += window
            speeds.append(window * nbytes / product(cursor, window))
            cursor = (cursor + window) % slots
        self._reads.setdefault(crew.n_threads, []).extend(reads)
        self._streams.setdefault(crew.n_threads, []).append(
            window * stride / read_seconds(crew, memory, 0, window * stride, read_sum_of_four)
        )
        speed = statistics.median(speeds)
        return speed, speed / statistics.median(reads)

    def _add(
        self, fmt: str, bits: int, batch: int, threads: int, path: str, speed: float, share: float
    ) -> None:
        rows, cols = self.shape
        nbytes = rows * cols * 4
        if path != "numpy":
            from diskmoe.bench.products import Sizes

            nbytes = Sizes(fmt, rows, cols).nbytes
        us = 1e6 * nbytes / speed
        row = Row(
            fmt, bits, rows, cols, batch, threads, path,
            round(speed / 1e9, 3), round(share, 4), round(us, 2),
        )  # fmt: skip
        self.rows.append(row)
        self._say(f"kernels   {row.line()}")
