"""Choosing the integers and the small floats that stand for weights, compiled.

The rule of this file: only IEEE additions, multiplications and divisions in a fixed order are used
(no libm), so the same weights give the same bytes on every machine. `formats.py` says what each
format is; a kernel returns the first row with a weight that is not finite, or -1.
"""

import numpy as np

from diskmoe.experts.compiled import kernel

_ROUND = np.float32(12582912.0)  # 1.5 * 2**23: adding and taking it away rounds half to even
_DIVISORS = tuple(np.float32(7.0 + 0.125 * step) for step in range(16))


@kernel(inline="always")
def f16_bits(x):  # pragma: no cover - compiled
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
def f16_value(bits):  # pragma: no cover - compiled
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
            bits = f16_bits(largest / np.float32(127.0))
            scales[row, group] = bits
            scale = f16_value(bits)
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
def quantise_q4(weights, values, scales, group_size):  # pragma: no cover - compiled
    """Like `quantise_q8`, for values in -8..7 and groups of 32 or 64 columns.

    Groups are searched side by side, one a lane, so that the compiler can use vectors although a
    group's error is added in column order.
    """
    rows, cols = weights.shape
    groups = scales.shape[1]
    block = max(1, 64 // max(groups, 1))
    lanes = block * groups
    x = np.zeros((group_size, lanes), np.float32)  # weight k of every group in the block
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
                x[col % group_size, i * groups + col // group_size] = w
        peak[:] = np.float32(0.0)
        for k in range(group_size):
            for lane in range(lanes):
                if abs(x[k, lane]) > abs(peak[lane]):
                    peak[lane] = x[k, lane]
        best_error[:] = np.float32(np.inf)
        best_bits[:] = 0
        for divisor in _DIVISORS:
            for lane in range(lanes):
                bits[lane] = f16_bits(peak[lane] / -divisor)
                usable = (bits[lane] & 0x7FFF) != 0
                scale[lane] = f16_value(bits[lane]) if usable else np.float32(1.0)
                error[lane] = np.float32(0.0) if usable else np.float32(np.inf)
            for k in range(group_size):
                _add_q4_error(x[k], scale, error)
            for lane in range(lanes):
                if error[lane] < best_error[lane]:
                    best_error[lane] = error[lane]
                    best_bits[lane] = bits[lane]
        for i in range(used):
            for group in range(groups):
                lane = i * groups + group
                scales[first_row + i, group] = best_bits[lane]
                divide_by = f16_value(best_bits[lane])
                for k in range(min(group_size, cols - group * group_size)):
                    q = np.float32(0.0)
                    if best_bits[lane]:
                        q = x[k, lane] / divide_by
                        q = min(max(q, np.float32(-8.0)), np.float32(7.0))
                    values[first_row + i, group * group_size + k] = np.int8((q + _ROUND) - _ROUND)
    return -1


# ---- small floats --------------------------------------------------------------------------------


@kernel(inline="always")
def e4m3_bits(x):  # pragma: no cover - compiled
    """f32 -> bits of the nearest e4m3, ties to even; beyond the range the largest finite number."""
    bits = np.int64(np.float32(x).view(np.uint32))
    sign = (bits >> 24) & 0x80
    magnitude = bits & 0x7FFFFFFF
    if magnitude >= 0x43E80000:  # 464, half a step above 448
        return sign | 0x7E
    if magnitude < 0x3C800000:  # below 2**-6: a count of 2**-9 steps
        steps = abs(np.float32(x)) * np.float32(512.0)
        return sign | np.int64((steps + _ROUND) - _ROUND)
    magnitude += 0x7FFFF + ((magnitude >> 20) & 1)
    return sign | min((magnitude >> 20) - (120 << 3), 0x7E)


@kernel
def quantise_fp8(weights, values, scales):  # pragma: no cover - compiled
    """weights f32 (rows, cols) -> values u8 (rows, cols), scales f32 (tiles of 16 rows, blocks)."""
    rows, cols = weights.shape
    for tile in range(scales.shape[0]):
        last_row = min(tile * 16 + 16, rows)
        for block in range(scales.shape[1]):
            last = min(block * 128 + 128, cols)
            largest = np.float32(0.0)
            for row in range(tile * 16, last_row):
                for col in range(block * 128, last):
                    x = abs(weights[row, col])
                    if not x <= np.float32(3.4028235e38):
                        return row
                    largest = max(largest, x)
            scale = largest / np.float32(448.0)
            scales[tile, block] = scale
            for row in range(tile * 16, last_row):
                for col in range(block * 128, last):
                    q = np.float32(0.0)
                    if scale > np.float32(0.0):
                        q = weights[row, col] / scale
                    values[row, col] = e4m3_bits(q)
    return -1


@kernel
def quantise_mxfp4(weights, values, scales):  # pragma: no cover - compiled
    """weights f32 (rows, cols) -> values u8 codes (rows, >= cols), scales u8 (rows, groups)."""
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
            # The largest magnitude's power of two, less 2: that of the largest code, 6.
            code = max((np.int64(np.float32(largest).view(np.uint32)) >> 23) - 2, 0)
            scales[row, group] = code
            for col in range(first, last):
                # 2**(127 - code), in two steps that are both normal numbers
                half = (127 - code) // 2
                rest = 127 - code - half
                q = weights[row, col] * np.uint32((half + 127) << 23).view(np.float32)
                q = abs(q * np.uint32((rest + 127) << 23).view(np.float32))
                if q < np.float32(2.0):
                    number = np.int64((q * np.float32(2.0) + _ROUND) - _ROUND)
                elif q < np.float32(4.0):
                    number = 2 + np.int64((q + _ROUND) - _ROUND)
                else:
                    number = min(4 + np.int64((q * np.float32(0.5) + _ROUND) - _ROUND), 7)
                sign = 8 if weights[row, col] < np.float32(0.0) and number > 0 else 0
                values[row, col] = number | sign
    return -1
