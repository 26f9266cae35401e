"""What a weight's bits mean: float passthrough, and integers with one f16 scale per 32 columns.

The rule of this file: a dequantised weight is ``f32(value) * f32(scale)``, and every value is chosen
against the scale as it is stored, after its rounding to f16. Only IEEE additions, multiplications
and divisions in a fixed order are used (no libm), so the same weights give the same bytes on every
machine.

=====  ==========  ===========================================================================
name   bits/weight how
=====  ==========  ===========================================================================
f32    32          as it is (f16 sources are widened exactly)
bf16   16          bf16 sources keep their bits; f32 is rounded to nearest even
q8     8.5         symmetric, group 32, scale = f16(amax / 127), values -127..127
q4     4.5         symmetric, group 32, values -8..7, scale = f16(m / -divisor), m = the weight
                   of largest magnitude with its sign, and the divisor, one of 16, is the one with
                   the least squared error (the first of equals)
=====  ==========  ===========================================================================

The divisor 8 maps the largest weight to -8, which uses the asymmetric range fully (llama.cpp's Q4_0
does this); the search over its neighbours lowers the squared error by another tenth. Divisors 7 and
8 are among them, so that quantising what was dequantised changes nothing.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskmoe.experts.compiled import kernel

GROUP = 32
_ROUND = np.float32(12582912.0)  # 1.5 * 2**23: adding and taking it away rounds half to even
_DIVISORS = tuple(np.float32(7.0 + 0.125 * step) for step in range(16))


@dataclass(frozen=True)
class Format:
    """How one weight is stored. `group` is the number of columns that share a scale, 0 for none."""

    name: str
    weight_bits: int
    group: int
    bits_per_weight: float  # scales included

    @property
    def quantised(self) -> bool:
        return self.group > 0


FORMATS: dict[str, Format] = {
    "f32": Format("f32", 32, 0, 32.0),
    "bf16": Format("bf16", 16, 0, 16.0),
    "q8": Format("q8", 8, GROUP, 8.5),
    "q4": Format("q4", 4, GROUP, 4.5),
}


def format_for_bits(bits: int) -> str:
    """The name of the format with `bits` bits per weight; ValueError lists the choices."""
    for fmt in FORMATS.values():
        if fmt.weight_bits == bits:
            return fmt.name
    choices = ", ".join(f"{fmt.weight_bits} ({fmt.name})" for fmt in FORMATS.values())
    raise ValueError(f"no format has {bits} bits per weight; there are {choices}")


def mtp_format(name: str) -> str:
    """The format of an MTP layer in a model whose other layers have format `name`.

    An MTP head of four bits is known to lose most of its acceptance, so eight are the least.
    """
    return "q8" if FORMATS[name].weight_bits < 8 else name


def quantise(
    weights: npt.NDArray[np.float32], name: str
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """f32 (rows, cols) -> values i8 (rows, cols up to a multiple of 32), scales f16 (rows, groups).

    Columns beyond `cols` count as zeros. ValueError when a weight is not finite: it has no place
    in a group, and would spoil its neighbours silently.
    """
    weights = np.ascontiguousarray(weights, dtype=np.float32)
    rows, cols = weights.shape
    groups = -(-cols // GROUP)
    values = np.zeros((rows, groups * GROUP), np.int8)
    scales = np.zeros((rows, groups), np.uint16)
    kernel = {"q8": quantise_q8, "q4": quantise_q4}.get(name)
    if kernel is None:
        raise ValueError(f"{name!r} is not a quantised format; there are q4 and q8")
    bad_row = kernel(weights, values, scales)
    if bad_row >= 0:
        raise ValueError(f"row {bad_row} holds a weight that is not a finite number")
    return values, scales.view(np.float16)


def dequantise(
    values: npt.NDArray[np.int8], scales: npt.NDArray[np.float16]
) -> npt.NDArray[np.float32]:
    """values (rows, groups * 32), scales (rows, groups) -> f32 (rows, groups * 32)."""
    rows, groups = scales.shape
    grouped = values.reshape(rows, groups, GROUP).astype(np.float32)
    return (grouped * scales.astype(np.float32)[:, :, None]).reshape(rows, groups * GROUP)


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


@kernel(inline="always")
def _f16_bits(x):  # pragma: no cover - compiled
    """f32 -> bits of the nearest f16, ties to even; beyond the range the largest finite number."""
    bits = np.int64(np.float32(x).view(np.uint32))
    sign = (bits >> 16) & 0x8000
    magnitude = bits & 0x7FFFFFFF
    if magnitude >= 0x477FF000:
        return sign | 0x7BFF
    if magnitude < 0x38800000:  # below 2**-14: a count of 2**-24 steps
        steps = abs(np.float32(x)) * np.float32(16777216.0)
        return sign | np.int64((steps + _ROUND) - _ROUND)
    magnitude += 0xFFF + ((magnitude >> 13) & 1)
    return sign | ((magnitude - 0x38000000) >> 13)


@kernel(inline="always")
def _f16_value(bits):  # pragma: no cover - compiled
    """Bits of a finite f16 -> f32."""
    exponent = (bits >> 10) & 31
    fraction = bits & 0x3FF
    if exponent == 0:
        value = np.float32(fraction) * np.float32(5.9604644775390625e-08)
    else:
        value = np.uint32(((exponent + 112) << 23) | (fraction << 13)).view(np.float32)
    if bits & 0x8000:
        return -value
    return value


@kernel
def quantise_q8(weights, values, scales):  # pragma: no cover - compiled
    """weights f32 (rows, cols) -> values i8 (rows, >= cols), scales u16 bits of f16 (rows, groups).

    Returns the first row with a weight that is not finite, or -1.
    """
    rows, cols = weights.shape
    for row in range(rows):
        for group in range(scales.shape[1]):
            first = group * 32
            last = min(first + 32, cols)
            largest = np.float32(0.0)
            for col in range(first, last):
                x = abs(weights[row, col])
                if not x <= np.float32(3.4028235e38):
                    return row
                largest = max(largest, x)
            bits = _f16_bits(largest / np.float32(127.0))
            scales[row, group] = bits
            scale = _f16_value(bits)
            if scale > np.float32(0.0):
                for col in range(first, last):
                    q = weights[row, col] / scale
                    q = min(max(q, np.float32(-127.0)), np.float32(127.0))
                    values[row, col] = np.int8((q + _ROUND) - _ROUND)
            else:
                for col in range(first, last):
                    values[row, col] = 0
    return -1


@kernel(error_model="numpy")
def _add_q4_error(x, scale, error):  # pragma: no cover - compiled
    """error += (x - q4(x) * scale)**2, lane by lane; x, scale, error f32 (lanes,)."""
    for lane in range(x.shape[0]):
        q = x[lane] / scale[lane]
        q = min(max(q, np.float32(-8.0)), np.float32(7.0))
        difference = x[lane] - ((q + _ROUND) - _ROUND) * scale[lane]
        error[lane] += difference * difference


@kernel
def quantise_q4(weights, values, scales):  # pragma: no cover - compiled
    """Like `quantise_q8`, for values in -8..7.

    Groups are searched side by side, one a lane, so that the compiler can use vectors although a
    group's error is added in column order.
    """
    rows, cols = weights.shape
    groups = scales.shape[1]
    block = max(1, 64 // max(groups, 1))
    lanes = block * groups
    x = np.zeros((32, lanes), np.float32)  # weight k of every group in the block
    peak = np.zeros(lanes, np.float32)
    scale = np.ones(lanes, np.float32)
    bits = np.zeros(lanes, np.int64)
    error = np.zeros(lanes, np.float32)
    best_error = np.zeros(lanes, np.float32)
    best_bits = np.zeros(lanes, np.int64)
    for first_row in range(0, rows, block):
        used = min(block, rows - first_row)
        for i in range(used):
            for col in range(cols):
                w = weights[first_row + i, col]
                if not abs(w) <= np.float32(3.4028235e38):
                    return first_row + i
                x[col & 31, i * groups + (col >> 5)] = w
        peak[:] = np.float32(0.0)
        for k in range(32):
            for lane in range(lanes):
                if abs(x[k, lane]) > abs(peak[lane]):
                    peak[lane] = x[k, lane]
        best_error[:] = np.float32(np.inf)
        best_bits[:] = 0
        for divisor in _DIVISORS:
            for lane in range(lanes):
                bits[lane] = _f16_bits(peak[lane] / -divisor)
                usable = (bits[lane] & 0x7FFF) != 0
                scale[lane] = _f16_value(bits[lane]) if usable else np.float32(1.0)
                error[lane] = np.float32(0.0) if usable else np.float32(np.inf)
            for k in range(32):
                _add_q4_error(x[k], scale, error)
            for lane in range(lanes):
                if error[lane] < best_error[lane]:
                    best_error[lane] = error[lane]
                    best_bits[lane] = bits[lane]
        for i in range(used):
            for group in range(groups):
                lane = i * groups + group
                scales[first_row + i, group] = best_bits[lane]
                divide_by = _f16_value(best_bits[lane])
                for k in range(min(32, cols - group * 32)):
                    q = np.float32(0.0)
                    if best_bits[lane]:
                        q = x[k, lane] / divide_by
                        q = min(max(q, np.float32(-8.0)), np.float32(7.0))
                    values[first_row + i, group * 32 + k] = np.int8((q + _ROUND) - _ROUND)
    return -1
