"""Making LLVM code: loops, vectors, and the few special instructions, native or spelled out.

The rule of this file: what a spelled-out instruction computes is what the processor's would, bit
for bit, saturation included; so a test of a path that the machine lacks is a test of that path.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from llvmlite.binding import llvm_version_info

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()


def vector(element: Any, lanes: int) -> Any:
    return ir.VectorType(element, lanes)


def number(value: int) -> Any:
    return ir.Constant(I64, value)


def constant(ty: Any, value: float) -> Any:
    if isinstance(ty, ir.VectorType):
        return ir.Constant(ty, [value] * ty.count)
    return ir.Constant(ty, value)


def call_llvm(b: Any, name: str, result: Any, args: Sequence[Any]) -> Any:
    ty = ir.FunctionType(result, [arg.type for arg in args])
    function = b.module.globals.get(name) or ir.Function(b.module, ty, name)
    return b.call(function, args)


def shuffle(b: Any, first: Any, second: Any, lanes: Sequence[int]) -> Any:
    return b.shuffle_vector(first, second, ir.Constant(vector(I32, len(lanes)), list(lanes)))


def splat(b: Any, value: Any, lanes: int) -> Any:
    ty = vector(value.type, lanes)
    one = b.insert_element(ir.Constant(ty, ir.Undefined), value, ir.Constant(I32, 0))
    return shuffle(b, one, one, [0] * lanes)


def load(b: Any, address: Any, ty: Any, align: int = 1) -> Any:
    value = b.load(b.inttoptr(address, ty.as_pointer()))
    value.align = align
    return value


def store(b: Any, address: Any, value: Any) -> None:
    b.store(value, b.inttoptr(address, value.type.as_pointer()), align=4)


def prefetch(b: Any, address: Any) -> None:
    """Asks for the cache line at an address, which may be any number, to be read soon."""
    pointer = b.inttoptr(address, I8.as_pointer())
    hints = [ir.Constant(I32, hint) for hint in (0, 3, 1)]  # to read, for every cache, data
    call_llvm(b, "llvm.prefetch.p0", ir.VoidType(), [pointer, *hints])


def plus(b: Any, address: Any, offset: int) -> Any:
    return b.add(address, number(offset)) if offset else address


def fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z rounded once, of f32 or of vectors."""
    kind = f"v{x.type.count}f32" if isinstance(x.type, ir.VectorType) else "f32"
    return call_llvm(b, f"llvm.fma.{kind}", x.type, [x, y, z])


def widened_f16(b: Any, halves: Any) -> Any:
    """The bits of f16 numbers -> the same numbers in f32, without the processor's help."""
    lanes = halves.type.count
    i32s, f32s = vector(I32, lanes), vector(F32, lanes)
    bits = b.zext(halves, i32s)
    magnitude = b.and_(bits, constant(i32s, 0x7FFF))
    # As an f32 pattern the exponent is 112 too small; the product is exact, subnormals too.
    shifted = b.shl(magnitude, constant(i32s, 13))
    finite = b.bitcast(b.fmul(b.bitcast(shifted, f32s), constant(f32s, 2.0**112)), i32s)
    special = b.or_(shifted, constant(i32s, 0x7F800000))
    is_finite = b.icmp_unsigned("<", magnitude, constant(i32s, 0x7C00))
    sign = b.shl(b.and_(bits, constant(i32s, 0x8000)), constant(i32s, 16))
    return b.bitcast(b.or_(b.select(is_finite, finite, special), sign), f32s)


def neighbours_added(b: Any, value: Any) -> Any:
    """Lanes 2i and 2i + 1 added."""
    even = shuffle(b, value, value, range(0, value.type.count, 2))
    odd = shuffle(b, value, value, range(1, value.type.count, 2))
    return b.add(even, odd)


def loop(
    b: Any,
    begin: Any,
    end: Any,
    step: int,
    carried: Sequence[Any],
    body: Callable[[Any, Sequence[Any]], Sequence[Any]],
    keep: bool = False,
) -> tuple[Any, list[Any]]:
    """``while begin + step <= end: carried = body(begin, carried); begin += step``.

    keep: LLVM must not unroll it.
    """
    before = b.block
    head, inside, after = (b.append_basic_block(name) for name in ("loop", "body", "done"))
    b.branch(head)
    b.position_at_end(head)
    index = b.phi(I64)
    values = [b.phi(value.type) for value in carried]
    following = b.add(index, number(step))
    b.cbranch(b.icmp_signed("<=", following, end), inside, after)
    b.position_at_end(inside)
    results = body(index, values)
    again = b.branch(head)
    if keep:
        again.set_metadata("llvm.loop", _not_unrolled(b.module))
    for phi, first, next_one in zip(
        [index, *values], [begin, *carried], [following, *results], strict=True
    ):
        phi.add_incoming(first, before)
        phi.add_incoming(next_one, b.block)
    b.position_at_end(after)
    return index, values


def _not_unrolled(module: Any) -> Any:
    """A loop's own metadata node: LLVM wants the first operand to be the node itself."""
    order = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    own = module.add_metadata([order, ir.Constant(I32, len(module.metadata))])
    own.operands = (own, order)
    return own


# ---- special instructions: vectors of 16 bytes (ARM), 32 (AVX2) or 64 (AVX-512) ------------------


def _spelled_out(b: Any, name: str, result: Any, args: Sequence[Any], emit: Any) -> Any:
    """A call of a function that computes ``emit(builder, *args)``: inlined it would be too much."""
    name = f"spelled_out.{name}.{args[0].type.count}"
    function = b.module.globals.get(name)
    if function is None:
        ty = ir.FunctionType(result, [arg.type for arg in args])
        function = ir.Function(b.module, ty, name)
        function.linkage = "internal"
        function.attributes.add("noinline")
        inside = ir.IRBuilder(function.append_basic_block())
        inside.ret(emit(inside, *function.args))
    return b.call(function, args)


def bytes_times_bytes(b: Any, native: bool, unsigned: Any, signed: Any) -> Any:
    """pmaddubsw: u8 x s8 products, neighbours added with saturation to i16."""
    count = unsigned.type.count
    result = vector(I16, count // 2)
    if native:
        name = "llvm.x86.avx2.pmadd.ub.sw" if count == 32 else "llvm.x86.avx512.pmaddubs.w.512"
        return call_llvm(b, name, result, [unsigned, signed])

    def emit(b: Any, unsigned: Any, signed: Any) -> Any:
        wide = vector(I32, count)
        sums = neighbours_added(b, b.mul(b.zext(unsigned, wide), b.sext(signed, wide)))
        for bound, keep in ((32767, "smin"), (-32768, "smax")):
            limit = constant(sums.type, bound)
            sums = call_llvm(b, f"llvm.{keep}.v{count // 2}i32", sums.type, [sums, limit])
        return b.trunc(sums, result)

    return _spelled_out(b, "pmaddubsw", result, [unsigned, signed], emit)


def pairs_to_i32(b: Any, native: bool, value: Any, times: int = 1) -> Any:
    """pmaddwd by a constant: i16 lanes added in neighbouring pairs, as i32, `times` so many."""
    count = value.type.count
    result = vector(I32, count // 2)
    if native:
        name = "llvm.x86.avx2.pmadd.wd" if count == 16 else "llvm.x86.avx512.pmaddw.d.512"
        return call_llvm(b, name, result, [value, constant(value.type, times)])

    def emit(b: Any, value: Any) -> Any:
        wide = vector(I32, count)
        return neighbours_added(b, b.mul(b.sext(value, wide), constant(wide, times)))

    return _spelled_out(b, f"pmaddwd.{times}", result, [value], emit)


def low_halves_multiplied(b: Any, native: bool, unsigned: Any, signed: Any) -> Any:
    """i32 lanes: `unsigned`, 0..32767, times the lower 16 bits of `signed`, exact.

    One pmaddwd: the upper half of `unsigned` is zero. 8 (AVX2) or 16 lanes, native or not.
    """
    ty = unsigned.type
    if native and ty.count >= 8:
        shorts = vector(I16, 2 * ty.count)
        name = "llvm.x86.avx2.pmadd.wd" if ty.count == 8 else "llvm.x86.avx512.pmaddw.d.512"
        return call_llvm(b, name, ty, [b.bitcast(unsigned, shorts), b.bitcast(signed, shorts)])
    sixteen = constant(ty, 16)
    return b.mul(unsigned, b.ashr(b.shl(signed, sixteen), sixteen))


def with_sign_of(b: Any, native: bool, value: Any, sign: Any) -> Any:
    """psignb: the bytes negated where `sign` is negative (and any number where it is zero)."""
    if native and value.type.count == 32:
        return call_llvm(b, "llvm.x86.avx2.psign.b", value.type, [value, sign])
    negative = b.icmp_signed("<", sign, constant(sign.type, 0))
    return b.select(negative, b.neg(value), value)


def add_dots(b: Any, native: bool, total: Any, weights: Any, signed: Any) -> Any:
    """total + products of bytes, four neighbours a lane, exact in i32.

    64 bytes: vpdpbusd, whose weights are unsigned; 16 bytes: sdot, whose weights are signed.
    """
    count = weights.type.count
    args = [total, weights, signed]
    if native and count == 16:
        return call_llvm(b, "llvm.aarch64.neon.sdot.v4i32.v16i8", total.type, args)
    if native:
        if not _byte_operands():
            args[1:] = [b.bitcast(value, total.type) for value in args[1:]]
        return call_llvm(b, "llvm.x86.avx512.vpdpbusd.512", total.type, args)

    def emit(b: Any, total: Any, weights: Any, signed: Any) -> Any:
        wide = vector(I32, count)
        widened = b.sext(weights, wide) if count == 16 else b.zext(weights, wide)
        products = b.mul(widened, b.sext(signed, wide))
        return b.add(total, neighbours_added(b, neighbours_added(b, products)))

    return _spelled_out(b, "dots", total.type, args, emit)


def _byte_operands() -> bool:
    """LLVM 22 gave vpdpbusd operands of bytes; before they were of i32."""
    return llvm_version_info[0] >= 22


def looked_up(b: Any, native: bool, table: Sequence[int], index: Any) -> Any:
    """pshufb or tbl: table[index] for 16 byte constants and indices 0..15."""
    count = index.type.count
    entries = ir.Constant(index.type, list(table) * (count // 16))
    if native:
        name = {
            16: "llvm.aarch64.neon.tbl1.v16i8",
            32: "llvm.x86.avx2.pshuf.b",
            64: "llvm.x86.avx512.pshuf.b.512",
        }[count]
        return call_llvm(b, name, index.type, [entries, index])

    def emit(b: Any, index: Any) -> Any:
        found = constant(index.type, table[0])
        for i, entry in enumerate(table[1:], 1):
            here = b.icmp_unsigned("==", index, constant(index.type, i))
            found = b.select(here, constant(index.type, entry), found)
        return found

    name = "pshufb." + ".".join(map(str, table))
    return _spelled_out(b, name, index.type, [index], emit)
