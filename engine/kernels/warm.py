"""Compile every kernel before the first token, or load it from Numba's cache on disk.

The rule of this file: it calls the public functions with the types that the engine calls them
with, so that no kernel is compiled later, in the middle of an answer.
"""

from collections.abc import Sequence

import numpy as np

from diskmoe.engine.kernels.attention import attend
from diskmoe.engine.kernels.basic import add, add_bias, rms_norm, rope, rope_tables, sigmoid_
from diskmoe.engine.kernels.basic import silu_mul as gated
from diskmoe.engine.kernels.experts import combine, expert_ffn
from diskmoe.engine.kernels.matmul import Matrix, matmul, take_rows
from diskmoe.engine.kernels.route import route
from diskmoe.engine.kernels.workers import Workers
from diskmoe.experts.tiles import matrix_layout, record_layout


def compile_kernels(formats: Sequence[str]) -> None:
    """Run every kernel on tiny arrays for these weight formats.

    With Numba's cache on disk filled this takes well under a second, without it half a minute.
    What packs weights on the way in is compiled by ``experts.tiles.compile_packers``.
    """
    with Workers(1) as workers:
        _products(formats, workers)
        _experts(formats, workers)
        _attention(workers)
        _basics()
        _router()


def _products(formats: Sequence[str], workers: Workers) -> None:
    for fmt in formats:
        layout = matrix_layout(fmt, 16, 32)
        matrix = Matrix(layout, np.zeros(layout.nbytes, np.uint8))
        matmul(_zeros(5, 32), matrix, _zeros(5, 16), workers)
        take_rows(matrix, np.zeros(1, np.int32), _zeros(1, 32))


def _experts(formats: Sequence[str], workers: Workers) -> None:
    for fmt in formats:
        layout = record_layout(fmt, 32, 16)
        arena = np.zeros(layout.nbytes, np.uint8)
        zeros, bounds = np.zeros(1, np.int32), np.array([0, 1], np.int32)
        selected = _zeros(1, 32)
        expert_ffn(_zeros(1, 32), zeros, zeros, bounds, zeros, arena, layout, selected, workers)
        combine(selected, np.zeros((1, 1), np.int32), _zeros(1, 1), _zeros(1, 32))


def _attention(workers: Workers) -> None:
    q, kv = _zeros(1, 2, 16), _zeros(4, 1, 16)
    attend(q, kv, kv, 0, 1.0, _zeros(1, 2, 16), workers)
    cos, sin = rope_tables(np.ones(8), 4)
    rope(q, cos, sin, 0)


def _basics() -> None:
    x = _zeros(1, 32)
    rms_norm(x, x[0], 1e-6, x)
    gated(x, x, x)
    sigmoid_(x)
    add(x, x)
    add_bias(x, x[0])


def _router() -> None:
    for score in ("softmax", "sigmoid"):
        route(_zeros(1, 4), score, _zeros(4), 1, 1, "max", 1, True, 1.0)


def _zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)
