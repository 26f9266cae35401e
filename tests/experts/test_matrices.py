"""Packed int4 as compressed-tensors defines it: code c of a group of columns is (c - 8) * its scale."""

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from diskmoe.experts.formats import dequantise, widen_bf16
from diskmoe.experts.matrices import find_matrix
from diskmoe.experts.packing import pack, unpack, widened
from diskmoe.experts.safetensors_io import TensorInfo
from diskmoe.experts.tiles import matrix_layout

FILE = Path("model.safetensors")


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 40),
    group=st.sampled_from([32, 64, 96]),
    groups=st.integers(1, 3),
)
def test_codes_and_bf16_scales_of_any_groups_are_kept_bit_for_bit(seed, rows, group, groups):
    rng = np.random.default_rng(seed)
    cols = group * groups
    words = rng.integers(0, 2**32, (rows, cols // 8), dtype=np.uint32)
    bits = rng.integers(0, 2**16, (rows, groups)).astype(np.uint16)
    bits &= 0xBFFF  # numbers of any size below 2, zeros and the smallest among them
    infos = {
        "w_packed": TensorInfo("w_packed", "I32", words.shape, 0, words.nbytes, FILE),
        "w_scale": TensorInfo("w_scale", "BF16", bits.shape, 0, bits.nbytes, FILE),
    }
    codes = np.stack([words >> np.uint32(4 * i) & np.uint32(15) for i in range(8)], axis=2)
    exact = codes.reshape(rows, groups, group).astype(np.float32) - np.float32(8)
    exact = (exact * widen_bf16(bits)[:, :, None]).reshape(rows, cols)

    matrix = find_matrix(infos, "w", "")
    assert matrix is not None and matrix.shape == (rows, cols)
    assert matrix.exact_formats == {"int4", "f32"}
    stored = [words.view(np.int32), bits]
    found = matrix.decoded(stored, 0, "int4")
    assert not isinstance(found, np.ndarray) and found.format == "int4"
    np.testing.assert_array_equal(dequantise(*found), exact)
    layout = matrix_layout("int4", rows, cols)
    np.testing.assert_array_equal(unpack(pack(found, layout), layout), exact)
    np.testing.assert_array_equal(widened(matrix.decoded(stored)), exact)  # as f32
