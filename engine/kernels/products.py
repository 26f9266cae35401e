"""A tile of 16 weight rows times one or four activation rows, in every weight format.

The rule of this file: a row's outputs are computed by the same operations in the same order,
alone or as one of four.

* q8, q4: a row is quantised to int8 per group of 32 columns with scale amax / 127; the dot product
  of a group is an exact int32 sum; ``acc = fma(f32(dot), x_scale * w_scale, acc)`` group by group.
* f32, bf16: column k is added by fma to chain k % 4; the sum is (0 + 1) + (2 + 3).

Weights lie as `diskmoe.experts.tiles` says. A *prepared* row is what the tile kernels read: for
float formats the f32 row itself, for integer formats 40 bytes per group: all int8 values
(32 * groups), then the f32 scales, then the int32 sums of each group's values.
"""

import numpy as np

from diskmoe.engine.kernels.dots import dot_q4, dot_q8
from diskmoe.engine.kernels.simd import (
    add,
    bits_float,
    float_bits,
    fma,
    i32_at,
    load_bf16,
    load_f16,
    load_f32,
    mul,
    splat,
    splat_at,
    store_f32,
    to_f32,
)
from diskmoe.experts.compiled import kernel

F32, BF16, Q8, Q4 = range(4)  # how kernels are told a format
KIND = {"f32": F32, "bf16": BF16, "q8": Q8, "q4": Q4}


@kernel
def quantise_rows(x, cols, prepared, begin, end):  # pragma: no cover - compiled
    """Rows begin..end-1 of x f32 (n, >= cols) -> prepared u8 (n, 40 * groups); see the module."""
    groups = prepared.shape[1] // 40
    values = prepared.view(np.int8)
    scales = prepared.view(np.float32)
    sums = prepared.view(np.int32)
    rounding = np.float32(12582912.0)  # 1.5 * 2**23: rounds half to even
    for row in range(begin, end):
        for group in range(groups):
            first = group * 32
            count = min(32, cols - first)
            # Bit patterns of magnitudes sort like numbers, and NaN sorts last: it is not lost.
            largest = np.int32(0)
            for k in range(count):
                largest = max(largest, float_bits(x[row, first + k]) & np.int32(0x7FFFFFFF))
            scale = bits_float(largest) / np.float32(127.0)
            divisor = scale if scale != np.float32(0.0) else np.float32(1.0)
            total = np.int32(0)
            for k in range(32):
                q = np.float32(0.0)
                if k < count:
                    q = x[row, first + k] / divisor
                q = max(np.float32(-127.0), q)
                q = min(np.float32(127.0), q)
                value = np.int32((q + rounding) - rounding)
                values[row, first + k] = value
                total += value
            scales[row, groups * 8 + group] = scale
            sums[row, groups * 9 + group] = total


# ---- tiles: 16 outputs of one row, or of four rows -----------------------------------------------
# weights, scales: addresses of a tile's sections. depth: groups, or columns for float formats.
# x..: addresses of prepared rows. y..: addresses of 16 f32 outputs.


@kernel
def _tile_f32(weights, depth, x, y):  # pragma: no cover - compiled
    a = b = c = d = splat(np.float32(0.0))
    k = 0
    while k + 4 <= depth:
        w = weights + k * 64
        a = fma(load_f32(w), splat_at(x + k * 4), a)
        b = fma(load_f32(w + 64), splat_at(x + k * 4 + 4), b)
        c = fma(load_f32(w + 128), splat_at(x + k * 4 + 8), c)
        d = fma(load_f32(w + 192), splat_at(x + k * 4 + 12), d)
        k += 4
    if k < depth:
        a = fma(load_f32(weights + k * 64), splat_at(x + k * 4), a)
    if k + 1 < depth:
        b = fma(load_f32(weights + k * 64 + 64), splat_at(x + k * 4 + 4), b)
    if k + 2 < depth:
        c = fma(load_f32(weights + k * 64 + 128), splat_at(x + k * 4 + 8), c)
    store_f32(y, add(add(a, b), add(c, d)))


@kernel
def _tile_bf16(weights, depth, x, y):  # pragma: no cover - compiled
    a = b = c = d = splat(np.float32(0.0))
    k = 0
    while k + 4 <= depth:
        w = weights + k * 32
        a = fma(load_bf16(w), splat_at(x + k * 4), a)
        b = fma(load_bf16(w + 32), splat_at(x + k * 4 + 4), b)
        c = fma(load_bf16(w + 64), splat_at(x + k * 4 + 8), c)
        d = fma(load_bf16(w + 96), splat_at(x + k * 4 + 12), d)
        k += 4
    if k < depth:
        a = fma(load_bf16(weights + k * 32), splat_at(x + k * 4), a)
    if k + 1 < depth:
        b = fma(load_bf16(weights + k * 32 + 32), splat_at(x + k * 4 + 4), b)
    if k + 2 < depth:
        c = fma(load_bf16(weights + k * 32 + 64), splat_at(x + k * 4 + 8), c)
    store_f32(y, add(add(a, b), add(c, d)))


@kernel
def _tile_q8(path, weights, scales, depth, x, y):  # pragma: no cover - compiled
    total = splat(np.float32(0.0))
    x_scales = x + depth * 32
    for g in range(depth):
        dot = dot_q8(path, weights + g * 512, x + g * 32)
        scale = mul(load_f16(path, scales + g * 32), splat_at(x_scales + g * 4))
        total = fma(to_f32(dot), scale, total)
    store_f32(y, total)


@kernel
def _tile_q4(path, weights, scales, depth, x, y):  # pragma: no cover - compiled
    total = splat(np.float32(0.0))
    x_scales = x + depth * 32
    x_sums = x + depth * 36
    for g in range(depth):
        dot = dot_q4(path, weights + g * 256, x + g * 32, i32_at(x_sums + g * 4))
        scale = mul(load_f16(path, scales + g * 32), splat_at(x_scales + g * 4))
        total = fma(to_f32(dot), scale, total)
    store_f32(y, total)


@kernel
def _four_q8(path, weights, scales, depth, x0, x1, x2, x3, y0, y1, y2, y3):  # pragma: no cover
    t0 = t1 = t2 = t3 = splat(np.float32(0.0))
    for g in range(depth):
        w = weights + g * 512
        scale = load_f16(path, scales + g * 32)
        at = depth * 32 + g * 4
        t0 = fma(to_f32(dot_q8(path, w, x0 + g * 32)), mul(scale, splat_at(x0 + at)), t0)
        t1 = fma(to_f32(dot_q8(path, w, x1 + g * 32)), mul(scale, splat_at(x1 + at)), t1)
        t2 = fma(to_f32(dot_q8(path, w, x2 + g * 32)), mul(scale, splat_at(x2 + at)), t2)
        t3 = fma(to_f32(dot_q8(path, w, x3 + g * 32)), mul(scale, splat_at(x3 + at)), t3)
    store_f32(y0, t0)
    store_f32(y1, t1)
    store_f32(y2, t2)
    store_f32(y3, t3)


@kernel
def _four_q4(path, weights, scales, depth, x0, x1, x2, x3, y0, y1, y2, y3):  # pragma: no cover
    t0 = t1 = t2 = t3 = splat(np.float32(0.0))
    for g in range(depth):
        w = weights + g * 256
        scale = load_f16(path, scales + g * 32)
        at = depth * 32 + g * 4
        sums = depth * 36 + g * 4
        d0 = dot_q4(path, w, x0 + g * 32, i32_at(x0 + sums))
        d1 = dot_q4(path, w, x1 + g * 32, i32_at(x1 + sums))
        d2 = dot_q4(path, w, x2 + g * 32, i32_at(x2 + sums))
        d3 = dot_q4(path, w, x3 + g * 32, i32_at(x3 + sums))
        t0 = fma(to_f32(d0), mul(scale, splat_at(x0 + at)), t0)
        t1 = fma(to_f32(d1), mul(scale, splat_at(x1 + at)), t1)
        t2 = fma(to_f32(d2), mul(scale, splat_at(x2 + at)), t2)
        t3 = fma(to_f32(d3), mul(scale, splat_at(x3 + at)), t3)
    store_f32(y0, t0)
    store_f32(y1, t1)
    store_f32(y2, t2)
    store_f32(y3, t3)


@kernel
def one_row(path, kind, weights, scales, depth, x, y):  # pragma: no cover - compiled
    """16 outputs of one prepared row; the format's tile kernel."""
    if kind == Q8:
        _tile_q8(path, weights, scales, depth, x, y)
    elif kind == Q4:
        _tile_q4(path, weights, scales, depth, x, y)
    elif kind == BF16:
        _tile_bf16(weights, depth, x, y)
    else:
        _tile_f32(weights, depth, x, y)


@kernel
def four_rows(path, kind, weights, scales, depth, x, y):  # pragma: no cover - compiled
    """Like `one_row` for four rows, bit for bit; x, y: tuples of four addresses."""
    if kind == Q8:
        _four_q8(path, weights, scales, depth, x[0], x[1], x[2], x[3], y[0], y[1], y[2], y[3])
    elif kind == Q4:
        _four_q4(path, weights, scales, depth, x[0], x[1], x[2], x[3], y[0], y[1], y[2], y[3])
    else:
        for i in range(4):
            one_row(path, kind, weights, scales, depth, x[i], y[i])


@kernel
def tile_bytes(kind, depth):  # pragma: no cover - compiled
    """Bytes of one tile's weights."""
    if kind == Q8:
        return depth * 512
    if kind == Q4:
        return depth * 256
    if kind == BF16:
        return depth * 32
    return depth * 64
