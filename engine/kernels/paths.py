"""Which instructions a kernel is made of: five paths with the same bits.

The rule of this file: a path is chosen when code is made, from the features of the processor that
Numba compiles for, and never at run time. A path whose instructions the processor lacks can be
compiled all the same: they are then spelled out in plain vector code (`Path.native` is False), so
that the order of a path's work can be tested on any machine.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

from numba import types
from numba.core.imputils import lower_constant
from numba.core.registry import cpu_target
from numba.extending import NativeValue, models, register_model, typeof_impl, unbox

# What a processor must have for a path, the best path first.
_NEEDS = {
    "avx512vnni": {"avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx2", "fma", "f16c"},
    "avx512bw": {"avx512f", "avx512bw", "avx512vl", "avx2", "fma", "f16c"},
    "avx2": {"avx2", "fma", "f16c"},
    "dotprod": {"neon", "dotprod"},  # ARM, Apple's processors among them
    "portable": set[str](),
}


class Fixed:
    """An immutable object that Numba code may be given: it is known when the code is made."""


@dataclass(frozen=True)
class Path(Fixed):
    """A way to multiply. `native`: its special instructions may be used."""

    name: str
    native: bool


HOST = None  # the best path of this processor
PORTABLE = Path("portable", True)


def cpu_features() -> set[str]:
    """The features that Numba compiles for, in LLVM's names."""
    context: Any = cpu_target.target_context
    _, cpu, listed = context.codegen().magic_tuple()
    features = {name[1:] for name in listed.split(",") if name.startswith("+")}
    if cpu.startswith("apple-m"):  # systems that list no features: all of these have them
        features |= {"neon", "dotprod"}
    return features


@cache
def available_paths() -> tuple[str, ...]:
    """Names of the paths that run natively here, the best first."""
    features = cpu_features()
    return tuple(name for name, needs in _NEEDS.items() if needs <= features)


def path_named(name: str) -> Path:
    """The path of this name, native if it can be; ValueError for an unknown name."""
    if name not in _NEEDS:
        raise ValueError(f"unknown path {name!r}; there are {', '.join(_NEEDS)}")
    return Path(name, name in available_paths())


def host_path() -> tuple[str, str]:
    """(name of the best path, the reason it was chosen)."""
    best = available_paths()[0]
    if best == "dotprod":
        return best, "the processor is an ARM with dot products"
    names = [name for name in _NEEDS if name != "dotprod"]
    if best == names[0]:
        return best, "the processor has everything"
    better = names[names.index(best) - 1]
    missing = ", ".join(sorted(_NEEDS[better] - cpu_features()))
    return best, f"the processor has no {missing}"


def resolved(path: Path | None) -> Path:
    """`path`, or the best one for HOST."""
    return path_named(available_paths()[0]) if path is None else path


# ---- how Numba takes fixed objects ---------------------------------------------------------------


class FixedType(types.Opaque):
    """The Numba type of one fixed object."""

    def __init__(self, value: Fixed) -> None:
        self.value = value
        super().__init__(name=repr(value))


register_model(FixedType)(models.OpaqueModel)


@typeof_impl.register(Fixed)
def _typeof_fixed(value: Fixed, context: Any) -> FixedType:
    return FixedType(value)


@lower_constant(FixedType)
def _lower_fixed(context: Any, builder: Any, ty: FixedType, value: Fixed) -> Any:
    return context.get_dummy_value()


@unbox(FixedType)
def _unbox_fixed(ty: FixedType, value: Any, c: Any) -> NativeValue:
    return NativeValue(c.context.get_dummy_value())
