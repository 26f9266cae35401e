"""Where each weight lies in a packed matrix, and in an expert record.

The rule of this file: rows go in tiles of 16, so that a kernel computes 16 outputs in the lanes of
a vector and never adds across lanes: a row's sum has one order, whatever the vectors' width. With q
the quantised values or codes of one tile and group (of 32 or 64 columns, the first being k):

* q8: blocks of 64 bytes for 4 columns; byte ``r*4 + i`` of block b is ``q[r, k + 4b + i]`` (int8)
* codes of four bits: blocks of 64 bytes for 8 columns; byte ``r*4 + i`` of block b is
  ``q[r, k + 8b + i] | q[r, k + 8b + 4 + i] << 4``
* scales of these: a section after the data, 64-aligned. f16 (q8, q4_0), bf16 (int4) or e8m0
  (mxfp4): ``[tile][group][16]``; q4_1: ``[tile][group][2][16]``, scales and minima; q4, q4g64: for
  each tile its groups' 16 scales u8 and 16 zeros u8, and after the last group 16 row scales f32
* f32, bf16, fp8: ``[tile][column][16]`` of f32 / u16 / u8; f32 scales of fp8 ``[tile][block]``,
  a block being 128 columns, right behind the data

Rows are padded to 16 with zeros and, except in f32, bf16 and fp8, columns to whole groups with any
numbers, since activations beyond the last column are zeros. An expert record is gate, up and down
one after another, 64-aligned, then, where experts have them, their biases, f32 of whole tiles; its
length is a multiple of 4096: one aligned read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.experts.formats import (
    FORMATS,
    TILE,
    Quantised,
    dequantise,
    expert_format,
    expert_formats,
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

ALIGNMENT = 64  # of matrices and sections: a cache line, and a 512-bit vector
PAGE = 4096  # of records: what O_DIRECT asks of offsets and lengths

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint16]  # of bf16 numbers
Weights = Floats | Bits | Quantised


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def aligned_zeros(nbytes: int, alignment: int = ALIGNMENT) -> Bytes:
    """A zeroed u8 array (nbytes,) whose address is a multiple of `alignment` (a power of two)."""
    room = np.zeros(nbytes + alignment, np.uint8)
    begin = -room.ctypes.data % alignment
    return room[begin : begin + nbytes]


def checked_out(nbytes: int, out: Bytes | None) -> Bytes:
    """`out` if it is `nbytes` of memory, or a new array when None; ValueError otherwise."""
    if out is None:
        return aligned_zeros(nbytes)
    if out.shape != (nbytes,) or out.dtype != np.uint8 or not out.flags.c_contiguous:
        raise ValueError(f"out must be {nbytes} contiguous bytes, not {out.dtype} {out.shape}")
    return out


@dataclass(frozen=True)
class MatrixLayout:
    """A packed (rows, cols) matrix. Offsets and sizes in bytes; `scales_offset` is the end of the
    data (for float formats, which have no scales: `nbytes`)."""

    format: str  # a name in FORMATS
    rows: int
    cols: int
    tiles: int  # rows / 16, rounded up
    groups: int  # cols / group, rounded up; 0 for formats without scales
    scales_offset: int
    nbytes: int  # a multiple of 64

    def sections(self, packed: Bytes) -> tuple[Bytes, Bytes]:
        """(data, scales) of a packed matrix, without the padding behind them."""
        data_end = min(self.scales_offset, self.used_nbytes)
        return packed[:data_end], packed[data_end : self.used_nbytes]

    @property
    def used_nbytes(self) -> int:
        """Bytes before the padding at the end, which is zero."""
        fmt = FORMATS[self.format]
        if self.groups:
            tile_nbytes = self.groups * fmt.scale_nbytes + fmt.row_scale_nbytes
            return self.scales_offset + self.tiles * tile_nbytes
        return self.tiles * TILE * self.cols * fmt.weight_bits // 8


def matrix_layout(fmt: str, rows: int, cols: int) -> MatrixLayout:
    """The layout of a (rows, cols) matrix in format `fmt`; ValueError for an unknown format."""
    if fmt not in FORMATS:
        raise ValueError(f"unknown format {fmt!r}; there are {', '.join(FORMATS)}")
    if rows < 1 or cols < 1:
        raise ValueError(f"a matrix of {rows} rows and {cols} columns has no layout")
    tiles = _round_up(rows, TILE) // TILE
    form = FORMATS[fmt]
    if not form.quantised:
        nbytes = _round_up(tiles * TILE * cols * form.weight_bits // 8, ALIGNMENT)
        return MatrixLayout(fmt, rows, cols, tiles, 0, nbytes, nbytes)
    groups = _round_up(cols, form.group) // form.group
    stored_cols = groups * form.group if form.padded else cols
    scales_offset = tiles * TILE * stored_cols * form.weight_bits // 8
    tile_nbytes = groups * form.scale_nbytes + form.row_scale_nbytes
    nbytes = _round_up(scales_offset + tiles * tile_nbytes, ALIGNMENT)
    return MatrixLayout(fmt, rows, cols, tiles, groups, scales_offset, nbytes)


@dataclass(frozen=True)
class RecordLayout:
    """One expert: gate and up (ffn, hidden), in one format, and down (hidden, ffn), in that or
    another. Offsets in bytes."""

    gate: MatrixLayout
    up: MatrixLayout
    down: MatrixLayout
    gate_offset: int
    up_offset: int
    down_offset: int
    nbytes: int  # a multiple of 4096
    bias_offsets: tuple[int, int, int] | None = None  # of gate, up, down; None: no biases

    @property
    def format(self) -> str:
        """As `formats.expert_formats` takes it."""
        return expert_format(self.gate.format, self.down.format)

    def parts(self) -> tuple[tuple[MatrixLayout, int, int], ...]:
        """(layout, begin, end) of gate, up, down."""
        offsets = (self.gate_offset, self.up_offset, self.down_offset)
        matrices = (self.gate, self.up, self.down)
        return tuple((m, at, at + m.nbytes) for m, at in zip(matrices, offsets, strict=True))

    def biases(self, record: Bytes) -> tuple[Floats, ...]:
        """Views of a record's biases: gate (ffn,), up (ffn,), down (hidden,); none: an empty tuple."""
        if self.bias_offsets is None:
            return ()
        rows = (self.gate.rows, self.up.rows, self.down.rows)
        places = zip(self.bias_offsets, rows, strict=True)
        return tuple(record[at : at + 4 * n].view(np.float32) for at, n in places)

    @property
    def matrices_end(self) -> int:
        """Bytes of the three matrices: what lies behind them is biases and padding."""
        return self.down_offset + self.down.nbytes


def record_layout(fmt: str, hidden: int, ffn: int, biased: bool = False) -> RecordLayout:
    """The layout of an expert of `hidden` inputs and `ffn` neurons in `fmt`, one format or two
    (`formats.expert_formats`)."""
    of_inner, of_down = expert_formats(fmt)
    inner = matrix_layout(of_inner, ffn, hidden)
    down = matrix_layout(of_down, hidden, ffn)
    end = 2 * inner.nbytes + down.nbytes
    offsets = None
    if biased:
        inner_bias, down_bias = 4 * TILE * inner.tiles, 4 * TILE * down.tiles
        offsets = (end, end + inner_bias, end + 2 * inner_bias)
        end += 2 * inner_bias + down_bias
    nbytes = _round_up(end, PAGE)
    return RecordLayout(inner, inner, down, 0, inner.nbytes, 2 * inner.nbytes, nbytes, offsets)


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
    tile, tiles = first_row // TILE, _round_up(len(values), TILE) // TILE
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


def pack_record(
    gate: Floats | Bits,
    up: Floats | Bits,
    down: Floats | Bits,
    layout: RecordLayout,
    out: Bytes | None = None,
    biases: Sequence[Floats] = (),
) -> Bytes:
    """gate, up (ffn, hidden), down (hidden, ffn), f32 or bf16 bits -> record u8 (nbytes,).

    biases: of gate, up, down, where the layout has them.
    """
    out = checked_out(layout.nbytes, out)
    for weights, (part, begin, end) in zip((gate, up, down), layout.parts(), strict=True):
        pack(weights, part, out[begin:end])
    pack_biases(biases, layout, out)
    return out


def pack_biases(biases: Sequence[Floats], layout: RecordLayout, record: Bytes) -> None:
    """Fill what lies behind a record's matrices: the biases of gate, up and down, and zeros."""
    record[layout.matrices_end :] = 0
    for view, bias in zip(layout.biases(record), biases, strict=True):
        view[:] = bias


def unpack_record(record: Bytes, layout: RecordLayout) -> tuple[Floats, Floats, Floats]:
    """record u8 (nbytes,) -> gate (ffn, hidden), up (ffn, hidden), down (hidden, ffn), f32."""
    gate, up, down = (unpack(record[begin:end], part) for part, begin, end in layout.parts())
    return gate, up, down
