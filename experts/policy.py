"""Which expert of a layer is given up for one that must be read.

The rule of this file: a policy knows the numbers of experts and the order of their use, nothing of
slots, bytes or files. `Lru` is the reference; others must beat it in replay and in wall time.
"""

from collections import OrderedDict
from collections.abc import Container, Iterable
from typing import Protocol


class Policy(Protocol):
    """Ranks the experts that are resident in one layer; the same uses, the same answers."""

    def use(self, experts: Iterable[int]) -> None:
        """These were asked for together, by rows that count; resident or not."""
        ...

    def admit(self, expert: int, hot: bool = True) -> None:
        """The expert becomes resident; one that is not hot is the next to go."""
        ...

    def drop(self, expert: int) -> None:
        """The expert is not resident any more."""
        ...

    def victim(self, blocked: Container[int]) -> int | None:
        """The resident to give up, none of `blocked`; None when all are."""
        ...

    def spares(self, victim: int, expert: int) -> bool:
        """Whether the victim is worth more than the newcomer, which then is not kept."""
        ...


class Lru:
    """Least recently used: the expert used longest ago goes first."""

    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()

    def use(self, experts: Iterable[int]) -> None:
        for expert in experts:
            if expert in self._order:
                self._order.move_to_end(expert)

    def admit(self, expert: int, hot: bool = True) -> None:
        self._order[expert] = None
        self._order.move_to_end(expert, last=hot)

    def drop(self, expert: int) -> None:
        self._order.pop(expert, None)

    def victim(self, blocked: Container[int]) -> int | None:
        """Blocked experts are those of the union at work, which were used last and so stand at the
        far end: the walk ends at its first steps, save when the union is as large as the layer."""
        for expert in self._order:
            if expert not in blocked:
                return expert
        return None

    def spares(self, victim: int, expert: int) -> bool:
        return False
