"""Choosing the integers and the small floats that stand for weights, compiled.

The rule of this file: only IEEE additions, multiplications and divisions in a fixed order are used
(no libm), so the same weights give the same bytes on every machine. `formats.py` says what each
format is; a kernel returns the first row with a weight that is not finite, or -1.
"""

import numpy as np

from diskmoe.compiled.functions import inner, kernel

_ROUND = np.float32(12582912.0)  # 1.5 * 2**23: adding and taking it away rounds half to even
# what q4's search pulls the lowest and the highest weight of a group in by at first, in ranges
_PULLS = tuple((np.float32(low), np.float32(high)) for low in (0.0, 0.04) for high in (0.0, 0.04))


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


@inner
def _largest(weights, row, first, last):  # pragma: no cover - compiled
    """The largest magnitude of weights[row, first:last], or -1 where one is not a finite number."""
    largest = np.float32(0.0)
    for col in range(first, last):
        x = abs(weights[row, col])
        if not x <= np.float32(3.4028235e38):
            return np.float32(-1.0)
        largest = max(largest, x)
    return largest


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
            largest = _largest(weights, row, first, last)
            if largest < np.float32(0.0):
                return row
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


@kernel(inline="always")
def _power(exponent):  # pragma: no cover - compiled
    """2**exponent as f32, for exponents -126..127."""
    return np.uint32((exponent + 127) << 23).view(np.float32)


@kernel(error_model="numpy")
def _add_column(x, there, step, low, sums):  # pragma: no cover - compiled
    """A column of every group: its squared error, and what the next fit of a line wants of it.

    x f32 (lanes,), `there` 1.0 where the matrix has such a column and else 0.0; the codes are
    those of ``x ~ low + step * code``. sums (4, lanes): error, code, code * code, code * x.
    """
    for lane in range(x.shape[0]):
        q = (x[lane] - low[lane]) / step[lane]
        q = min(max(q, np.float32(0.0)), np.float32(15.0))
        q = (q + _ROUND) - _ROUND
        difference = (x[lane] - (q * step[lane] + low[lane])) * there[lane]
        sums[0, lane] += difference * difference
        q = q * there[lane]
        sums[1, lane] += q
        sums[2, lane] += q * q
        sums[3, lane] += q * x[lane]


@kernel(error_model="numpy")
def _fit(x, there, counts, step, low):  # pragma: no cover - compiled
    """The best step and lowest weight that least squares leads to, per group, into step and low.

    x, there f32 (group, lanes), counts f32 (lanes,). Four starts: the weights' range (zero is in
    it) with its ends pulled in or not; codes, a line through them, twice; then on from the best.
    """
    group, lanes = x.shape
    bottom = np.zeros(lanes, np.float32)
    top = np.zeros(lanes, np.float32)
    total = np.zeros(lanes, np.float32)
    best = np.empty((3, lanes), np.float32)  # error, step, low
    sums = np.empty((4, lanes), np.float32)
    for k in range(group):
        for lane in range(lanes):
            bottom[lane] = min(bottom[lane], x[k, lane])
            top[lane] = max(top[lane], x[k, lane])
            total[lane] += x[k, lane]
    best[0] = np.float32(np.inf)
    best[1] = np.float32(1.0)
    best[2] = np.float32(0.0)
    for start in range(5):
        for lane in range(lanes):
            if start == 4:
                step[lane], low[lane] = best[1, lane], best[2, lane]
                continue
            pull_low, pull_high = _PULLS[start]
            width = top[lane] - bottom[lane]
            low[lane] = bottom[lane] + pull_low * width
            step[lane] = (top[lane] - pull_high * width - low[lane]) / np.float32(15.0)
            if not step[lane] > np.float32(0.0):
                step[lane] = np.float32(1.0)
        for _ in range(4 if start == 4 else 3):
            sums[:] = np.float32(0.0)
            for k in range(group):
                _add_column(x[k], there[k], step, low, sums)
            for lane in range(lanes):
                if sums[0, lane] < best[0, lane]:
                    best[0, lane] = sums[0, lane]
                    best[1, lane] = step[lane]
                    best[2, lane] = low[lane]
                n, q, qq, qx = counts[lane], sums[1, lane], sums[2, lane], sums[3, lane]
                spread = n * qq - q * q
                slope = (n * qx - q * total[lane]) / spread
                if spread > np.float32(0.0) and slope > np.float32(0.0):
                    step[lane] = slope
                    low[lane] = (total[lane] - slope * q) / n
    for lane in range(lanes):
        # a group of zeros has no step
        step[lane] = best[1, lane] if top[lane] > bottom[lane] else np.float32(0.0)
        low[lane] = best[2, lane]


@kernel(error_model="numpy")
def quantise_q4(weights, codes, scales, zeros, row_scales):  # pragma: no cover - compiled
    """weights f32 (rows, cols) -> codes u8 (rows, >= cols), scales and zeros u8 (rows, groups),
    row_scales f32 (rows,). Codes beyond cols are left alone. See `quantise_q8` for the result.

    Groups are searched side by side, one a lane, so that the compiler can use vectors although a
    group's sums are added in column order. Rows count in a power of two that brings their largest
    weight near 1: squares then neither overflow nor vanish, whatever the weights' size.
    """
    rows, cols = weights.shape
    groups = scales.shape[1]
    size = codes.shape[1] // max(groups, 1)
    block = max(1, 64 // max(groups, 1))
    lanes = block * groups
    x = np.zeros((size, lanes), np.float32)  # weight k of every group in the block
    there = np.zeros((size, lanes), np.float32)
    counts = np.zeros(lanes, np.float32)
    step = np.zeros(lanes, np.float32)
    low = np.zeros(lanes, np.float32)
    exponents = np.zeros(block, np.int64)
    for lane in range(lanes):
        counts[lane] = np.float32(min(size, cols - lane % groups * size))
        for k in range(min(size, cols - lane % groups * size)):
            there[k, lane] = np.float32(1.0)
    for first_row in range(0, rows, block):
        used = min(block, rows - first_row)
        for i in range(used):
            largest = _largest(weights, first_row + i, 0, cols)
            if largest < np.float32(0.0):
                return first_row + i
            # at most 100, so that the power and its inverse are normal numbers
            exponent = (np.int64(np.float32(largest).view(np.uint32)) >> 23) - 127
            exponents[i] = min(max(exponent, -100), 100)
            unscale = _power(-exponents[i])
            for col in range(cols):
                w = weights[first_row + i, col] * unscale
                x[col % size, i * groups + col // size] = w
        _fit(x, there, counts, step, low)
        for i in range(used):
            largest = np.float32(0.0)
            for group in range(groups):
                largest = max(largest, step[i * groups + group])
            power = _power(exponents[i])
            row_scales[first_row + i] = largest / np.float32(255.0) / np.float32(16.0) * power
            sixteenth = row_scales[first_row + i] * _power(-exponents[i])  # as it is stored
            for group in range(groups):
                lane = i * groups + group
                scale, zero = np.float32(0.0), np.float32(128.0)
                if step[lane] > np.float32(0.0) and sixteenth > np.float32(0.0):
                    scale = step[lane] / (sixteenth * np.float32(16.0))
                    scale = min(max((scale + _ROUND) - _ROUND, np.float32(1.0)), np.float32(255.0))
                    zero = np.float32(0.0) - low[lane] / (sixteenth * scale)
                    zero = min(max((zero + _ROUND) - _ROUND, np.float32(0.0)), np.float32(255.0))
                scales[first_row + i, group] = np.uint8(scale)
                zeros[first_row + i, group] = np.uint8(zero)
                unit = sixteenth * scale
                for k in range(min(size, cols - group * size)):
                    q = np.float32(8.0)
                    if unit > np.float32(0.0):
                        q = (x[k, lane] / unit + zero) / np.float32(16.0)
                        q = min(max(q, np.float32(0.0)), np.float32(15.0))
                    codes[first_row + i, group * size + k] = np.uint8((q + _ROUND) - _ROUND)
    return -1


@kernel
def quantise_lines(weights, codes, lines, has_minima, in_bf16):  # pragma: no cover - compiled
    """weights f32 (rows, cols) -> codes u8 (rows, >= cols), lines u16 (1 or 2, rows, groups): the bits
    of scales and of minima, f16 or bf16. See `quantise_q8` for the result.

    Without minima code 8 stands for zero and the largest weight gets code 0: its scale may be negative.
    """
    rows, cols = weights.shape
    for row in range(rows):
        for group in range(lines.shape[2]):
            first = group * 32
            last = min(first + 32, cols)
            if _largest(weights, row, first, last) < np.float32(0.0):
                return row
            bottom = weights[row, first]
            top = bottom
            for col in range(first, last):
                bottom = min(bottom, weights[row, col])
                top = max(top, weights[row, col])
            if has_minima:
                lines[1, row, group] = f16_bits(bottom)
                low, middle = f16_value(lines[1, row, group]), np.float32(0.0)
                scale = (top - low) / np.float32(15.0)
            else:
                low, middle = np.float32(0.0), np.float32(8.0)
                scale = (top if top > -bottom else bottom) / np.float32(-8.0)
            if in_bf16:
                wide = np.int64(np.float32(scale).view(np.uint32))
                bits = (wide + 0x7FFF + ((wide >> 16) & 1)) >> 16
                scale = np.uint32(bits << 16).view(np.float32)
            else:
                bits = f16_bits(scale)
                scale = f16_value(bits)
            lines[0, row, group] = bits
            for col in range(first, last):
                q = middle
                if scale != np.float32(0.0):
                    q = (weights[row, col] - low) / scale + middle
                    q = min(max(q, np.float32(0.0)), np.float32(15.0))
                codes[row, col] = np.uint8((q + _ROUND) - _ROUND)
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
                of_row = _largest(weights, row, block * 128, last)
                if of_row < np.float32(0.0):
                    return row
                largest = max(largest, of_row)
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
            largest = _largest(weights, row, first, last)
            if largest < np.float32(0.0):
                return row
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
