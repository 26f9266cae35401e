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

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskmoe.experts.formats import FORMATS, TILE, expert_format, expert_formats

ALIGNMENT = 64  # of matrices and sections: a cache line, and a 512-bit vector
PAGE = 4096  # of records: what O_DIRECT asks of offsets and lengths

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


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
