"""Where each weight lies in a packed matrix, and in an expert record.

The rule of this file: rows go in tiles of 16, so that a kernel computes 16 outputs in the lanes of
a vector and never adds across lanes: a row's sum has one order, whatever the vectors' width. With q
the quantised values of one tile and group (32 columns, the first being k):

* q8: 8 blocks of 64 bytes; byte ``r*4 + i`` of block b is ``q[r, k + 4b + i]`` (int8)
* q4: 4 blocks of 64 bytes; byte ``r*4 + i`` of block b is
  ``(q[r, k + 8b + i] + 8) | (q[r, k + 8b + 4 + i] + 8) << 4``
* scales: f16 ``[tile][group][16]``, a section of its own after the data, 64-aligned
* f32, bf16: ``[tile][column][16]`` of f32 / u16; no scales

Rows are padded to 16 and, in the integer formats, columns to 32, with zeros. An expert record is
gate, up and down one after another, 64-aligned, its length a multiple of 4096: one aligned read.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.experts.compiled import kernel
from diskmoe.experts.formats import (
    FORMATS,
    GROUP,
    dequantise,
    mtp_format,
    quantise,
    round_to_bf16,
    widen_bf16,
)

TILE = 16
ALIGNMENT = 64  # of matrices and sections: a cache line, and a 512-bit vector
PAGE = 4096  # of records: what O_DIRECT asks of offsets and lengths

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint16]  # of bf16 numbers


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
    groups: int  # cols / 32, rounded up; 0 for float formats
    scales_offset: int
    nbytes: int  # a multiple of 64

    def sections(self, packed: Bytes) -> tuple[Bytes, Bytes]:
        """(data, scales) of a packed matrix, without the padding behind them."""
        data_end = min(self.scales_offset, self.used_nbytes)
        return packed[:data_end], packed[data_end : self.used_nbytes]

    @property
    def used_nbytes(self) -> int:
        """Bytes before the padding at the end, which is zero."""
        if self.groups:
            return self.scales_offset + self.tiles * self.groups * TILE * 2
        return self.tiles * TILE * self.cols * FORMATS[self.format].weight_bits // 8


def matrix_layout(fmt: str, rows: int, cols: int) -> MatrixLayout:
    """The layout of a (rows, cols) matrix in format `fmt`; ValueError for an unknown format."""
    if fmt not in FORMATS:
        raise ValueError(f"unknown format {fmt!r}; there are {', '.join(FORMATS)}")
    if rows < 1 or cols < 1:
        raise ValueError(f"a matrix of {rows} rows and {cols} columns has no layout")
    tiles = _round_up(rows, TILE) // TILE
    bits = FORMATS[fmt].weight_bits
    if not FORMATS[fmt].quantised:
        nbytes = _round_up(tiles * TILE * cols * bits // 8, ALIGNMENT)
        return MatrixLayout(fmt, rows, cols, tiles, 0, nbytes, nbytes)
    groups = _round_up(cols, GROUP) // GROUP
    scales_offset = tiles * TILE * groups * GROUP * bits // 8
    nbytes = _round_up(scales_offset + tiles * groups * TILE * 2, ALIGNMENT)
    return MatrixLayout(fmt, rows, cols, tiles, groups, scales_offset, nbytes)


@dataclass(frozen=True)
class RecordLayout:
    """One expert: gate and up (ffn, hidden), down (hidden, ffn). Offsets in bytes."""

    gate: MatrixLayout
    up: MatrixLayout
    down: MatrixLayout
    gate_offset: int
    up_offset: int
    down_offset: int
    nbytes: int  # a multiple of 4096

    def parts(self) -> tuple[tuple[MatrixLayout, int, int], ...]:
        """(layout, begin, end) of gate, up, down."""
        offsets = (self.gate_offset, self.up_offset, self.down_offset)
        matrices = (self.gate, self.up, self.down)
        return tuple((m, at, at + m.nbytes) for m, at in zip(matrices, offsets, strict=True))


def record_layout(fmt: str, hidden: int, ffn: int) -> RecordLayout:
    """The layout of an expert of `hidden` inputs and `ffn` neurons, all three matrices in `fmt`."""
    inner = matrix_layout(fmt, ffn, hidden)
    down = matrix_layout(fmt, hidden, ffn)
    nbytes = _round_up(2 * inner.nbytes + down.nbytes, PAGE)
    return RecordLayout(inner, inner, down, 0, inner.nbytes, 2 * inner.nbytes, nbytes)


def pack(weights: Floats | Bits, layout: MatrixLayout, out: Bytes | None = None) -> Bytes:
    """f32, or bf16 bits (u16), (rows, cols) -> packed u8 (nbytes,), written into `out` if given.

    ValueError for a wrong shape, or when an integer format is given a weight that is not finite.
    """
    if weights.shape != (layout.rows, layout.cols):
        raise ValueError(f"weights of shape {weights.shape} do not fit {layout}")
    out = checked_out(layout.nbytes, out)
    pack_rows(weights, layout, 0, out)
    out[layout.used_nbytes :] = 0  # whatever the memory held before
    return out


def pack_bf16(bits: Bits, layout: MatrixLayout, out: Bytes | None = None) -> Bytes:
    """The bits of bf16 weights (rows, cols), unchanged -> packed bytes u8 (nbytes,)."""
    if layout.format != "bf16" or bits.dtype != np.uint16:
        raise ValueError(f"pack_bf16 keeps bf16 bits: not {bits.dtype} as {layout.format}")
    return pack(bits, layout, out)


def pack_rows(weights: Floats | Bits, layout: MatrixLayout, first_row: int, out: Bytes) -> None:
    """Write the rows from `first_row` (a multiple of 16) on into `out` u8 (nbytes,).

    weights: f32, or the bits of bf16 (u16), (some rows, cols). A matrix that is packed part by
    part needs memory for one part only. The padding at the end is not touched.
    """
    if first_row % TILE or weights.shape[1] != layout.cols:
        raise ValueError(f"rows of shape {weights.shape} from row {first_row} do not fit {layout}")
    tile, tiles = first_row // TILE, _round_up(len(weights), TILE) // TILE
    if tile + tiles > layout.tiles:
        raise ValueError(
            f"{len(weights)} rows from row {first_row} on, in a matrix of {layout.rows}"
        )
    all_data, all_scales = layout.sections(out)
    tile_nbytes = len(all_data) // layout.tiles
    data = all_data[tile * tile_nbytes : (tile + tiles) * tile_nbytes]
    if layout.format == "bf16":
        bits = weights if weights.dtype == np.uint16 else round_to_bf16(_widened(weights))
        _pack_float(np.ascontiguousarray(bits), data.view(np.uint16))
        return
    if layout.format == "f32":
        floats = np.ascontiguousarray(_widened(weights))
        _pack_float(floats.view(np.uint32), data.view(np.uint32))
        return
    values, scales = quantise(_widened(weights), layout.format)
    if layout.format == "q8":
        _pack_q8(values, data)
    else:
        _pack_q4(values, data)
    tile_nbytes = layout.groups * TILE * 2
    section = all_scales[tile * tile_nbytes : (tile + tiles) * tile_nbytes]
    _pack_scales(scales.view(np.uint16), section.view(np.uint16))


def packing_bytes(layout: MatrixLayout, bf16: bool) -> int:
    """Most bytes that `pack` takes beside its arguments, for weights that are bf16 bits or f32."""
    elements = layout.rows * layout.cols
    if not layout.groups:
        own = layout.format == ("bf16" if bf16 else "f32")
        return 0 if own else elements * (4 if bf16 else 2)
    values = layout.rows * layout.groups * GROUP
    scales = 2 * layout.rows * layout.groups
    search = 160 * max(64, layout.groups)  # of quantise_q4: 40 numbers a lane
    return values + scales + search + (elements * 4 if bf16 else 0)


def compile_packers(formats: Iterable[str]) -> None:
    """Compile what `pack` needs for these formats, and for what MTP layers get instead of them.

    A program that packs on the way in calls this before it plans its memory: the compiler takes
    seconds and memory, and neither is wanted in the middle of an answer.
    """
    wanted = [*formats]
    for fmt in {*wanted, *map(mtp_format, wanted)}:
        layout = matrix_layout(fmt, TILE, GROUP)
        pack(np.zeros((TILE, GROUP), np.float32), layout)
        pack(np.zeros((TILE, GROUP), np.uint16), layout)


def _widened(weights: Floats | Bits) -> Floats:
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
    rows = layout.tiles * TILE
    if layout.format == "f32":
        return _untile(packed.view(np.float32), layout)
    if layout.format == "bf16":
        return widen_bf16(_untile(packed.view(np.uint16), layout))
    values = np.empty((rows, layout.groups * GROUP), np.int8)
    scales = np.empty((rows, layout.groups), np.uint16)
    data, packed_scales = layout.sections(packed)
    _unpack_scales(packed_scales.view(np.uint16), scales)
    if layout.format == "q8":
        _unpack_q8(data, values)
    else:
        _unpack_q4(data, values)
    weights = dequantise(values, scales.view(np.float16))
    return np.ascontiguousarray(weights[: layout.rows, : layout.cols])


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
) -> Bytes:
    """gate, up (ffn, hidden), down (hidden, ffn), f32 or bf16 bits -> record u8 (nbytes,)."""
    out = checked_out(layout.nbytes, out)
    for weights, (part, begin, end) in zip((gate, up, down), layout.parts(), strict=True):
        pack(weights, part, out[begin:end])
    out[layout.down_offset + layout.down.nbytes :] = 0
    return out


def unpack_record(record: Bytes, layout: RecordLayout) -> tuple[Floats, Floats, Floats]:
    """record u8 (nbytes,) -> gate (ffn, hidden), up (ffn, hidden), down (hidden, ffn), f32."""
    gate, up, down = (unpack(record[begin:end], part) for part, begin, end in layout.parts())
    return gate, up, down


@kernel
def _pack_float(weights, out):  # pragma: no cover - compiled
    """weights (rows, cols) -> out (tiles * cols * 16 or more,), of the same unsigned type."""
    rows, cols = weights.shape
    for tile in range((rows + 15) // 16):
        for lane in range(16):
            row = tile * 16 + lane
            base = tile * cols * 16 + lane
            for col in range(cols):
                out[base + col * 16] = weights[row, col] if row < rows else 0


@kernel
def _pack_scales(scales, out):  # pragma: no cover - compiled
    """scales u16 (rows, groups) -> out u16 (tiles * groups * 16,)."""
    rows, groups = scales.shape
    for tile in range((rows + 15) // 16):
        for lane in range(16):
            row = tile * 16 + lane
            for group in range(groups):
                out[(tile * groups + group) * 16 + lane] = scales[row, group] if row < rows else 0


@kernel
def _unpack_scales(packed, scales):  # pragma: no cover - compiled
    rows, groups = scales.shape
    for row in range(rows):
        for group in range(groups):
            scales[row, group] = packed[((row // 16) * groups + group) * 16 + row % 16]


@kernel
def _pack_q8(values, out):  # pragma: no cover - compiled
    """values i8 (rows, cols padded to 32) -> out u8 (tiles * groups * 512,)."""
    rows, cols = values.shape
    for tile in range((rows + 15) // 16):
        for lane in range(16):
            row = tile * 16 + lane
            base = tile * cols * 16 + lane * 4
            for col in range(cols):
                q = values[row, col] if row < rows else 0
                out[base + (col // 4) * 64 + col % 4] = np.uint8(q)


@kernel
def _unpack_q8(packed, values):  # pragma: no cover - compiled
    rows, cols = values.shape
    for row in range(rows):
        base = (row // 16) * cols * 16 + (row % 16) * 4
        for col in range(cols):
            values[row, col] = np.int8(packed[base + (col // 4) * 64 + col % 4])


@kernel
def _pack_q4(values, out):  # pragma: no cover - compiled
    """values i8 (rows, cols padded to 32) in -8..7 -> out u8 (tiles * groups * 256,)."""
    rows, cols = values.shape
    for tile in range((rows + 15) // 16):
        for lane in range(16):
            row = tile * 16 + lane
            base = tile * cols * 8 + lane * 4
            for block in range(cols // 8):
                for i in range(4):
                    low = 8
                    high = 8
                    if row < rows:
                        low += values[row, block * 8 + i]
                        high += values[row, block * 8 + 4 + i]
                    out[base + block * 64 + i] = np.uint8(low | (high << 4))


@kernel
def _unpack_q4(packed, values):  # pragma: no cover - compiled
    rows, cols = values.shape
    for row in range(rows):
        base = (row // 16) * cols * 8 + (row % 16) * 4
        for block in range(cols // 8):
            for i in range(4):
                byte = np.int64(packed[base + block * 64 + i])
                values[row, block * 8 + i] = (byte & 15) - 8
                values[row, block * 8 + 4 + i] = (byte >> 4) - 8
