"""The best that any policy could have done, known afterwards."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from diskmoe.experts.policy import Rank, Ranked


class Belady(Ranked):
    """Gives up the expert whose next use is farthest away.

    unions: what each coming `use` is of. keeps_all: every newcomer takes a slot, as with most
    policies; else one whose next use is farther away than the victim's is not kept.
    """

    def __init__(self, unions: Sequence[Iterable[int]], keeps_all: bool) -> None:
        super().__init__()
        self._end = len(unions)
        self._keeps_all = keeps_all
        self._times: dict[int, list[int]] = {}
        for time, union in enumerate(unions):
            for expert in union:
                self._times.setdefault(expert, []).append(time)

    def _note(self, experts: list[int]) -> None:
        """The future is known."""

    def _rank(self, expert: int) -> Rank:
        times = self._times.get(expert, [])
        place = bisect_left(times, self._now)
        return (self._end - times[place] if place < len(times) else 0,)

    def spares(self, victim: int, expert: int) -> bool:
        return not self._keeps_all and self._standing(victim) > self._rank(expert)
