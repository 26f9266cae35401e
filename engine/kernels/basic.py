"""RMS norms, and the tables of rotary embedding.

The rule of this file: elementwise operations round once each; a sum over a row goes into 16 lanes
(column c into lane c % 16, by fma) that are added as the tree of halves in `simd.lane_sum`.

    rms_norm(x, weight, 1e-6, out)
"""

import numpy as np
import numpy.typing as npt

from diskmoe.compiled.functions import inner, kernel
from diskmoe.engine.kernels.atomics import on_stack, word_at
from diskmoe.engine.kernels.program import Builder, Phase, Rows, address_of_array, f32_word
from diskmoe.engine.kernels.simd import (
    address,
    f32_at,
    fma,
    lane_sum,
    load_f32,
    mul,
    splat,
    store_f32,
    store_one,
)

Floats = npt.NDArray[np.float32]

_POSITIONS = 64  # of rotary tables in work at a time


def rms_norm(x: Floats, weight: Floats, eps: float, out: Floats) -> Floats:
    """out = x / sqrt(mean(x*x) + eps) * weight over the last axis; returns `out` (may be x).

    x, out (..., d) C-contiguous, weight (d,): a (n, heads, head_dim) array is normed per head.
    """
    _check(x, out)
    _check_vector("norm weight", weight, x)
    _rms_norm(_flat(x), weight, np.float32(eps), _flat(out))
    return out


def rope_tables(
    inverse_frequencies: npt.NDArray[np.floating], n_positions: int, magnitude: float = 1.0
) -> tuple[Floats, Floats]:
    """cos, sin f32 (n_positions, dims/2) for the frequencies (dims/2,), times `magnitude`.

    Plain RoPE has ``theta ** -(arange(0, dims, 2) / dims)``. Angles are rounded to f32 before the
    cosine, as the models were trained; the cosine itself is taken in float64 and then rounded.
    Filled in blocks of positions: hardly any memory is taken beside the tables.
    """
    frequencies = inverse_frequencies.astype(np.float32)
    cos = np.empty((n_positions, len(frequencies)), np.float32)
    sin = np.empty_like(cos)
    for begin in range(0, n_positions, _POSITIONS):
        end = min(begin + _POSITIONS, n_positions)
        positions = np.arange(begin, end, dtype=np.float32)
        angles = (positions[:, None] * frequencies).astype(np.float64)
        cos[begin:end] = magnitude * np.cos(angles)
        sin[begin:end] = magnitude * np.sin(angles)
    return cos, sin


def _check(*arrays: Floats) -> None:
    shape = arrays[0].shape
    for array in arrays:
        if array.dtype != np.float32 or array.shape != shape or not array.flags.c_contiguous:
            raise ValueError(
                f"C-contiguous float32 {shape} expected, got {array.dtype} {array.shape}"
                f"{'' if array.flags.c_contiguous else ', not C-contiguous'}"
            )


def _check_vector(name: str, vector: Floats, x: Floats) -> None:
    if vector.dtype != np.float32 or vector.shape != x.shape[-1:]:
        raise ValueError(
            f"{name} must be float32 {x.shape[-1:]}, not {vector.dtype} {vector.shape}"
        )


def _flat(x: Floats) -> Floats:
    return x.reshape(-1)


@inner
def norm_row(x, weight, d, eps, out):  # pragma: no cover - compiled
    """The RMS norm of d f32 at x, times weight, to out; all three are addresses."""
    whole = d // 16 * 16
    squares = splat(np.float32(0.0))
    for c in range(0, whole, 16):
        v = load_f32(x + c * 4)
        squares = fma(v, v, squares)
    if whole < d:
        tail = _tail()
        store_f32(tail, splat(np.float32(0.0)))
        for c in range(whole, d):
            store_one(tail + (c - whole) * 4, f32_at(x + c * 4))
        v = load_f32(tail)
        squares = fma(v, v, squares)
    mean = lane_sum(squares) / np.float32(d)
    inverse = np.float32(1.0) / np.sqrt(mean + eps)
    for c in range(0, whole, 16):
        store_f32(
            out + c * 4, mul(mul(load_f32(x + c * 4), splat(inverse)), load_f32(weight + c * 4))
        )
    for c in range(whole, d):
        store_one(out + c * 4, (f32_at(x + c * 4) * inverse) * f32_at(weight + c * 4))


_tail = on_stack(64)


@kernel
def _rms_norm(x, weight, eps, out):  # pragma: no cover - compiled
    """x, out f32 (n * d,), weight f32 (d,)."""
    d = len(weight)
    for first in range(0, len(x), d):
        norm_row(address(x) + first * 4, address(weight), d, eps, address(out) + first * 4)


def _norm(args, begin, end):  # pragma: no cover - compiled
    """Items: rows."""
    for row in range(begin, end):
        norm_row(
            word_at(args) + row * word_at(args + 8),
            word_at(args + 16),
            word_at(args + 24),
            f32_at(args + 32),
            word_at(args + 40) + row * word_at(args + 48),
        )


NORM = Phase(_norm)


def add_norm(builder: Builder, n: int, x: Rows, weight: Floats, eps: float, out: Rows) -> None:
    """A phase: out = the RMS norm of n rows of len(weight) f32 each (`out` may be x)."""
    words = [x.address, x.step, address_of_array(weight), len(weight), f32_word(eps)]
    builder.add(NORM, [*words, out.address, out.step], n, 2 * len(weight))
