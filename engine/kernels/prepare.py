"""Quantising a row of activations for the tile kernels of integer formats, as LLVM code."""

from typing import Any

from llvmlite import ir

from diskmoe.engine.kernels.emit import (
    F32,
    I8,
    I32,
    call_llvm,
    constant,
    load,
    loop,
    number,
    plus,
    splat,
    store,
    vector,
)

LANES = 16


def emit_prepare(b: Any, group: int, zero: Any, x: Any, cols: Any, out: Any) -> None:
    """`cols` f32 at x -> groups of int8 values, f32 scale, i32 ``-zero * sum``, from `out` on.

    scale = amax / 127; value = x / scale, rounded half to even. A last group that is not whole
    counts as if zeros followed. A NaN or an infinity makes the scale one, and so is not lost.
    """
    size = group + 8

    def whole(first: Any, carried: Any) -> list[Any]:
        _group(b, group, zero, b.add(x, b.shl(first, number(2))), carried[0])
        return [plus(b, carried[0], size)]

    done, (at,) = loop(b, number(0), cols, group, [out], whole)
    rest_type = ir.ArrayType(F32, group)
    with b.goto_entry_block():
        rest = b.alloca(rest_type)
        rest.align = 64
    with b.if_then(b.icmp_signed("<", done, cols)):
        padded = b.ptrtoint(rest, number(0).type)
        for i in range(0, group, LANES):
            store(b, plus(b, padded, 4 * i), constant(vector(F32, LANES), 0.0))

        def copy(i: Any, _: Any) -> list[Any]:
            value = load(b, b.add(x, b.shl(i, number(2))), F32, 4)
            store(b, b.add(padded, b.shl(b.sub(i, done), number(2))), value)
            return []

        loop(b, done, cols, 1, [], copy)
        _group(b, group, zero, padded, at)


def _group(b: Any, group: int, zero: Any, x: Any, out: Any) -> None:
    f32s, i32s = vector(F32, LANES), vector(I32, LANES)
    parts = range(group // LANES)
    xs = [load(b, plus(b, x, 64 * i), f32s, 4) for i in parts]
    largest = None
    for part in xs:
        # Bit patterns of magnitudes sort like numbers, and NaN sorts last: it is not lost.
        size = b.and_(b.bitcast(part, i32s), constant(i32s, 0x7FFFFFFF))
        if largest is None:
            largest = size
        else:
            largest = b.select(b.icmp_signed(">", size, largest), size, largest)
    peak = b.bitcast(call_llvm(b, "llvm.vector.reduce.smax.v16i32", I32, [largest]), F32)
    scale = b.fdiv(peak, ir.Constant(F32, 127.0))
    nothing = b.fcmp_ordered("==", scale, ir.Constant(F32, 0.0))
    divisor = splat(b, b.select(nothing, ir.Constant(F32, 1.0), scale), LANES)
    magic = constant(f32s, 12582912.0)  # 1.5 * 2**23: rounds half to even, into the lower bits
    total = None
    for i, part in enumerate(xs):
        q = b.fdiv(part, divisor)
        for bound, order in ((-127.0, ">"), (127.0, "<")):
            limit = constant(f32s, bound)
            q = b.select(b.fcmp_ordered(order, q, limit), q, limit)
        bits = b.bitcast(b.fadd(q, magic), i32s)
        values = b.sub(bits, constant(i32s, 0x4B400000))
        store_bytes(b, plus(b, out, LANES * i), b.trunc(values, vector(I8, LANES)))
        total = values if total is None else b.add(total, values)
    added = call_llvm(b, "llvm.vector.reduce.add.v16i32", I32, [total])
    store(b, plus(b, out, group), scale)
    correction = b.neg(b.mul(b.trunc(zero, I32), added))
    store(b, plus(b, out, group + 4), correction)


def store_bytes(b: Any, address: Any, value: Any) -> None:
    b.store(value, b.inttoptr(address, value.type.as_pointer()), align=1)
