import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from diskmoe.engine.kernels.paths import HOST, PORTABLE, Path
from diskmoe.engine.kernels.simd import (
    address,
    exp,
    lane_sum,
    load_bf16,
    load_f16,
    load_f32,
    silu,
    store_f32,
)


@njit
def exp_lanes(x, out):
    for c in range(0, len(x), 16):
        store_f32(address(out) + c * 4, exp(load_f32(address(x) + c * 4)))


@njit
def exp_one(x):
    return exp(x)


@njit
def silu_one(x):
    return silu(x)


@njit
def sum_lanes(x):
    return lane_sum(load_f32(address(x)))


@njit
def widen_f16(path, x, out):
    for c in range(0, len(x), 16):
        store_f32(address(out) + c * 4, load_f16(path, address(x) + c * 2))


@njit
def widen_bf16(x, out):
    for c in range(0, len(x), 16):
        store_f32(address(out) + c * 4, load_bf16(address(x) + c * 2))


def exp_of(x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    exp_lanes(x, out)
    return out


def test_exp_is_within_one_and_a_half_units_in_the_last_place():
    x = np.linspace(-87.3, 88.7, 160_000, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(exp_of(x) - exact) / exact).max() < 1.2e-7


def test_exp_of_special_numbers():
    x = np.array([0, -0.0, 1e30, np.inf, 89, -1e30, -np.inf, -105] + [np.nan] * 8, np.float32)
    with np.errstate(all="ignore"):
        result = exp_of(x)
    assert result[:8].tolist() == [1, 1, np.inf, np.inf, np.inf, 0, 0, 0]
    assert np.isnan(result[8:]).all()


def test_exp_reaches_down_into_the_denormals():
    x = np.linspace(-103, -88, 16, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))
    assert np.abs(exp_of(x) - exact).max() <= 2.0**-149


@settings(deadline=None)
@given(st.floats(width=32, allow_nan=False))
def test_exp_of_one_number_has_the_bits_of_exp_of_a_lane(x: float):
    lanes = np.full(16, x, np.float32)
    assert np.float32(exp_one(np.float32(x))).tobytes() == exp_of(lanes)[7].tobytes()


def test_silu_of_large_numbers_is_the_number_or_zero():
    assert silu_one(np.float32(200)) == 200
    assert silu_one(np.float32(-200)) == 0
    assert np.isnan(silu_one(np.float32(np.nan)))


def test_lanes_are_added_as_a_tree_of_halves():
    x = np.random.default_rng(1).standard_normal(16).astype(np.float32)
    tree = x
    while len(tree) > 1:
        tree = tree[: len(tree) // 2] + tree[len(tree) // 2 :]
    assert sum_lanes(x) == tree[0]


@pytest.mark.parametrize("path", [HOST, PORTABLE])
def test_every_f16_is_widened_exactly(path: Path | None):
    halves = np.arange(65536, dtype=np.uint16)
    out = np.empty(65536, np.float32)
    widen_f16(path, halves, out)
    np.testing.assert_array_equal(out, halves.view(np.float16).astype(np.float32))


def test_every_bf16_is_widened_exactly():
    bits = np.arange(65536, dtype=np.uint16)
    out = np.empty(65536, np.float32)
    widen_bf16(bits, out)
    assert (out.view(np.uint32) == bits.astype(np.uint32) << 16).all()
