"""What GGUF's blocks become: the same numbers where a format of ours can say them."""

import gguf
import numpy as np
import pytest

from diskmoe.experts.errors import BadModel
from diskmoe.experts.formats import dequantise, quantise
from diskmoe.experts.gguf_blocks import (
    QUANTISED,
    keeps_codes,
    keeps_numbers,
    numbers,
    own_format,
    refuse_unsupported,
    wide,
)
from diskmoe.experts.gguf_file import BLOCKS
from diskmoe.experts.safetensors_io import TensorInfo

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
    if kind in ("Q4_0", "Q4_1", "Q8_0", "MXFP4"):
        return gguf.quants.quantize(drawn(seed), gguf.GGMLQuantizationType[kind]).reshape(-1)
    assert kind == "Q4_K"
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


@pytest.mark.parametrize(("kind", "fmt"), [("Q8_0", "q8"), ("MXFP4", "mxfp4"), ("Q4_0", "q8")])
def test_no_number_changes_where_a_format_has_them_all(kind, fmt):
    raw = stored(kind)
    assert keeps_numbers(kind, fmt) and own_format(kind) == fmt
    np.testing.assert_array_equal(dequantise(*numbers(raw, kind, COLS, fmt)), wide(raw, kind, COLS))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_codes_of_four_bits_are_kept_and_only_steps_are_rounded(kind):
    raw = stored(kind)
    exact = wide(raw, kind, COLS)
    kept = squared(exact, dequantise(*numbers(raw, kind, COLS, "q4")))
    assert kept < 5e-5 and kept < squared(exact, dequantise(*quantise(exact, "q4")))
    assert not keeps_numbers(kind, "q4")


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
    assert not keeps_codes("Q4_0", "q4g64")
