"""When the store is to shrink, from numbers alone; and what this process really holds."""

import sys

import llvmlite.binding as llvm
import pytest

from diskmoe.experts.budget import Available
from diskmoe.experts.footprint import give_back, resident_bytes
from diskmoe.experts.watch import SECONDS, Memory, MemoryWatch, excess, read_memory

MIB, GIB = 1 << 20, 1 << 30
CRITICAL = 256 * MIB  # of a system of 24 GiB


def memory(resident: int, left: int = 10 * GIB) -> Memory:
    return Memory(resident, Available(left, "available in the system", 24 * GIB))


class Run:
    """A store that holds `store` bytes, watched; `now` is what the watch reads."""

    def __init__(self, store: int) -> None:
        self.store = store
        self.now = memory(GIB)
        self.said: list[str] = []
        self.seconds = 0.0
        self.kept = 0  # by the allocator, for nothing
        self.trims = 0
        self.watch = MemoryWatch(
            2 * GIB,
            self.shrink,
            self.said.append,
            lambda: self.now,
            lambda: self.seconds,
            self.trim,
        )

    def trim(self) -> None:
        self.trims += 1
        self.now = memory(self.now.resident_bytes - self.kept, self.now.available.nbytes)
        self.kept = 0

    def shrink(self, wanted: int) -> int:
        freed = min(self.store, -(-wanted // MIB) * MIB)
        self.store -= freed
        return freed

    def looks(self, after: float = SECONDS) -> None:
        """Two forwards at the same moment, so long after the ones before."""
        self.seconds += after
        self.watch.look()
        self.watch.look()


def test_inside_the_budget_nothing_is_given_up() -> None:
    assert excess(memory(2 * GIB), 2 * GIB) == (0, "")
    assert excess(memory(GIB, CRITICAL), 2 * GIB) == (0, "")


def test_what_is_held_over_the_budget_is_given_up() -> None:
    nbytes, why = excess(memory(2 * GIB + 5 * MIB), 2 * GIB)
    assert nbytes == 5 * MIB
    assert why == "2.0 GiB are held, the budget is 2.0 GiB"


def test_when_others_take_the_memory_twice_the_critical_amount_is_made_free() -> None:
    nbytes, why = excess(memory(GIB, 100 * MIB), 2 * GIB)
    assert nbytes == 2 * CRITICAL - 100 * MIB
    assert why == "only 100 MiB are available in the system"


def test_the_larger_of_two_reasons_counts() -> None:
    assert excess(memory(3 * GIB, 100 * MIB), 2 * GIB)[0] == GIB
    assert excess(memory(2 * GIB + 5, 100 * MIB), 2 * GIB)[0] == 2 * CRITICAL - 100 * MIB


@pytest.mark.parametrize(("limit", "critical"), [(GIB, 32), (10 * GIB, 204.8), (999 * GIB, 256)])
def test_what_is_critical_depends_on_how_much_there_is(limit: int, critical: float) -> None:
    assert Available(0, "", limit).critical_bytes == int(critical * MIB)


def test_memory_is_read_once_a_second() -> None:
    run = Run(100 * MIB)
    run.now = memory(2 * GIB + MIB)
    run.looks(after=SECONDS / 2)
    assert run.store == 100 * MIB and not run.said
    run.looks(after=SECONDS / 2)
    assert run.store == 99 * MIB
    assert run.said == [
        "memory    2.0 GiB are held, the budget is 2.0 GiB: the hot store gives up 1.0 MiB"
    ]


def test_what_the_allocator_keeps_is_given_back_before_the_store_shrinks() -> None:
    run = Run(100 * MIB)
    run.now, run.kept = memory(2 * GIB + MIB), 50 * MIB
    run.looks()
    assert run.store == 100 * MIB and not run.said and run.trims == 1


def test_memory_that_is_in_use_is_not_asked_for_each_second() -> None:
    run = Run(100 * MIB)
    run.now = memory(2 * GIB)
    for _ in range(100):
        run.looks()
    assert 2 < run.trims < 10
    run.now = memory(GIB)
    run.trims = 0
    run.looks(after=1000)
    assert run.trims == 0


def test_a_store_at_its_least_is_said_once_until_all_is_well_again() -> None:
    run = Run(0)
    run.now = memory(3 * GIB)
    for _ in range(3):
        run.looks()
    assert len(run.said) == 1 and "nothing more to give up" in run.said[0]
    run.now = memory(GIB)
    run.looks()
    run.now = memory(3 * GIB)
    run.looks()
    assert len(run.said) == 2


def test_this_process_can_be_read() -> None:
    found = read_memory()
    assert MIB < found.resident_bytes < found.available.limit + found.resident_bytes
    assert found.available.nbytes > 0


@pytest.mark.skipif(sys.platform != "linux", reason="the compiler's code stays elsewhere")
def test_the_compilers_code_is_given_back_and_can_be_used_again() -> None:
    def compiled() -> str:
        return str(llvm.parse_assembly("define i32 @one() {\n ret i32 1\n}"))

    first = compiled()
    held = resident_bytes()
    give_back()
    assert resident_bytes() < held - MIB
    assert compiled() == first
