"""Numbers into the layout of tiles, and back.

The rule of this file: codes that are in a layout's own format are kept to the bit; all else is made
of the weights that it stands for. `tiles.py` says where each is.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.experts.formats import (
    FORMATS,
    TILE,
    Quantised,
    dequantise,
    quantise,
    round_to_bf16,
    value_shapes,
    widen_bf16,
)
from diskmoe.experts.packers import (
    pack_float,
    pack_nibbles,
    pack_q8,
    pack_scales,
    pack_two_level,
    unpack_nibbles,
    unpack_q8,
    unpack_scales,
    unpack_two_level,
)
from diskmoe.experts.tiles import (
    Bytes,
    Floats,
    MatrixLayout,
    RecordLayout,
    checked_out,
    matrix_layout,
)

Bits = npt.NDArray[np.uint16]  # of bf16 numbers
Weights = Floats | Bits | Quantised


def pack(weights: Weights, layout: MatrixLayout, out: Bytes | None = None) -> Bytes:
    """f32, bf16 bits (u16), or codes, (rows, cols) -> packed u8 (nbytes,), into `out` if given.

    Codes are kept where they are the layout's own. ValueError for a wrong shape, for codes that are
    no numbers, or when an integer format is given a weight that is not finite.
    """
    coded = isinstance(weights, Quantised)
    shape = (len(weights.values), layout.cols) if coded else weights.shape
    if shape != (layout.rows, layout.cols):
        raise ValueError(f"weights of shape {shape} do not fit {layout}")
    out = checked_out(layout.nbytes, out)
    pack_rows(weights, layout, 0, out)
    out[layout.used_nbytes :] = 0  # whatever the memory held before
    return out


def pack_rows(weights: Weights, layout: MatrixLayout, first_row: int, out: Bytes) -> None:
    """Write the rows from `first_row` (a multiple of 16) on into `out` u8 (nbytes,).

    weights: as `pack` takes them, (some rows, cols). A matrix that is packed part by part needs
    memory for one part only. The padding at the end is not touched.
    """
    if first_row % TILE:
        raise ValueError(f"row {first_row} is not the first of a tile")
    if isinstance(weights, Quantised):
        _check_numbers(weights, matrix_layout(weights.format, len(weights.values), layout.cols))
        if weights.format == layout.format:
            _pack_part(weights.values, layout, first_row, out, weights)
            return
        weights = widened(weights)[:, : layout.cols]
    if weights.shape[1] != layout.cols:
        raise ValueError(f"rows of shape {weights.shape} do not fit {layout}")
    if layout.format == "bf16":
        bits = weights if weights.dtype == np.uint16 else round_to_bf16(widened(weights))
        _pack_part(bits, layout, first_row, out)
    elif layout.format == "f32":
        _pack_part(widened(weights), layout, first_row, out)
    else:
        numbers = quantise(widened(weights), layout.format)
        _pack_part(numbers.values, layout, first_row, out, numbers)


def pack_values(numbers: Quantised, layout: MatrixLayout, out: Bytes | None = None) -> Bytes:
    """What `formats.quantise` gives for a whole matrix -> packed u8 (nbytes,), into `out` if given.

    ValueError for wrong types or shapes, and for codes that are none or no number.
    """
    _check_numbers(numbers, layout)
    out = checked_out(layout.nbytes, out)
    _pack_part(numbers.values, layout, 0, out, numbers)
    out[layout.used_nbytes :] = 0
    return out


def _check_numbers(numbers: Quantised, layout: MatrixLayout) -> None:
    fmt = FORMATS[layout.format]
    values_shape, scales_shape = value_shapes(layout.format, layout.rows, layout.cols)
    expected = [(values_shape, fmt.value_type), (scales_shape, fmt.scale_type)]
    if fmt.two_level:
        expected += [(scales_shape, np.uint8), ((layout.rows,), np.float32)]
    if fmt.has_minima:
        expected.append((scales_shape, fmt.scale_type))
    arrays = [array for array in numbers if array is not None]
    if [(a.shape, a.dtype) for a in arrays] != [(s, np.dtype(t)) for s, t in expected]:
        found = ", ".join(f"{array.dtype} {array.shape}" for array in arrays)
        raise ValueError(f"{found} are no {layout.format} matrix of {layout.rows} x {layout.cols}")
    values, scales, _, row_scales, minima = numbers
    if fmt.weight_bits == 4 and values.max() > 15:
        raise ValueError(f"a {layout.format} code is beyond 15")
    if row_scales is not None:
        is_number = np.isfinite(row_scales)
    elif layout.format == "fp8":
        is_number = (values & 0x7F != 0x7F).all() & np.isfinite(scales)
    elif layout.format == "mxfp4":
        is_number = scales != 0xFF
    elif layout.format == "int4":
        is_number = scales & 0x7F80 != 0x7F80
    else:
        is_number = np.isfinite(scales if minima is None else np.stack([scales, minima]))
    if not is_number.all():
        raise ValueError(f"a {layout.format} code or scale is not a number")


def unpack_values(packed: Bytes, layout: MatrixLayout) -> Quantised:
    """Packed bytes u8 (nbytes,) of a quantised format -> its numbers, as `pack_values` takes them.

    Any bytes are numbers, a q4 matrix's too; only row scales may be infinite or NaN.
    """
    fmt = FORMATS[layout.format]
    value_shape, scale_shape = value_shapes(layout.format, layout.rows, layout.cols)
    values, scales = np.empty(value_shape, fmt.value_type), np.empty(scale_shape, fmt.scale_type)
    data, packed_scales = layout.sections(np.ascontiguousarray(packed, np.uint8))
    if layout.format == "fp8":
        values[:] = _untile(data, layout)
        scales[:] = packed_scales.view(np.float32).reshape(scale_shape)
        return Quantised(values, scales)
    if layout.format == "q8":
        unpack_q8(data, values)
    else:
        unpack_nibbles(data, values)
    if fmt.two_level:
        zeros, row_scales = np.empty(scale_shape, np.uint8), np.empty(layout.rows, np.float32)
        unpack_two_level(packed_scales, scales, zeros, _row_bytes(row_scales))
        return Quantised(values, scales, zeros, row_scales)
    unsigned = np.dtype(f"u{scales.itemsize}")
    if fmt.has_minima:
        both = np.empty((*scale_shape, 2), fmt.scale_type)
        unpack_scales(packed_scales.view(unsigned), _side_by_side(both))
        scales, minima = both[..., 0].copy(), both[..., 1].copy()
        return Quantised(values, scales, minima=minima)
    unpack_scales(packed_scales.view(unsigned), scales.view(unsigned))
    return Quantised(values, scales)


def _side_by_side(both: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Scales and minima (rows, groups, 2) as `packers` take scales: of twice the groups."""
    return both.reshape(len(both), -1).view(f"u{both.itemsize}")


def _row_bytes(row_scales: npt.NDArray[np.float32]) -> Bytes:
    return row_scales.view(np.uint8).reshape(-1, 4)


def _pack_part(
    values: npt.NDArray[Any],
    layout: MatrixLayout,
    first_row: int,
    out: Bytes,
    numbers: Quantised | None = None,
) -> None:
    """The rows from `first_row` on, already in the format's own numbers; `numbers` has scales."""
    tile, tiles = first_row // TILE, -(-len(values) // TILE)
    if tile + tiles > layout.tiles:
        raise ValueError(
            f"{len(values)} rows from row {first_row} on, in a matrix of {layout.rows}"
        )
    all_data, all_scales = layout.sections(out)
    tile_nbytes = len(all_data) // layout.tiles
    data = all_data[tile * tile_nbytes : (tile + tiles) * tile_nbytes]
    values = np.ascontiguousarray(values)
    if layout.format in ("f32", "bf16", "fp8"):
        unsigned = np.dtype(f"u{values.itemsize}")
        pack_float(values.view(unsigned), data.view(unsigned))
    elif layout.format == "q8":
        pack_q8(values, data)
    else:
        pack_nibbles(values, data)
    if numbers is None:
        return
    tile_nbytes = len(all_scales) // layout.tiles
    section = all_scales[tile * tile_nbytes : (tile + tiles) * tile_nbytes]
    scales = np.ascontiguousarray(numbers.scales)
    if numbers.zeros is not None and numbers.row_scales is not None:
        zeros = np.ascontiguousarray(numbers.zeros)
        row_scales = np.ascontiguousarray(numbers.row_scales)
        pack_two_level(scales, zeros, _row_bytes(row_scales), section)
        return
    if scales.dtype == np.float32:
        section.view(np.float32)[:] = scales.reshape(-1)
        return
    if numbers.minima is not None:
        scales = _side_by_side(np.stack([scales, numbers.minima], axis=2))
    unsigned = np.dtype(f"u{scales.itemsize}")
    pack_scales(scales.view(unsigned), section.view(unsigned))


def packing_bytes(layout: MatrixLayout, bf16: bool) -> int:
    """Most bytes that `pack` takes beside its arguments, for weights that are bf16 bits or f32."""
    elements = layout.rows * layout.cols
    fmt = FORMATS[layout.format]
    if not fmt.quantised:
        own = layout.format == ("bf16" if bf16 else "f32")
        return 0 if own else elements * (4 if bf16 else 2)
    values, scales = value_shapes(layout.format, layout.rows, layout.cols)
    kept = values[0] * values[1] + scales[0] * scales[1] * np.dtype(fmt.scale_type).itemsize
    if fmt.has_minima:
        kept += 6 * scales[0] * scales[1]  # minima, and both again side by side
    search = 0
    if fmt.two_level:  # zeros, row scales; of quantise_q4: two numbers a weight, 14 more a lane
        kept += scales[0] * scales[1] + 4 * layout.rows
        search = (8 * fmt.group + 64) * max(64, layout.groups)
    return kept + search + (elements * 4 if bf16 else 0)


def widened(weights: Weights) -> Floats:
    """What `pack` takes, as f32; of codes with whole groups of columns."""
    if isinstance(weights, Quantised):
        return dequantise(*weights)
    if weights.dtype == np.uint16:
        return widen_bf16(weights.view(np.uint16))
    return weights.astype(np.float32, copy=False)


def unpack(packed: Bytes, layout: MatrixLayout) -> Floats:
    """Packed bytes u8 (nbytes,) -> the weights they stand for, f32 (rows, cols)."""
    if packed.shape != (layout.nbytes,):
        raise ValueError(
            f"packed matrix has shape {packed.shape}, its layout {layout.nbytes} bytes"
        )
    packed = np.ascontiguousarray(packed, np.uint8)
    if layout.format == "f32":
        return _untile(packed.view(np.float32), layout)
    if layout.format == "bf16":
        return widen_bf16(_untile(packed.view(np.uint16), layout))
    weights = dequantise(*unpack_values(packed, layout))
    return np.ascontiguousarray(weights[:, : layout.cols])


def _untile(stored: npt.NDArray[Any], layout: MatrixLayout) -> npt.NDArray[Any]:
    rows = layout.tiles * TILE
    tiles = stored[: rows * layout.cols].reshape(layout.tiles, layout.cols, TILE)
    return np.ascontiguousarray(tiles.transpose(0, 2, 1).reshape(rows, layout.cols)[: layout.rows])


def pack_biases(biases: Sequence[Floats], layout: RecordLayout, record: Bytes) -> None:
    """Fill what lies behind a record's matrices: the biases of gate, up and down, and zeros."""
    record[layout.matrices_end :] = 0
    for view, bias in zip(layout.biases(record), biases, strict=True):
        view[:] = bias


def unpack_record(record: Bytes, layout: RecordLayout) -> tuple[Floats, Floats, Floats]:
    """record u8 (nbytes,) -> gate (ffn, hidden), up (ffn, hidden), down (hidden, ffn), f32."""
    gate, up, down = (unpack(record[begin:end], part) for part, begin, end in layout.parts())
    return gate, up, down
