"""The weights in GGUF's blocks: as f32, or in the numbers of one of our formats.

The rule of this file: what a format of ours can say exactly is put in its numbers and never rounded:
Q8_0 is q8, MXFP4 is mxfp4, Q4_0's codes are q8 values. Codes of Q4_0 and Q4_1 stay what they are in
q4 too; there a group's step is rounded to the 8 bits that q4 has for it (0.3 % of a step). All other
types become f32 by the ``gguf`` package, exactly, and are quantised once.

A block is a row's next 32 weights (256 in the k-types): scales first, then codes. With four bits
the lower halves of 16 bytes are the first 16 weights, the upper halves the others.
"""

from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from diskmoe.experts.errors import BadModel
from diskmoe.experts.formats import GROUP, Quantised, quantise, widen_bf16
from diskmoe.experts.gguf_file import BLOCKS
from diskmoe.experts.safetensors_io import TensorInfo, shown
from diskmoe.experts.tiles import Bytes, Floats

FLOATS = ("F32", "F16", "BF16")
QUANTISED = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"),
    *("TQ1_0", "TQ2_0", "MXFP4", "NVFP4"),
)
SUPPORTED = (*FLOATS, *QUANTISED)
_OWN = {"BF16": "bf16", "Q8_0": "q8", "Q4_0": "q8", "MXFP4": "mxfp4"}  # what keeps every number
_KEPT = {("Q8_0", "q8"), ("MXFP4", "mxfp4"), ("Q4_0", "q8"), ("Q4_0", "q4"), ("Q4_1", "q4")}


def own_format(kind: str) -> str:
    """The format of ours that keeps a type's numbers exactly."""
    return _OWN.get(kind, "f32")


def keeps_codes(kind: str, fmt: str) -> bool:
    """Whether `numbers` puts this type's codes into format `fmt` as they are."""
    return (kind, fmt) in _KEPT


def keeps_numbers(kind: str, fmt: str) -> bool:
    """Whether no number of this type changes in format `fmt`."""
    return fmt == "f32" or own_format(kind) == fmt


def wide(raw: Bytes, kind: str, cols: int) -> Floats:
    """A type's bytes, u8 of whole rows, in any shape -> f32 (rows, cols), exactly."""
    raw = np.ascontiguousarray(raw).reshape(-1)
    if kind == "F32":
        return raw.view(np.float32).reshape(-1, cols)
    if kind == "F16":
        return raw.view(np.float16).reshape(-1, cols).astype(np.float32)
    if kind == "BF16":
        return widen_bf16(raw.view(np.uint16).reshape(-1, cols))
    with np.errstate(all="ignore"):  # scales may be anything; weights that are no numbers are found
        weights = gguf.quants.dequantize(_blocks(raw, kind, cols), gguf.GGMLQuantizationType[kind])
    return np.ascontiguousarray(weights, np.float32).reshape(-1, cols)


def numbers(raw: Bytes, kind: str, cols: int, fmt: str) -> Quantised:
    """A type's bytes -> the numbers of a format that `keeps_codes`.

    ValueError for a step that is no number.
    """
    blocks = _blocks(raw, kind, cols)
    rows = blocks.shape[0]
    blocks = blocks.reshape(rows, cols // GROUP, -1)
    if kind == "Q8_0":
        values = blocks[..., 2:].view(np.int8).reshape(rows, cols)
        return Quantised(np.ascontiguousarray(values), _halves(blocks, 0))
    if kind == "MXFP4":
        return Quantised(_nibbles(blocks[..., 1:]), np.ascontiguousarray(blocks[..., 0]))
    step = _halves(blocks, 0)
    if not np.isfinite(step).all():
        raise ValueError(f"row {_first_row(~np.isfinite(step))} has a step that is not finite")
    codes = _nibbles(blocks[..., 4 if kind == "Q4_1" else 2 :])
    if fmt == "q8":
        return Quantised((codes.view(np.int8) - np.int8(8)), step)
    wide_step = step.astype(np.float32)
    low = _halves(blocks, 2).astype(np.float32) if kind == "Q4_1" else wide_step * np.float32(-8)
    if not np.isfinite(low).all():
        raise ValueError(f"row {_first_row(~np.isfinite(low))} has a minimum that is not finite")
    return _two_level(codes, wide_step, low)


def _blocks(raw: Bytes, kind: str, cols: int) -> Bytes:
    """u8 (rows, bytes of a row)."""
    weights, nbytes = BLOCKS[kind]
    return raw.reshape(-1, cols // weights * nbytes)


def _halves(blocks: Bytes, at: int) -> npt.NDArray[np.float16]:
    """The f16 at byte `at` of each block, (rows, groups)."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)[..., 0]


def _nibbles(packed: Bytes) -> Bytes:
    """u8 (rows, groups, 16) -> codes u8 (rows, groups * 32)."""
    codes = np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=2)
    return codes.reshape(codes.shape[0], -1)


def _first_row(bad: npt.NDArray[np.bool_]) -> int:
    return int(bad.any(axis=1).argmax())


def _two_level(codes: Bytes, step: Floats, low: Floats) -> Quantised:
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
            kept[amiss] = other  # type: ignore[index]
    return found


def refuse_unsupported(info: TensorInfo) -> None:
    """BadModel for a type that is never read here."""
    if info.dtype not in SUPPORTED:
        raise BadModel(
            f"{info.path}: tensor {shown(info.name)} has type {info.dtype}; this program reads "
            f"{', '.join(SUPPORTED)}"
        )
