"""Dot products of one group of columns: rows of activations with the 16 weight rows of tiles.

The rule of this file: no step saturates or rounds, so it does not matter in which order products
are added, and all paths agree to the bit. Weights lie as `diskmoe.experts.tiles` says; activations
are int8 in -127..127.

Weights of four bits are stored, or looked up, as unsigned numbers u = value + zero, because the
processors multiply unsigned bytes by signed ones; 8-bit weights become such numbers only where
that is the fast way. A prepared row therefore holds ``-zero * sum(x)`` of each group.

Codes of q4 have a zero of their own in each weight row and group, in sixteenths of a step. Their
sum is ``16 * sum(code * x) + own zero * (-sum(x))``: below 2**22, so f32 holds it too. Codes of q4_1
have none: what its minima add is another product, of theirs and ``sum(x)``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from diskmoe.engine.kernels.emit import (
    I1,
    I8,
    I16,
    I32,
    add_dots,
    bytes_times_bytes,
    call_llvm,
    constant,
    load,
    looked_up,
    loop,
    low_halves_multiplied,
    neighbours_added,
    number,
    pairs_to_i32,
    plus,
    splat,
    vector,
    with_sign_of,
)
from diskmoe.engine.kernels.paths import Path

LANES = 16
FOUR_AT_ONCE = ("avx512vnni", "dotprod")  # paths with an instruction for four products

# The numbers of e2m1 codes, doubled: codes 8..15 are the negative ones.
E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


@dataclass(frozen=True)
class Integers:
    """How an integer format's group is stored. `zero`: see the module."""

    bits: int  # 4 or 8
    group: int  # columns
    zero: int
    table: bool = False  # whether the four bits are e2m1 codes
    own_zeros: bool = False  # whether weight rows have zeros of their own; `zero` is then 1
    minima: bool = False  # whether groups have minima, and dots no zero; `zero` is then -1
    bf16_scales: bool = False  # of those that are neither `table` nor `own_zeros`; else f16

    @property
    def nbytes(self) -> int:
        """Bytes of a tile's group."""
        return 2 * self.bits * self.group

    @property
    def safe_blocks(self) -> int:
        """4-bit blocks whose products can be added in i16: |u * x| <= 15 * 127 is four of them."""
        return 2 if self.table else 4


def emit_dots(
    b: Any,
    path: Path,
    form: Integers,
    tiles: Sequence[Any],
    rows: Sequence[Any],
    zeros: Sequence[Any],
    own_zeros: Sequence[Any],
) -> list[list[list[Any]]]:
    """[tile][row] -> vectors of i32 that together are the 16 sums.

    tiles, rows: addresses of a group's weights and of its int8 activations; zeros: addresses of
    the rows' i32 ``-zero * sum(x)``; own_zeros: addresses of the tiles' u8 zeros, if they have any.
    """

    def corrections(lanes: int) -> list[Any]:
        return _corrections(b, path, form, len(tiles), zeros, own_zeros, lanes)

    if path.name == "portable":
        return _portable(b, form, tiles, rows, corrections)
    if path.name in FOUR_AT_ONCE:
        return _four_at_once(b, path, form, tiles, rows, corrections)
    if form.bits == 8:
        return _bytes_in_pairs(b, path, form, tiles, rows)
    return _nibbles_in_pairs(b, path, form, tiles, rows, corrections)


# ---- what they share -----------------------------------------------------------------------------

Corrections = Callable[[int], list[Any]]  # of vectors of so many lanes


def _corrections(
    b: Any,
    path: Path,
    form: Integers,
    tiles: int,
    zeros: Sequence[Any],
    own_zeros: Sequence[Any],
    lanes: int,
) -> list[Any]:
    """What the sums of unsigned numbers are too large by, negated: by tile, row and part."""
    parts = range(LANES // lanes)
    if form.minima:
        return [constant(vector(I32, lanes), 0)] * (tiles * len(zeros) * len(parts))
    sums = [splat(b, load(b, zero, I32, 4), lanes) for zero in zeros]
    if not form.own_zeros:
        return [value for _ in range(tiles) for value in sums for _ in parts]
    native = path.native and path.name not in ("portable", "dotprod")
    corrections = []
    for at in own_zeros:
        bytes_ = [load(b, plus(b, at, part * lanes), vector(I8, lanes)) for part in parts]
        own = [b.zext(value, vector(I32, lanes)) for value in bytes_]
        corrections += [low_halves_multiplied(b, native, part, x) for x in sums for part in own]
    return corrections


def _activations(b: Any, at: Any, width: int) -> Any:
    """Four int8 activations, repeated over a vector of `width` bytes."""
    return b.bitcast(splat(b, load(b, at, I32, 4), width // 4), vector(I8, width))


def _nibbles(b: Any, path: Path, form: Integers, value: Any) -> tuple[Any, Any]:
    """The unsigned numbers of a vector's lower and upper four bits."""
    shorts = vector(I16, value.type.count // 2)
    high = b.bitcast(b.lshr(b.bitcast(value, shorts), constant(shorts, 4)), value.type)
    nibble = constant(value.type, 15)
    low, high = b.and_(value, nibble), b.and_(high, nibble)
    if not form.table:
        return low, high
    table = [value + form.zero for value in E2M1_DOUBLED]
    return looked_up(b, path.native, table, low), looked_up(b, path.native, table, high)


def _nibbles_times_16(b: Any, value: Any) -> tuple[Any, Any]:
    """16 times the unsigned numbers of a vector's lower and upper four bits."""
    shorts = vector(I16, value.type.count // 2)
    low = b.bitcast(b.shl(b.bitcast(value, shorts), constant(shorts, 4)), value.type)
    mask = constant(value.type, 0xF0)
    return b.and_(low, mask), b.and_(value, mask)


# ---- by pmaddubsw: two products added into i16 ---------------------------------------------------


def _nibbles_in_pairs(
    b: Any,
    path: Path,
    form: Integers,
    tiles: Sequence[Any],
    rows: Sequence[Any],
    corrections: Corrections,
) -> list[list[list[Any]]]:
    """Weights of four bits: several blocks are added in i16 before they go to i32."""
    width = 32 if path.name == "avx2" else 64
    parts = range(64 // width)
    keys = [(t, r, p) for t in range(len(tiles)) for r in range(len(rows)) for p in parts]

    def block(at: Any, carried: Sequence[Any]) -> Sequence[Any]:
        skip, skip_x = b.shl(at, number(6)), b.shl(at, number(3))
        weights = {}
        for t, tile in enumerate(tiles):
            for part in parts:
                w = load(b, plus(b, b.add(tile, skip), part * width), vector(I8, width))
                weights[t, part] = _nibbles(b, path, form, w)
        totals = dict(zip(keys, carried, strict=True))
        for r, row in enumerate(rows):
            low_x = _activations(b, b.add(row, skip_x), width)
            high_x = _activations(b, plus(b, b.add(row, skip_x), 4), width)
            for (t, part), (low, high) in weights.items():
                lower = bytes_times_bytes(b, path.native, low, low_x)
                upper = bytes_times_bytes(b, path.native, high, high_x)
                totals[t, r, part] = b.add(totals[t, r, part], b.add(lower, upper))
        return [totals[key] for key in keys]

    sums: list[Any] = []
    for first in range(0, form.group // 8, form.safe_blocks):
        nothing = [constant(vector(I16, width // 2), 0)] * len(keys)
        shorts = _repeated(b, first, first + form.safe_blocks, len(rows), nothing, block)
        # 16 times as much is free here, and would not fit before
        times = 16 if form.own_zeros else 1
        wide = [pairs_to_i32(b, path.native, value, times) for value in shorts]
        sums = [b.add(x, y) for x, y in zip(sums, wide, strict=True)] if sums else wide
    sums = [b.add(x, y) for x, y in zip(sums, corrections(width // 4), strict=True)]
    return _nested(sums, len(tiles), len(rows))


def _bytes_in_pairs(
    b: Any,
    path: Path,
    form: Integers,
    tiles: Sequence[Any],
    rows: Sequence[Any],
) -> list[list[list[Any]]]:
    """Weights of eight bits: signs move to the activations: |w| * 127 * 2 = 32512 fits an i16."""
    width = 32 if path.name == "avx2" else 64
    parts = range(64 // width)
    ty = vector(I8, width)
    keys = [(t, r, p) for t in range(len(tiles)) for r in range(len(rows)) for p in parts]

    def block(at: Any, carried: Sequence[Any]) -> Sequence[Any]:
        skip, skip_x = b.shl(at, number(6)), b.shl(at, number(2))
        weights = {}
        for t, tile in enumerate(tiles):
            for part in parts:
                w = load(b, plus(b, b.add(tile, skip), part * width), ty)
                size = call_llvm(b, f"llvm.abs.v{width}i8", ty, [w, constant(I1, 0)])
                weights[t, part] = w, size, b.ashr(w, constant(ty, 7))
        totals = dict(zip(keys, carried, strict=True))
        for r, row in enumerate(rows):
            x = _activations(b, b.add(row, skip_x), width)
            for (t, part), (w, size, mask) in weights.items():
                # psignb shares its two pipes with the products, xor and subtraction have four:
                # half of each keeps all of them busy.
                if part and len(rows) > 1:
                    signed = b.sub(b.xor(x, mask), mask)
                else:
                    signed = with_sign_of(b, path.native, x, w)
                pairs = bytes_times_bytes(b, path.native, size, signed)
                dot = pairs_to_i32(b, path.native, pairs)
                totals[t, r, part] = b.add(totals[t, r, part], dot)
        return [totals[key] for key in keys]

    nothing = [constant(vector(I32, width // 4), 0)] * len(keys)
    sums = _repeated(b, 0, form.group // 4, len(rows), nothing, block)
    return _nested(sums, len(tiles), len(rows))


def _repeated(
    b: Any, begin: int, end: int, rows: int, totals: Sequence[Any], block: Any
) -> Sequence[Any]:
    """`block` for begin..end-1. For several rows it stays a loop: that keeps a block's weights in
    registers for all rows, where the compiler would otherwise go row by row and run out of them.
    """
    if rows > 1:
        return loop(b, number(begin), number(end), 1, totals, block, keep=True)[1]
    for i in range(begin, end):
        totals = block(number(i), totals)
    return totals


def _nested(sums: Sequence[Any], tiles: int, rows: int) -> list[list[list[Any]]]:
    """Sums by tile, row and part -> [tile][row][part]."""
    parts = len(sums) // (tiles * rows)
    at = iter(sums)
    return [[[next(at) for _ in range(parts)] for _ in range(rows)] for _ in range(tiles)]


# ---- by vpdpbusd or sdot: four products added into i32 -------------------------------------------


def _four_at_once(
    b: Any,
    path: Path,
    form: Integers,
    tiles: Sequence[Any],
    rows: Sequence[Any],
    corrections: Corrections,
) -> list[list[list[Any]]]:
    """The sums start at the corrections.

    vpdpbusd multiplies unsigned by signed bytes, sdot signed by signed ones, so q8 has no zero
    there, and 16 * code, which does not fit, is left for the end.
    """
    unsigned = path.name == "avx512vnni"
    width = 64 if unsigned else 16
    parts = range(64 // width)
    ty = vector(I8, width)
    keys = [(t, r, part) for t in range(len(tiles)) for r in range(len(rows)) for part in parts]
    times_16_last = form.own_zeros and not unsigned
    sums: dict[tuple[int, int, int], Any]
    if times_16_last or (form.bits == 8 and not unsigned):
        sums = dict.fromkeys(keys, constant(vector(I32, width // 4), 0))
    else:
        sums = dict(zip(keys, corrections(width // 4), strict=True))
    per_block = 64 // (2 * form.bits)  # columns
    for block in range(form.group // per_block):
        weights = {}
        for t, tile in enumerate(tiles):
            for part in parts:
                w = load(b, plus(b, tile, block * 64 + part * width), ty)
                if form.own_zeros and unsigned:
                    weights[t, part] = _nibbles_times_16(b, w)
                elif form.bits == 4:
                    weights[t, part] = _nibbles(b, path, form, w)
                else:  # q + 128, or q itself
                    weights[t, part] = (b.xor(w, constant(ty, -128)) if unsigned else w,)
        for r, row in enumerate(rows):
            for quad in range(per_block // 4):
                x = _activations(b, plus(b, row, block * per_block + quad * 4), width)
                for (t, part), quads in weights.items():
                    total = sums[t, r, part]
                    sums[t, r, part] = add_dots(b, path.native, total, quads[quad], x)
    totals = list(sums.values())
    if times_16_last:
        pairs = zip(totals, corrections(width // 4), strict=True)
        totals = [b.add(b.shl(total, constant(total.type, 4)), fix) for total, fix in pairs]
    return _nested(totals, len(tiles), len(rows))


# ---- by plain vector code ------------------------------------------------------------------------


def _portable(
    b: Any, form: Integers, tiles: Sequence[Any], rows: Sequence[Any], corrections: Corrections
) -> list[list[list[Any]]]:
    totals = [_portable_dot(b, form, tile, row) for tile in tiles for row in rows]
    if form.own_zeros:
        totals = [b.shl(total, constant(total.type, 4)) for total in totals]
    if form.bits == 4 and not form.table:
        totals = [b.add(x, y) for x, y in zip(totals, corrections(LANES), strict=True)]
    return _nested(totals, len(tiles), len(rows))


def _portable_dot(b: Any, form: Integers, tile: Any, row: Any) -> Any:
    """By products in i16, added in pairs: what compilers vectorise well on every processor."""
    bytes_, shorts, wide = vector(I8, 64), vector(I16, 64), vector(I32, 32)
    total = None
    if form.bits == 8:
        for block in range(form.group // 4):
            w = b.sext(load(b, plus(b, tile, block * 64), bytes_), shorts)
            x = b.sext(_activations(b, plus(b, row, block * 4), 64), shorts)
            pairs = neighbours_added(b, b.mul(w, x))  # |pair| <= 32512
            dot = neighbours_added(b, b.sext(pairs, wide))
            total = dot if total is None else b.add(total, dot)
        return total
    products = None
    for block in range(form.group // 8):
        w = load(b, plus(b, tile, block * 64), bytes_)
        low, high = b.and_(w, constant(bytes_, 15)), b.lshr(w, constant(bytes_, 4))
        for part, code in enumerate((low, high)):
            q = _e2m1_doubled(b, code) if form.table else code
            x = b.sext(_activations(b, plus(b, row, block * 8 + part * 4), 64), shorts)
            product = b.mul(b.sext(q, shorts), x)
            products = product if products is None else b.add(products, product)
        if (block + 1) % 4 == 0:
            pairs = neighbours_added(b, products)  # |pair| <= 30480
            dot = neighbours_added(b, b.sext(pairs, wide))
            total = dot if total is None else b.add(total, dot)
            products = None
    return total


def _e2m1_doubled(b: Any, code: Any) -> Any:
    """0, 1, 2, 3, 4, 6, 8, 12 and their negatives, by arithmetic on bytes."""
    ty = code.type
    size = b.and_(code, constant(ty, 7))
    above = call_llvm(b, f"llvm.umax.v{ty.count}i8", ty, [size, constant(ty, 4)])
    value = b.add(size, b.sub(above, constant(ty, 4)))
    seven = b.icmp_unsigned("==", size, constant(ty, 7))
    value = b.add(value, b.select(seven, constant(ty, 2), constant(ty, 0)))
    negative = b.icmp_unsigned(">", code, constant(ty, 7))
    return b.select(negative, b.neg(value), value)
