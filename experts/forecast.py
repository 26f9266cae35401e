"""What a conversion will take, before it begins: bytes on the disk, memory, time.

The rule of this file: bytes and memory are reckoned from headers; time is measured, on one expert
and on some rows of the largest matrix, made as the conversion will make them, and thrown away.
"""

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from diskmoe.experts.budget import shown_bytes
from diskmoe.experts.checkpoint import ROW_BLOCK_BYTES, Checkpoint, TensorPlan
from diskmoe.experts.container import DENSE_NAME
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


@dataclass(frozen=True)
class Forecast:
    """Bytes, threads and seconds of a conversion. `source`: bytes of each type in the checkpoint."""

    source: Mapping[str, int]
    expert_nbytes: int
    dense_nbytes: int
    threads: int
    memory_bytes: int  # what is resident now included
    seconds: float

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
) -> Forecast:
    """With as many threads as were asked for, or fewer, as the budget holds.

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
    return Forecast(
        source=checkpoint.types,
        expert_nbytes=total - sizes[DENSE_NAME],
        dense_nbytes=sizes[DENSE_NAME],
        threads=threads,
        memory_bytes=fixed + threads * each,
        seconds=seconds + total / _READ_BACK_BPS,
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
