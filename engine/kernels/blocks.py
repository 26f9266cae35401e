"""Tiles of 16 weight rows times rows of activations, in every weight format, as LLVM code.

The rule of this file: a row's outputs are computed by the same operations in the same order,
whatever other rows are computed with it, how many tiles, and on which path.

* Integer formats, group by group: ``acc = fma(f32(dot), x_scale * w_scale, acc)``, with dot an
  exact int32 sum; where groups have minima, then ``acc = fma(f32(sum(x)), x_scale * minimum, acc)``;
  where rows have scales too, ``acc * row_scale`` at the end.
* f32, bf16: column k is added by fma to chain k % 4; the sum is (0 + 1) + (2 + 3).
* fp8: such a sum for each block of 128 columns, then ``acc = fma(sum, w_scale, acc)``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from diskmoe.engine.kernels.dots import LANES, Integers, emit_dots
from diskmoe.engine.kernels.emit import (
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    constant,
    fma,
    load,
    loop,
    number,
    plus,
    prefetch,
    splat,
    store,
    vector,
    widened_f16,
)
from diskmoe.engine.kernels.paths import Path

# How far ahead of their use weights are asked for, in bytes. On Zen 3 it takes one row from 78 to
# 95 % of the speed at which memory can be read; 2048 does as much for q4 and less for q8.
_AHEAD = 1024

FP8_BLOCK = 128  # columns that share an fp8 scale


@dataclass(frozen=True)
class Floats:
    """How a float format's column is stored: `bits` per weight, 8 being e4m3 with block scales."""

    bits: int

    @property
    def nbytes(self) -> int:
        """Bytes of a tile's column."""
        return 2 * self.bits


FORMS: dict[str, Integers | Floats] = {
    "f32": Floats(32),
    "bf16": Floats(16),
    "q8": Integers(8, 32, 128),
    "q4": Integers(4, 32, 1, own_zeros=True),
    "q4g64": Integers(4, 64, 1, own_zeros=True),
    "mxfp4": Integers(4, 32, 12, table=True),
    "fp8": Floats(8),
    "q4_0": Integers(4, 32, 8),
    "q4_1": Integers(4, 32, -1, minima=True),
    "int4": Integers(4, 32, 8, bf16_scales=True),
}


def blockings(name: str, path: Path) -> Sequence[tuple[int, int]]:
    """(tiles, rows) that are computed side by side, the largest first: what the registers hold."""
    if isinstance(FORMS[name], Floats) or path.name == "portable":
        return ((1, 2), (1, 1))
    if path.name in ("avx2", "dotprod"):
        return ((1, 4), (1, 2), (1, 1))
    return ((2, 4), (2, 2), (1, 4), (1, 2), (1, 1))


def emit_multiply(b: Any, name: str, path: Path, args: Sequence[Any]) -> None:
    """The body of a tile kernel; args: i64 weights, scales, depth, tiles, xs, ys, n.

    `tiles` consecutive tiles times n rows. depth: groups, or columns of a float format. xs, ys:
    addresses of n addresses, of prepared rows and of their outputs, tiles * 16 f32 each.
    """
    weights, scales, depth, tiles, xs, ys, n = args
    form = FORMS[name]
    tile_bytes = b.mul(depth, number(form.nbytes))
    scale_bytes = emit_scale_bytes(b, name, depth)
    zero = number(0)
    done = zero
    for side_by_side in sorted({t for t, _ in blockings(name, path)}, reverse=True):
        row_blocks = [rows for t, rows in blockings(name, path) if t == side_by_side]
        if side_by_side > 1 and 1 not in row_blocks:
            row_blocks.append(1)

        def some_tiles(
            first: Any, _: Any, count: int = side_by_side, sizes: list[int] = row_blocks
        ) -> Sequence[Any]:
            numbers = [b.add(first, number(i)) for i in range(count)]
            places = [
                (b.add(weights, b.mul(i, tile_bytes)), b.add(scales, b.mul(i, scale_bytes)))
                for i in numbers
            ]
            row = zero
            for size in sizes:

                def some_rows(at: Any, _: Any, size: int = size) -> Sequence[Any]:
                    skip = b.shl(at, number(3))
                    from_, to = (
                        [load(b, plus(b, b.add(table, skip), 8 * i), I64, 8) for i in range(size)]
                        for table in (xs, ys)
                    )
                    out = b.shl(first, number(6))
                    if isinstance(form, Integers):
                        sums = _integers(b, path, form, places, depth, from_)
                    else:
                        sums = _floats(b, path, form, places, depth, from_)
                    for t, of_tile in enumerate(sums):
                        for address, parts in zip(to, of_tile, strict=True):
                            address = b.add(address, plus(b, out, 64 * t))
                            for i, part in enumerate(parts):
                                store(b, plus(b, address, i * 4 * part.type.count), part)
                    return []

                row, _ = loop(b, row, n, size, [], some_rows)
            return []

        done, _ = loop(b, done, tiles, side_by_side, [], some_tiles)


def emit_scale_bytes(b: Any, name: str, depth: Any) -> Any:
    """Bytes of a tile's scales."""
    form = FORMS[name]
    if isinstance(form, Integers):
        row_scales = 4 * LANES if form.own_zeros else 0
        return plus(b, b.mul(depth, number(_scales_step(form))), row_scales)
    if form.bits > 8:
        return number(0)
    blocks = b.lshr(b.add(depth, number(FP8_BLOCK - 1)), number(7))
    return b.shl(blocks, number(2))


# ---- integer formats -----------------------------------------------------------------------------


def _scales_step(form: Integers) -> int:
    """Bytes of a tile's scales, and zeros or minima, of one group."""
    if form.minima:
        return 4 * LANES
    return LANES if form.table else 2 * LANES


def _integers(
    b: Any,
    path: Path,
    form: Integers,
    places: Sequence[tuple[Any, Any]],
    depth: Any,
    rows: Sequence[Any],
) -> list[list[list[Any]]]:
    """[tile][row] -> vectors of f32 that together are the 16 outputs."""
    lanes = {"avx2": 8, "dotprod": 4}.get(path.name, LANES)
    parts = LANES // lanes
    f32s = vector(F32, lanes)
    begin = constant(f32s, 0.0)
    count = len(places) * len(rows) * parts

    def group(g: Any, carried: Sequence[Any]) -> Sequence[Any]:
        weights = [b.add(w, b.mul(g, number(form.nbytes))) for w, _ in places]
        for at in weights:
            for line in range(0, form.nbytes, 64):
                prefetch(b, plus(b, at, _AHEAD + line))
        skip = b.mul(g, number(form.group + 8))
        xs = [b.add(row, skip) for row in rows]
        zeros = [plus(b, x, form.group + 4) for x in xs]
        scales = [b.add(s, b.mul(g, number(_scales_step(form)))) for _, s in places]
        own_zeros = [plus(b, at, LANES) for at in scales] if form.own_zeros else []
        dots = emit_dots(b, path, form, weights, xs, zeros, own_zeros)
        scale_nbytes = 1 if form.table or form.own_zeros else 2
        totals = iter(carried)
        results = []
        for at, of_tile in zip(scales, dots, strict=True):
            of_parts = [plus(b, at, i * lanes * scale_nbytes) for i in range(parts)]
            w_scales = [_scales(b, path, form, part, lanes) for part in of_parts]
            minima: list[Any] = [None] * parts
            if form.minima:
                behind = [plus(b, part, LANES * scale_nbytes) for part in of_parts]
                minima = [_scales(b, path, form, part, lanes) for part in behind]
            for x, zero, of_row in zip(xs, zeros, of_tile, strict=True):
                x_scale = splat(b, load(b, plus(b, x, form.group), F32, 4), lanes)
                for dot, w_scale, minimum in zip(of_row, w_scales, minima, strict=True):
                    product = b.fmul(w_scale, x_scale)
                    total = fma(b, b.sitofp(dot, f32s), product, next(totals))
                    if minimum is not None:
                        added = splat(b, b.sitofp(load(b, zero, I32, 4), F32), lanes)
                        total = fma(b, added, b.fmul(minimum, x_scale), total)
                    results.append(total)
        return results

    _, sums = loop(b, number(0), depth, 1, [begin] * count, group)
    flat = iter(sums)
    outputs = [[[next(flat) for _ in range(parts)] for _ in rows] for _ in places]
    if form.own_zeros:
        for (_, at), of_tile in zip(places, outputs, strict=True):
            begin = b.add(at, b.mul(depth, number(_scales_step(form))))
            for i in range(parts):
                row_scale = load(b, plus(b, begin, i * 4 * lanes), f32s, 4)
                for of_row in of_tile:
                    of_row[i] = b.fmul(of_row[i], row_scale)
    return outputs


def _scales(b: Any, path: Path, form: Integers, at: Any, lanes: int) -> Any:
    """A group's scales, or minima, of `lanes` weight rows, as f32."""
    if form.own_zeros:
        steps = b.zext(load(b, at, vector(I8, lanes)), vector(I32, lanes))
        return b.sitofp(steps, vector(F32, lanes))
    if form.table:
        return _e8m0_halved(b, b.zext(load(b, at, vector(I8, lanes)), vector(I32, lanes)))
    if form.bf16_scales:
        bits = b.zext(load(b, at, vector(I16, lanes), 2), vector(I32, lanes))
        return b.bitcast(b.shl(bits, constant(bits.type, 16)), vector(F32, lanes))
    if path.name not in ("portable", "dotprod") and path.native:
        return b.fpext(load(b, at, vector(F16, lanes), 2), vector(F32, lanes))
    return widened_f16(b, load(b, at, vector(I16, lanes), 2))


def _e8m0_halved(b: Any, code: Any) -> Any:
    """2**(code - 127) / 2 as f32, exact; the weights are doubled. 255, a NaN, is not told apart."""
    ty = code.type
    normal = b.shl(b.sub(code, constant(ty, 1)), constant(ty, 23))
    tiny = b.shl(constant(ty, 0x200000), b.and_(code, constant(ty, 1)))  # codes 0 and 1
    is_normal = b.icmp_unsigned(">", code, constant(ty, 1))
    return b.bitcast(b.select(is_normal, normal, tiny), vector(F32, ty.count))


# ---- float formats -------------------------------------------------------------------------------


def _floats(
    b: Any,
    path: Path,
    form: Floats,
    places: Sequence[tuple[Any, Any]],
    depth: Any,
    rows: Sequence[Any],
) -> list[list[list[Any]]]:
    """[tile][row] -> vectors of f32 that together are the 16 outputs; one tile only.

    Several rows go with half a tile, so that 16 registers hold their chains, block by block, so
    that the other half finds the weights in the cache.
    """
    ((weights, scales),) = places
    lanes = LANES if len(rows) == 1 or path.name.startswith("avx512") else 8
    parts = range(LANES // lanes)
    nothing = constant(vector(F32, lanes), 0.0)
    scaled = form.bits == 8
    size = len(rows) if scaled else 4 * len(rows)  # numbers that a part carries between blocks

    def block(first: Any, carried: Sequence[Any]) -> Sequence[Any]:
        beyond = b.add(first, number(FP8_BLOCK))
        end = b.select(b.icmp_signed("<", beyond, depth), beyond, depth)
        results: list[Any] = []
        for part in parts:
            at = plus(b, weights, part * form.nbytes // len(parts))
            old = carried[part * size : (part + 1) * size]
            if scaled:
                chains = _columns(b, form, at, first, end, rows, [nothing] * (4 * len(rows)))
                place = b.add(scales, b.lshr(first, number(5)))
                scale = splat(b, load(b, place, F32, 4), lanes)
                sums = zip(_added(b, chains), old, strict=True)
                results += [fma(b, new, scale, total) for new, total in sums]
            else:
                results += _columns(b, form, at, first, end, rows, old)
        return results

    rounded = b.add(depth, number(FP8_BLOCK - 1))
    carried = [nothing] * (size * len(parts))
    _, carried = loop(b, number(0), rounded, FP8_BLOCK, carried, block)
    totals = carried if scaled else _added(b, carried)
    return [[[totals[part * len(rows) + r] for part in parts] for r in range(len(rows))]]


def _columns(
    b: Any,
    form: Floats,
    weights: Any,
    first: Any,
    end: Any,
    rows: Sequence[Any],
    chains: Sequence[Any],
) -> list[Any]:
    """Columns first..end-1 added to the four chains of each row."""
    lanes = chains[0].type.count

    def term(column: Any, value: Any, row: Any, chain: Any) -> Any:
        x = splat(b, load(b, b.add(row, b.shl(column, number(2))), F32, 4), lanes)
        return fma(b, value, x, chain)

    def quad(k: Any, carried: Sequence[Any]) -> Sequence[Any]:
        results = list(carried)
        for i in range(4):
            column = plus(b, k, i)
            value = _weights(b, form, b.add(weights, b.mul(column, number(form.nbytes))), lanes)
            for r, row in enumerate(rows):
                results[r * 4 + i] = term(column, value, row, results[r * 4 + i])
        return results

    last, results = loop(b, first, end, 4, chains, quad)
    for i in range(3):
        column = plus(b, last, i)
        there = b.icmp_signed("<", column, end)
        column = b.select(there, column, first)  # never read beyond the matrix
        value = _weights(b, form, b.add(weights, b.mul(column, number(form.nbytes))), lanes)
        for r, row in enumerate(rows):
            old = results[r * 4 + i]
            results[r * 4 + i] = b.select(there, term(column, value, row, old), old)
    return results


def _added(b: Any, chains: Sequence[Any]) -> list[Any]:
    """(0 + 1) + (2 + 3) of every four chains."""
    pairs = [b.fadd(chains[i], chains[i + 1]) for i in range(0, len(chains), 2)]
    return [b.fadd(pairs[i], pairs[i + 1]) for i in range(0, len(pairs), 2)]


def _weights(b: Any, form: Floats, at: Any, lanes: int) -> Any:
    """A column's weights as f32; all conversions are exact."""
    f32s, i32s = vector(F32, lanes), vector(I32, lanes)
    if form.bits == 32:
        return load(b, at, f32s, 4)
    if form.bits == 16:
        wide = b.zext(load(b, at, vector(I16, lanes), 2), i32s)
        return b.bitcast(b.shl(wide, constant(i32s, 16)), f32s)
    # e4m3: as an f32 pattern the exponent is 120 too small; the product is exact.
    code = b.sext(load(b, at, vector(I8, lanes)), i32s)
    pattern = b.and_(b.shl(code, constant(i32s, 20)), constant(i32s, -0x78100000))
    return b.fmul(b.bitcast(pattern, f32s), constant(f32s, 2.0**120))
