"""What threads share: atomic words in memory, a pause, and calls of functions by their address.

The rule of this file: an operation is one instruction of LLVM's memory model, so that the pool is
right on every processor and not only where stores keep their order. Addresses are int64 numbers.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from diskmoe.engine.kernels.simd import compiled

I8, I32, I64 = (ir.IntType(bits) for bits in (8, 32, 64))
_WORD = I64.as_pointer()


@compiled
def load_word(typing_context, at):
    """The int64 at an address; what its writer stored before it is seen too (acquire)."""

    def generate(context, builder, signature, args):
        return builder.load_atomic(builder.inttoptr(args[0], _WORD), "acquire", 8)

    return types.int64(types.int64), generate


@compiled
def store_word(typing_context, at, value):
    """An int64 to an address; whoever loads it sees what was stored before it (release)."""

    def generate(context, builder, signature, args):
        builder.store_atomic(args[1], builder.inttoptr(args[0], _WORD), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@compiled
def swap_word_if(typing_context, at, expected, value):
    """Store `value` if `expected` stands at the address; whether it did (compare and swap)."""

    def generate(context, builder, signature, args):
        at = builder.inttoptr(args[0], _WORD)
        return builder.extract_value(builder.cmpxchg(at, args[1], args[2], "seq_cst", "acquire"), 1)

    return types.boolean(types.int64, types.int64, types.int64), generate


@compiled
def add_word(typing_context, at, value):
    """Add to the int64 at an address and return what it was before."""

    def generate(context, builder, signature, args):
        return builder.atomic_rmw("add", builder.inttoptr(args[0], _WORD), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@compiled
def pause(typing_context):
    """Tell the processor that this thread is only waiting."""

    def generate(context, builder, signature, args):
        machine = builder.module.triple.split("-")[0]
        if machine in ("x86_64", "i686", "i386"):
            name, operands = "llvm.x86.sse2.pause", []
        elif machine in ("aarch64", "arm64"):
            name, operands = "llvm.aarch64.hint", [ir.Constant(I32, 1)]  # yield
        else:
            return context.get_dummy_value()
        ty = ir.FunctionType(ir.VoidType(), [operand.type for operand in operands])
        function = builder.module.globals.get(name) or ir.Function(builder.module, ty, name)
        builder.call(function, operands)
        return context.get_dummy_value()

    return types.void(), generate


def _call(builder: Any, result: Any, args: Any) -> Any:
    ty = ir.FunctionType(result, [arg.type for arg in args[1:]])
    return builder.call(builder.inttoptr(args[0], ty.as_pointer()), args[1:])


@compiled
def call_phase(typing_context, function, arguments, begin, end):
    """Call the C function ``void(int64, int64, int64)`` at an address."""

    def generate(context, builder, signature, args):
        _call(builder, ir.VoidType(), args)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), generate


@compiled
def call_yield(typing_context, function):
    """Call the C function ``int(void)`` at an address."""

    def generate(context, builder, signature, args):
        _call(builder, I32, args)
        return context.get_dummy_value()

    return types.void(types.int64), generate


@compiled
def word_at(typing_context, at):
    """The int64 at an address; not shared with other threads while it changes."""

    def generate(context, builder, signature, args):
        return builder.load(builder.inttoptr(args[0], _WORD))

    return types.int64(types.int64), generate


@compiled
def put_word(typing_context, at, value):
    """An int64 to an address."""

    def generate(context, builder, signature, args):
        builder.store(args[1], builder.inttoptr(args[0], _WORD))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@compiled
def store_i32(typing_context, at, value):
    """The low 32 bits of an int64 to an address."""

    def generate(context, builder, signature, args):
        builder.store(builder.trunc(args[1], I32), builder.inttoptr(args[0], I32.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def on_stack(nbytes: int) -> Any:
    """An intrinsic without arguments: the address of `nbytes` of the caller's stack, 64-aligned."""

    @compiled
    def room(typing_context):
        def generate(context, builder, signature, args):
            place = cgutils.alloca_once(builder, ir.ArrayType(I8, nbytes))
            place.align = 64
            return builder.ptrtoint(place, I64)

        return types.int64(), generate

    return room
