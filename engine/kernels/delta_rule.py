"""States of a delta layer go over rows, and answer them.

Sums over the key dim go into four vectors, those of answers into two (row j of the state into j % 4
or j % 2, by fma), which are added in pairs.
"""

import numpy as np

from diskmoe.compiled.functions import inner
from diskmoe.engine.kernels.atomics import word_at
from diskmoe.engine.kernels.delta_words import (
    KEY_DIM,
    KEY_HEADS,
    STATE,
    VALUE_DIM,
    VALUE_HEADS,
    N,
    gates_at,
    mixed_at,
    pending_rows,
    settled_rows,
)
from diskmoe.engine.kernels.program import Phase
from diskmoe.engine.kernels.simd import add, address, fma, load_f32, mul, splat, splat_at, store_f32


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
    key_heads = word_at(args + KEY_HEADS)
    key_dim = word_at(args + KEY_DIM)
    value_dim = word_at(args + VALUE_DIM)
    shared = word_at(args + VALUE_HEADS) // key_heads
    tiles = value_dim // 16
    pending = pending_rows(args)
    rows = pending + word_at(args + N)
    settled = settled_rows(args)
    room = np.empty(key_dim * 16 + 16, np.float32)
    for item in range(begin, end):
        work = (address(room) + 63) // 64 * 64  # in here: see `simd.address`
        head = item // tiles
        column = item % tiles * 16
        state = word_at(args + STATE) + item * key_dim * 64
        for j in range(key_dim):
            store_f32(work + j * 64, load_f32(state + j * 64))
        q = mixed_at(args, head // shared * key_dim, key_dim, 0)
        k = mixed_at(args, (key_heads + head // shared) * key_dim, key_dim, 0)
        v = mixed_at(args, 2 * key_heads * key_dim + head * value_dim, value_dim, 0) + column * 4
        gates = gates_at(args, head, 0)
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


DELTA = Phase(_delta)
