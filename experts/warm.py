"""What packs weights, compiled before it is wanted.

The rule of this file: whoever packs on the way in calls it before memory is planned.
"""

from collections.abc import Iterable

import numpy as np

from diskmoe.experts.formats import expert_formats, mtp_format
from diskmoe.experts.packing import pack
from diskmoe.experts.tiles import TILE, matrix_layout


def compile_packers(formats: Iterable[str]) -> None:
    """Compile what `pack` needs for these formats, and for what MTP layers get instead of them.

    A program that packs on the way in calls this before it plans its memory: the compiler takes
    seconds and memory, and neither is wanted in the middle of an answer.
    """
    wanted = {part for name in formats for part in expert_formats(name)}
    for fmt in {*wanted, *map(mtp_format, wanted)}:
        layout = matrix_layout(fmt, TILE, TILE)
        pack(np.zeros((TILE, TILE), np.float32), layout)
        pack(np.zeros((TILE, TILE), np.uint16), layout)
