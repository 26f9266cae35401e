"""What a weight's bits mean: the table of formats.

The rule of this file: a dequantised weight is ``f32(value) * f32(scale)``, and q4_1 adds a minimum;
every value is chosen against the scale as it is stored. The same weights give the same bytes on every
machine.

=====  ==========  ===========================================================================
name   bits/weight how
=====  ==========  ===========================================================================
f32    32          as it is (f16 sources are widened exactly)
bf16   16          bf16 sources keep their bits; f32 is rounded to nearest even
q8     8.5         symmetric, group 32, scale = f16(amax / 127), values -127..127
q4     4.5         codes 0..15, group 32; per group a scale 1..255 and a zero 0..255 in sixteenths
                   of a step, per row an f32 scale (32 bits a row are not counted here):
                   value = 16 * code - zero, scale = row scale * f32(group's scale)
q4g64  4.25        the same, group 64
q4_0   4.5         codes 0..15, group 32, an f16 scale: value = code - 8 (GGUF's Q4_0)
q4_1   5           the same with an f16 minimum beside it: weight = code * scale + minimum (Q4_1)
int4   4.5         as q4_0, the scale in bf16 (compressed-tensors)
mxfp4  4.25        OCP microscaling: group 32, values e2m1 (0, .5, 1, 1.5, 2, 3, 4, 6 and their
                   negatives), scale a power of two, e8m0
fp8    8.02        e4m3 values, an f32 scale for 16 rows and 128 columns (checkpoints with a scale
                   for 128 x 128 are kept exactly: eight tiles have equal scales)
=====  ==========  ===========================================================================

A group of q4 whose zero is not 128 is not symmetric: few groups of 32 weights are, and to follow
them takes a seventh off the error that a symmetric format of 4.5 bits has, and a quarter where the
weights have heavy tails (bench/LOG.md). Steps are fitted by least squares; a row's largest is 255.
q4_0, q4_1 and int4 are for weights that come in them: every bit is kept, where q4 would round a
group's step to 8 bits.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskmoe.compiled.functions import kernel
from diskmoe.experts.quantise import (
    quantise_fp8,
    quantise_lines,
    quantise_mxfp4,
    quantise_q4,
    quantise_q8,
)

GROUP = 32
TILE = 16
FP8_COLUMNS = 128  # that share a scale

_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


@dataclass(frozen=True)
class Format:
    """How one weight is stored. `group` is the number of columns that share a scale, 0 for none."""

    name: str
    weight_bits: int
    group: int
    value_type: type[Any]  # of quantised values
    scale_type: type[Any]  # np.uint16: the bits of bf16
    scale_rows: int = 1  # rows that share a scale
    two_level: bool = False  # whether groups have zeros beside their scales, and rows f32 scales
    has_minima: bool = False  # whether groups have minima beside their scales, of the same type

    @property
    def quantised(self) -> bool:
        return self.group > 0

    @property
    def padded(self) -> bool:
        """Whether columns are filled up to whole groups."""
        return self.quantised and self.scale_rows == 1

    @property
    def scale_nbytes(self) -> int:
        """Bytes of the scales, and zeros or minima, of 16 rows and one group."""
        one = np.dtype(self.scale_type).itemsize * (2 if self.two_level or self.has_minima else 1)
        return one * TILE // self.scale_rows

    @property
    def row_scale_nbytes(self) -> int:
        """Bytes of the row scales of 16 rows."""
        return 4 * TILE if self.two_level else 0

    @property
    def bits_per_weight(self) -> float:
        """Scales included, but not the one of a row."""
        scale_bits = self.scale_nbytes * 8 / (TILE * self.group) if self.quantised else 0
        return self.weight_bits + scale_bits


FORMATS: dict[str, Format] = {
    fmt.name: fmt
    for fmt in (
        Format("f32", 32, 0, np.float32, np.float32),
        Format("bf16", 16, 0, np.uint16, np.float32),
        Format("q8", 8, GROUP, np.int8, np.float16),
        Format("q4", 4, GROUP, np.uint8, np.uint8, two_level=True),
        Format("q4g64", 4, 64, np.uint8, np.uint8, two_level=True),
        Format("q4_0", 4, GROUP, np.uint8, np.float16),
        Format("q4_1", 4, GROUP, np.uint8, np.float16, has_minima=True),
        Format("int4", 4, GROUP, np.uint8, np.uint16),
        Format("mxfp4", 4, GROUP, np.uint8, np.uint8),
        Format("fp8", 8, FP8_COLUMNS, np.uint8, np.float32, TILE),
    )
}


class Quantised(NamedTuple):
    """A matrix in a format's own numbers, of the types in FORMATS and of `value_shapes`."""

    values: npt.NDArray[Any]  # integers of q8, else codes
    scales: npt.NDArray[Any]
    zeros: npt.NDArray[np.uint8] | None = None  # of the scales' shape; q4 and q4g64 only
    row_scales: npt.NDArray[np.float32] | None = None  # (rows,); q4 and q4g64 only
    minima: npt.NDArray[np.float16] | None = None  # of the scales' shape; q4_1 only

    @property
    def format(self) -> str:
        """The name of the format that these are numbers of; their types tell it."""
        if self.zeros is not None:
            return "q4" if self.values.shape[1] // self.scales.shape[1] == GROUP else "q4g64"
        if self.minima is not None:
            return "q4_1"
        if self.values.dtype == np.int8:
            return "q8"
        by_scales = {"f": "fp8", "e": "q4_0", "H": "int4", "B": "mxfp4"}
        return by_scales.get(self.scales.dtype.char, "mxfp4")


def format_for_bits(bits: int) -> str:
    """The name of the usual format with `bits` bits per weight; ValueError lists the choices."""
    usual: dict[int, str] = {}
    for fmt in FORMATS.values():
        usual.setdefault(fmt.weight_bits, fmt.name)
    if bits not in usual:
        choices = ", ".join(f"{number} ({name})" for number, name in usual.items())
        raise ValueError(f"no format has {bits} bits per weight; there are {choices}")
    return usual[bits]


def chosen_format(exact: Collection[str], asked: str | None) -> str:
    """The format for weights that all of `exact` hold to the bit, f32 among them, where `asked` is
    wanted; None: the smallest of them. What is in four bits already stays as it is for q4, too.
    """
    own = min((name for name in FORMATS if name in exact), key=_bits)
    if asked is None or (asked == "q4" and FORMATS[own].weight_bits == 4):
        return own
    return asked


def _bits(name: str) -> float:
    return FORMATS[name].bits_per_weight


def expert_formats(name: str) -> tuple[str, str]:
    """(of gate and up, of down): what an expert's format says, ``q4_0``, or ``q4_0+q4_1``."""
    inner, _, down = name.partition("+")
    return inner, down or inner


def expert_format(inner: str, down: str) -> str:
    """The name that `expert_formats` takes apart."""
    return inner if inner == down else f"{inner}+{down}"


def mtp_format(name: str) -> str:
    """The format of an MTP layer, its experts' too, in a model whose other layers have `name`.

    An MTP head of four bits is known to lose most of its acceptance, so eight are the least.
    """
    parts = expert_formats(name)
    return expert_format(*("q8" if FORMATS[one].weight_bits < 8 else one for one in parts))


def value_shapes(name: str, rows: int, cols: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Shapes of the values and of the scales of a (rows, cols) matrix in a quantised format."""
    fmt = FORMATS[name]
    if not fmt.quantised:
        choices = ", ".join(fmt.name for fmt in FORMATS.values() if fmt.quantised)
        raise ValueError(f"{name!r} is not a quantised format; there are {choices}")
    groups = -(-cols // fmt.group)
    return (rows, groups * fmt.group if fmt.padded else cols), (-(-rows // fmt.scale_rows), groups)


def quantise(weights: npt.NDArray[np.float32], name: str) -> Quantised:
    """f32 (rows, cols) -> the numbers of a quantised format.

    Columns beyond `cols` count as zeros, or do not count at all (codes of four bits).
    ValueError when a weight is not finite: it has no place in a group, and would spoil its
    neighbours silently.
    """
    weights = np.ascontiguousarray(weights, dtype=np.float32)
    value_shape, scale_shape = value_shapes(name, *weights.shape)
    fmt = FORMATS[name]
    values = np.zeros(value_shape, fmt.value_type)
    scales = np.zeros(scale_shape, fmt.scale_type)
    zeros = row_scales = minima = None
    if name == "q8":
        bad_row = quantise_q8(weights, values, scales.view(np.uint16))
    elif name == "mxfp4":
        bad_row = quantise_mxfp4(weights, values, scales)
    elif name == "fp8":
        bad_row = quantise_fp8(weights, values, scales)
    elif not fmt.two_level:
        lines = scales.view(np.uint16)[None]
        if fmt.has_minima:
            lines = np.zeros((2, *scale_shape), np.uint16)
            scales, minima = lines.view(fmt.scale_type)
        bad_row = quantise_lines(weights, values, lines, fmt.has_minima, name == "int4")
    else:
        values[:] = 8
        zeros = np.zeros(scale_shape, np.uint8)
        row_scales = np.zeros(len(weights), np.float32)
        bad_row = quantise_q4(weights, values, scales, zeros, row_scales)
    if bad_row >= 0:
        raise ValueError(f"row {bad_row} holds a weight that is not a finite number")
    return Quantised(values, scales, zeros, row_scales, minima)


def dequantise(
    values: npt.NDArray[Any],
    scales: npt.NDArray[Any],
    zeros: npt.NDArray[np.uint8] | None = None,
    row_scales: npt.NDArray[np.float32] | None = None,
    minima: npt.NDArray[np.float16] | None = None,
) -> npt.NDArray[np.float32]:
    """What `quantise` gave -> f32 of the values' shape; the types tell the format."""
    rows, cols = values.shape
    if zeros is not None and row_scales is not None:
        sixteenths = values.reshape(*scales.shape, -1).astype(np.int16) * 16 - zeros[:, :, None]
        weights: npt.NDArray[np.float32] = sixteenths.astype(np.float32)
        weights *= (row_scales[:, None] * scales.astype(np.float32))[:, :, None]
        return weights.reshape(rows, cols)
    fmt = Quantised(values, scales, minima=minima).format
    if fmt == "fp8":
        numbers = e4m3_numbers()[values]
        for block in range(scales.shape[1]):  # no memory beside the numbers
            of_rows = np.repeat(scales[:, block], TILE)[:rows, None]
            numbers[:, block * FP8_COLUMNS : (block + 1) * FP8_COLUMNS] *= of_rows
        return numbers
    if fmt == "mxfp4":
        numbers = np.concatenate([_E2M1, -_E2M1])[values]
        wide = np.ldexp(np.float32(1.0), scales.astype(np.int32) - 127)
    else:
        numbers = values.astype(np.float32)
        if fmt in ("q4_0", "int4"):
            numbers -= np.float32(8)
        wide = widen_bf16(scales) if fmt == "int4" else scales.astype(np.float32)
    grouped = numbers.reshape(*scales.shape, -1)
    grouped *= wide[:, :, None]
    if minima is not None:
        grouped += minima.astype(np.float32)[:, :, None]
    return grouped.reshape(rows, cols)


def e4m3_numbers() -> npt.NDArray[np.float32]:
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
