"""How fast a model would decode here, from measured speeds, before anything runs.

A token's time is that of the dense weights, then layer by layer that of its experts. A layer reads
its misses while it computes its hits, and computes each miss as it arrives; so with k experts per
token of b bytes, a hit rate h, weights going through the kernels at `expert` bytes per second and
the disk giving `disk`:

    seconds = dense bytes / dense + layers * max(k * b / expert, (1 - h) * k * b / disk + b / expert)

The second term of the maximum ends with the last miss, which nothing hides; at h = 1 there is none.
`dense` and `expert` are what the kernels themselves reach with one row on weights that no cache
holds: they read slower than memory can be read. Attention over a long context, sampling and what
Python does between layers come on top.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from diskmoe.engine.kernels.matmul import matmul
from diskmoe.engine.kernels.matrix import Matrix
from diskmoe.engine.kernels.workers import Workers
from diskmoe.experts.arena import Arena
from diskmoe.experts.formats import expert_formats
from diskmoe.experts.tiles import PAGE, matrix_layout

HIT_RATES = (0.0, 0.5, 0.8, 0.95)
_PIECES = 8
_PIECE_BYTES = 12 << 20  # all pieces together are more than caches hold
_FILL = 0x3C  # bytes that are finite, ordinary numbers in every format


@dataclass(frozen=True)
class TokenWork:
    """What a token asks for, in bytes of weights."""

    dense_bytes: int
    expert_bytes: int  # one record
    read_bytes: int  # what one record asks of the disk
    top_k: int
    moe_layers: int


@dataclass(frozen=True)
class Speeds:
    """Bytes per second. disk: None where it could not be measured, and `disk_how` says why."""

    dense: float
    expert: float
    disk: float | None
    disk_how: str


def token_seconds(work: TokenWork, speeds: Speeds, hit_rate: float) -> float | None:
    """The time of a token; None when it has to wait for a disk that could not be measured."""
    dense = work.dense_bytes / speeds.dense
    one = work.expert_bytes / speeds.expert
    misses = (1 - hit_rate) * work.top_k
    layer = work.top_k * one
    if misses and work.moe_layers:
        if speeds.disk is None:
            return None
        layer = max(layer, misses * work.read_bytes / speeds.disk + one)
    return dense + work.moe_layers * layer


def kernel_speeds(
    dense_format: str, expert_format: str, hidden: int, workers: Workers
) -> tuple[float, float]:
    """(of dense weights, of experts): `weight_speed`, of an expert's two formats the slower one's."""
    dense = weight_speed(dense_format, hidden, workers)
    formats = dict.fromkeys(expert_formats(expert_format))
    return dense, min(weight_speed(fmt, hidden, workers) for fmt in formats)


def weight_speed(
    fmt: str,
    hidden: int,
    workers: Workers,
    seconds: float = 0.2,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Bytes per second of weights of a format, multiplied with one row; 96 MiB for that time.

    The speed that a quarter of the rounds reached: what else runs just now comes and goes.
    """
    rows = max(_PIECE_BYTES // matrix_layout(fmt, 16, hidden).nbytes, 1) * 16
    layout = matrix_layout(fmt, rows, hidden)
    arena = Arena(_PIECES, -(-layout.nbytes // PAGE) * PAGE)
    arena.bytes[:] = _FILL
    matrices = [Matrix(layout, arena.slot(i)[: layout.nbytes]) for i in range(_PIECES)]
    x, out = np.ones((1, hidden), np.float32), np.empty((1, rows), np.float32)
    took: list[float] = []
    try:
        until = clock() + seconds
        while len(took) < _PIECES or clock() < until:
            begin = clock()
            for matrix in matrices:
                matmul(x, matrix, out, workers)
            took.append(clock() - begin)
    finally:
        del matrices
        arena.close()
    return _PIECES * layout.nbytes / sorted(took)[len(took) // 4]
