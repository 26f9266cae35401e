"""Codes of four bits that have a step for each group, in the two-level scales of q4.

The rule of this file: a code stays what it is, or is turned round with its step; what is rounded is a
group's step, to the 8 bits that q4 has for it (0.3 % of a step where steps are alike).
"""

from typing import Any

import numpy as np

from diskmoe.experts.formats import GROUP, Quantised, quantise
from diskmoe.experts.tiles import Bytes, Floats


def two_level(codes: Bytes, step: Floats, low: Floats) -> Quantised:
    """Codes (rows, cols) that stand for code * step + low, steps and lows (rows, groups), as q4.

    q4 says row scale * scale * (16 * code - zero). A negative step turns its codes round. Rows with
    a group that has no zero (all of its weights above 0, say) are quantised anew.
    """
    rows, groups = step.shape
    turned = step < 0
    grouped = codes.reshape(rows, groups, GROUP)
    grouped = np.where(turned[..., None], np.uint8(15) - grouped, grouped)
    low = np.where(turned, low + np.float32(15) * step, low)
    step = np.abs(step)
    row_scales = step.max(axis=1) / np.float32(255 * 16)
    unit = np.maximum(row_scales, np.finfo(np.float32).tiny)[:, None]
    scales = np.clip(np.rint(step / (np.float32(16) * unit)), 1, 255)
    # the middle of the codes stays where it is, so that a rounded step errs to both sides alike
    middle = low + np.float32(7.5) * step
    zeros = np.rint(np.float32(120) - middle / (unit * scales))
    none = step == 0
    scales[none], zeros[none] = 0, 128
    amiss = ((zeros < 0) | (zeros > 255) | (none & (low != 0))).any(axis=1)
    found = Quantised(
        grouped.reshape(rows, -1),
        scales.astype(np.uint8),
        np.where(amiss[:, None], 128, zeros).astype(np.uint8),
        row_scales,
    )
    if amiss.any():
        weights: Any = grouped[amiss] * step[amiss][..., None] + low[amiss][..., None]
        anew = quantise(weights.reshape(len(weights), -1), "q4")
        for kept, other in zip(found, anew, strict=True):
            if kept is not None and other is not None:
                kept[amiss] = other
    return found
