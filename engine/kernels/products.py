"""Prepared rows of activations, and the tile kernels that multiply them.

The rule of this file: a tile kernel is compiled once for its weight format and path, as a C
function, and is called by its address; so the code around it does not depend on the format and is
not compiled for each again. What is computed, and in which order, is said in `blocks.py`.

A *prepared* row is what tile kernels read. For float formats it is the f32 row itself. For integer
formats the row is quantised to int8 per group of columns with scale amax / 127; a group is its int8
values, the f32 scale, and the int32 ``-zero * sum(values)``, where zero is what the format's stored
weights are too large by, 1 where groups have zeros of their own, or -1 where they have minima.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from diskmoe.compiled.functions import address_of, callback, kernel
from diskmoe.engine.kernels.blocks import FORMS, emit_multiply
from diskmoe.engine.kernels.paths import HOST, Fixed, Path, resolved
from diskmoe.engine.kernels.prepare import emit_prepare
from diskmoe.engine.kernels.simd import (
    bits_float,
    compiled,
    f32_at,
    i32_at,
    lane_of,
    load_bf16,
    load_f16,
    store_one,
)

KIND = {name: kind for kind, name in enumerate(FORMS)}  # how kernels are told a format
F32, BF16, Q8, Q4, Q4G64, MXFP4, FP8, Q4_0, Q4_1, INT4 = range(len(KIND))

_TILE_KERNEL = types.void(*[types.int64] * 7)


# ---- tile kernels --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Product(Fixed):
    fmt: str
    path: Path


@compiled
def _multiply(typing_context, product, weights, scales, depth, tiles, xs, ys, n):
    def generate(context, builder, signature, args):
        made = signature.args[0].value
        emit_multiply(builder, made.fmt, made.path, args[1:])
        return context.get_dummy_value()

    return types.void(product, *[types.int64] * 7), generate


def _multiplier(product: _Product) -> Any:
    @callback
    def multiply(weights, scales, depth, tiles, xs, ys, n):  # pragma: no cover - compiled
        _multiply(product, weights, scales, depth, tiles, xs, ys, n)

    return multiply


@cache
def tile_kernel(fmt: str, path: Path | None = HOST) -> int:
    """The address of a format's tile kernel, compiled now or found in the cache on disk.

    It is ``void(weights, scales, depth, tiles, xs, ys, n)``, all int64: `tiles` consecutive tiles
    whose data and scales begin at these addresses, times n prepared rows. depth: see `depth_of`;
    xs, ys: addresses of n int64 addresses, of prepared rows and of tiles * 16 f32 outputs.
    ValueError for an unknown format.
    """
    if fmt not in FORMS:
        raise ValueError(f"no kernel for format {fmt!r}; there are {', '.join(FORMS)}")
    return address_of(_multiplier(_Product(fmt, resolved(path))), _TILE_KERNEL)


@compiled
def tile_rows(typing_context, kernel, weights, scales, depth, tiles, xs, ys, n):
    """Calls a tile kernel by its address."""

    def generate(context, builder, signature, args):
        ty = ir.FunctionType(ir.VoidType(), [arg.type for arg in args[1:]])
        builder.call(builder.inttoptr(args[0], ty.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), generate


# ---- sizes: for Python and for kernels -----------------------------------------------------------


@kernel
def group_of(kind):  # pragma: no cover - compiled
    """Columns of a quantised activation group; 0 for float formats."""
    if kind == Q4G64:
        return 64
    if kind == Q8 or kind == Q4 or kind == MXFP4 or kind >= Q4_0:
        return 32
    return 0


@kernel
def is_integer(kind):  # pragma: no cover - compiled
    """Whether the format multiplies quantised rows."""
    return group_of(kind) > 0


@kernel
def depth_of(kind, cols):  # pragma: no cover - compiled
    """What tile kernels call depth: groups, or columns of a float format."""
    group = group_of(kind)
    return (cols + group - 1) // group if group > 0 else cols


@kernel
def prepared_bytes(kind, cols):  # pragma: no cover - compiled
    """Bytes of a prepared row, to a multiple of 64; of a float format's row: 4 * cols."""
    group = group_of(kind)
    if group == 0:
        return 4 * cols
    return ((cols + group - 1) // group * (group + 8) + 63) // 64 * 64


@kernel
def tile_bytes(kind, depth):  # pragma: no cover - compiled
    """Bytes of one tile's weights."""
    if kind == Q8 or kind == Q4G64:
        return depth * 512
    if kind == Q4 or kind == MXFP4 or kind >= Q4_0:
        return depth * 256
    if kind == BF16:
        return depth * 32
    if kind == FP8:
        return depth * 16
    return depth * 64


@kernel
def scale_bytes(kind, depth):  # pragma: no cover - compiled
    """Bytes of one tile's scales."""
    if kind == Q4 or kind == Q4G64:
        return depth * 32 + 64
    if kind == Q8 or kind == Q4_0 or kind == INT4:
        return depth * 32
    if kind == Q4_1:
        return depth * 64
    if kind == MXFP4:
        return depth * 16
    if kind == FP8:
        return (depth + 127) // 128 * 4
    return 0


# ---- prepared rows -------------------------------------------------------------------------------


def _preparer(group: int) -> Callable[..., Any]:
    @compiled
    def prepare(typing_context, zero, x, cols, out):
        def generate(context, builder, signature, args):
            emit_prepare(builder, group, *args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), generate

    return prepare


_prepare_32 = _preparer(32)
_prepare_64 = _preparer(64)


@kernel
def prepare_row(kind, x, cols, out):  # pragma: no cover - compiled
    """`cols` f32 at address x -> a prepared row of an integer format at address out."""
    if kind == Q4G64:
        _prepare_64(1, x, cols, out)
    else:
        zero = 128
        if kind == Q4:
            zero = 1
        elif kind == MXFP4:
            zero = 12
        elif kind == Q4_1:
            zero = -1
        elif kind >= Q4_0:
            zero = 8
        _prepare_32(zero, x, cols, out)


# ---- taking rows back ----------------------------------------------------------------------------


@kernel
def unpack_row(kind, weights, scales, depth, lane, cols, out):  # pragma: no cover - compiled
    """Row `lane` of the tile whose data and scales lie at these addresses -> `cols` f32 at out."""
    if kind == F32:
        for col in range(cols):
            store_one(out + col * 4, f32_at(weights + col * 64 + lane * 4))
        return
    if kind == BF16:
        for col in range(cols):
            pair = i32_at(weights + col * 32 + (lane // 2) * 4)
            bits = pair << 16 if lane % 2 == 0 else pair
            store_one(out + col * 4, bits_float(np.int32(bits & np.int32(-65536))))
        return
    group = group_of(kind) if kind != FP8 else 128
    own_zero = 128
    row_scale = np.float32(0.0)
    minimum = np.float32(-0.0)  # which changes no number
    if kind == Q4 or kind == Q4G64:
        row_scale = f32_at(scales + depth * 32 + lane * 4)
    for first in range(0, cols, group):
        number = first // group
        if kind == FP8:
            scale = f32_at(scales + number * 4)
        elif kind == MXFP4:
            word = i32_at(scales + number * 16 + (lane // 4) * 4)
            code = (word >> (8 * (lane % 4))) & 255
            scale = bits_float(np.int32(code << 23 if code > 0 else 0x400000))
        elif kind == Q4 or kind == Q4G64:
            at = scales + number * 32 + (lane // 4) * 4
            scale = row_scale * np.float32((i32_at(at) >> (8 * (lane % 4))) & 255)
            own_zero = (i32_at(at + 16) >> (8 * (lane % 4))) & 255
        elif kind == INT4:
            scale = lane_of(load_bf16(scales + number * 32), lane)
        elif kind == Q4_1:
            scale = lane_of(load_f16(None, scales + number * 64), lane)
            minimum = lane_of(load_f16(None, scales + number * 64 + 32), lane)
        else:
            scale = lane_of(load_f16(None, scales + number * 32), lane)
        for col in range(first, min(first + group, cols)):
            if kind == FP8:
                code = (i32_at(weights + col * 16 + (lane // 4) * 4) >> (8 * (lane % 4))) & 255
                bits = ((code & 127) << 20) | ((code & 128) << 24)
                value = bits_float(np.int32(bits)) * np.float32(2.0**120)
            elif kind == Q8:
                word = i32_at(weights + (col // 4) * 64 + lane * 4)
                value = np.float32(np.int32(word << (24 - 8 * (col % 4))) >> 24)
            else:
                word = i32_at(weights + (col // 8) * 64 + lane * 4)
                code = (word >> (8 * (col % 4) + 4 * ((col // 4) % 2))) & 15
                if kind == MXFP4:
                    size = code & 7
                    value = np.float32(size if size < 4 else (2 + size % 2) << (size // 2 - 1))
                    value = (-value if code > 7 else value) * np.float32(0.5)
                elif kind == Q4_1:
                    value = np.float32(code)
                elif kind >= Q4_0:
                    value = np.float32(code - 8)
                else:
                    value = np.float32(16 * code - own_zero)
            store_one(out + col * 4, value * scale + minimum)
