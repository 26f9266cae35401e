"""What GGUF's blocks become: the same numbers where a format of ours can say them."""

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskmoe.experts.errors import BadModel
from diskmoe.experts.formats import dequantise, quantise
from diskmoe.experts.gguf_blocks import (
    QUANTISED,
    exact_formats,
    keeps_codes,
    numbers,
    refuse_unsupported,
    wide,
)
from diskmoe.experts.gguf_file import BLOCKS
from diskmoe.experts.packing import pack_values, unpack
from diskmoe.experts.safetensors_io import TensorInfo
from diskmoe.experts.tiles import matrix_layout

ROWS, COLS = 24, 512


def drawn(seed: int = 0) -> np.ndarray:
    """Weights whose rows and groups are of different sizes."""
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((ROWS, COLS // 32, 32)) * rng.uniform(
        0.3, 1, (ROWS, COLS // 32, 1)
    )
    return (weights.reshape(ROWS, COLS) * 0.05).astype(np.float32)


def stored(kind: str, seed: int = 0) -> np.ndarray:
    """Bytes of that type, u8 1-D: the gguf package's, or random codes with small scales."""
    if kind != "Q4_K":
        return gguf.quants.quantize(drawn(seed), gguf.GGMLQuantizationType[kind]).reshape(-1)
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (ROWS * COLS // 256, 144)).astype(np.uint8)
    scales = rng.uniform(1e-4, 1e-3, (len(blocks), 2)).astype(np.float16)
    blocks[:, :4] = scales.view(np.uint8)
    # minima of at most 15 steps, as groups with weights on both sides of zero have them
    blocks[:, 4:16] &= 0x3F
    blocks[:, 8:12] &= 0x0F
    blocks[:, 12:16] |= 0x0F
    return blocks.reshape(-1)


def squared(a: np.ndarray, b: np.ndarray) -> float:
    """The squares of what b lacks, in those of a."""
    return float(np.square(a - b).sum() / np.square(a).sum())


EXACT = [
    *(("Q4_0", "q4_0"), ("Q4_0", "q4_1"), ("Q4_0", "q8"), ("Q4_1", "q4_1"), ("Q5_0", "q8")),
    *(("Q8_0", "q8"), ("IQ4_NL", "q8"), ("MXFP4", "mxfp4")),
]


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(EXACT))
def test_no_number_changes_where_a_format_has_them_all(data, pair):
    """Any blocks whose f16 are numbers, as the gguf package reads them, and as kernels are given."""
    kind, fmt = pair
    rows, groups = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 4))
    nbytes = BLOCKS[kind][1]
    drawn_bytes = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    blocks = drawn_bytes.integers(0, 256, (rows, groups, nbytes)).astype(np.uint8)
    for at in {"MXFP4": (), "Q4_1": (0, 2)}.get(kind, (0,)):
        # -8 times a step must be an f16 number: no file that means anything is near
        half = st.floats(-8000, 8000, width=16)
        for row, group in np.ndindex(rows, groups):
            number = np.array([data.draw(half)], np.float16)
            blocks[row, group, at : at + 2] = number.view(np.uint8)
    if kind == "MXFP4":
        blocks[..., 0] = np.minimum(blocks[..., 0], 250)  # the gguf package overflows beyond
    raw = blocks.reshape(-1)
    exact = gguf.quants.dequantize(blocks.reshape(rows, -1), gguf.GGMLQuantizationType[kind])
    assert fmt in exact_formats(kind) and keeps_codes(kind, fmt)
    layout = matrix_layout(fmt, rows, 32 * groups)
    found = numbers(raw, kind, 32 * groups, fmt)
    np.testing.assert_array_equal(dequantise(*found), exact)
    np.testing.assert_array_equal(unpack(pack_values(found, layout), layout), exact)


@pytest.mark.parametrize(
    ("kind", "fmt", "at"),
    [("Q4_0", "q4_0", 0), ("Q4_1", "q4_1", 2), ("Q4_0", "q4_1", 0), ("Q5_0", "q8", 0)],
)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 60000])
def test_a_scale_that_is_no_number_is_refused(kind, fmt, at, bad):
    raw = stored(kind).reshape(ROWS, -1)
    raw[9, at : at + 2] = np.array([bad], np.float16).view(np.uint8)
    found = numbers(raw.reshape(-1), kind, COLS, fmt)
    if bad != 60000 or (kind, fmt) == ("Q4_0", "q4_1"):  # its minimum would be beyond f16
        with pytest.raises(ValueError, match="not a number"):
            pack_values(found, matrix_layout(fmt, ROWS, COLS))
    else:
        np.testing.assert_array_equal(dequantise(*found), wide(raw.reshape(-1), kind, COLS))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_codes_of_four_bits_are_kept_and_only_steps_are_rounded(kind):
    raw = stored(kind)
    exact = wide(raw, kind, COLS)
    kept = squared(exact, dequantise(*numbers(raw, kind, COLS, "q4")))
    assert kept < 5e-5 and kept < squared(exact, dequantise(*quantise(exact, "q4")))
    assert "q4" not in exact_formats(kind)


def test_negative_steps_turn_their_codes_round():
    raw = stored("Q4_0").reshape(-1, 18)
    steps = raw[:, :2].copy().view(np.float16)
    assert (steps < 0).any() and (steps > 0).any()
    made = numbers(raw.reshape(-1), "Q4_0", COLS, "q4")
    assert made.zeros is not None and set(np.unique(made.zeros)) == {112, 128}


def test_the_six_bits_of_the_k_type_are_found():
    raw = stored("Q4_K")
    exact = gguf.quants.dequantize(raw.reshape(ROWS, -1), gguf.GGMLQuantizationType.Q4_K)
    np.testing.assert_array_equal(wide(raw, "Q4_K", COLS), exact)
    made = numbers(raw, "Q4_K", COLS, "q4")
    # rows of which all groups can be said have the codes of the file
    first = raw.reshape(ROWS, -1, 144)[:, 0, 16:48]
    same = (made.values[:, :32] == (first & 15)).all(axis=1)
    assert same.sum() > ROWS // 2
    assert squared(exact, dequantise(*made)) < 2e-3


def test_rows_with_a_group_that_has_no_zero_are_quantised_anew():
    weights = drawn()
    weights[5, :32] = np.abs(weights[5, :32]) + 0.2
    raw = gguf.quants.quantize(weights, gguf.GGMLQuantizationType.Q4_1).reshape(-1)
    exact = wide(raw, "Q4_1", COLS)
    made = dequantise(*numbers(raw, "Q4_1", COLS, "q4"))
    np.testing.assert_array_equal(made[5], dequantise(*quantise(exact, "q4"))[5])
    assert squared(np.delete(exact, 5, 0), np.delete(made, 5, 0)) < 5e-5


def test_groups_of_zeros_stay_zeros():
    weights = drawn()
    weights[3, 64:96] = 0
    weights[7] = 0
    for kind in ("Q4_0", "Q4_1"):
        raw = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[kind]).reshape(-1)
        made = dequantise(*numbers(raw, kind, COLS, "q4"))
        assert not made[3, 64:96].any() and not made[7].any()


@pytest.mark.parametrize(
    ("kind", "at"), [("Q4_0", 0), ("Q4_1", 0), ("Q4_1", 2), ("Q4_K", 0), ("Q4_K", 2)]
)
def test_a_step_or_minimum_that_is_no_number_is_refused_with_its_row(kind, at):
    raw = stored(kind).reshape(ROWS, -1)
    raw[9, at : at + 2] = np.array([np.inf], np.float16).view(np.uint8)
    with pytest.raises(ValueError, match="row 9 has a step or a minimum"):
        numbers(raw.reshape(-1), kind, COLS, "q4")


def test_every_type_that_is_named_can_be_read():
    for kind in QUANTISED:
        weights, nbytes = BLOCKS[kind]
        cols = max(COLS, weights)
        found = wide(np.zeros(2 * cols // weights * nbytes, np.uint8), kind, cols)
        assert found.shape == (2, cols) and found.dtype == np.float32


def test_integers_are_no_weights(tmp_path):
    info = TensorInfo("t", "I32", (4, 4), 0, 64, tmp_path / "m.gguf")
    with pytest.raises(BadModel, match="'t' has type I32; this program reads F32, F16"):
        refuse_unsupported(info)


def test_what_is_not_kept_is_said_to_be_not():
    assert not keeps_codes("Q5_K", "q4") and not keeps_codes("Q8_0", "q4")
    assert not keeps_codes("Q4_0", "q4g64") and not keeps_codes("Q4_1", "q4_0")
    assert not keeps_codes("Q4_K", "q4_1") and not keeps_codes("BF16", "bf16")
    assert exact_formats("Q6_K") == exact_formats("F16") == {"f32"}


# where the f16 scales of a block are, of types whose codes the gguf package does not make
SCALES = {
    "Q2_K": (80, 84),
    "Q3_K": (108, 110),
    "Q4_K": (0, 4),
    "Q5_K": (0, 4),
    "Q6_K": (208, 210),
    "IQ4_NL": (0, 2),
    "IQ4_XS": (0, 2),
}


@settings(max_examples=30, deadline=None)
@given(kind=st.sampled_from(sorted(SCALES)), seed=st.integers(0, 1 << 20))
def test_any_codes_are_widened_to_the_numbers_of_the_gguf_package(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    block, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = rng.integers(0, 256, (ROWS * COLS // block, nbytes)).astype(np.uint8)
    begin, end = SCALES[kind]
    scales = rng.uniform(-1e-2, 1e-2, (len(raw), (end - begin) // 2)).astype(np.float16)
    raw[:, begin:end] = scales.view(np.uint8)
    exact = gguf.quants.dequantize(raw.reshape(ROWS, -1), gguf.GGMLQuantizationType[kind])
    np.testing.assert_array_equal(wide(raw.reshape(-1), kind, COLS), exact)
