"""Which keys a row sees, where a window keeps it from seeing all earlier ones.

The rule of this file: it depends on the row's own position only. `args` are the words of the phase
in `attention.py`; rows count from the first one of the call.
"""

import numpy as np

from diskmoe.compiled.functions import inner
from diskmoe.engine.kernels.atomics import word_at


@inner
def first_seen(args, row):  # pragma: no cover - compiled
    """The position of the first key that a row of this call sees."""
    window = word_at(args + 208)
    if window == 0:
        return np.int64(0)
    return max(np.int64(0), word_at(word_at(args + 88)) + row + 1 - window)


@inner
def first_of(args, row, block, room, cut):  # pragma: no cover - compiled
    """Which of the `room` keys from position `block` on is the first that a row sees.

    cut: whether a window begins among them at all.
    """
    if not cut:
        return np.int64(0)
    return min(room, max(np.int64(0), first_seen(args, row) - block))
