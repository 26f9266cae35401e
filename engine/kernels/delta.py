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

Sums over the key dim go into four vectors, those of answers into two (row j of the state into j % 4 or
j % 2, by fma), which are added in pairs.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskmoe.compiled.functions import inner
from diskmoe.engine.kernels.atomics import put_word, word_at
from diskmoe.engine.kernels.basic import norm_row
from diskmoe.engine.kernels.delta_shape import LANES, DeltaShape
from diskmoe.engine.kernels.program import Builder, Phase, Rows, address_of_array, f32_word
from diskmoe.engine.kernels.simd import (
    add,
    address,
    exp,
    f32_at,
    fma,
    lane_sum,
    load_f32,
    mul,
    sigmoid,
    silu,
    splat,
    splat_at,
    store_f32,
    store_one,
)

Floats = npt.NDArray[np.float32]

_LENGTH_EPSILON = np.float32(1e-6)  # below a length's square root


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


# Words of the arguments, in bytes
_KEY_HEADS, _VALUE_HEADS, _KEY_DIM, _VALUE_DIM, _TAPS = 0, 8, 16, 24, 32
_N, _START, _KEPT, _POSITION, _ROWS, _ROWS_STEP, _STATE = 40, 48, 56, 64, 72, 80, 88
_Q, _K, _V, _B, _A, _Z = 96, 120, 144, 168, 192, 216
_CONV, _LOG, _BIAS, _NORM, _EPS = 240, 248, 256, 264, 272
_MIXED, _GATES, _OUT, _OUT_STEP = 280, 288, 296, 304


@inner
def _pending(args):  # pragma: no cover - compiled
    """Rows before the forward's that the state has not seen."""
    return word_at(word_at(args + _START)) - word_at(word_at(args + _POSITION))


@inner
def _settled(args):  # pragma: no cover - compiled
    """By how many rows the state goes on: those before the forward, or all."""
    rows = _pending(args)
    if word_at(args + _N) > word_at(args + _KEPT):
        rows += word_at(args + _N)
    return rows


@inner
def _channels(args):  # pragma: no cover - compiled
    keys = word_at(args + _KEY_HEADS) * word_at(args + _KEY_DIM)
    return 2 * keys + word_at(args + _VALUE_HEADS) * word_at(args + _VALUE_DIM)


@inner
def _mixed(args, channel, dims, row):  # pragma: no cover - compiled
    """Address of a head's numbers of a row: heads lie one after another, each with all its rows."""
    rows = word_at(args + _KEPT) + word_at(args + _N)
    return word_at(args + _MIXED) + (channel * rows + row * dims) * 4


@inner
def _gates(args, head, row):  # pragma: no cover - compiled
    """Address of fade and step of a value head of a row."""
    rows = word_at(args + _KEPT) + word_at(args + _N)
    return word_at(args + _GATES) + (head * rows + row) * 8


@inner
def _raw(args, index, kept_at, part, group, inside):  # pragma: no cover - compiled
    """Address of a part of raw row `index`: 0.. are those that are kept, then the forward's own.

    kept_at: where the part is in a kept row; part, group, inside: in a row of the forward.
    """
    kept = word_at(args + _TAPS) - 1 + _pending(args)
    if index < kept:
        return word_at(args + _ROWS) + index * word_at(args + _ROWS_STEP) + kept_at
    row = index - kept
    return word_at(part) + row * word_at(part + 8) + group * word_at(part + 16) + inside


@inner
def _softplus(x):  # pragma: no cover - compiled
    """log(1 + e**x) = max(x, 0) + 2 atanh(t / (2 + t)), t = e**-|x|; the series ends at s**15."""
    t = exp(x if x < np.float32(0.0) else -x)
    s = t / (np.float32(2.0) + t)
    square = s * s
    series = np.float32(1.0 / 15.0)
    series = fma(series, square, np.float32(1.0 / 13.0))
    series = fma(series, square, np.float32(1.0 / 11.0))
    series = fma(series, square, np.float32(1.0 / 9.0))
    series = fma(series, square, np.float32(1.0 / 7.0))
    series = fma(series, square, np.float32(1.0 / 5.0))
    series = fma(series, square, np.float32(1.0 / 3.0))
    series = fma(series, square, np.float32(1.0))
    logarithm = np.float32(2.0) * s * series
    return logarithm + x if x > np.float32(0.0) else logarithm


@inner
def _convolve(args, index, channel, dims, part, group, inside, out):  # pragma: no cover - compiled
    """Channels channel..channel+dims-1 of row `index`, over it and the taps - 1 before it."""
    step = _channels(args) * 4
    weights = word_at(args + _CONV) + channel * 4
    for c in range(0, dims, 16):
        total = splat(np.float32(0.0))
        for tap in range(word_at(args + _TAPS)):
            x = _raw(args, index + tap, channel * 4, part, group, inside)
            total = fma(load_f32(weights + tap * step + c * 4), load_f32(x + c * 4), total)
        store_f32(out + c * 4, silu(total))


@inner
def _unit(x, dims, scale):  # pragma: no cover - compiled
    """x / its length * scale, in place."""
    squares = splat(np.float32(0.0))
    for c in range(0, dims, 16):
        v = load_f32(x + c * 4)
        squares = fma(v, v, squares)
    inverse = np.float32(1.0) / np.sqrt(lane_sum(squares) + _LENGTH_EPSILON)
    for c in range(0, dims, 16):
        store_f32(x + c * 4, mul(mul(load_f32(x + c * 4), splat(inverse)), splat(scale)))


@inner
def _rates(args, row, head, group, inside):  # pragma: no cover - compiled
    """fade and step of a value head of a row, from its raw a and b."""
    heads = word_at(args + _VALUE_HEADS)
    index = row + word_at(args + _TAPS) - 1
    kept = (_channels(args) + head) * 4
    b = f32_at(_raw(args, index, kept, args + _B, group, inside * 4))
    a = f32_at(_raw(args, index, kept + heads * 4, args + _A, group, inside * 4))
    rate = exp(f32_at(word_at(args + _LOG) + head * 4))
    speed = _softplus(a + f32_at(word_at(args + _BIAS) + head * 4))
    gates = _gates(args, head, row)
    store_one(gates, exp(-(rate * speed)))
    store_one(gates + 4, sigmoid(b))


def _mix(args, begin, end):  # pragma: no cover - compiled
    """Items: (row, head), the rows before the forward first; heads of q, of k, of v."""
    key_heads = word_at(args + _KEY_HEADS)
    value_heads = word_at(args + _VALUE_HEADS)
    key_dim = word_at(args + _KEY_DIM)
    value_dim = word_at(args + _VALUE_DIM)
    heads = 2 * key_heads + value_heads
    shared = value_heads // key_heads
    pending = _pending(args)
    rows = pending + word_at(args + _N)
    scale = np.float32(1.0) / np.sqrt(np.float32(key_dim))
    for item in range(begin, end):
        row = item // heads
        head = item % heads
        if row >= rows or (row < pending and head < key_heads):
            continue  # nobody asks for it
        if head < 2 * key_heads:
            group = head % key_heads
            part = args + (_Q if head < key_heads else _K)
            channel = head * key_dim
            out = _mixed(args, channel, key_dim, row)
            _convolve(args, row, channel, key_dim, part, group, 0, out)
            _unit(out, key_dim, scale if head < key_heads else np.float32(1.0))
        else:
            head -= 2 * key_heads
            group = head // shared
            inside = head % shared
            channel = 2 * key_heads * key_dim + head * value_dim
            offset = inside * value_dim * 4
            out = _mixed(args, channel, value_dim, row)
            _convolve(args, row, channel, value_dim, args + _V, group, offset, out)
            _rates(args, row, head, group, inside)


@inner
def _change(state, key_dim, k, v, gates):  # pragma: no cover - compiled
    """By what a tile (key dim, 16) of a state, faded, is wrong about v when it is asked for k."""
    a0 = splat(np.float32(0.0))
    a1 = splat(np.float32(0.0))
    a2 = splat(np.float32(0.0))
    a3 = splat(np.float32(0.0))
    for j in range(0, key_dim, 4):
        a0 = fma(load_f32(state + j * 64), splat_at(k + j * 4), a0)
        a1 = fma(load_f32(state + j * 64 + 64), splat_at(k + j * 4 + 4), a1)
        a2 = fma(load_f32(state + j * 64 + 128), splat_at(k + j * 4 + 8), a2)
        a3 = fma(load_f32(state + j * 64 + 192), splat_at(k + j * 4 + 12), a3)
    said = mul(add(add(a0, a1), add(a2, a3)), splat_at(gates))
    return mul(fma(said, splat(np.float32(-1.0)), load_f32(v)), splat_at(gates + 4))


@inner
def _go_on(state, key_dim, k, v, gates):  # pragma: no cover - compiled
    """A tile goes over one row."""
    change = _change(state, key_dim, k, v, gates)
    fade = splat_at(gates)
    for j in range(key_dim):
        at = state + j * 64
        store_f32(at, fma(splat_at(k + j * 4), change, mul(load_f32(at), fade)))


@inner
def _go_on_and_ask(state, key_dim, q, k, v, gates):  # pragma: no cover - compiled
    """The same, and what the tile answers to q goes to where v was."""
    change = _change(state, key_dim, k, v, gates)
    fade = splat_at(gates)
    a0 = splat(np.float32(0.0))
    a1 = splat(np.float32(0.0))
    for j in range(0, key_dim, 2):
        at = state + j * 64
        s0 = fma(splat_at(k + j * 4), change, mul(load_f32(at), fade))
        s1 = fma(splat_at(k + j * 4 + 4), change, mul(load_f32(at + 64), fade))
        store_f32(at, s0)
        store_f32(at + 64, s1)
        a0 = fma(s0, splat_at(q + j * 4), a0)
        a1 = fma(s1, splat_at(q + j * 4 + 4), a1)
    store_f32(v, add(a0, a1))


def _delta(args, begin, end):  # pragma: no cover - compiled
    """Items: (value head, tile of 16 columns of its state)."""
    key_heads = word_at(args + _KEY_HEADS)
    key_dim = word_at(args + _KEY_DIM)
    value_dim = word_at(args + _VALUE_DIM)
    shared = word_at(args + _VALUE_HEADS) // key_heads
    tiles = value_dim // 16
    pending = _pending(args)
    rows = pending + word_at(args + _N)
    settled = _settled(args)
    room = np.empty(key_dim * 16 + 16, np.float32)
    for item in range(begin, end):
        work = (address(room) + 63) // 64 * 64  # in here: see `simd.address`
        head = item // tiles
        column = item % tiles * 16
        state = word_at(args + _STATE) + item * key_dim * 64
        for j in range(key_dim):
            store_f32(work + j * 64, load_f32(state + j * 64))
        q = _mixed(args, head // shared * key_dim, key_dim, 0)
        k = _mixed(args, (key_heads + head // shared) * key_dim, key_dim, 0)
        v = _mixed(args, 2 * key_heads * key_dim + head * value_dim, value_dim, 0) + column * 4
        gates = _gates(args, head, 0)
        for row in range(rows):
            if row < pending:
                _go_on(work, key_dim, k, v, gates)
            else:
                _go_on_and_ask(work, key_dim, q, k, v, gates)
            q += key_dim * 4
            k += key_dim * 4
            v += value_dim * 4
            gates += 8
            if row + 1 == settled:
                for j in range(key_dim):
                    store_f32(state + j * 64, load_f32(work + j * 64))


@inner
def _copy(source, out, count):  # pragma: no cover - compiled
    for c in range(count):
        store_one(out + c * 4, f32_at(source + c * 4))


def _keep(args, begin, end):  # pragma: no cover - compiled
    """Items: heads of q, of k, of v. Raw inputs that the next forward may need, to the front."""
    key_heads = word_at(args + _KEY_HEADS)
    value_heads = word_at(args + _VALUE_HEADS)
    key_dim = word_at(args + _KEY_DIM)
    value_dim = word_at(args + _VALUE_DIM)
    shared = value_heads // key_heads
    settled = _settled(args)
    rows = word_at(args + _TAPS) - 1 + _pending(args) + word_at(args + _N) - settled
    rates = _channels(args) * 4
    for item in range(begin, end):
        for row in range(rows):  # upwards: a row comes from its own place or from one behind it
            out = word_at(args + _ROWS) + row * word_at(args + _ROWS_STEP)
            index = row + settled
            if item < 2 * key_heads:
                part = args + (_Q if item < key_heads else _K)
                kept = item * key_dim * 4
                _copy(_raw(args, index, kept, part, item % key_heads, 0), out + kept, key_dim)
                continue
            head = item - 2 * key_heads
            group = head // shared
            inside = head % shared
            kept = (2 * key_heads * key_dim + head * value_dim) * 4
            source = _raw(args, index, kept, args + _V, group, inside * value_dim * 4)
            _copy(source, out + kept, value_dim)
            kept = rates + head * 4
            _copy(_raw(args, index, kept, args + _B, group, inside * 4), out + kept, 1)
            kept += value_heads * 4
            _copy(_raw(args, index, kept, args + _A, group, inside * 4), out + kept, 1)


def _settle(args, begin, end):  # pragma: no cover - compiled
    """One item: from here on the layer is where its state and its rows say."""
    settled = _settled(args)
    put_word(word_at(args + _POSITION), word_at(word_at(args + _POSITION)) + settled)


def _gated_norm(args, begin, end):  # pragma: no cover - compiled
    """Items: (row of the forward, value head)."""
    heads = word_at(args + _VALUE_HEADS)
    dims = word_at(args + _VALUE_DIM)
    shared = heads // word_at(args + _KEY_HEADS)
    keys = 2 * word_at(args + _KEY_HEADS) * word_at(args + _KEY_DIM)
    pending = _pending(args)
    z_step = word_at(args + _Z + 8)
    for item in range(begin, end):
        row = item // heads
        head = item % heads
        x = _mixed(args, keys + head * dims, dims, pending + row)
        y = word_at(args + _OUT) + row * word_at(args + _OUT_STEP) + head * dims * 4
        z = word_at(args + _Z) + row * z_step + head // shared * word_at(args + _Z + 16)
        z += head % shared * dims * 4
        norm_row(x, word_at(args + _NORM), dims, f32_at(args + _EPS), y)
        for c in range(0, dims, 16):
            store_f32(y + c * 4, mul(load_f32(y + c * 4), silu(load_f32(z + c * 4))))


MIX = Phase(_mix)
DELTA = Phase(_delta)
KEEP = Phase(_keep)
SETTLE = Phase(_settle)
GATED_NORM = Phase(_gated_norm)
