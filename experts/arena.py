"""The memory of the hot store: one anonymous mapping, cut into slots of equal size.

The rule of this file: slots are page-aligned, and the mapping asks for huge pages where the system
has them: a read with O_DIRECT pins every page it fills, and is two to three times as fast when that
is one huge page instead of 512 small ones. Memory is charged when a slot is first written, not here.
"""

import mmap
import sys

import numpy as np

from diskmoe.experts.errors import OutOfBudget
from diskmoe.experts.tiles import PAGE, Bytes

HUGE_PAGE = 2 << 20


class Arena:
    """`n_slots` slots of `slot_bytes` (a multiple of 4096). `bytes` is all of them, u8 1-D."""

    def __init__(self, n_slots: int, slot_bytes: int) -> None:
        if n_slots < 0 or slot_bytes < PAGE or slot_bytes % PAGE:
            raise ValueError(f"{n_slots} slots of {slot_bytes} bytes: want multiples of {PAGE}")
        self.n_slots = n_slots
        self.slot_bytes = slot_bytes
        self.nbytes = n_slots * slot_bytes
        try:
            # untouched pages cost nothing, so room to align on a huge page is free
            self._mapping = _private_mapping(self.nbytes + HUGE_PAGE)
        except (OSError, ValueError, OverflowError) as error:
            raise OutOfBudget(
                f"the system refuses {self.nbytes} bytes for {n_slots} expert slots "
                f"({error}); set a smaller CAP or RAM_GB"
            ) from None
        if hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                self._mapping.madvise(mmap.MADV_HUGEPAGE)
            except OSError:
                pass  # a kernel without huge pages: slower reads, nothing else
        room = np.frombuffer(self._mapping, np.uint8)
        self._begin = -room.ctypes.data % HUGE_PAGE
        self.bytes: Bytes = room[self._begin : self._begin + self.nbytes]

    def slot(self, index: int) -> Bytes:
        """The bytes of one slot, u8 (slot_bytes,)."""
        if not 0 <= index < self.n_slots:
            raise IndexError(f"slot {index} of {self.n_slots}")
        return self.bytes[index * self.slot_bytes : (index + 1) * self.slot_bytes]

    can_release = hasattr(mmap, "MADV_DONTNEED")  # else memory comes back with `close` only

    def release(self, index: int) -> None:
        """Give the memory of one slot back until somebody writes to it; what it held is lost."""
        begin = self._begin + index * self.slot_bytes
        self._mapping.madvise(mmap.MADV_DONTNEED, begin, self.slot_bytes)

    def close(self) -> None:
        """Give the memory back, at once where the system can; views must not be used any more."""
        if hasattr(mmap, "MADV_DONTNEED") and not self._mapping.closed:
            self._mapping.madvise(mmap.MADV_DONTNEED)
        self.bytes = np.zeros(0, np.uint8)
        try:
            self._mapping.close()
        except BufferError:
            pass  # somebody still holds a view; the mapping goes when the last one does


def _private_mapping(nbytes: int) -> mmap.mmap:
    """Anonymous memory of this process alone: what is shared, Python's default, gets no huge pages."""
    if sys.platform == "win32":
        return mmap.mmap(-1, nbytes)
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
