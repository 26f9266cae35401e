"""Random weights, made as the integers and scales that formats store, never by quantising.

The rule of this file: a tensor depends on the model's seed and its own name only, and one set of
integers and scales goes into both files, so our container and a GGUF hold the same numbers to the
bit. Integers have a mean of zero: with another mean all neurons would see the same direction.

Weights of four bits are symmetric, as a GGUF's Q4_0 is: code 8 is zero. Scales of q4 and int4 are up
to 128 times a power of two, so that 8 bits hold them, and f16 too. MXFP4's numbers are held doubled,
as integers, with half of their scales.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskmoe.experts.formats import FORMATS, GROUP, Quantised, round_to_bf16
from diskmoe.experts.packing import pack, pack_values
from diskmoe.experts.tiles import TILE, Bytes, MatrixLayout, matrix_layout

Values = npt.NDArray[np.int8]
Scales = npt.NDArray[np.float16]

WRITABLE = ("q4", "q4g64", "q4_0", "q4_1", "int4", "mxfp4", "q8", "bf16", "f32")
ROW_BLOCK = 4096  # rows of a matrix that are in memory at a time

# sixteen and 256 equally likely values, each set with a mean of 0
_NIBBLES = np.array([-8, -6, -4, -3, -2, -1, -1, 0, 0, 1, 1, 2, 3, 5, 6, 7], np.int8)
_BYTES = np.arange(-128, 128).astype(np.int8)
_BYTES[0] = 0  # -128 has no counterpart, and no place in q8
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)  # doubled
_E2M1_CODES = np.zeros(25, np.uint8)  # by doubled number + 12
_E2M1_CODES[_E2M1 + 12] = np.where(_E2M1, np.arange(16), 0)


def _pairs(values: Values) -> npt.NDArray[np.uint16]:
    """What a byte of randomness makes of these sixteen: two values, side by side."""
    return np.stack([np.repeat(values, 16), np.tile(values, 16)], axis=1).copy().view("<u2")[:, 0]


_NIBBLE_PAIRS = _pairs(_NIBBLES)
_E2M1_PAIRS = _pairs(_E2M1)
_STEPS = np.linspace(0.75, 1.25, 256)  # scales differ from group to group


@dataclass(frozen=True)
class Block:
    """Some rows of a matrix. Weights are ``values * scales``, a scale to each group of columns.

    Float formats have one power of two as scale for all, so that the products are exact in bf16.
    """

    format: str
    first_row: int
    values: Values  # (rows, cols)
    scales: Scales  # (rows, groups)

    @property
    def group(self) -> int:
        return FORMATS[self.format].group or self.values.shape[1]

    def f32(self) -> npt.NDArray[np.float32]:
        """(rows, cols), what the weights stand for."""
        wide = np.repeat(self.scales.astype(np.float32), self.group, axis=1)
        return self.values.astype(np.float32) * wide[:, : self.values.shape[1]]

    def packed(self, layout: MatrixLayout) -> Bytes:
        """As our kernels read it; `layout` is that of these rows alone."""
        if not FORMATS[self.format].quantised:
            return pack(self.f32(), layout)
        if FORMATS[self.format].two_level:
            return pack_values(self._two_level(), layout)
        if self.format == "mxfp4":
            return pack_values(Quantised(*self.codes()), layout)
        if self.format == "q8":
            return pack_values(Quantised(self.values, self.scales), layout)
        scales = self.scales
        if self.format == "int4":
            scales = round_to_bf16(scales.astype(np.float32))
        return pack_values(Quantised(self._nibbles(), scales, minima=self.minima), layout)

    @property
    def minima(self) -> Scales | None:
        """What a q4_1 block adds to its products with codes from 0 on."""
        return self.scales * np.float16(-8) if self.format == "q4_1" else None

    def _nibbles(self) -> npt.NDArray[np.uint8]:
        return (self.values + np.int8(8)).view(np.uint8)

    def codes(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        """An mxfp4 block in the format's own numbers: e2m1 codes and e8m0 scales."""
        _, exponents = np.frexp(self.scales)  # of halves of powers of two, as values are doubled
        return _E2M1_CODES[self.values + np.int8(12)], (exponents + 127).astype(np.uint8)

    def _two_level(self) -> Quantised:
        """The same weights with a power of two for each row: a multiple of it makes every scale."""
        scales = self.scales.astype(np.float32)
        _, exponents = np.frexp(scales.max(axis=1))
        row_scales = np.ldexp(np.float32(1.0), exponents - 8)
        multiples = scales / row_scales[:, None]
        if (multiples != np.rint(multiples)).any():
            raise ValueError(f"scales of a {self.format} block are no multiples of a power of two")
        zeros = np.full(scales.shape, 128, np.uint8)
        sixteenths = row_scales / np.float32(16.0)
        return Quantised(self._nibbles(), multiples.astype(np.uint8), zeros, sixteenths)


class RandomWeights:
    """Weights of a model, matrix by matrix."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def _generator(self, name: str, first_row: int) -> np.random.Generator:
        entropy = [self.seed, 3, zlib.crc32(name.encode()), first_row]
        return np.random.Generator(np.random.SFC64(entropy))

    def block(
        self, name: str, fmt: str, rows: int, cols: int, first_row: int = 0, size: float = 1.0
    ) -> Block:
        """Rows of a matrix of so many columns, a multiple of 32; `size` x cols**-0.5 a weight."""
        if cols % (FORMATS[fmt].group or GROUP):
            raise ValueError(f"{name}: {cols} columns are no multiple of the group")
        rng = self._generator(name, first_row)
        if FORMATS[fmt].weight_bits == 4:
            pairs, of = (_E2M1_PAIRS, _E2M1) if fmt == "mxfp4" else (_NIBBLE_PAIRS, _NIBBLES)
            raw = np.frombuffer(rng.bytes(rows * cols // 2), np.uint8)
            values = pairs[raw].view(np.int8).reshape(rows, cols)
            spread = float(of.std())
        else:
            raw = np.frombuffer(rng.bytes(rows * cols), np.uint8)
            values = _BYTES[raw].reshape(rows, cols)
            spread = float(_BYTES.std())
        scale = size * cols**-0.5 / spread
        if not FORMATS[fmt].quantised:
            power = np.full((rows, 1), 2.0 ** np.round(np.log2(scale)), np.float16)
            return Block(fmt, first_row, values, power)
        steps = _STEPS * scale
        if fmt == "mxfp4":
            low = 2.0 ** np.floor(np.log2(scale))  # powers of two, with the same mean square
            upper = ((scale / low) ** 2 - 1) / 3
            steps = np.where(np.arange(len(_STEPS)) < upper * len(_STEPS), 2 * low, low)
        elif FORMATS[fmt].two_level or fmt == "int4":
            _, exponent = np.frexp(steps.max())
            steps = np.ldexp(np.rint(np.ldexp(steps, 7 - exponent)), exponent - 7)
        steps = steps.astype(np.float16)
        groups = cols // FORMATS[fmt].group
        picks = np.frombuffer(rng.bytes(rows * groups), np.uint8)
        return Block(fmt, first_row, values, steps[picks].reshape(rows, groups))

    def matrix(
        self, name: str, fmt: str, rows: int, cols: int, size: float = 1.0
    ) -> Iterator[Block]:
        """A whole matrix, some rows at a time."""
        for first_row in range(0, rows, ROW_BLOCK):
            yield self.block(name, fmt, min(ROW_BLOCK, rows - first_row), cols, first_row, size)


def silenced(block: Block, first: int, end: int) -> Block:
    """The block with zeros in rows first..end-1 of the matrix (in zeros' own integers)."""
    begin = max(first - block.first_row, 0)
    stop = max(end - block.first_row, 0)
    values = block.values.copy()
    values[begin:stop] = 0
    return Block(block.format, block.first_row, values, block.scales)


def packed_parts(blocks: Iterator[Block], layout: MatrixLayout) -> Iterator[Bytes]:
    """The bytes of a packed matrix in pieces: tiles one after another, scales behind them."""
    scales: list[Bytes] = []
    written = 0
    for block in blocks:
        rows = len(block.values)
        if block.first_row % TILE:
            raise ValueError(f"a block from row {block.first_row} on is not on a tile's edge")
        part_layout = matrix_layout(layout.format, rows, layout.cols)
        data, part_scales = part_layout.sections(block.packed(part_layout))
        scales.append(part_scales.copy())
        written += data.nbytes + part_scales.nbytes
        yield data
    yield from scales
    yield np.zeros(layout.nbytes - written, np.uint8)
