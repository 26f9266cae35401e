"""What a delta layer keeps of a forward: raw inputs of rows that may be taken back, and its place."""

from diskmoe.compiled.functions import inner
from diskmoe.engine.kernels.atomics import put_word, word_at
from diskmoe.engine.kernels.delta_words import (
    KEY_DIM,
    KEY_HEADS,
    POSITION,
    ROWS,
    ROWS_STEP,
    TAPS,
    VALUE_DIM,
    VALUE_HEADS,
    A,
    B,
    K,
    N,
    Q,
    V,
    channels_of,
    pending_rows,
    raw_at,
    settled_rows,
)
from diskmoe.engine.kernels.program import Phase
from diskmoe.engine.kernels.simd import f32_at, store_one


@inner
def _copy(source, out, count):  # pragma: no cover - compiled
    for c in range(count):
        store_one(out + c * 4, f32_at(source + c * 4))


def _keep(args, begin, end):  # pragma: no cover - compiled
    """Items: heads of q, of k, of v. Raw inputs that the next forward may need, to the front."""
    key_heads = word_at(args + KEY_HEADS)
    value_heads = word_at(args + VALUE_HEADS)
    key_dim = word_at(args + KEY_DIM)
    value_dim = word_at(args + VALUE_DIM)
    shared = value_heads // key_heads
    settled = settled_rows(args)
    rows = word_at(args + TAPS) - 1 + pending_rows(args) + word_at(args + N) - settled
    rates = channels_of(args) * 4
    for item in range(begin, end):
        for row in range(rows):  # upwards: a row comes from its own place or from one behind it
            out = word_at(args + ROWS) + row * word_at(args + ROWS_STEP)
            index = row + settled
            if item < 2 * key_heads:
                part = args + (Q if item < key_heads else K)
                kept = item * key_dim * 4
                _copy(raw_at(args, index, kept, part, item % key_heads, 0), out + kept, key_dim)
                continue
            head = item - 2 * key_heads
            group = head // shared
            inside = head % shared
            kept = (2 * key_heads * key_dim + head * value_dim) * 4
            source = raw_at(args, index, kept, args + V, group, inside * value_dim * 4)
            _copy(source, out + kept, value_dim)
            kept = rates + head * 4
            _copy(raw_at(args, index, kept, args + B, group, inside * 4), out + kept, 1)
            kept += value_heads * 4
            _copy(raw_at(args, index, kept, args + A, group, inside * 4), out + kept, 1)


def _settle(args, begin, end):  # pragma: no cover - compiled
    """One item: from here on the layer is where its state and its rows say."""
    settled = settled_rows(args)
    put_word(word_at(args + POSITION), word_at(word_at(args + POSITION)) + settled)


KEEP = Phase(_keep)
SETTLE = Phase(_settle)
