"""How fast memory and a model's disk are here: what no kernel and no reader can beat.

The rule of this file: the disk is what a run's misses would find, measured by the reader and at the
record's size of a run; and a speed that a page cache gave is called so.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from diskmoe.bench.disk import FEWEST_BLOCKS, Windows
from diskmoe.bench.knobs import Reading
from diskmoe.bench.memory import Crew, read_seconds
from diskmoe.engine.kernels.workers import Workers
from diskmoe.engine.loading import Opened
from diskmoe.engine.predict import weight_speed
from diskmoe.engine.prepared import Prepared
from diskmoe.experts.arena import Arena
from diskmoe.experts.disk import blocks_of, measure_disk, pages, read_speed
from diskmoe.experts.pagecache import cached_share
from diskmoe.experts.reader import FileReader

WINDOW = 12 << 20  # bytes; all windows together are more than caches hold
WINDOWS = 8
MEMORY_SECONDS = 0.3
DISK_SECONDS, DISK_ROUNDS = 0.15, 3
CACHED = 0.9  # of the files: reads through the page cache then say nothing of the disk


@dataclass(frozen=True)
class Compute:
    """Bytes per second with so many threads: reading memory; kernels on dense weights and experts,
    one row."""

    threads: int
    memory: float
    dense: float
    expert: float


def compute_speeds(prepared: Prepared, threads: int) -> Compute:
    """Takes about a second and 96 MiB."""
    opened = prepared.opened
    hidden = opened.config.hidden
    with Workers(threads) as workers:
        dense = weight_speed(opened.dense_formats[-1], hidden, workers)
        expert = dense
        if opened.config.moe_layers:
            expert = weight_speed(opened.records.expert_format, hidden, workers)
    return Compute(threads, memory_speed(threads), dense, expert)


def memory_speed(threads: int) -> float:
    """Bytes per second that so many threads read front to back; a quarter of the windows was faster,
    as with `weight_speed`: what else runs just now comes and goes."""
    arena = Arena(WINDOWS, WINDOW)
    took: list[float] = []
    try:
        arena.bytes[:] = 1
        with Crew(threads) as crew:
            until = time.perf_counter() + MEMORY_SECONDS
            while len(took) < WINDOWS or time.perf_counter() < until:
                at = len(took) % WINDOWS * WINDOW
                took.append(read_seconds(crew, arena.bytes, at, at + WINDOW))
    finally:
        arena.close()
    return WINDOW / sorted(took)[len(took) // 4]


def disk_speeds(prepared: Prepared, threads: Sequence[int]) -> tuple[Reading, ...]:
    """The ways to read this model's experts, cold; () where it is too small to say.

    The page cache is emptied of the model's files. Raises ReadFailed.
    """
    files, block = _records(prepared)
    if block == 0 or len(blocks_of(files, block)) < FEWEST_BLOCKS:
        return ()
    windows = Windows(files, block, DISK_SECONDS, DISK_ROUNDS)
    return tuple(
        Reading(direct, count, speed) for (direct, count), speed in windows.ours(threads).items()
    )


def found_speed(prepared: Prepared) -> tuple[float | None, str, bool]:
    """(bytes per second, how, whether the page cache answers) of a run's misses, as things are now."""
    files, block = _records(prepared)
    if block == 0:
        return None, "the model has no experts", False
    threads = prepared.options.io_threads
    if is_direct(prepared.opened):
        return *measure_disk(files, block, threads), False
    blocks = blocks_of(files, block)
    if not blocks:
        return None, f"no file is as long as a record of {block} bytes", False
    random.shuffle(blocks)
    share = cached_share(files)
    reader = FileReader(False)
    try:
        speed = read_speed(reader.read_into, iter(blocks), block, threads, 2 * DISK_SECONDS)
    finally:
        reader.close()
    known = "an unknown share" if share is None else f"{100 * share:.0f} %"
    how = f"plain reads of {block} bytes, {threads} at a time, {known} of the files cached"
    return speed, how, share is None or share > CACHED


def is_direct(opened: Opened) -> bool:
    """Whether a run reads experts past the page cache."""
    return not opened.io_mode.startswith("plain reads")


def _records(prepared: Prepared) -> tuple[Sequence[Path], int]:
    """(files, bytes that a miss reads, in whole pages); 0 bytes where there are no experts."""
    records, layers = prepared.opened.records, prepared.opened.config.moe_layers
    if not layers:
        return (), 0
    return records.files, pages(records.disk_bytes(layers[0], 0))
