"""Moving weights into the order of tiles and back, compiled; `tiles.py` says what that order is."""

import numpy as np

from diskmoe.compiled.functions import kernel


@kernel
def pack_float(weights, out):  # pragma: no cover - compiled
    """weights (rows, cols) -> out (tiles * cols * 16 or more,), of the same unsigned type."""
    rows, cols = weights.shape
    for tile in range((rows + 15) // 16):
        for lane in range(16):
            row = tile * 16 + lane
            base = tile * cols * 16 + lane
            for col in range(cols):
                out[base + col * 16] = weights[row, col] if row < rows else 0


@kernel
def pack_scales(scales, out):  # pragma: no cover - compiled
    """scales u16 or u8 (rows, groups) -> out (tiles * groups * 16,) of the same type."""
    rows, groups = scales.shape
    for tile in range((rows + 15) // 16):
        for lane in range(16):
            row = tile * 16 + lane
            for group in range(groups):
                out[(tile * groups + group) * 16 + lane] = scales[row, group] if row < rows else 0


@kernel
def unpack_scales(packed, scales):  # pragma: no cover - compiled
    rows, groups = scales.shape
    for row in range(rows):
        for group in range(groups):
            scales[row, group] = packed[((row // 16) * groups + group) * 16 + row % 16]


@kernel
def pack_two_level(scales, zeros, row_scales, out):  # pragma: no cover - compiled
    """scales, zeros u8 (rows, groups), row_scales u8 (rows, 4), the bytes of f32 -> out u8."""
    rows, groups = scales.shape
    for tile in range((rows + 15) // 16):
        base = tile * (groups * 32 + 64)
        for lane in range(16):
            row = tile * 16 + lane
            for group in range(groups):
                out[base + group * 32 + lane] = scales[row, group] if row < rows else 0
                out[base + group * 32 + 16 + lane] = zeros[row, group] if row < rows else 0
            for i in range(4):
                out[base + groups * 32 + lane * 4 + i] = row_scales[row, i] if row < rows else 0


@kernel
def unpack_two_level(packed, scales, zeros, row_scales):  # pragma: no cover - compiled
    rows, groups = scales.shape
    for row in range(rows):
        base = (row // 16) * (groups * 32 + 64)
        lane = row % 16
        for group in range(groups):
            scales[row, group] = packed[base + group * 32 + lane]
            zeros[row, group] = packed[base + group * 32 + 16 + lane]
        for i in range(4):
            row_scales[row, i] = packed[base + groups * 32 + lane * 4 + i]


@kernel
def pack_q8(values, out):  # pragma: no cover - compiled
    """values i8 (rows, whole groups) -> out u8 (tiles * cols * 16,)."""
    rows, cols = values.shape
    for tile in range((rows + 15) // 16):
        for lane in range(16):
            row = tile * 16 + lane
            base = tile * cols * 16 + lane * 4
            for col in range(cols):
                q = values[row, col] if row < rows else 0
                out[base + (col // 4) * 64 + col % 4] = np.uint8(q)


@kernel
def unpack_q8(packed, values):  # pragma: no cover - compiled
    rows, cols = values.shape
    for row in range(rows):
        base = (row // 16) * cols * 16 + (row % 16) * 4
        for col in range(cols):
            values[row, col] = np.int8(packed[base + (col // 4) * 64 + col % 4])


@kernel
def pack_nibbles(codes, out):  # pragma: no cover - compiled
    """codes u8 (rows, whole groups), 0..15 -> out u8 (tiles * cols * 8,)."""
    rows, cols = codes.shape
    for tile in range((rows + 15) // 16):
        for lane in range(16):
            row = tile * 16 + lane
            base = tile * cols * 8 + lane * 4
            for block in range(cols // 8):
                for i in range(4):
                    pair = 0
                    if row < rows:
                        high = np.int64(codes[row, block * 8 + 4 + i])
                        pair = np.int64(codes[row, block * 8 + i]) | (high << 4)
                    out[base + block * 64 + i] = np.uint8(pair)


@kernel
def unpack_nibbles(packed, codes):  # pragma: no cover - compiled
    rows, cols = codes.shape
    for row in range(rows):
        base = (row // 16) * cols * 8 + (row % 16) * 4
        for block in range(cols // 8):
            for i in range(4):
                byte = np.int64(packed[base + block * 64 + i])
                codes[row, block * 8 + i] = byte & 15
                codes[row, block * 8 + 4 + i] = byte >> 4
