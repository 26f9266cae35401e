"""What the phases of a delta layer are told, word by word, and where its numbers of a row are."""

from diskmoe.compiled.functions import inner
from diskmoe.engine.kernels.atomics import word_at

# Words of the arguments, in bytes
KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, TAPS = 0, 8, 16, 24, 32
N, START, KEPT, POSITION, ROWS, ROWS_STEP, STATE = 40, 48, 56, 64, 72, 80, 88
Q, K, V, B, A, Z = 96, 120, 144, 168, 192, 216
CONV, LOG, BIAS, NORM, EPS = 240, 248, 256, 264, 272
MIXED, GATES, OUT, OUT_STEP = 280, 288, 296, 304


@inner
def pending_rows(args):  # pragma: no cover - compiled
    """Rows before the forward's that the state has not seen."""
    return word_at(word_at(args + START)) - word_at(word_at(args + POSITION))


@inner
def settled_rows(args):  # pragma: no cover - compiled
    """By how many rows the state goes on: those before the forward, or all."""
    rows = pending_rows(args)
    if word_at(args + N) > word_at(args + KEPT):
        rows += word_at(args + N)
    return rows


@inner
def channels_of(args):  # pragma: no cover - compiled
    keys = word_at(args + KEY_HEADS) * word_at(args + KEY_DIM)
    return 2 * keys + word_at(args + VALUE_HEADS) * word_at(args + VALUE_DIM)


@inner
def mixed_at(args, channel, dims, row):  # pragma: no cover - compiled
    """Address of a head's numbers of a row: heads lie one after another, each with all its rows."""
    rows = word_at(args + KEPT) + word_at(args + N)
    return word_at(args + MIXED) + (channel * rows + row * dims) * 4


@inner
def gates_at(args, head, row):  # pragma: no cover - compiled
    """Address of fade and step of a value head of a row."""
    rows = word_at(args + KEPT) + word_at(args + N)
    return word_at(args + GATES) + (head * rows + row) * 8


@inner
def raw_at(args, index, kept_at, part, group, inside):  # pragma: no cover - compiled
    """Address of a part of raw row `index`: 0.. are those that are kept, then the forward's own.

    kept_at: where the part is in a kept row; part, group, inside: in a row of the forward.
    """
    kept = word_at(args + TAPS) - 1 + pending_rows(args)
    if index < kept:
        return word_at(args + ROWS) + index * word_at(args + ROWS_STEP) + kept_at
    row = index - kept
    return word_at(part) + row * word_at(part + 8) + group * word_at(part + 16) + inside
