"""A matrix as a checkpoint stores it: plain numbers, or codes and scales in two tensors.

The rule of this file: the tensors' own names, types and shapes say what a matrix is, and all of them
are checked before it is believed; nothing is read here. What there is, for a matrix ``X.weight``:

=====  ===========================================================================================
plain  ``X.weight``, F32, F16 or BF16
fp8    ``X.weight``, F8_E4M3, and ``X.weight_scale_inv`` or ``X.weight_scale``: a factor for every
       128 x 128 of it, for every row, or for all of it; their shape says which
int4   ``X.weight_packed``, I32 of eight codes, the lowest bits first, and ``X.weight_scale``: a
       factor for 32 columns of a row, or a multiple of it; code 8 stands for zero
=====  ===========================================================================================
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from diskmoe.experts.errors import BadModel
from diskmoe.experts.formats import GROUP, TILE, Quantised, e4m3_numbers, round_to_bf16, widen_bf16
from diskmoe.experts.packing import Weights, packing_bytes
from diskmoe.experts.safetensors_io import FLOAT_DTYPES, TensorInfo, as_f32, shown
from diskmoe.experts.tiles import Floats, MatrixLayout
from diskmoe.experts.two_level import two_level

Coding = Literal["plain", "fp8", "int4"]

FP8_BLOCK = 128  # rows, and columns, that share a factor
FP8_DTYPE = "F8_E4M3"
FP8_SCALES = ("_scale_inv", "_scale")
INT4_CODES, INT4_SCALES = "_packed", "_scale"
_CODES_IN_WORD = 8
_UNREAD = {"_g_idx": "columns in another order", "_zero_point": "zeros of its own"}
_OF_SCALES = {"BF16": ("int4",), "F16": ("q4_0", "q8")}  # what holds int4 whose scales are these


@dataclass(frozen=True)
class StoredMatrix:
    """Where a matrix is. `codes` holds the numbers themselves where it is plain, without `scales`."""

    coding: Coding
    shape: tuple[int, ...]  # (rows, cols) of codings; a plain tensor may have other dimensions
    codes: TensorInfo
    scales: TensorInfo | None = None  # two-dimensional
    shared_rows: int = 1  # rows that have a row of scales in common

    @property
    def pieces(self) -> list[TensorInfo]:
        """What is to be read, in the order that `decoded` takes it."""
        return [self.codes] if self.scales is None else [self.codes, self.scales]

    @property
    def exact_formats(self) -> set[str]:
        """The formats that keep every number, whatever codes and scales are."""
        if self.scales is None:
            return {"bf16", "f32"} if self.codes.dtype == "BF16" else {"f32"}
        if self.coding == "fp8":
            return {"f32"} if self._by_row else {"fp8", "f32"}
        return {"f32", *_OF_SCALES.get(self.scales.dtype, ())}

    @property
    def _by_row(self) -> bool:
        """FP8 whose tiles of rows have no factor in common, as the format has it."""
        return self.coding == "fp8" and self.shared_rows == 1 and self.shape[0] > 1

    def temporary_bytes(self, part: MatrixLayout) -> int:
        """Most bytes that `decoded` and a packing as `part` take beside what was read."""
        elements = part.rows * part.cols
        if self.codes.dtype in ("F32", "BF16"):
            return packing_bytes(part, self.codes.dtype == "BF16")
        coded = 0 if self.coding == "plain" else 2 * elements  # checks, or codes taken apart
        if self.scales is not None and part.format in self.exact_formats - {"f32"}:
            return coded
        return coded + 4 * elements + packing_bytes(part, False)

    def scale_rows(self, begin: int, end: int) -> tuple[int, int]:
        """The rows of `scales` that rows begin..end-1 need."""
        return begin // self.shared_rows, -(-end // self.shared_rows)

    def decoded(
        self, stored: Sequence[npt.NDArray[Any]], first_row: int = 0, fmt: str | None = None
    ) -> Weights:
        """The numbers of some rows from `first_row` on, a multiple of 16, or of a single row.

        stored: the rows of `codes` and those of `scale_rows`, in their own types. f32, bf16 bits,
        or codes that are a format's own: where there are several, those of `fmt`. All of it exact,
        unless they are wanted for q4: then int4 keeps its codes, with its steps rounded to 8 bits,
        where they would be chosen anew.
        """
        if self.scales is None:
            numbers = stored[0]
            if self.codes.dtype == "BF16":
                return numbers.view(np.uint16)
            return as_f32(numbers, self.codes.dtype)
        scales = as_f32(stored[1], self.scales.dtype)
        if self.coding == "fp8":
            return self._from_fp8(stored[0], scales, first_row)
        return _from_int4(stored[0], scales, fmt)

    def _from_fp8(self, codes: npt.NDArray[np.uint8], scales: Floats, first_row: int) -> Weights:
        if self._by_row:
            numbers = e4m3_numbers()[codes]
            with np.errstate(over="ignore", invalid="ignore"):  # is found next
                numbers *= scales
            if not np.isfinite(numbers).all():
                raise ValueError("a code or a scale is not a number")
            return numbers
        tiles = (first_row % self.shared_rows + np.arange(0, len(codes), TILE)) // self.shared_rows
        blocks = -(-codes.shape[1] // FP8_BLOCK)
        return Quantised(codes, np.broadcast_to(scales[tiles], (len(tiles), blocks)))


def _from_int4(words: npt.NDArray[Any], scales: Floats, fmt: str | None) -> Weights:
    """(rows, cols / 8), (rows, cols / 32 or fewer) -> a format's numbers: those of `fmt`, or of one
    that has them; f32 where a scale is no f16 number."""
    pairs = words.view(np.uint8)
    codes = np.empty((len(words), words.shape[1] * _CODES_IN_WORD), np.uint8)
    codes[:, 0::2] = pairs & 15
    codes[:, 1::2] = pairs >> 4
    if not np.isfinite(scales).all():
        raise ValueError("a scale is not a number")
    scales = np.repeat(scales, codes.shape[1] // GROUP // scales.shape[1], axis=1)
    if fmt == "q4":
        return two_level(codes, scales, scales * np.float32(-8))
    bits = round_to_bf16(scales)
    if fmt == "int4" and np.array_equal(widen_bf16(bits), scales):
        return Quantised(codes, bits)
    with np.errstate(over="ignore"):  # a bf16 number may be larger than any of f16
        narrow = scales.astype(np.float16)
    in_f16 = np.array_equal(narrow, scales)
    if fmt == "q4_0" and in_f16:
        return Quantised(codes, narrow)
    values = codes.view(np.int8)
    values -= 8
    if in_f16:
        return Quantised(values, narrow)
    wide = values.astype(np.float32)
    groups = wide.reshape(*scales.shape, GROUP)
    groups *= scales[:, :, None]
    return wide


def find_matrix(infos: Mapping[str, TensorInfo], name: str, where: str) -> StoredMatrix | None:
    """The matrix or vector that a plan calls `name`, or None when there is none.

    Raises BadModel for codes whose scales are missing or do not fit them, and for other types.
    """
    info = infos.get(name)
    if info is None:
        codes = infos.get(name + INT4_CODES)
        return None if codes is None else _int4(infos, codes, name, where)
    if info.dtype in FLOAT_DTYPES:
        return StoredMatrix("plain", info.shape, info)
    if info.dtype != FP8_DTYPE:
        raise BadModel(
            f"{info.path}: tensor {shown(name)}{where} has dtype {info.dtype}; this version reads "
            f"{', '.join(FLOAT_DTYPES)}, {FP8_DTYPE} with scales and packed int4 there: fetch "
            "another release of the model"
        )
    return _fp8(infos, info, name, where)


def _fp8(infos: Mapping[str, TensorInfo], codes: TensorInfo, name: str, where: str) -> StoredMatrix:
    blocks = tuple(-(-n // FP8_BLOCK) for n in codes.shape)
    rows = codes.shape[0] if codes.shape else 1
    # shapes that factors may have: how many rows share a row of them, and that with two dimensions
    shapes = {
        blocks: (FP8_BLOCK, blocks),
        (): (rows, (1, 1)),
        (1,): (rows, (1, 1)),
        (1, 1): (rows, (1, 1)),
        (rows,): (1, (rows, 1)),
        (rows, 1): (1, (rows, 1)),
    }
    ending = next((end for end in FP8_SCALES if name + end in infos), FP8_SCALES[0])
    scales = _scales(infos, codes, name + ending, [*shapes], where)
    shared_rows, shape = shapes[scales.shape]
    return StoredMatrix("fp8", codes.shape, codes, replace(scales, shape=shape), shared_rows)


def _int4(
    infos: Mapping[str, TensorInfo], codes: TensorInfo, name: str, where: str
) -> StoredMatrix:
    if codes.dtype != "I32" or len(codes.shape) != 2 or codes.shape[1] % (GROUP // _CODES_IN_WORD):
        raise BadModel(
            f"{codes.path}: tensor {shown(codes.name)}{where} is {codes.dtype} of shape "
            f"{list(codes.shape)}; packed int4 is I32 of two dimensions, 4 words a group of {GROUP}"
        )
    for ending, what in _UNREAD.items():
        if name + ending in infos:
            raise BadModel(
                f"{codes.path}: tensor {shown(name + ending)}{where}: packed int4 with {what} is not "
                "supported, only symmetric codes in the order of their columns"
            )
    rows, cols = codes.shape[0], codes.shape[1] * _CODES_IN_WORD
    found, groups = infos.get(name + INT4_SCALES), cols // GROUP
    if found is not None and len(found.shape) == 2 and _divides(found.shape[1], groups):
        groups = found.shape[1]  # of more columns than 32
    scales = _scales(infos, codes, name + INT4_SCALES, [(rows, groups)], where)
    return StoredMatrix("int4", (rows, cols), codes, scales)


def _divides(part: int, whole: int) -> bool:
    return part > 0 and whole % part == 0


def _scales(
    infos: Mapping[str, TensorInfo],
    codes: TensorInfo,
    name: str,
    shapes: Sequence[tuple[int, ...]],
    where: str,
) -> TensorInfo:
    found = infos.get(name)
    if found is None:
        raise BadModel(
            f"{codes.path}: tensor {shown(codes.name)}{where} is {codes.dtype}, its scales "
            f"{shown(name)} are missing: other ways to scale are not supported"
        )
    if len(codes.shape) != 2 or found.shape not in shapes or found.dtype not in FLOAT_DTYPES:
        raise BadModel(
            f"{found.path}: tensor {shown(name)}{where} is {found.dtype} of shape "
            f"{list(found.shape)}; the scales of {codes.dtype} {list(codes.shape)} are floats of "
            f"shape {' or '.join(str(list(shape)) for shape in shapes)}"
        )
    return found
