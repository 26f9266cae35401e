"""Layers with a gated delta rule: a state per head that fades, is corrected, and is asked.

With S (key dim, value dim) the state of a value head, and q, k, v, fade and step of a row:

    S = fade * S;  S = S + k (step * (v - S^T k))^T;  o = S^T q

q, k and v of a row come out of a convolution over the last `taps` rows of each channel and SiLU;
queries and keys are then divided by their lengths, queries by sqrt(key dim) too. fade is
exp(-exp(log) * softplus(a + bias)), step is sigmoid(b).

The rule of this file: rows are taken one after another with the same operations whatever the number
of rows in a forward, and a state is kept only for rows that nobody takes back any more. What a
layer keeps (`DeltaPart`) is the state after `position` rows, and the raw inputs of the rows behind
them that are whole but may be taken back: a forward computes these again, which gives the same bits,
and moves the state over them. The rows of the forward itself are kept as raw inputs where there is
room for as many; a prompt's chunk is longer than that and moves the state over all of its rows.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskmoe.engine.kernels.atomics import word_at
from diskmoe.engine.kernels.basic import norm_row
from diskmoe.engine.kernels.delta_keep import KEEP, SETTLE
from diskmoe.engine.kernels.delta_mix import MIX
from diskmoe.engine.kernels.delta_rule import DELTA
from diskmoe.engine.kernels.delta_shape import LANES, DeltaShape
from diskmoe.engine.kernels.delta_words import (
    EPS,
    KEY_DIM,
    KEY_HEADS,
    NORM,
    OUT,
    OUT_STEP,
    VALUE_DIM,
    VALUE_HEADS,
    Z,
    mixed_at,
    pending_rows,
)
from diskmoe.engine.kernels.program import Builder, Phase, Rows, address_of_array, f32_word
from diskmoe.engine.kernels.simd import f32_at, load_f32, mul, silu, store_f32

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class DeltaPart:
    """What a layer keeps. `rows`: raw inputs, the last taps - 1 rows that the state has seen and
    then `kept` that it has not."""

    position: int  # address of an int64: rows that the state has seen
    state: int
    rows: Rows
    kept: int


@dataclass(frozen=True)
class Grouped:
    """Numbers of rows that lie together for each key head."""

    rows: Rows
    group_step: int  # bytes from one key head's to the next one's

    @property
    def words(self) -> list[int]:
        return [self.rows.address, self.rows.step, self.group_step]


@dataclass(frozen=True)
class DeltaInputs:
    """What a layer's matrices made of the rows; q and k have a head, the others value_heads /
    key_heads of them in each group."""

    q: Grouped
    k: Grouped
    v: Grouped
    z: Grouped
    b: Grouped
    a: Grouped


@dataclass(frozen=True, eq=False)
class DeltaVectors:
    conv: Floats  # (taps, 1, channels)
    log: Floats  # (value heads,)
    bias: Floats  # (value heads,)
    norm: Floats  # (value dim,)


def add_delta(
    builder: Builder,
    n: int,
    shape: DeltaShape,
    inputs: DeltaInputs,
    vectors: DeltaVectors,
    part: DeltaPart,
    start: int,  # address of the first row's position, int64
    eps: float,
    mixed: int,  # address of room for (kept + n) * channels f32
    gates: int,  # address of room for (kept + n) * 2 * value_heads f32
    out: Rows,  # (n, value_heads * value_dim): normed, times silu(z)
) -> None:
    """Phases: n rows through the rule; what the layer keeps goes on by the rows before them."""
    words = [
        *(shape.key_heads, shape.value_heads, shape.key_dim, shape.value_dim, shape.taps),
        *(n, start, part.kept, part.position, part.rows.address, part.rows.step, part.state),
        *inputs.q.words,
        *inputs.k.words,
        *inputs.v.words,
        *inputs.b.words,
        *inputs.a.words,
        *inputs.z.words,
        *(address_of_array(vectors.conv), address_of_array(vectors.log)),
        *(address_of_array(vectors.bias), address_of_array(vectors.norm), f32_word(eps)),
        *(mixed, gates, out.address, out.step),
    ]
    rows = part.kept + n
    dim = max(shape.key_dim, shape.value_dim)
    builder.add(MIX, words, rows * shape.heads, (shape.taps + 8) * dim)
    tiles = shape.value_width // LANES
    builder.add(DELTA, words, tiles, 64 * (n + 1) * shape.key_dim)
    builder.add(KEEP, words, shape.heads, min(n, part.kept) * dim)
    builder.add(GATED_NORM, words, n * shape.value_heads, 12 * shape.value_dim)
    builder.add(SETTLE, words, 1, 1)
    builder.keep(vectors)


def _gated_norm(args, begin, end):  # pragma: no cover - compiled
    """Items: (row of the forward, value head)."""
    heads = word_at(args + VALUE_HEADS)
    dims = word_at(args + VALUE_DIM)
    shared = heads // word_at(args + KEY_HEADS)
    keys = 2 * word_at(args + KEY_HEADS) * word_at(args + KEY_DIM)
    pending = pending_rows(args)
    z_step = word_at(args + Z + 8)
    for item in range(begin, end):
        row = item // heads
        head = item % heads
        x = mixed_at(args, keys + head * dims, dims, pending + row)
        y = word_at(args + OUT) + row * word_at(args + OUT_STEP) + head * dims * 4
        z = word_at(args + Z) + row * z_step + head // shared * word_at(args + Z + 16)
        z += head % shared * dims * 4
        norm_row(x, word_at(args + NORM), dims, f32_at(args + EPS), y)
        for c in range(0, dims, 16):
            store_f32(y + c * 4, mul(load_f32(y + c * 4), silu(load_f32(z + c * 4))))


GATED_NORM = Phase(_gated_norm)
