"""The weights in GGUF's blocks: as f32, or in the numbers of one of our formats.

The rule of this file: what a format of ours can say exactly is put in its numbers and never rounded:
Q4_0 is q4_0, or q4_1 beside others, Q4_1 is q4_1, MXFP4 mxfp4, Q8_0 q8, which has the numbers of
Q4_0, Q5_0 and IQ4_NL too. Codes of Q4_0, Q4_1 and Q4_K stay what they are in q4; there a group's step
and zero are rounded to the 8 bits that q4 has for each. All other types become f32 by the ``gguf``
package, exactly, and are quantised once.

A block is a row's next 32 weights (256 in the k-types): scales first, then codes. With four bits
the lower halves of 16 bytes are the first 16 weights, the upper halves the others.
"""

import gguf
import numpy as np
import numpy.typing as npt

from diskmoe.experts.errors import BadModel
from diskmoe.experts.formats import FORMATS, GROUP, Quantised, widen_bf16
from diskmoe.experts.gguf_file import BLOCKS
from diskmoe.experts.safetensors_io import TensorInfo, shown
from diskmoe.experts.tiles import Bytes, Floats
from diskmoe.experts.two_level import two_level

FLOATS = ("F32", "F16", "BF16")
QUANTISED = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"),
    *("TQ1_0", "TQ2_0", "MXFP4", "NVFP4"),
)
SUPPORTED = (*FLOATS, *QUANTISED)
_EXACT = {  # what keeps every number, beside f32
    "BF16": ("bf16",),
    "Q4_0": ("q4_0", "q4_1", "q8"),
    "Q4_1": ("q4_1",),
    "Q5_0": ("q8",),
    "Q8_0": ("q8",),
    "IQ4_NL": ("q8",),
    "MXFP4": ("mxfp4",),
}
_CODES_IN_Q4 = ("Q4_0", "Q4_1", "Q4_K")


def exact_formats(kind: str) -> set[str]:
    """The formats of ours in which no number of this type changes."""
    return {"f32", *_EXACT.get(kind, ())}


def keeps_codes(kind: str, fmt: str) -> bool:
    """Whether `numbers` puts this type's codes into format `fmt` as they are."""
    if fmt == "q4":
        return kind in _CODES_IN_Q4
    return FORMATS[fmt].quantised and fmt in exact_formats(kind)


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

    ValueError for a step or a minimum that is no number.
    """
    rows = _blocks(raw, kind, cols)
    blocks = rows.reshape(len(rows), -1, BLOCKS[kind][1])
    if kind == "MXFP4":
        return Quantised(_nibbles(blocks[..., 1:]), np.ascontiguousarray(blocks[..., 0]))
    if fmt == "q8":
        return Quantised(_signed(blocks, kind), _halves(blocks, 0))
    if fmt == "q4_1":
        codes, steps = _nibbles(blocks[..., 4 if kind == "Q4_1" else 2 :]), _halves(blocks, 0)
        with np.errstate(all="ignore"):  # what is no number is found
            low = _halves(blocks, 2) if kind == "Q4_1" else steps * np.float16(-8)
        return Quantised(codes, steps, minima=low)
    if fmt == "q4_0":
        return Quantised(_nibbles(blocks[..., 2:]), _halves(blocks, 0))
    if kind == "Q4_K":
        codes = _nibbles(blocks[..., 16:].reshape(len(rows), -1, GROUP))
        step, low = _k_steps(blocks)
    else:
        step = _halves(blocks, 0).astype(np.float32)
        codes = _nibbles(blocks[..., 4 if kind == "Q4_1" else 2 :])
        low = step * np.float32(-8) if kind == "Q4_0" else _halves(blocks, 2).astype(np.float32)
    good = np.isfinite(step) & np.isfinite(low)
    if not good.all():
        row = int((~good).any(axis=1).argmax())
        raise ValueError(f"row {row} has a step or a minimum that is not finite")
    return two_level(codes, step, low)


def _blocks(raw: Bytes, kind: str, cols: int) -> Bytes:
    """u8 (rows, bytes of a row)."""
    weights, nbytes = BLOCKS[kind]
    return raw.reshape(-1, cols // weights * nbytes)


def _halves(blocks: Bytes, at: int) -> npt.NDArray[np.float16]:
    """The f16 at byte `at` of each block, (rows, groups)."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)[..., 0]


def _nibbles(packed: Bytes) -> Bytes:
    """u8 (rows, blocks, 16, or 32 of two groups) -> codes u8 (rows, blocks * 32, or * 64)."""
    codes = np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=2)
    return codes.reshape(codes.shape[0], -1)


def _signed(blocks: Bytes, kind: str) -> npt.NDArray[np.int8]:
    """What blocks that begin with an f16 step multiply it by, i8 (rows, columns)."""
    if kind == "Q8_0":
        values = np.ascontiguousarray(blocks[..., 2:]).view(np.int8)
        return values.reshape(len(blocks), -1)
    if kind == "Q5_0":  # the upper bits of all 32 come first
        upper = np.unpackbits(np.ascontiguousarray(blocks[..., 2:6]), axis=2, bitorder="little")
        codes = _nibbles(blocks[..., 6:]) | upper.reshape(len(blocks), -1) << np.uint8(4)
        return codes.view(np.int8) - np.int8(16)
    codes = _nibbles(blocks[..., 2:])
    if kind == "IQ4_NL":
        return np.array(gguf.quants.IQ4_NL.kvalues, np.int8)[codes]
    return codes.view(np.int8) - np.int8(8)


def _k_steps(blocks: Bytes) -> tuple[Floats, Floats]:
    """The steps and the minima of Q4_K's groups, f32 (rows, groups).

    A block has an f16 for all of its steps, one for its minima, and 6 bits of each for each of its
    eight groups: those of the first four in the lower bits of bytes 0 to 3 and 4 to 7, those of the
    others in bytes 8 to 11, with their upper two bits above the first ones.
    """
    packed = blocks[..., 4:16]
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    low_bits, high_bits = np.uint8(0x3F), np.uint8(0xC0)
    steps = [first & low_bits, third & np.uint8(15) | (first & high_bits) >> np.uint8(2)]
    minima = [second & low_bits, third >> np.uint8(4) | (second & high_bits) >> np.uint8(2)]
    of_steps, of_minima = (_halves(blocks, at).astype(np.float32)[..., None] for at in (0, 2))
    step = np.concatenate(steps, axis=2) * of_steps
    low = np.concatenate(minima, axis=2) * -of_minima
    return step.reshape(len(blocks), -1), low.reshape(len(blocks), -1)


def refuse_unsupported(info: TensorInfo) -> None:
    """BadModel for a type that is never read here."""
    if info.dtype not in SUPPORTED:
        raise BadModel(
            f"{info.path}: tensor {shown(info.name)} has type {info.dtype}; this program reads "
            f"{', '.join(SUPPORTED)}"
        )
