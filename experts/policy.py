"""Which slot of a layer is given up for an expert that must be read.

The rule of this file: a policy knows slot numbers and the order of their use, nothing of experts,
bytes or files. `Lru` is the reference; others must beat it in replay and in wall time.
"""

from collections import OrderedDict
from collections.abc import Container, Iterable


class Lru:
    """Least recently used: the slot touched longest ago goes first."""

    def __init__(self, slots: Iterable[int]) -> None:
        self._order: OrderedDict[int, None] = OrderedDict.fromkeys(slots)

    def touch(self, slot: int) -> None:
        """The slot was used just now."""
        self._order.move_to_end(slot)

    def touch_all(self, slots: Iterable[int]) -> None:
        """`touch` each in turn."""
        for slot in slots:
            self._order.move_to_end(slot)

    def give_back(self, slot: int) -> None:
        """The slot holds nothing: it is the next victim."""
        self._order.move_to_end(slot, last=False)

    def victim(self, blocked: Container[int]) -> int | None:
        """The least recently used slot that is not blocked; None when all are.

        Blocked slots are those of the union at work, which were touched last and so stand at the
        far end: the walk ends at its first step, save when the union is as large as the layer.
        """
        for slot in self._order:
            if slot not in blocked:
                return slot
        return None
