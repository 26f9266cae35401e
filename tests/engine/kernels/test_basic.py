import tracemalloc

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskmoe.engine.kernels.basic import (
    add,
    add_bias,
    rms_norm,
    rope,
    rope_tables,
    sigmoid_,
    silu_mul,
)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 5), d=st.integers(1, 80), exponent=st.integers(-12, 12))
def test_rms_norm_equals_its_twin(n: int, d: int, exponent: int):
    x, weight = normal(n, d) * np.float32(10.0**exponent), normal(d, seed=1)
    wanted = naive.rms_norm(x, weight, 1e-6)
    got = rms_norm(x, weight, 1e-6, np.empty_like(x))
    np.testing.assert_allclose(got, wanted, rtol=2e-6)


def test_rms_norm_works_per_head_and_in_place():
    x, weight = normal(3, 4, 24), normal(24, seed=1)
    wanted = naive.rms_norm(x, weight, 1e-5)
    assert rms_norm(x, weight, 1e-5, x) is x
    np.testing.assert_allclose(x, wanted, rtol=2e-6)


def test_rms_norm_of_a_row_does_not_depend_on_other_rows():
    x, weight = normal(64, 100), normal(100, seed=1)
    whole = rms_norm(x, weight, 1e-6, np.empty_like(x))
    for n in (1, 2, 3, 5, 8, 17):
        part = rms_norm(x[64 - n :], weight, 1e-6, np.empty((n, 100), np.float32))
        assert part.tobytes() == whole[64 - n :].tobytes()


def test_rms_norm_of_zeros_is_zero_and_nan_is_not_lost():
    x = np.zeros((2, 20), np.float32)
    x[1, 19] = np.nan
    got = rms_norm(x, normal(20), 1e-6, np.empty_like(x))
    assert (got[0] == 0).all() and np.isnan(got[1]).all()


@settings(max_examples=30, deadline=None)
@given(size=st.integers(1, 50), scale=st.floats(0.1, 100))
def test_silu_mul_equals_its_twin(size: int, scale: float):
    gate, up = normal(size) * np.float32(scale), normal(size, seed=1)
    got = silu_mul(gate, up, np.empty_like(gate))
    # where exp ends in f32, at about 1e-38, ours is 0; times gate and up that is below 1e-34
    np.testing.assert_allclose(got, naive.silu_mul(gate, up), rtol=1e-6, atol=1e-34)


def test_silu_mul_has_the_same_bits_wherever_a_number_lies():
    gate, up = normal(37), normal(37, seed=1)
    whole = silu_mul(gate, up, np.empty_like(gate))
    for i in range(37):
        one = silu_mul(gate[i : i + 1], up[i : i + 1], np.empty(1, np.float32))
        assert one.tobytes() == whole[i : i + 1].tobytes()


def test_sigmoid_equals_its_twin():
    x = np.linspace(-90, 90, 1001, dtype=np.float32)
    wanted = naive.sigmoid(x)
    np.testing.assert_allclose(sigmoid_(x), wanted, rtol=1e-6, atol=1e-38)


def test_add_and_add_bias():
    y, x, bias = normal(3, 20), normal(3, 20, seed=1), normal(20, seed=2)
    wanted = y + x
    assert (add(y, x) == wanted).all()
    assert (add_bias(y, bias) == wanted + bias).all()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dims", [16, 8])
def test_rope_equals_its_twin(interleaved: bool, dims: int):
    x = normal(5, 3, 16)
    frequencies = 10000.0 ** -(np.arange(0, dims, 2) / dims)
    wanted = naive.rope(x, frequencies, 7, interleaved)
    cos, sin = rope_tables(frequencies, 12)
    rope(x, cos, sin, 7, interleaved)
    np.testing.assert_allclose(x, wanted, atol=3e-6)


def test_rope_tables_are_the_cosines_of_angles_rounded_to_f32():
    frequencies = 10000.0 ** -(np.arange(0, 16, 2) / 16)
    angles = np.arange(150, dtype=np.float32)[:, None] * frequencies.astype(np.float32)
    cos, sin = rope_tables(frequencies, 150)
    assert cos.tobytes() == np.cos(angles.astype(np.float64)).astype(np.float32).tobytes()
    assert sin.tobytes() == np.sin(angles.astype(np.float64)).astype(np.float32).tobytes()


def test_rope_tables_take_hardly_any_memory_beside_themselves():
    tracemalloc.start()
    try:
        cos, sin = rope_tables(np.ones(64), 8192)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < cos.nbytes + sin.nbytes + 200_000


def test_wrong_shapes_and_positions_are_refused():
    x = normal(2, 16)
    with pytest.raises(ValueError, match="norm weight"):
        rms_norm(x, normal(15), 1e-6, x)
    with pytest.raises(ValueError, match="not C-contiguous"):
        silu_mul(normal(16, 2).T, x, x)
    with pytest.raises(ValueError, match="bias"):
        add_bias(x, normal(2))
    cos, sin = rope_tables(np.ones(8), 4)
    with pytest.raises(ValueError, match=r"rows 3\.\.4 with rotary tables for 4"):
        rope(normal(2, 1, 16), cos, sin, 3)
