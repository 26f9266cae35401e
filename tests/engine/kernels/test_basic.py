import tracemalloc

import naive
import numpy as np
import pytest
from as_functions import sigmoids, silu_mul
from hypothesis import given, settings
from hypothesis import strategies as st

from diskmoe.engine.kernels.basic import rms_norm, rope_tables


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
    got = silu_mul(gate, up)
    # where exp ends in f32, at about 1e-38, ours is 0; times gate and up that is below 1e-34
    np.testing.assert_allclose(got, naive.silu_mul(gate, up), rtol=1e-6, atol=1e-34)


def test_silu_mul_has_the_same_bits_wherever_a_number_lies():
    gate, up = normal(37), normal(37, seed=1)
    whole = silu_mul(gate, up)
    for i in range(37):
        one = silu_mul(gate[i : i + 1], up[i : i + 1])
        assert one.tobytes() == whole[i : i + 1].tobytes()


def test_sigmoid_equals_its_twin():
    x = np.linspace(-90, 90, 1001, dtype=np.float32)
    wanted = naive.sigmoid(x)
    np.testing.assert_allclose(sigmoids(x), wanted, rtol=1e-6, atol=1e-38)


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


def test_wrong_shapes_are_refused():
    x = normal(2, 16)
    with pytest.raises(ValueError, match="norm weight"):
        rms_norm(x, normal(15), 1e-6, x)
    with pytest.raises(ValueError, match="not C-contiguous"):
        rms_norm(normal(16, 2).T, normal(16), 1e-6, x)
