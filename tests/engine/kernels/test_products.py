"""Tile kernels of every format on every path: the bits of a NumPy twin, whatever the blocking.

Paths that this machine lacks run too, with their special instructions spelled out.
"""

from functools import cache
from typing import Any

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskmoe.compiled.functions import kernel
from diskmoe.engine.kernels.dots import E2M1_DOUBLED
from diskmoe.engine.kernels.paths import Path, available_paths, path_named
from diskmoe.engine.kernels.products import (
    KIND,
    depth_of,
    group_of,
    is_integer,
    prepare_row,
    prepared_bytes,
    scale_bytes,
    tile_bytes,
    tile_kernel,
    tile_rows,
    unpack_row,
)
from diskmoe.experts.formats import FORMATS, Quantised, dequantise, widen_bf16
from diskmoe.experts.packing import pack, pack_values, unpack, unpack_values
from diskmoe.experts.tiles import Bytes, MatrixLayout, aligned_zeros, matrix_layout

PATHS = ("portable", "avx2", "avx512bw", "avx512vnni", "dotprod")
INTEGERS = ("q8", "q4", "q4g64", "mxfp4", "q4_0", "q4_1", "int4")
BATCHES = (1, 2, 3, 5, 8, 17)
REAL_SHAPES = ((768, 2048), (2048, 768))  # an expert's gate and down


@kernel
def call_tile_rows(code, weights, scales, depth, tiles, xs, ys, n):
    tile_rows(code, weights, scales, depth, tiles, xs, ys, n)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def prepared(x: np.ndarray, kind: int) -> np.ndarray:
    """The prepared rows of x, one after another, u8 (n, bytes)."""
    if not is_integer(kind):
        return np.ascontiguousarray(x).view(np.uint8)
    n, nbytes = len(x), prepared_bytes(kind, x.shape[1])
    rows = aligned_zeros(n * nbytes).reshape(n, nbytes)
    for source, row in zip(x, rows, strict=True):
        prepare_row(kind, source.ctypes.data, x.shape[1], row.ctypes.data)
    return rows


def product(
    x: np.ndarray, packed: Bytes, layout: MatrixLayout, path: str = "portable", step: int = 0
) -> np.ndarray:
    """Packed weights times x: f32 (n, rows). `step` tiles a call, 0: all of them."""
    kind = KIND[layout.format]
    depth = depth_of(kind, layout.cols)
    rows = prepared(x, kind)
    out = np.full((len(x), layout.tiles * 16), np.nan, np.float32)
    xs = rows.ctypes.data + np.arange(len(x)) * rows.strides[0]
    for first in range(0, layout.tiles, step or layout.tiles):
        ys = out.ctypes.data + first * 64 + np.arange(len(x)) * out.strides[0]
        call_tile_rows(
            tile_kernel(layout.format, path_named(path)),
            packed.ctypes.data + first * tile_bytes(kind, depth),
            packed.ctypes.data + layout.scales_offset + first * scale_bytes(kind, depth),
            depth,
            min(step or layout.tiles, layout.tiles - first),
            xs.ctypes.data,
            ys.ctypes.data,
            len(x),
        )
    return out[:, : layout.rows]


@cache
def case(fmt: str, rows: int, cols: int) -> tuple[Any, Any, Any, Any]:
    """(x for 17 rows, packed weights, their layout, what the twin says)."""
    layout = matrix_layout(fmt, rows, cols)
    packed = pack(normal(rows, cols, scale=0.03), layout)
    x = normal(max(BATCHES), cols, seed=1)
    return x, packed, layout, twin(x, packed, layout)


def twin(x: np.ndarray, packed: Bytes, layout: MatrixLayout) -> np.ndarray:
    if layout.format in ("f32", "bf16"):
        return naive.matmul_chains(x, unpack(packed, layout))
    values, scales, zeros, row_scales, minima = unpack_values(packed, layout)
    if layout.format == "fp8":
        ones = np.ones_like(scales)
        return naive.matmul_blocks(x, dequantise(values, ones), scales)
    if layout.format == "mxfp4":
        doubled = np.array(E2M1_DOUBLED, np.int8)[values]
        halved = np.ldexp(np.float32(0.5), scales.astype(np.int32) - 127).astype(np.float32)
        return naive.matmul_quantised(x, doubled, halved)
    if layout.format in ("q4_0", "int4"):
        wide = scales if layout.format == "q4_0" else widen_bf16(scales)
        return naive.matmul_quantised(x, values.astype(np.int8) - 8, wide)
    return naive.matmul_quantised(x, values, scales, zeros, row_scales, minima)


def relative_error(got: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(got - wanted).max() / max(np.abs(wanted).max(), 1e-300))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", REAL_SHAPES)
@pytest.mark.parametrize("fmt", INTEGERS)
def test_real_layers_have_the_twins_bits_on_every_path(
    fmt: str, shape: tuple[int, int], path: str
) -> None:
    x, packed, layout, wanted = case(fmt, *shape)
    got = product(x, packed, layout, path)
    assert relative_error(got, wanted) < 1e-5
    assert got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("fmt", ["f32", "bf16", "fp8"])
def test_float_layers_have_the_twins_bits(fmt: str) -> None:
    x, packed, layout, wanted = case(fmt, 80, 768)
    got = product(x, packed, layout)
    assert relative_error(got, wanted) < 1e-5
    assert got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fmt", FORMATS)
def test_bits_do_not_depend_on_how_rows_and_tiles_are_blocked(fmt: str, path: str) -> None:
    x, packed, layout, _ = case(fmt, 80, 768)
    every = product(x, packed, layout)
    for n in BATCHES:
        for step in (0, 1, 3):
            for first in {0, len(x) - n}:
                got = product(x[first : first + n], packed, layout, path, step)
                assert got.tobytes() == every[first : first + n].tobytes(), (n, step, first)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", [(37, 50), (1, 1), (17, 33), (5, 100), (16, 129), (3, 259)])
@pytest.mark.parametrize("fmt", FORMATS)
def test_odd_shapes_equal_the_twin(fmt: str, shape: tuple[int, int], path: str) -> None:
    x, packed, layout, wanted = case(fmt, *shape)
    assert product(x[:7], packed, layout, path).tobytes() == wanted[:7].tobytes()


@pytest.mark.parametrize("fmt", FORMATS)
def test_products_are_near_those_of_the_dequantised_weights(fmt: str) -> None:
    x, packed, layout, _ = case(fmt, 80, 768)
    wanted = naive.matmul(x, unpack(packed, layout))
    error = product(x, packed, layout) - wanted
    assert np.sqrt((error**2).mean() / (wanted**2).mean()) < 0.012


@pytest.mark.parametrize("path", PATHS)
def test_the_largest_bytes_do_not_saturate(path: str) -> None:
    for fmt, extreme in (("q8", 127.0), ("mxfp4", 6.0)):
        layout = matrix_layout(fmt, 16, 128)
        for weight_sign in (1, -1):
            weights = np.full((16, 128), extreme * weight_sign, np.float32)
            assert_exact(pack(weights, layout), layout, path)
    for fmt in ("q4", "q4g64"):
        layout = matrix_layout(fmt, 16, 128)
        for code, zero in ((15, 0), (0, 255), (15, 255)):
            numbers = two_level(layout, code, zero)
            assert_exact(pack_values(numbers, layout), layout, path)


def two_level(layout: MatrixLayout, code: int, zero: int, row_scale: float = 0.5) -> Quantised:
    """A q4 matrix of one code and zero."""
    values = np.full((layout.rows, layout.cols), code, np.uint8)
    scales = np.full((layout.rows, layout.groups), 2, np.uint8)
    zeros = np.full((layout.rows, layout.groups), zero, np.uint8)
    return Quantised(values, scales, zeros, np.full(layout.rows, row_scale, np.float32))


def assert_exact(packed: Bytes, layout: MatrixLayout, path: str) -> None:
    for sign in (1, -1):
        x = np.full((5, layout.cols), 127.0 * sign, np.float32)
        wanted = naive.matmul(x, unpack(packed, layout))
        assert (product(x, packed, layout, path) == wanted).all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fmt", INTEGERS)
def test_any_packed_bytes_are_multiplied_exactly(fmt: str, path: str) -> None:
    """A hostile q8 file may hold -128, which our packer never writes."""
    layout = matrix_layout(fmt, 16, 64)
    x = np.full((5, 64), 127.0, np.float32)
    for byte in (0x80, 0x00, 0xFF, 0x7F):
        data = np.full(layout.nbytes, byte, np.uint8)
        scales = data[layout.scales_offset : layout.used_nbytes]
        if FORMATS[fmt].two_level:  # zeros stay as they are
            scales[:-64].reshape(layout.groups, 2, 16)[:, 0] = 1
            scales[-64:].view(np.float32)[:] = 1.0
        else:
            ones = {"mxfp4": np.uint8(127), "int4": np.uint16(0x3F80)}
            one = ones.get(fmt, np.float16(1.0))
            scales.view(one.dtype)[:] = one
        wanted = naive.matmul(x, unpack(data, layout))
        for n in (1, 5):
            assert (product(x[:n], data, layout, path) == wanted[:n]).all(), byte


@pytest.mark.parametrize("fmt", INTEGERS)
def test_bytes_that_mean_nothing_have_the_same_bits_on_every_path(fmt: str) -> None:
    """Infinities and NaN among the scales come out as such."""
    layout = matrix_layout(fmt, 48, 130)
    data = np.random.default_rng(7).integers(0, 256, layout.nbytes).astype(np.uint8)
    x = normal(5, 130, seed=1)
    outputs = [product(x, data, layout, path) for path in PATHS]
    for got in outputs[1:]:
        np.testing.assert_array_equal(got, outputs[0])


@pytest.mark.parametrize("fmt", ["q4", "q4g64"])
def test_every_zero_and_scale_of_q4_is_exact(fmt: str) -> None:
    layout = matrix_layout(fmt, 256, 64)
    numbers = two_level(layout, 0, 0, 1.0)
    assert numbers.zeros is not None
    numbers.values[:, 0] = 1
    every = np.arange(256, dtype=np.uint8)
    for column in range(layout.groups):
        numbers.zeros[:, column] = every
        numbers.scales[:, column] = every[::-1]
    packed = pack_values(numbers, layout)
    x = np.zeros((1, 64), np.float32)
    x[0, 0] = 127.0  # scale 1, value 127
    wanted = np.float32(127.0) * (16 - every.astype(np.float32)) * every[::-1]
    for path in PATHS:
        np.testing.assert_array_equal(product(x, packed, layout, path)[0], wanted)


@pytest.mark.parametrize("fmt", FORMATS)
def test_zeros_and_tiny_and_huge_activations(fmt: str) -> None:
    layout = matrix_layout(fmt, 16, 64)
    packed = pack(normal(16, 64), layout)
    assert (product(np.zeros((1, 64), np.float32), packed, layout) == 0).all()
    for size in (1e-44, 1e-38, 1e-30, 1e30):
        x = normal(1, 64, seed=2, scale=size)
        wanted = naive.matmul(x, unpack(packed, layout))
        bound = 0.03 * np.abs(wanted).max() + 64 * 2.0**-149 * 100
        assert np.abs(product(x, packed, layout) - wanted).max() < bound


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("fmt", FORMATS)
def test_a_number_that_is_not_finite_is_not_lost(fmt: str, bad: float, path: str) -> None:
    layout = matrix_layout(fmt, 16, 128)
    x = normal(5, 128, seed=1)
    x[2, 40] = bad
    got = product(x, pack(normal(16, 128) + 4, layout), layout, path)
    assert not np.isfinite(got[2]).any()
    assert np.isfinite(np.delete(got, 2, axis=0)).all()


def test_every_f16_scale_is_widened_exactly() -> None:
    """-0.0 comes out as 0.0: a sum begins with 0.0."""
    halves = np.arange(0x8000, dtype=np.uint16).view(np.float16)
    halves = np.concatenate([halves[np.isfinite(halves)], -halves[np.isfinite(halves)]])
    rows = -(-len(halves) // 16) * 16
    layout = matrix_layout("q8", rows, 32)
    values, scales = np.zeros((rows, 32), np.int8), np.zeros((rows, 1), np.float16)
    values[:, 0], scales[: len(halves), 0] = 1, halves
    packed = pack_values(Quantised(values, scales), layout)
    x = np.zeros((1, 32), np.float32)
    x[0, 0] = 127.0  # scale 1, value 127
    wanted = np.float32(127.0) * halves.astype(np.float32)
    for path in available_paths():
        got = product(x, packed, layout, path)[0, : len(halves)]
        np.testing.assert_array_equal(got, wanted)


def test_every_block_scale_of_mxfp4_is_exact() -> None:
    layout = matrix_layout("mxfp4", 256, 32)
    values = np.zeros((256, 32), np.uint8)
    values[:, 0] = 2  # 1.0
    scales = np.minimum(np.arange(256), 254).astype(np.uint8)[:, None]
    packed = pack_values(Quantised(values, scales), layout)
    x = np.zeros((1, 32), np.float32)
    x[0, 0] = 127.0
    with np.errstate(over="ignore"):
        wanted = np.float32(127.0) * np.ldexp(np.float32(1.0), scales[:, 0].astype(int) - 127)
    np.testing.assert_array_equal(product(x, packed, layout)[0], wanted.astype(np.float32))


@settings(deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=140),
    st.sampled_from(INTEGERS),
)
def test_prepared_rows_equal_their_twin(numbers: list[float], fmt: str) -> None:
    x = np.array([[*numbers, 0.5]], np.float32)
    kind = KIND[fmt]
    group = group_of(kind)
    with np.errstate(all="ignore"):
        values, scales = naive.quantise_activations(x, group)
    size = group + 8
    stored = prepared(x, kind)[0, : depth_of(kind, x.shape[1]) * size].reshape(-1, size)
    assert (stored[:, :group].view(np.int8) == values[0]).all()
    assert stored[:, group : group + 4].tobytes() == scales[0].tobytes()
    zeros = {"q8": 128, "q4": 1, "q4g64": 1, "mxfp4": 12, "q4_0": 8, "q4_1": -1, "int4": 8}
    zero = zeros[fmt]
    assert (stored[:, group + 4 :].copy().view(np.int32)[:, 0] == -zero * values[0].sum(1)).all()


@pytest.mark.parametrize("cols", [1, 31, 32, 33, 64, 100, 2048])
@pytest.mark.parametrize("fmt", FORMATS)
def test_sizes_are_those_of_the_layout(fmt: str, cols: int) -> None:
    kind, layout = KIND[fmt], matrix_layout(fmt, 40, cols)
    depth = depth_of(kind, cols)
    data, scales = layout.sections(np.zeros(layout.nbytes, np.uint8))
    assert len(data) == layout.tiles * tile_bytes(kind, depth)
    assert len(scales) == layout.tiles * scale_bytes(kind, depth)
    assert prepared_bytes(kind, cols) % (64 if is_integer(kind) else 4) == 0
    assert is_integer(kind) == (fmt in INTEGERS)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 40), cols=st.integers(1, 140), fmt=st.sampled_from(tuple(FORMATS)))
def test_rows_taken_back_are_the_unpacked_rows(rows: int, cols: int, fmt: str) -> None:
    kind, layout = KIND[fmt], matrix_layout(fmt, rows, cols)
    packed = pack(normal(rows, cols), layout)
    depth = depth_of(kind, cols)
    out = np.empty((rows, cols), np.float32)
    for row in range(rows):
        tile = row // 16
        unpack_row(
            kind,
            packed.ctypes.data + tile * tile_bytes(kind, depth),
            packed.ctypes.data + layout.scales_offset + tile * scale_bytes(kind, depth),
            depth,
            row % 16,
            cols,
            out[row].ctypes.data,
        )
    assert out.tobytes() == unpack(packed, layout).tobytes()


def test_a_format_without_a_kernel_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match="q5.*there are f32, bf16, q8"):
        tile_kernel("q5")


def test_the_host_takes_its_best_path() -> None:
    assert tile_kernel("q4") != tile_kernel("q4", Path("portable", True)) or available_paths() == (
        "portable",
    )
