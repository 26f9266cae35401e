"""The bits of each format, against a plain NumPy twin."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_formats import E2M1, NAIVE

from diskmoe.experts import quantise as quantise_kernels
from diskmoe.experts.formats import (
    FORMATS,
    Quantised,
    chosen_format,
    dequantise,
    expert_format,
    expert_formats,
    format_for_bits,
    mtp_format,
    quantise,
    round_to_bf16,
    widen_bf16,
)


def draw(rows: int, cols: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, cols)).astype(np.float32)


def assert_same(found: Quantised, expected: Quantised) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("shape", [(1, 1), (3, 31), (5, 70), (40, 24), (2, 2100)])
@pytest.mark.parametrize("name", NAIVE)
def test_quantised_bits_equal_the_numpy_twin(name: str, shape: tuple[int, int]) -> None:
    weights = draw(*shape) * np.float32(0.02)
    assert_same(quantise(weights, name), NAIVE[name](weights))


@pytest.mark.parametrize("name", ["mxfp4", "fp8"])
@pytest.mark.parametrize("magnitude", [1e-44, 1e-40, 1e-37, 1e-8, 1e30, 1e38])
def test_small_floats_of_any_magnitude_equal_the_numpy_twin(name: str, magnitude: float) -> None:
    weights = np.clip(draw(4, 64, seed=3), -3, 3) * np.float32(magnitude)
    assert_same(quantise(weights, name), NAIVE[name](weights))


def test_every_e2m1_tie_goes_to_the_even_code() -> None:
    middles = (E2M1[:-1] + E2M1[1:]) / 2
    weights = np.zeros((1, 32), np.float32)
    weights[0, : len(middles)], weights[0, 8 : 8 + len(middles)], weights[0, 31] = (
        middles,
        -middles,
        6.0,
    )
    values, scales, *_ = quantise(weights, "mxfp4")
    assert scales[0, 0] == 127
    assert values[0, :7].tolist() == [0, 2, 2, 4, 4, 6, 6]
    assert values[0, 8:15].tolist() == [0, 10, 10, 12, 12, 14, 14]


def test_every_e4m3_number_survives_and_ties_go_to_even() -> None:
    codes = np.arange(0x7F, dtype=np.uint8)
    numbers = dequantise(codes[None], np.ones((1, 1), np.float32))[0]
    assert (numbers[1], numbers[8], numbers[0x38], numbers[0x7E]) == (2.0**-9, 2.0**-6, 1.0, 448.0)
    for sign in (1, -1):
        for code, number in zip(codes, numbers, strict=True):
            assert quantise_kernels.e4m3_bits(number * sign) in (code | (sign < 0) * 128, 0)
    for low in range(0x7E):
        middle = (numbers[low] + numbers[low + 1]) / 2
        assert quantise_kernels.e4m3_bits(np.float32(middle)) == low + low % 2
    assert quantise_kernels.e4m3_bits(np.float32(1e9)) == 0x7E
    assert np.isnan(
        dequantise(np.array([[0x7F, 0xFF]], np.uint8), np.ones((1, 1), np.float32))
    ).all()


@pytest.mark.parametrize("name", ["q8", "q4", "q4g64", "q4_0", "q4_1", "int4"])
@pytest.mark.parametrize("magnitude", [1e-8, 3e-7, 1e-5, 1e4, 1e5])
def test_tiny_and_huge_weights_equal_the_numpy_twin(name: str, magnitude: float) -> None:
    weights = draw(4, 64, seed=3) * np.float32(magnitude)
    with np.errstate(over="ignore"):
        expected = NAIVE[name](weights)
    assert_same(quantise(weights, name), expected)


@pytest.mark.parametrize("name", ["q4", "q4g64"])
@pytest.mark.parametrize("magnitude", [1e-44, 1e-36, 1e-30, 1e30, 1e38])
def test_q4_follows_weights_of_any_magnitude(name: str, magnitude: float) -> None:
    weights = np.clip(draw(4, 64, seed=3), -3, 3) * np.float32(magnitude)
    assert_same(quantise(weights, name), NAIVE[name](weights))
    error = np.abs(dequantise(*quantise(weights, name)) - weights)
    assert (error <= 0.09 * np.abs(weights).max() + 240 * 2.0**-149 * 255).all()


def test_weights_beyond_the_scale_range_saturate_and_stay_finite() -> None:
    for name in NAIVE:
        numbers = quantise(np.full((1, 64), 1e9, np.float32), name)
        assert np.isfinite(dequantise(*numbers)).all()


def test_q8_error_is_at_most_half_a_step() -> None:
    weights = draw(20, 96)
    values, scales, *_ = quantise(weights, "q8")
    error = np.abs(dequantise(values, scales) - weights)
    # the largest weight may lie a rounding of the f16 scale beyond 127 steps
    steps = np.repeat(scales.astype(np.float32), 32, axis=1)
    assert (error <= steps * (0.5 + 127 * 2**-11)).all()


def test_searched_q4_has_the_error_the_reference_promises() -> None:
    weights = draw(500, 256)
    numbers = quantise(weights, "q4")
    error = dequantise(*numbers) - weights
    # the least for each group by itself is 0.0048; plain lowest and highest have 0.0056
    assert 0.0047 < np.square(error).sum() / np.square(weights).sum() < 0.0050
    assert (numbers.values.min(), numbers.values.max()) == (0, 15)
    assert (numbers.scales.max(axis=1) == 255).all()


def test_q4_follows_weights_of_one_sign_and_of_one_value() -> None:
    weights = np.abs(draw(4, 64)) + 1
    weights[1] *= -1
    weights[2], weights[3] = 3.5, -1e-30
    error = np.abs(dequantise(*quantise(weights, "q4")) - weights).max(axis=1)
    assert (error[:2] < 0.25).all()
    assert error[2] < 0.02 and error[3] < 1e-32


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), name=st.sampled_from(["q8", "mxfp4"]))
def test_quantising_dequantised_weights_changes_nothing(seed: int, name: str) -> None:
    once = dequantise(*quantise(draw(3, 64, seed), name))
    twice = dequantise(*quantise(once, name))
    np.testing.assert_array_equal(twice, once)


@pytest.mark.parametrize("name", ["q4", "q4g64"])
def test_quantising_dequantised_q4_weights_changes_them_by_a_fraction_of_its_error(
    name: str,
) -> None:
    once = dequantise(*quantise(draw(50, 256), name))
    change = dequantise(*quantise(once, name)) - once
    assert np.sqrt(np.square(change).sum() / np.square(once).sum()) < 0.004


@pytest.mark.parametrize("name", ["q8", "q4", "mxfp4"])
def test_a_group_of_zeros_has_scale_zero(name: str) -> None:
    weights = draw(2, 64)
    weights[1, 32:] = 0
    numbers = quantise(weights, name)
    assert numbers.scales[1, 1] == 0
    assert not dequantise(*numbers)[1, 32:].any()
    assert numbers.scales[1, 0] != 0


@pytest.mark.parametrize("name", NAIVE)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_is_refused_by_row(name: str, bad: float) -> None:
    weights = draw(9, 40)
    weights[7, 39] = bad
    with pytest.raises(ValueError, match="row 7 "):
        quantise(weights, name)


def test_f16_conversion_in_kernels_equals_numpys() -> None:
    random = np.random.default_rng(5)
    numbers = draw(1, 3000)[0] * np.exp(random.uniform(-22, 11, 3000)).astype(np.float32)
    halves = np.arange(0, 0x7C00, 7, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = halves[:-1] + np.diff(halves) / 2
    for x in np.concatenate([numbers, halves, -halves, ties]):
        if abs(x) < 65504:
            bits = quantise_kernels.f16_bits(x)
            assert bits == int(np.float16(x).view(np.uint16)), x
            assert quantise_kernels.f16_value(bits) == np.float32(np.float16(x))


def test_every_bf16_number_survives_widening_and_rounding() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    wide = widen_bf16(bits)
    back = round_to_bf16(wide)
    number = ~np.isnan(wide)
    np.testing.assert_array_equal(back[number], bits[number])
    assert np.isnan(widen_bf16(back[~number])).all()


def test_bf16_rounds_to_nearest_with_ties_to_even() -> None:
    one, step = 1.0, 2.0**-7
    numbers = np.array([one + step / 2, one + step * 1.5, one + step * 0.51, 3.4e38], np.float32)
    expected = [one, one + 2 * step, one + step, np.inf]
    np.testing.assert_array_equal(
        widen_bf16(round_to_bf16(numbers)), np.array(expected, np.float32)
    )


@pytest.mark.parametrize("convert", [round_to_bf16, widen_bf16])
def test_converting_bf16_takes_no_memory_beside_the_result(convert: Any) -> None:
    source = np.zeros((300, 512), np.float32 if convert is round_to_bf16 else np.uint16)
    convert(source)
    tracemalloc.start()
    try:
        result = convert(source)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.shape == source.shape
    assert peak < result.nbytes + 10_000


def test_bits_choose_a_format_and_wrong_bits_list_the_choices() -> None:
    assert [format_for_bits(b) for b in (4, 8, 16, 32)] == ["q4", "q8", "bf16", "f32"]
    with pytest.raises(ValueError, match=r"32 \(f32\), 16 \(bf16\), 8 \(q8\), 4 \(q4\)"):
        format_for_bits(5)


def test_the_smallest_format_that_holds_the_weights_is_chosen_unless_another_is_asked_for() -> None:
    assert chosen_format({"q8", "q4_1", "q4_0", "f32"}, None) == "q4_0"
    assert chosen_format({"q4_1", "f32"}, "q4") == "q4_1"
    assert chosen_format({"mxfp4", "f32"}, "q4") == "mxfp4"
    assert chosen_format({"q4_0", "f32"}, "q4g64") == "q4g64"
    assert chosen_format({"q8", "f32"}, "q4") == chosen_format({"f32"}, "q4") == "q4"
    assert chosen_format({"f32"}, None) == "f32"


def test_bits_per_weight_count_the_scales() -> None:
    assert FORMATS["q4"].bits_per_weight == 4 + 16 / 32
    assert FORMATS["q8"].bits_per_weight == 8 + 16 / 32
    assert FORMATS["q4g64"].bits_per_weight == FORMATS["mxfp4"].bits_per_weight == 4.25
    assert FORMATS["fp8"].bits_per_weight == 8 + 32 / (16 * 128)
    assert FORMATS["bf16"].bits_per_weight == 16
    assert FORMATS["q4_0"].bits_per_weight == FORMATS["int4"].bits_per_weight == 4.5
    assert FORMATS["q4_1"].bits_per_weight == 5


def test_the_mtp_layer_never_has_fewer_than_eight_bits() -> None:
    assert {name: mtp_format(name) for name in FORMATS} == {
        **{name: name for name in ("f32", "bf16", "q8", "fp8")},
        **{name: "q8" for name in ("q4", "q4g64", "mxfp4", "q4_0", "q4_1", "int4")},
    }


def test_an_experts_format_may_be_two() -> None:
    assert expert_formats("q8") == ("q8", "q8") and expert_formats("q4_0+q8") == ("q4_0", "q8")
    assert expert_format("q4_0", "q8") == "q4_0+q8" and expert_format("q8", "q8") == "q8"
    assert mtp_format("q4_0+q4_1") == mtp_format("q4_0+q8") == "q8"
    assert mtp_format("q4_0+f32") == "q8+f32"


def test_a_float_format_is_not_quantised() -> None:
    with pytest.raises(ValueError, match="'bf16'.*there are q8, q4, q4g64, q4_0"):
        quantise(draw(2, 32), "bf16")


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("q4g64", 0.0063, 0.0069),
        ("mxfp4", 0.0115, 0.0145),
        ("fp8", 0.0006, 0.0008),
        ("q4_0", 0.0070, 0.0078),
        ("q4_1", 0.0057, 0.0063),
        ("int4", 0.0070, 0.0078),
    ],
)
def test_the_squared_error_of_normal_weights_is_known(name: str, low: float, high: float) -> None:
    weights = draw(320, 256)
    error = dequantise(*quantise(weights, name)) - weights
    assert low < np.square(error).sum() / np.square(weights).sum() < high
