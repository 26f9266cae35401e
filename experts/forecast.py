"""What a conversion will take, before it begins: bytes on the disk, memory, time.

The rule of this file: bytes and memory are reckoned from headers; time is measured, on one expert
and on some rows of the largest matrix, made as the conversion will make them and thrown away, and on
the disks that are read and written.
"""

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from diskmoe.experts.budget import shown_bytes
from diskmoe.experts.checkpoint import ROW_BLOCK_BYTES, Checkpoint, TensorPlan
from diskmoe.experts.container import DENSE_NAME
from diskmoe.experts.disk import measure_disk, write_speed
from diskmoe.experts.errors import OutOfBudget
from diskmoe.experts.fidelity import comparison_bytes
from diskmoe.experts.footprint import resident_bytes
from diskmoe.experts.manifest import Manifest
from diskmoe.experts.records import CheckpointRecords
from diskmoe.experts.tiles import TILE, aligned_zeros, matrix_layout
from diskmoe.experts.warm import compile_packers

TIMED_BYTES = 4 << 20  # of f32 rows that are packed to measure how long it takes
OTHER_BYTES = 48 << 20  # threads, the allocator's rest, blocks read back: 37 MiB were measured
_READ_BACK_BPS = 1e9  # checksums of what was written: a processor's, on one thread
_PROBED_BYTES = 4 << 20  # that are read at once to measure a disk


@dataclass(frozen=True)
class Forecast:
    """Bytes, threads and seconds of a conversion. `source`: bytes of each type in the checkpoint.

    read_bps, write_bps: of the disks, None where they were not measured.
    """

    source: Mapping[str, int]
    expert_nbytes: int
    dense_nbytes: int
    threads: int
    memory_bytes: int  # what is resident now included
    seconds: float
    read_bps: float | None = None
    write_bps: float | None = None

    @property
    def nbytes(self) -> int:
        """Of what is written."""
        return self.expert_nbytes + self.dense_nbytes


def forecast(
    checkpoint: Checkpoint,
    plan: TensorPlan,
    manifest: Manifest,
    threads: int,
    budget_bytes: int | None = None,
    target: Path | None = None,
) -> Forecast:
    """With as many threads as were asked for, or fewer, as the budget holds.

    target: a directory on the disk that will be written.

    Raises OutOfBudget when it does not even hold one, and BadModel for a checkpoint that cannot be
    converted.
    """
    facts, sizes = manifest.facts, manifest.sizes()
    compile_packers({facts.expert_format, *(lay.format for lay in manifest.layouts.values())})
    with closing(CheckpointRecords(checkpoint, plan, facts.expert_format, 1)) as records:
        each = records.scratch_bytes + records.record_layout.nbytes
        fixed = 2 * ROW_BLOCK_BYTES + 2 * records.record_layout.nbytes
        fixed = resident_bytes() + OTHER_BYTES + max(fixed, comparison_bytes(plan))
        threads = _threads_within(threads, each, fixed, budget_bytes)
        count = len(facts.layers) * facts.n_experts
        seconds = count * _expert_seconds(records) / threads if count else 0.0
    seconds += _dense_seconds(checkpoint, manifest)
    total = sum(sizes.values())
    files = [header.path for header in checkpoint.files]
    read_bps, _ = measure_disk(files, _PROBED_BYTES, threads, seconds=0.3)
    write_bps = None if target is None else write_speed(target)
    if read_bps is not None:  # reads are under way while experts are made, writes are not
        seconds = max(seconds, sum(checkpoint.types.values()) / read_bps)
    if write_bps is not None:
        seconds += total / write_bps
    return Forecast(
        source=checkpoint.types,
        expert_nbytes=total - sizes[DENSE_NAME],
        dense_nbytes=sizes[DENSE_NAME],
        threads=threads,
        memory_bytes=fixed + threads * each,
        seconds=seconds + total / min(_READ_BACK_BPS, read_bps or _READ_BACK_BPS),
        read_bps=read_bps,
        write_bps=write_bps,
    )


def _threads_within(threads: int, each: int, fixed: int, budget_bytes: int | None) -> int:
    if budget_bytes is None:
        return threads
    most = (budget_bytes - fixed) // each
    if most < 1:
        raise OutOfBudget(
            f"converting this model takes {shown_bytes(fixed + each)} with one thread, RAM_GB allows "
            f"{shown_bytes(budget_bytes)}: give it {(fixed + each) / 2**30:.2f} or more"
        )
    return min(threads, most)


def _expert_seconds(records: CheckpointRecords) -> float:
    """Of the last expert of the last layer, which nobody has read before."""
    layer = records.layers[-1]
    record = aligned_zeros(records.record_layout_of(layer).nbytes)
    began = time.perf_counter()
    records.load(layer, records.n_experts - 1, record)
    return time.perf_counter() - began


def _dense_seconds(checkpoint: Checkpoint, manifest: Manifest) -> float:
    """Reckoned from some rows of the largest matrix."""
    layouts = manifest.layouts
    if not layouts:
        return 0.0
    name = max(layouts, key=lambda one: layouts[one].rows * layouts[one].cols)
    cols = layouts[name].cols
    rows = min(max(TIMED_BYTES // (4 * cols) // TILE, 1) * TILE, layouts[name].rows)
    began = time.perf_counter()
    checkpoint.pack_part(name, 0, matrix_layout(layouts[name].format, rows, cols))
    seconds = time.perf_counter() - began
    weights = sum(layout.rows * layout.cols for layout in layouts.values())
    return seconds * weights / (rows * cols)
