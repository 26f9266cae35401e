"""The memory of the hot store."""

import sys

import numpy as np
import pytest

from diskmoe.experts.arena import Arena
from diskmoe.experts.errors import OutOfBudget


def test_slots_are_page_aligned_views_that_do_not_overlap() -> None:
    arena = Arena(5, 8192)
    for index in range(5):
        slot = arena.slot(index)
        assert slot.ctypes.data % 4096 == 0
        slot[:] = index + 1
    np.testing.assert_array_equal(arena.bytes.reshape(5, 8192)[:, 0], [1, 2, 3, 4, 5])
    assert arena.nbytes == len(arena.bytes) == 5 * 8192
    arena.close()


def test_memory_is_not_taken_before_it_is_used() -> None:
    Arena(1 << 14, 1 << 20).close()  # 16 GiB of address space


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells which pages are huge")
def test_memory_is_made_of_huge_pages_where_the_system_has_them() -> None:
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled", encoding="ascii") as file:
            if "[never]" in file.read():
                pytest.skip("huge pages are turned off")
    except OSError:
        pytest.skip("no huge pages in this kernel")
    arena = Arena(8, 1 << 20)
    arena.bytes[:] = 1
    address, inside = arena.bytes.ctypes.data, False
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as file:
        for line in file:
            first = line.split()[0]
            if "-" in first and not first.endswith(":"):
                begin, end = (int(part, 16) for part in first.split("-"))
                inside = begin <= address < end
            elif inside and first == "VmFlags:":
                assert "hg" in line.split()  # asked for; whether one is free is the system's affair
                assert "sh" not in line.split()  # shared memory would have none
                return
    raise AssertionError("the arena is not among the mappings")


def test_more_than_the_system_can_map_is_said() -> None:
    with pytest.raises(OutOfBudget, match="CAP or RAM_GB"):
        Arena(1 << 40, 1 << 20)


def test_slots_that_are_no_pages_or_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="100"):
        Arena(2, 100)
    with pytest.raises(IndexError, match="slot 2 of 2"):
        Arena(2, 4096).slot(2)


def test_closing_with_a_view_still_held_is_quiet() -> None:
    arena = Arena(2, 4096)
    view = arena.slot(1)
    arena.close()
    arena.close()
    del view
