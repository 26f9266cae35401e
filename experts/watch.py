"""Keeps a run inside its budget when memory turns out otherwise than planned.

The rule of this file: the decision is made from numbers alone (`excess`); reading them, shrinking
the store and saying so are handed in. Others may have taken the memory, so what the system or a
cgroup still has counts as much as the budget.

    watch = MemoryWatch(plan.budget_bytes, store.shrink, say)
    for token in tokens:
        watch.look()
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from diskmoe.experts.budget import Available, available_memory, shown_bytes
from diskmoe.experts.footprint import resident_bytes, trim

SECONDS = 1.0  # between two looks; one costs as much as a few file reads
NEAR = 1 / 16  # of the budget: so close to it, freed memory that the allocator keeps is given back
HELP_BYTES = 1 << 20  # that must come of it
MOST_SECONDS = 32.0  # until it is tried again


@dataclass(frozen=True)
class Memory:
    """What the process holds, and what is still to be had."""

    resident_bytes: int
    available: Available


def read_memory() -> Memory:
    """The memory of this process and of the system now."""
    return Memory(resident_bytes(), available_memory())


def excess(memory: Memory, budget_bytes: int) -> tuple[int, str]:
    """(bytes to give up now, why); (0, "") when all is well.

    Over the budget: down to it. Close to the end of what the system or a cgroup has: until twice
    the critical amount is free again, so that the next look does not ask at once.
    """
    over = memory.resident_bytes - budget_bytes
    available = memory.available
    left = available.nbytes  # free swap does not count: an expert read back from there is no gain
    short = 2 * available.critical_bytes - left if left < available.critical_bytes else 0
    if max(over, short) <= 0:
        return 0, ""
    if over >= short:
        held = shown_bytes(memory.resident_bytes)
        return over, f"{held} are held, the budget is {shown_bytes(budget_bytes)}"
    return short, f"only {shown_bytes(left)} are {available.where}"


class MemoryWatch:
    """Looks once a second; says one line whenever it has shrunk the store."""

    def __init__(
        self,
        budget_bytes: int,
        shrink: Callable[[int], int],  # bytes wanted -> bytes freed
        say: Callable[[str], None],
        memory: Callable[[], Memory] = read_memory,
        clock: Callable[[], float] = time.monotonic,
        trim: Callable[[], None] = trim,
    ) -> None:
        self._trim = trim
        self._budget_bytes = budget_bytes
        self._shrink = shrink
        self._say = say
        self._memory = memory
        self._clock = clock
        self._looked = clock()
        self._pause = SECONDS
        self._trim_at = 0.0
        self._helpless = False  # said that nothing more can be given up

    def look(self) -> None:
        """Called between forwards, as often as there are any; shrinks the store when it must."""
        now = self._clock()
        if now - self._looked < SECONDS:
            return
        self._looked = now
        memory = self._memory()
        if excess(memory, int(self._budget_bytes * (1 - NEAR)))[0] and now >= self._trim_at:
            self._trim()
            before, memory = memory.resident_bytes, self._memory()
            # where there is little to be had it is not asked for each second
            helped = before - memory.resident_bytes > HELP_BYTES
            self._pause = SECONDS if helped else min(2 * self._pause, MOST_SECONDS)
            self._trim_at = now + self._pause
        wanted, why = excess(memory, self._budget_bytes)
        if not wanted:
            self._helpless = False
            return
        freed = self._shrink(wanted)
        if freed:
            self._say(f"memory    {why}: the hot store gives up {shown_bytes(freed)}")
        elif not self._helpless:
            self._helpless = True
            self._say(f"memory    {why}, and the hot store has nothing more to give up")
