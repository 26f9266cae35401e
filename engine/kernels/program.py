"""Programs: what a pool of threads does in one call, phase after phase.

The rule of this file: a phase is a compiled function ``void(arguments, begin, end)`` over items
that do not depend on each other, and a phase begins when all items of the one before it are done.
Arguments are int64 words at an address (numbers, addresses, f32 as their bits), so every phase has
one signature, is compiled once, and knows no shapes, formats or paths.

    builder = Builder()
    builder.add(MULTIPLY, [...], n_items=tiles, macs=16 * cols)
    workers.run(builder.program())
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from diskmoe.compiled.functions import address_of, callback

MACS_PER_CLAIM = 100_000  # a few microseconds of work: less is not worth handing to a thread
MACS_WORTH_WAKING = 400_000  # work for which a sleeping thread is woken
MAX_ITEMS = 1 << 24  # what the pool can count in one phase

_SIGNATURE = types.void(types.int64, types.int64, types.int64)

WORDS = 4  # of a phase in a program's table: function, arguments, items, least items of a claim


@dataclass(frozen=True)
class Rows:
    """Rows in memory: the address of the first one, and the bytes from one to the next."""

    address: int
    step: int

    def from_row(self, first: int) -> "Rows":
        """The rows from `first` on."""
        return Rows(self.address + first * self.step, self.step)


class Phase:
    """A phase's function; its machine code is made, or found on disk, when it is first asked for."""

    def __init__(self, function: Callable[[int, int, int], None]) -> None:
        self.name = function.__name__
        self._callback = callback(function)
        self._address = 0

    @property
    def address(self) -> int:
        if not self._address:
            self._address = address_of(self._callback, _SIGNATURE)
        return self._address


def least_items(macs: float) -> int:
    """The fewest items that are worth a claim, for items of this many multiply-adds."""
    return max(1, int(MACS_PER_CLAIM // max(1, macs)))


def is_worth_waking(macs: float) -> bool:
    """Whether a sleeping thread should be woken for this many multiply-adds."""
    return macs >= MACS_WORTH_WAKING


class Program:
    """A table of phases with their arguments. Addresses in it must outlive it: see `keep`."""

    def __init__(
        self, table: npt.NDArray[np.int64], arguments: npt.NDArray[np.int64], macs: float, keep: Any
    ) -> None:
        self.table = table  # (phases, WORDS)
        self.arguments = arguments
        self.address = table.ctypes.data
        self.count = len(table)
        self.worth_waking = is_worth_waking(macs)
        self._keep = keep


class Builder:
    """Collects the phases of a program; `keep` holds the arrays whose addresses it contains."""

    def __init__(self) -> None:
        self._phases: list[tuple[int, int, int, int]] = []
        self._arguments: list[int] = []
        self._macs = 0.0
        self._keep: list[Any] = []

    def add(self, phase: Phase, arguments: Sequence[int], n_items: int, macs: float) -> int:
        """A phase over `n_items` items of about `macs` multiply-adds each; returns its number."""
        if n_items >= MAX_ITEMS:
            raise ValueError(
                f"{n_items} items of {phase.name}, fewer than {MAX_ITEMS} are possible"
            )
        self._phases.append((phase.address, len(self._arguments), n_items, least_items(macs)))
        self._arguments += arguments
        self._macs += n_items * macs
        return len(self._phases) - 1

    def keep(self, *things: Any) -> None:
        self._keep += things

    def program(self) -> Program:
        arguments = np.array(self._arguments, np.int64)
        table = np.array(self._phases, np.int64).reshape(-1, WORDS)
        table[:, 1] = table[:, 1] * 8 + arguments.ctypes.data
        return Program(table, arguments, self._macs, self._keep)


def f32_word(number: float) -> int:
    """The bits of an f32 as an argument word; a phase reads it with ``f32_at``."""
    return int(np.float32(number).view(np.int32))


def address_of_array(array: npt.NDArray[Any]) -> int:
    """Where an array begins; nothing keeps it alive."""
    return array.__array_interface__["data"][0]


def rows_of(array: npt.NDArray[Any]) -> Rows:
    """The rows of a C-contiguous array (n, ...)."""
    return Rows(address_of_array(array), array.strides[0])
