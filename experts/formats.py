"""What a weight's bits mean: the table of formats.

The rule of this file: a dequantised weight is ``f32(value) * f32(scale)``, and every value is chosen
against the scale as it is stored. The same weights give the same bytes on every machine.

=====  ==========  ===========================================================================
name   bits/weight how
=====  ==========  ===========================================================================
f32    32          as it is (f16 sources are widened exactly)
bf16   16          bf16 sources keep their bits; f32 is rounded to nearest even
q8     8.5         symmetric, group 32, scale = f16(amax / 127), values -127..127
q4     4.5         symmetric, group 32, values -8..7, scale = f16(m / -divisor), m = the weight
                   of largest magnitude with its sign, and the divisor, one of 16, is the one with
                   the least squared error (the first of equals)
q4g64  4.25        the same, group 64
mxfp4  4.25        OCP microscaling: group 32, values e2m1 (0, .5, 1, 1.5, 2, 3, 4, 6 and their
                   negatives), scale a power of two, e8m0
fp8    8.02        e4m3 values, an f32 scale for 16 rows and 128 columns (checkpoints with a scale
                   for 128 x 128 are kept exactly: eight tiles have equal scales)
=====  ==========  ===========================================================================

The divisor 8 maps the largest weight to -8, which uses the asymmetric range fully (llama.cpp's Q4_0
does this); the search over its neighbours lowers the squared error by another tenth. Divisors 7 and
8 are among them, so that quantising what was dequantised changes nothing.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.experts.compiled import kernel
from diskmoe.experts.quantise import quantise_fp8, quantise_mxfp4, quantise_q4, quantise_q8

GROUP = 32
TILE = 16

_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


@dataclass(frozen=True)
class Format:
    """How one weight is stored. `group` is the number of columns that share a scale, 0 for none."""

    name: str
    weight_bits: int
    group: int
    value_type: type[Any]  # of quantised values
    scale_type: type[Any]
    scale_rows: int = 1  # rows that share a scale

    @property
    def quantised(self) -> bool:
        return self.group > 0

    @property
    def padded(self) -> bool:
        """Whether columns are filled up to whole groups."""
        return self.quantised and self.scale_rows == 1

    @property
    def scale_nbytes(self) -> int:
        """Bytes of the scales of 16 rows and one group."""
        return np.dtype(self.scale_type).itemsize * TILE // self.scale_rows

    @property
    def bits_per_weight(self) -> float:
        """Scales included."""
        scale_bits = self.scale_nbytes * 8 / (TILE * self.group) if self.quantised else 0
        return self.weight_bits + scale_bits


FORMATS: dict[str, Format] = {
    fmt.name: fmt
    for fmt in (
        Format("f32", 32, 0, np.float32, np.float32),
        Format("bf16", 16, 0, np.uint16, np.float32),
        Format("q8", 8, GROUP, np.int8, np.float16),
        Format("q4", 4, GROUP, np.int8, np.float16),
        Format("q4g64", 4, 64, np.int8, np.float16),
        Format("mxfp4", 4, GROUP, np.uint8, np.uint8),
        Format("fp8", 8, 128, np.uint8, np.float32, TILE),
    )
}


def format_for_bits(bits: int) -> str:
    """The name of the usual format with `bits` bits per weight; ValueError lists the choices."""
    usual: dict[int, str] = {}
    for fmt in FORMATS.values():
        usual.setdefault(fmt.weight_bits, fmt.name)
    if bits not in usual:
        choices = ", ".join(f"{number} ({name})" for number, name in usual.items())
        raise ValueError(f"no format has {bits} bits per weight; there are {choices}")
    return usual[bits]


def mtp_format(name: str) -> str:
    """The format of an MTP layer in a model whose other layers have format `name`.

    An MTP head of four bits is known to lose most of its acceptance, so eight are the least.
    """
    return "q8" if FORMATS[name].weight_bits < 8 else name


def value_shapes(name: str, rows: int, cols: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Shapes of the values and of the scales of a (rows, cols) matrix in a quantised format."""
    fmt = FORMATS[name]
    if not fmt.quantised:
        choices = ", ".join(fmt.name for fmt in FORMATS.values() if fmt.quantised)
        raise ValueError(f"{name!r} is not a quantised format; there are {choices}")
    groups = -(-cols // fmt.group)
    return (rows, groups * fmt.group if fmt.padded else cols), (-(-rows // fmt.scale_rows), groups)


def quantise(
    weights: npt.NDArray[np.float32], name: str
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """f32 (rows, cols) -> values and scales, of the types in FORMATS and of `value_shapes`.

    Columns beyond `cols` count as zeros. ValueError when a weight is not finite: it has no place
    in a group, and would spoil its neighbours silently. Values of mxfp4 and fp8 are codes, those of
    the others integers.
    """
    weights = np.ascontiguousarray(weights, dtype=np.float32)
    value_shape, scale_shape = value_shapes(name, *weights.shape)
    fmt = FORMATS[name]
    values = np.zeros(value_shape, fmt.value_type)
    scales = np.zeros(scale_shape, fmt.scale_type)
    if name == "q8":
        bad_row = quantise_q8(weights, values, scales.view(np.uint16))
    elif name == "mxfp4":
        bad_row = quantise_mxfp4(weights, values, scales)
    elif name == "fp8":
        bad_row = quantise_fp8(weights, values, scales)
    else:
        bad_row = quantise_q4(weights, values, scales.view(np.uint16), fmt.group)
    if bad_row >= 0:
        raise ValueError(f"row {bad_row} holds a weight that is not a finite number")
    return values, scales


def dequantise(values: npt.NDArray[Any], scales: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """What `quantise` gave -> f32 of the values' shape; the types of both tell the format."""
    rows, cols = values.shape
    numbers: npt.NDArray[np.float32]
    if values.dtype == np.int8:
        numbers = values.astype(np.float32)
    elif scales.dtype == np.uint8:
        numbers = np.concatenate([_E2M1, -_E2M1])[values]
    else:
        numbers = _e4m3_numbers()[values]
    if scales.dtype == np.uint8:
        wide = np.ldexp(np.float32(1.0), scales.astype(np.int32) - 127)
    else:
        wide = scales.astype(np.float32)
    if values.dtype == np.uint8 and scales.dtype != np.uint8:
        spread = np.repeat(np.repeat(wide, TILE, axis=0)[:rows], 128, axis=1)[:, :cols]
        return numbers * spread
    groups = scales.shape[1]
    grouped = numbers.reshape(rows, groups, cols // groups) * wide[:, :, None]
    return grouped.reshape(rows, cols)


def _e4m3_numbers() -> npt.NDArray[np.float32]:
    """The number of each e4m3 code; 0x7F and 0xFF are NaN."""
    codes = np.arange(256, dtype=np.uint32)
    pattern = (codes & 0x7F) << 20 | (codes & 0x80) << 24
    numbers = pattern.view(np.float32) * np.float32(2.0**120)
    numbers[[0x7F, 0xFF]] = np.nan
    return numbers


def round_to_bf16(weights: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """f32 -> the bits of the nearest bf16 (ties to even), same shape; NaN stays NaN.

    No memory is taken beside the result when `weights` are contiguous.
    """
    flat = np.ascontiguousarray(weights, dtype=np.float32).reshape(-1)
    rounded = np.empty(flat.shape, np.uint16)
    _round_to_bf16(flat.view(np.uint32), rounded)
    return rounded.reshape(weights.shape)


def widen_bf16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The bits of bf16 numbers -> the same numbers in f32, with no memory beside the result."""
    wide = bits.astype(np.uint32)
    wide <<= np.uint32(16)
    return wide.view(np.float32)


@kernel
def _round_to_bf16(bits, out):  # pragma: no cover - compiled
    """bits u32 (n,) of f32 -> out u16 (n,) of the nearest bf16; NaN is kept, as a quiet one."""
    for i in range(len(bits)):
        wide = np.int64(bits[i])
        if wide & 0x7FFFFFFF > 0x7F800000:
            out[i] = (wide >> 16) | 0x40
        else:
            out[i] = (wide + 0x7FFF + ((wide >> 16) & 1)) >> 16
