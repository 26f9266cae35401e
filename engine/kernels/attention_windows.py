"""Which keys a row sees, where a window keeps it from seeing all earlier ones.

The rule of this file: it depends on the row's own position only. `args` are the words of the phase
in `attention.py`; rows count from the first one of the call.
"""

import numpy as np

from diskmoe.engine.kernels.atomics import word_at
from diskmoe.experts.compiled import inner


@inner
def first_seen(args, row):  # pragma: no cover - compiled
    """The position of the first key that a row of this call sees."""
    window = word_at(args + 208)
    if window == 0:
        return np.int64(0)
    return max(np.int64(0), word_at(word_at(args + 88)) + row + 1 - window)


@inner
def first_of(args, row, block, room):  # pragma: no cover - compiled
    """Which of the `room` keys from position `block` on is the first that a row sees."""
    return min(room, max(np.int64(0), first_seen(args, row) - block))


@inner
def same_keys(args, first_row, per_row, m, block, seen, room):  # pragma: no cover - compiled
    """Whether queries m and m + 1 see the same of the `room` keys from position `block` on."""
    row = m // per_row
    following = (m + 1) // per_row
    if row == following:
        return True
    if min(seen + row, room) != min(seen + following, room):
        return False
    begin = first_of(args, first_row + row, block, room)
    return begin == first_of(args, first_row + following, block, room)
