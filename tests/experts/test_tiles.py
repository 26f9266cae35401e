"""Each byte of a packed matrix, by the formulas in the module's docstring."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packed import pack_record

from diskmoe.experts.formats import (
    FORMATS,
    Quantised,
    dequantise,
    quantise,
    round_to_bf16,
    widen_bf16,
)
from diskmoe.experts.packing import (
    pack,
    pack_rows,
    pack_values,
    unpack,
    unpack_record,
    unpack_values,
)
from diskmoe.experts.tiles import matrix_layout, record_layout


def draw(rows: int, cols: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, cols)).astype(np.float32)


def test_q4g64_bytes_follow_the_formula_of_q4_with_wider_groups() -> None:
    weights = draw(19, 70)
    layout = matrix_layout("q4g64", 19, 70)
    data = pack(weights, layout)[: layout.scales_offset].reshape(2, 2, 8, 64)
    q, _ = padded_q(weights, "q4g64")
    for tile, group, block, byte in np.ndindex(data.shape):
        r, i = divmod(byte, 4)
        row, k = tile * 16 + r, group * 64 + 8 * block + i
        assert data[tile, group, block, byte] == q[row, k] | q[row, k + 4] << 4


def test_mxfp4_codes_and_block_scales_follow_the_formula() -> None:
    weights = draw(19, 70)
    layout = matrix_layout("mxfp4", 19, 70)
    packed = pack(weights, layout)
    data = packed[: layout.scales_offset].reshape(2, 3, 4, 64)
    values, scales, *_ = quantise(weights, "mxfp4")
    codes, codes_scales = np.zeros((32, 96), int), np.zeros((32, 3), int)
    codes[:19], codes_scales[:19] = values, scales
    for tile, group, block, byte in np.ndindex(data.shape):
        r, i = divmod(byte, 4)
        row, k = tile * 16 + r, group * 32 + 8 * block + i
        assert data[tile, group, block, byte] == codes[row, k] | codes[row, k + 4] << 4
    section = packed[layout.scales_offset : layout.used_nbytes].reshape(2, 3, 16)
    np.testing.assert_array_equal(section, codes_scales.reshape(2, 16, 3).transpose(0, 2, 1))


def test_fp8_lies_by_tile_column_and_row_with_a_scale_for_each_tile_and_block() -> None:
    weights = draw(19, 150)
    layout = matrix_layout("fp8", 19, 150)
    packed = pack(weights, layout)
    values, scales, *_ = quantise(weights, "fp8")
    data, section = layout.sections(packed)
    expected = np.zeros((32, 150), np.uint8)
    expected[:19] = values
    np.testing.assert_array_equal(
        data.reshape(2, 150, 16), expected.reshape(2, 16, 150).transpose(0, 2, 1)
    )
    np.testing.assert_array_equal(section.view(np.float32).reshape(2, 2), scales)


@pytest.mark.parametrize("name", [name for name, fmt in FORMATS.items() if fmt.quantised])
def test_values_and_scales_come_back_as_they_were_packed(name: str) -> None:
    layout = matrix_layout(name, 37, 150)
    weights = draw(37, 150)
    numbers = quantise(weights, name)
    packed = pack_values(numbers, layout)
    np.testing.assert_array_equal(packed, pack(weights, layout))
    for found, array in zip(unpack_values(packed, layout), numbers, strict=True):
        assert (found is None) == (array is None)
        if found is not None and array is not None:
            np.testing.assert_array_equal(found, array)
            assert found.dtype == array.dtype


def test_values_of_a_wrong_type_or_shape_are_refused() -> None:
    layout = matrix_layout("q4g64", 16, 70)
    numbers = quantise(draw(16, 70), "q4g64")
    for wrong in (
        numbers._replace(values=numbers.values[:, :70]),
        numbers._replace(values=numbers.values.view(np.int8)),
        numbers._replace(scales=numbers.scales[:8]),
        numbers._replace(zeros=None),
        Quantised(numbers.values, numbers.scales),
    ):
        with pytest.raises(ValueError, match="q4g64 matrix of 16 x 70"):
            pack_values(wrong, layout)
    with pytest.raises(ValueError, match="not a quantised format"):
        pack_values(numbers, matrix_layout("f32", 16, 70))


@pytest.mark.parametrize(("name", "in_values"), [("fp8", True), ("mxfp4", False)])
def test_codes_that_are_no_number_are_refused(name: str, in_values: bool) -> None:
    layout = matrix_layout(name, 16, 32)
    numbers = quantise(draw(16, 32), name)
    (numbers.values if in_values else numbers.scales)[0, 0] = 0xFF
    with pytest.raises(ValueError, match="not a number"):
        pack_values(numbers, layout)


def test_q4_numbers_that_cannot_be_are_refused() -> None:
    layout = matrix_layout("q4", 16, 32)
    numbers = quantise(draw(16, 32), "q4")
    infinite = np.full(16, np.inf, np.float32)
    with pytest.raises(ValueError, match="not a number"):
        pack_values(numbers._replace(row_scales=infinite), layout)
    with pytest.raises(ValueError, match="beyond 15"):
        pack_values(numbers._replace(values=np.full((16, 32), 16, np.uint8)), layout)


def padded_q(weights: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    values, scales, *_ = quantise(weights, name)
    rows = -(-len(weights) // 16) * 16
    q = np.zeros((rows, values.shape[1]), int)
    q[: len(weights)] = values
    s = np.zeros((rows, scales.shape[1]), scales.dtype)
    s[: len(weights)] = scales
    return q, s


def test_q8_bytes_follow_the_formula() -> None:
    weights = draw(19, 70)
    layout = matrix_layout("q8", 19, 70)
    data = pack(weights, layout)[: layout.scales_offset].reshape(2, 3, 8, 64)
    q, _ = padded_q(weights, "q8")
    for tile, group, block, byte in np.ndindex(data.shape):
        r, i = divmod(byte, 4)
        expected = q[tile * 16 + r, group * 32 + 4 * block + i]
        assert data[tile, group, block, byte] == expected % 256


def test_q4_bytes_follow_the_formula() -> None:
    weights = draw(19, 70)
    layout = matrix_layout("q4", 19, 70)
    data = pack(weights, layout)[: layout.scales_offset].reshape(2, 3, 4, 64)
    q, _ = padded_q(weights, "q4")
    for tile, group, block, byte in np.ndindex(data.shape):
        r, i = divmod(byte, 4)
        row, k = tile * 16 + r, group * 32 + 8 * block + i
        assert data[tile, group, block, byte] == q[row, k] | q[row, k + 4] << 4


def test_scales_lie_by_tile_group_and_row_from_an_aligned_offset() -> None:
    weights = draw(19, 70)
    layout = matrix_layout("q8", 19, 70)
    packed = pack(weights, layout)
    assert layout.scales_offset % 64 == 0
    section = packed[layout.scales_offset : layout.scales_offset + 2 * 3 * 16 * 2]
    _, scales = padded_q(weights, "q8")
    expected = scales.reshape(2, 16, 3).transpose(0, 2, 1)
    np.testing.assert_array_equal(section.view(np.float16).reshape(2, 3, 16), expected)


@pytest.mark.parametrize(("name", "groups"), [("q4", 3), ("q4g64", 2)])
def test_scales_and_zeros_of_q4_lie_by_tile_and_group_with_the_rows_scales_behind(
    name: str, groups: int
) -> None:
    weights = draw(19, 70)
    layout = matrix_layout(name, 19, 70)
    assert layout.scales_offset % 64 == 0
    tiles = layout.sections(pack(weights, layout))[1].reshape(2, groups * 32 + 64)
    numbers = quantise(weights, name)
    assert numbers.zeros is not None
    for number, array in enumerate((numbers.scales, numbers.zeros)):
        expected = np.zeros((32, groups), np.uint8)
        expected[:19] = array
        found = tiles[:, :-64].reshape(2, groups, 2, 16)[:, :, number]
        np.testing.assert_array_equal(found, expected.reshape(2, 16, groups).transpose(0, 2, 1))
    rows = tiles[:, -64:].copy().view(np.float32).reshape(32)
    np.testing.assert_array_equal(rows[:19], numbers.row_scales)
    assert not rows[19:].any()


@pytest.mark.parametrize("name", ["f32", "bf16"])
def test_floats_lie_by_tile_column_and_row(name: str) -> None:
    weights = draw(19, 7)
    layout = matrix_layout(name, 19, 7)
    dtype = np.float32 if name == "f32" else np.uint16
    stored = pack(weights, layout).view(dtype)[: 2 * 7 * 16].reshape(2, 7, 16)
    expected = np.zeros((32, 7), dtype)
    expected[:19] = weights if name == "f32" else round_to_bf16(weights)
    np.testing.assert_array_equal(stored, expected.reshape(2, 16, 7).transpose(0, 2, 1))


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 50),
    cols=st.integers(1, 100),
    name=st.sampled_from(sorted(FORMATS)),
    seed=st.integers(0, 99),
)
def test_unpacking_gives_the_numbers_that_were_packed(
    rows: int, cols: int, name: str, seed: int
) -> None:
    weights = draw(rows, cols, seed)
    layout = matrix_layout(name, rows, cols)
    if name == "f32":
        expected = weights
    elif name == "bf16":
        expected = widen_bf16(round_to_bf16(weights))
    else:
        expected = dequantise(*quantise(weights, name))[:, :cols]
    np.testing.assert_array_equal(unpack(pack(weights, layout), layout), expected)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_memory_that_was_used_before_gives_the_same_bytes(name: str) -> None:
    weights, layout = draw(17, 33), matrix_layout(name, 17, 33)
    used = np.full(layout.nbytes, 0xAB, np.uint8)
    np.testing.assert_array_equal(pack(weights, layout, used), pack(weights, layout))
    record = record_layout(name, 33, 17)
    parts = (weights, weights, np.ascontiguousarray(weights.T))
    used = np.full(record.nbytes, 0xAB, np.uint8)
    np.testing.assert_array_equal(pack_record(*parts, record, used), pack_record(*parts, record))


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_packing_block_by_block_gives_the_same_bytes(name: str) -> None:
    weights, layout = draw(75, 40), matrix_layout(name, 75, 40)
    packed = np.zeros(layout.nbytes, np.uint8)
    for begin in range(0, 75, 32):
        pack_rows(weights[begin : begin + 32], layout, begin, packed)
    np.testing.assert_array_equal(packed, pack(weights, layout))


def test_bf16_sources_keep_their_bits() -> None:
    bits = np.random.default_rng(1).integers(0, 0x7F00, (18, 5)).astype(np.uint16)
    layout = matrix_layout("bf16", 18, 5)
    np.testing.assert_array_equal(unpack(pack(bits, layout), layout), widen_bf16(bits))


def test_bf16_sources_can_be_quantised() -> None:
    bits = round_to_bf16(draw(16, 64))
    layout = matrix_layout("q4", 16, 64)
    np.testing.assert_array_equal(pack(bits, layout), pack(widen_bf16(bits), layout))


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_record_gives_its_three_matrices_back(name: str) -> None:
    layout = record_layout(name, 40, 24)
    matrices = draw(24, 40, 1), draw(24, 40, 2), draw(40, 24, 3)
    record = pack_record(*matrices, layout)
    assert record.shape == (layout.nbytes,)
    for matrix, found, (part, _, _) in zip(
        matrices, unpack_record(record, layout), layout.parts(), strict=True
    ):
        np.testing.assert_array_equal(found, unpack(pack(matrix, part), part))


@pytest.mark.parametrize(
    ("hidden", "ffn", "weights"),
    [(2048, 768, 4718592), (2048, 1024, 6291456), (4096, 1408, 17301504), (40, 24, 2880)],
)
def test_records_of_real_models_are_whole_pages_with_little_waste(
    hidden: int, ffn: int, weights: int
) -> None:
    for name, fmt in FORMATS.items():
        layout = record_layout(name, hidden, ffn)
        assert layout.nbytes % 4096 == 0
        assert all(begin % 64 == 0 for _, begin, _ in layout.parts())
        if hidden > 1000:
            row_scales = (2 * ffn + hidden) * fmt.row_scale_nbytes // 16
            assert layout.nbytes - weights * fmt.bits_per_weight / 8 - row_scales < 4096


def test_packed_memory_is_aligned_to_cache_lines() -> None:
    for rows in range(1, 40, 7):
        layout = matrix_layout("q4", rows, 33)
        assert layout.nbytes % 64 == 0
        assert pack(draw(rows, 33), layout).ctypes.data % 64 == 0


def test_wrong_shapes_and_formats_are_refused() -> None:
    layout = matrix_layout("q8", 16, 32)
    with pytest.raises(ValueError, match=r"\(16, 31\)"):
        pack(draw(16, 31), layout)
    with pytest.raises(ValueError, match="bytes"):
        unpack(np.zeros(3, np.uint8), layout)
    with pytest.raises(ValueError, match="q5"):
        matrix_layout("q5", 16, 32)
    with pytest.raises(ValueError, match="0 rows"):
        matrix_layout("q8", 0, 32)
    with pytest.raises(ValueError, match="out must be"):
        pack(draw(16, 32), layout, np.zeros(5, np.uint8))
