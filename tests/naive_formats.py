"""Quantised formats a group at a time, in NumPy."""

import numpy as np

from diskmoe.experts.formats import Quantised, dequantise, round_to_bf16, widen_bf16

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def grouped(weights: np.ndarray, group: int = 32) -> np.ndarray:
    rows, cols = weights.shape
    groups = -(-cols // group)
    padded = np.zeros((rows, groups * group), np.float32)
    padded[:, :cols] = weights
    return padded.reshape(rows, groups, group)


def naive_q8(weights: np.ndarray) -> Quantised:
    x = grouped(weights)
    scales = (np.abs(x).max(axis=2) / np.float32(127)).astype(np.float16)
    divisors = np.where(scales == 0, 1, scales).astype(np.float32)[:, :, None]
    values = np.clip(np.rint(x / divisors), -127, 127)
    values[scales == 0] = 0
    return Quantised(values.reshape(len(x), -1).astype(np.int8), scales)


def naive_line(w: np.ndarray) -> tuple[np.float32, np.float32]:
    """(step, lowest) of a group's weights f32 (columns,): 0 steps for a group of zeros."""
    bottom, top = min(w.min(), np.float32(0)), max(w.max(), np.float32(0))
    if top == bottom:
        return np.float32(0), np.float32(0)
    width, n, total = top - bottom, np.float32(len(w)), np.float32(0)
    for x in w:
        total += x
    best, step, low = (np.float32(np.inf), np.float32(1), np.float32(0)), top, bottom
    pulls = [np.float32(p) for p in (0.0, 0.04)]
    starts = [(a, b) for a in pulls for b in pulls]
    for start in [*starts, None]:
        if start is None:
            _, step, low = best
        else:
            low = bottom + start[0] * width
            step = (top - start[1] * width - low) / np.float32(15)
        for _ in range(4 if start is None else 3):
            codes = np.rint(np.clip((w - low) / step, np.float32(0), np.float32(15)))
            error, q, qq, qx = (np.float32(0) for _ in range(4))
            for x, code in zip(w, codes, strict=True):
                difference = x - (code * step + low)
                error += difference * difference
                q += code
                qq += code * code
                qx += code * x
            if error < best[0]:
                best = error, step, low
            spread = n * qq - q * q
            if spread > 0 and n * qx - q * total > 0:
                step = (n * qx - q * total) / spread
                low = (total - step * q) / n
    return best[1], best[2]


def naive_q4(weights: np.ndarray, group_size: int = 32) -> Quantised:
    rows, cols = weights.shape
    groups = -(-cols // group_size)
    values = np.full((rows, groups * group_size), 8, np.uint8)
    scales, zeros = np.zeros((rows, groups), np.uint8), np.full((rows, groups), 128, np.uint8)
    row_scales = np.zeros(rows, np.float32)
    for row, exact in enumerate(weights):
        exponent = np.clip(np.frexp(np.abs(exact).max())[1] - 1, -100, 100)
        w = np.ldexp(exact, -exponent)
        parts = [w[begin : begin + group_size] for begin in range(0, cols, group_size)]
        lines = [naive_line(part) for part in parts]
        largest = max(step for step, _ in lines)
        row_scales[row] = np.ldexp(largest / np.float32(255) / np.float32(16), exponent)
        sixteenth = np.ldexp(row_scales[row], -exponent)
        for group, (part, (step, low)) in enumerate(zip(parts, lines, strict=True)):
            if not (step and sixteenth):
                continue
            scale = np.clip(np.rint(step / (sixteenth * np.float32(16))), 1, 255)
            zero = np.clip(np.rint(-low / (sixteenth * scale)), 0, 255)
            codes = (part / (sixteenth * scale) + zero) / np.float32(16)
            scales[row, group], zeros[row, group] = scale, zero
            begin = group * group_size
            values[row, begin : begin + len(part)] = np.rint(np.clip(codes, 0, 15))
    return Quantised(values, scales, zeros, row_scales)


def naive_q4g64(weights: np.ndarray) -> Quantised:
    return naive_q4(weights, 64)


def naive_lines(weights: np.ndarray, name: str) -> Quantised:
    """Groups by the plain rule: the largest weight is code 0, or codes go from lowest to highest."""
    rows, cols = weights.shape
    groups = -(-cols // 32)
    values = np.zeros((rows, groups * 32), np.uint8)
    scales = np.zeros((rows, groups), np.float32)
    minima = np.zeros((rows, groups), np.float16)
    for row, group in np.ndindex(rows, groups):
        w = weights[row, group * 32 : group * 32 + 32]
        if name == "q4_1":
            low, middle = as_f16(w.min()), 0
            minima[row, group] = low
            step = (w.max() - low) / np.float32(15)
        else:
            low, middle = np.float32(0), 8
            step = (w.max() if w.max() > -w.min() else w.min()) / np.float32(-8)
        step = widen_bf16(round_to_bf16(step[None]))[0] if name == "int4" else as_f16(step)
        scales[row, group] = step
        codes = np.rint(np.clip((w - low) / step + np.float32(middle), 0, 15)) if step else middle
        values[row, group * 32 : group * 32 + len(w)] = codes
    kept = round_to_bf16(scales) if name == "int4" else scales.astype(np.float16)
    return Quantised(values, kept, minima=minima if name == "q4_1" else None)


def as_f16(number: np.float32) -> np.float32:
    return np.float32(np.float16(np.clip(number, -65504, 65504)))


def naive_q4_0(weights: np.ndarray) -> Quantised:
    return naive_lines(weights, "q4_0")


def naive_q4_1(weights: np.ndarray) -> Quantised:
    return naive_lines(weights, "q4_1")


def naive_int4(weights: np.ndarray) -> Quantised:
    return naive_lines(weights, "int4")


def nearest_code(x: float) -> int:
    """The code of the e2m1 number nearest to x, ties to the even code, beyond 6 the last."""
    distance = np.abs(E2M1 - abs(x))
    nearest = np.flatnonzero(distance == distance.min())
    code = int(min(nearest, key=lambda i: i % 2))
    return code | (8 if x < 0 and code else 0)


def naive_mxfp4(weights: np.ndarray) -> Quantised:
    x = grouped(weights).astype(np.float64)
    exponents = np.frexp(np.abs(x).max(axis=2))[1] - 1 - 2
    codes = np.clip(exponents + 127, 0, None)
    codes[np.abs(x).max(axis=2) == 0] = 0
    scaled = np.ldexp(x, (127 - codes)[:, :, None])
    values = np.array([nearest_code(v) for v in scaled.reshape(-1)], np.uint8)
    return Quantised(values.reshape(len(x), -1), codes.astype(np.uint8))


def naive_fp8(weights: np.ndarray) -> Quantised:
    rows, cols = weights.shape
    values = np.zeros((rows, cols), np.uint8)
    scales = np.zeros((-(-rows // 16), -(-cols // 128)), np.float32)
    numbers = dequantise(np.arange(127, dtype=np.uint8)[None], np.ones((1, 1), np.float32))[0]
    for tile, block in np.ndindex(scales.shape):
        part = np.s_[tile * 16 : tile * 16 + 16, block * 128 : block * 128 + 128]
        scales[tile, block] = np.abs(weights[part]).max() / np.float32(448)
        if scales[tile, block]:
            q = weights[part] / scales[tile, block]
            distance = np.abs(np.abs(q)[:, :, None] - numbers.astype(np.float64))
            ties = distance == distance.min(axis=2, keepdims=True)
            even = ties & (np.arange(127) % 2 == 0)
            code = np.where(even.any(axis=2), even.argmax(axis=2), ties.argmax(axis=2))
            values[part] = code | np.signbit(q) * np.uint8(128)
    return Quantised(values, scales)


NAIVE = {
    "q8": naive_q8,
    "q4": naive_q4,
    "q4g64": naive_q4g64,
    "mxfp4": naive_mxfp4,
    "fp8": naive_fp8,
    "q4_0": naive_q4_0,
    "q4_1": naive_q4_1,
    "int4": naive_int4,
}
