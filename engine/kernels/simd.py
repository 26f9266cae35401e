"""Vectors of 16 lanes and the intrinsics that the kernels are written in.

The rule of this file: an operation is one IEEE operation per lane (fma where it says fma), so its
bits do not depend on the machine. Nothing is left to the compiler: no fast-math flag, no libm, no
contraction. Where a processor has something faster that is exact as well (F16C's widening), the
code made for `HOST` uses it; the code made for another path never does, and the tests compare them.

Addresses are plain int64 numbers: kernels are given arrays, take `address(array)` and add byte
offsets to it. Nothing checks them; the Python functions around the kernels do.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from diskmoe.engine.kernels import emit
from diskmoe.engine.kernels.emit import F16, F32, F64, I16, I32, I64, constant, shuffle
from diskmoe.engine.kernels.paths import cpu_features

LANES = 16


class Vector(types.Type):
    """16 lanes of f32 or of i32; lives in registers only."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)


f32x16 = Vector("f32x16")
i32x16 = Vector("i32x16")
_LLVM_TYPE = {"f32x16": ir.VectorType(F32, LANES), "i32x16": ir.VectorType(I32, LANES)}


def compiled(function: Callable[..., Any]) -> Any:
    """Numba's `intrinsic`, whose result type checkers take for the undecorated function."""
    return intrinsic(function)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Vector) -> None:
        super().__init__(dmm, fe_type, _LLVM_TYPE[fe_type.name])


def _like(ty: Any, element: Any) -> Any:
    """`element`, or the vector of as many of them as `ty` has lanes."""
    return ir.VectorType(element, ty.count) if isinstance(ty, ir.VectorType) else element


# ---- memory --------------------------------------------------------------------------------------


@compiled
def address(typing_context, array):
    """Address of an array's first element, as int64.

    It keeps nothing alive. An array that a function makes for itself is freed behind the last line that
    names it, so its address is taken inside the loop that uses it, which keeps it until the loop ends.
    """

    def generate(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, I64)

    return types.int64(array), generate


def _loader(element: Any, widen: Any) -> Any:
    """An intrinsic that loads 16 elements and makes f32 lanes of them with `widen`."""

    @compiled
    def load(typing_context, at):
        def generate(context, builder, signature, args):
            ty = ir.VectorType(element, LANES)
            value = emit.load(builder, args[0], ty, element.width // 8 if widen else 4)
            return widen(builder, value) if widen else value

        return f32x16(types.int64), generate

    return load


def _widen_bf16(builder: Any, value: Any) -> Any:
    wide = builder.zext(value, ir.VectorType(I32, LANES))
    return builder.bitcast(builder.shl(wide, constant(wide.type, 16)), _LLVM_TYPE["f32x16"])


load_f32 = _loader(F32, None)  # 16 f32 at an address
load_bf16 = _loader(I16, _widen_bf16)  # 16 bf16 at an address, as f32


@compiled
def load_f16(typing_context, path, at):
    """16 f16 at an address, as f32."""

    def generate(context, builder, signature, args):
        if isinstance(signature.args[0], types.NoneType) and "f16c" in cpu_features():
            halves = emit.load(builder, args[1], ir.VectorType(F16, LANES), 2)
            return builder.fpext(halves, _LLVM_TYPE["f32x16"])
        halves = emit.load(builder, args[1], ir.VectorType(I16, LANES), 2)
        return emit.widened_f16(builder, halves)

    return f32x16(path, types.int64), generate


@compiled
def splat_at(typing_context, at):
    """The f32 at an address in all lanes."""

    def generate(context, builder, signature, args):
        return emit.splat(builder, emit.load(builder, args[0], F32, 4), LANES)

    return f32x16(types.int64), generate


def _scalar_at(element: Any, result: types.Type) -> Any:
    @compiled
    def load_one(typing_context, at):
        def generate(context, builder, signature, args):
            return emit.load(builder, args[0], element, 4)

        return result(types.int64), generate

    return load_one


i32_at = _scalar_at(I32, types.int32)  # the int32 at an address
f32_at = _scalar_at(F32, types.float32)  # the f32 at an address


def _storer(value_type: types.Type) -> Any:
    @compiled
    def store(typing_context, at, value):
        def generate(context, builder, signature, args):
            pointer = builder.inttoptr(args[0], args[1].type.as_pointer())
            builder.store(args[1], pointer, align=4)
            return context.get_dummy_value()

        return types.void(types.int64, value_type), generate

    return store


store_f32 = _storer(f32x16)  # 16 f32 to an address
store_one = _storer(types.float32)  # one f32 to an address


# ---- arithmetic, on f32x16 and on float32 alike --------------------------------------------------


@compiled
def splat(typing_context, value):
    """A float32 in all lanes."""

    def generate(context, builder, signature, args):
        return emit.splat(builder, args[0], LANES)

    return f32x16(types.float32), generate


def _elementwise(arity: int, make: Any) -> Any:
    """An intrinsic of `arity` equal arguments, f32x16 or float32, computed by `make`."""

    def generate(context, builder, signature, args):
        return make(builder, *args)

    def resolve(first):
        return f32x16 if isinstance(first, Vector) else types.float32

    if arity == 1:

        @compiled
        def one(typing_context, a):
            ty = resolve(a)
            return ty(ty), generate

        return one
    if arity == 2:

        @compiled
        def two(typing_context, a, b):
            ty = resolve(a)
            return ty(ty, ty), generate

        return two

    @compiled
    def three(typing_context, a, b, c):
        ty = resolve(a)
        return ty(ty, ty, ty), generate

    return three


def _emit_larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _emit_smaller(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered("<", a, b), a, b)


def _emit_exp(builder: Any, x: Any) -> Any:
    """e**x by x = n ln 2 + r, a polynomial of degree 7 in r, and two exact powers of two.

    Relative error below 1.2e-7; 0 below -104, infinity above 88.73, NaN stays NaN. The
    coefficients are Taylor's up to 1/7!: |r| <= 0.3466 leaves 6e-9 for the terms cut off.
    """
    ty = x.type
    ints = _like(ty, I32)

    def number(value: float) -> ir.Constant:
        return constant(ty, value)

    low = builder.select(builder.fcmp_ordered(">", x, number(-105.0)), x, number(-105.0))
    bounded = builder.select(builder.fcmp_ordered("<", low, number(90.0)), low, number(90.0))
    magic = number(12582912.0)  # 1.5 * 2**23: adding and taking it away rounds to an integer
    log2e = number(1.44269502162933349609375)
    n = builder.fsub(builder.fadd(builder.fmul(bounded, log2e), magic), magic)
    r = emit.fma(builder, n, number(-0.693145751953125), bounded)  # ln 2, upper bits: exact product
    r = emit.fma(builder, n, number(-1.42860677166026784107089e-06), r)  # ln 2, the rest
    p = number(1 / 5040)
    for coefficient in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0):
        p = emit.fma(builder, p, r, number(coefficient))
    whole = builder.fptosi(n, ints)
    half = builder.ashr(whole, constant(ints, 1))
    for power in (half, builder.sub(whole, half)):
        bits = builder.shl(builder.add(power, constant(ints, 127)), constant(ints, 23))
        p = builder.fmul(p, builder.bitcast(bits, ty))
    return builder.select(builder.fcmp_unordered("uno", x, x), x, p)


def _emit_sigmoid(builder: Any, x: Any) -> Any:
    one = constant(x.type, 1.0)
    return builder.fdiv(one, builder.fadd(one, _emit_exp(builder, builder.fneg(x))))


def _emit_silu(builder: Any, x: Any) -> Any:
    one = constant(x.type, 1.0)
    return builder.fdiv(x, builder.fadd(one, _emit_exp(builder, builder.fneg(x))))


add = _elementwise(2, lambda builder, a, b: builder.fadd(a, b))
mul = _elementwise(2, lambda builder, a, b: builder.fmul(a, b))
larger = _elementwise(2, _emit_larger)  # the larger one, b where they do not compare
smaller = _elementwise(2, _emit_smaller)  # the smaller one, b where they do not compare
fma = _elementwise(3, emit.fma)  # a * b + c, rounded once
exp = _elementwise(1, _emit_exp)
sigmoid = _elementwise(1, _emit_sigmoid)
silu = _elementwise(1, _emit_silu)  # x / (1 + e**-x)


@compiled
def chosen(typing_context, bits, a, b):
    """Lane i of `a` where bit i of an int64 is set, of `b` elsewhere."""

    def generate(context, builder, signature, args):
        mask = builder.bitcast(
            builder.trunc(args[0], ir.IntType(LANES)), ir.VectorType(ir.IntType(1), LANES)
        )
        return builder.select(mask, args[1], args[2])

    return f32x16(types.int64, f32x16, f32x16), generate


def _halves_joined(builder: Any, value: Any, lanes: int, join: Any) -> Any:
    """Lane i joined with lane i + half of the vector, again and again until `lanes` are left."""
    while value.type.count > lanes:
        half = value.type.count // 2
        low = shuffle(builder, value, value, list(range(half)))
        high = shuffle(builder, value, value, list(range(half, 2 * half)))
        value = join(low, high)
    return value


@compiled
def lane_sum(typing_context, value):
    """The sum of the lanes as the tree of halves: i + (i+8), then i + (i+4), i + (i+2), i + (i+1)."""

    def generate(context, builder, signature, args):
        total = _halves_joined(builder, args[0], 1, builder.fadd)
        return builder.extract_element(total, ir.Constant(I32, 0))

    return types.float32(f32x16), generate


@compiled
def store_lane_sums(typing_context, at, a, b, c, d):
    """`lane_sum` of each of four vectors, bit for bit, to four f32 at an address."""

    def generate(context, builder, signature, args):
        a, b, c, d = (_halves_joined(builder, value, 4, builder.fadd) for value in args[1:])
        low = [shuffle(builder, x, y, [0, 1, 4, 5]) for x, y in ((a, b), (c, d))]
        high = [shuffle(builder, x, y, [2, 3, 6, 7]) for x, y in ((a, b), (c, d))]
        ab, cd = (builder.fadd(x, y) for x, y in zip(low, high, strict=True))
        sums = builder.fadd(
            shuffle(builder, ab, cd, [0, 2, 4, 6]), shuffle(builder, ab, cd, [1, 3, 5, 7])
        )
        builder.store(sums, builder.inttoptr(args[0], sums.type.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, f32x16, f32x16, f32x16, f32x16), generate


@compiled
def lane_max(typing_context, value):
    """The largest lane; a NaN may be passed over."""

    def generate(context, builder, signature, args):
        largest = _halves_joined(builder, args[0], 1, lambda a, b: _emit_larger(builder, a, b))
        return builder.extract_element(largest, ir.Constant(I32, 0))

    return types.float32(f32x16), generate


@compiled
def lane_of(typing_context, value, lane):
    """One lane, as float32."""

    def generate(context, builder, signature, args):
        return builder.extract_element(args[0], args[1])

    return types.float32(f32x16, types.int64), generate


@compiled
def float_bits(typing_context, value):
    """The 32 bits of a float32, as int32."""

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], I32)

    return types.int32(types.float32), generate


@compiled
def bits_float(typing_context, value):
    """The float32 that has these 32 bits."""

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], F32)

    return types.float32(types.int32), generate


@compiled
def double_bits(typing_context, value):
    """The 64 bits of a float64, as int64."""

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], I64)

    return types.int64(types.float64), generate


@compiled
def bits_double(typing_context, value):
    """The float64 that has these 64 bits."""

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], F64)

    return types.float64(types.int64), generate
