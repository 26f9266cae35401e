"""Which expert of a layer is given up for one that must be read.

The rule of this file: a policy ranks the experts that are resident in one layer. It knows expert
numbers and the order of their use, nothing of slots, bytes, files or pins; the same calls give the
same victims, so that a replay of a recorded routing (``diskmoe bench replay``) has the hits of the
run. A fetch calls `use`, then `victim`, `drop` and `admit` in turns. Time is counted in uses.

>>> policy = POLICIES["lru"](2)
>>> policy.admit(5), policy.admit(9), policy.use([5]), policy.victim(())
(None, None, None, 9)
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Protocol

Rank = tuple[float, ...]
_COLD: Rank = (-1.0,)  # below all others


class Policy(Protocol):
    """The order in which one layer's resident experts are given up."""

    def use(self, experts: Iterable[int]) -> None:
        """One fetch: these were asked for by rows that count, resident or not, ascending."""
        ...

    def admit(self, expert: int, hot: bool = True) -> None:
        """It is resident now; `hot` False: it goes first, until it is used."""
        ...

    def cool(self, expert: int) -> None:
        """It goes first, until it is used; nothing happens if it is not resident."""
        ...

    def drop(self, expert: int) -> None:
        """It is not resident any more; nothing happens if it was not."""
        ...

    def victim(self, blocked: Container[int]) -> int | None:
        """The resident to give up, none of `blocked`; None when all are."""
        ...

    def spares(self, victim: int, expert: int) -> bool:
        """Is the victim worth more than the newcomer, which is then not to be kept?"""
        ...


class Ranked:
    """What all policies share: the resident of lowest rank goes first, of equal ones the eldest.

    The ranks of experts change with each use only, so they are sorted once a use, if at all. Ctrl-C
    may fall between any two lines: while something changes there is no order, and it is sorted anew.
    """

    def __init__(self) -> None:
        self._now = 0  # uses so far
        self._resident: dict[int, None] = {}  # in the order of admission
        self._cold: set[int] = set()
        self._order: list[int] | None = None  # the next victim first; None: to be sorted

    def _note(self, experts: list[int]) -> None:
        """Remember a use."""
        raise NotImplementedError

    def _rank(self, expert: int) -> Rank:
        """Never below zero; of an expert that was never used, too."""
        raise NotImplementedError

    def _standing(self, expert: int) -> Rank:
        return _COLD if expert in self._cold else self._rank(expert)

    def use(self, experts: Iterable[int]) -> None:
        used = list(experts)
        self._now += 1
        self._cold.difference_update(used)
        self._order = None
        self._note(used)

    def admit(self, expert: int, hot: bool = True) -> None:
        order, self._order = self._order, None
        self._resident[expert] = None
        if not hot:
            self._cold.add(expert)
        if order is not None:
            insort(order, expert, key=self._standing)
        self._order = order

    def cool(self, expert: int) -> None:
        if expert in self._resident:
            self._order = None
            self._cold.add(expert)

    def drop(self, expert: int) -> None:
        if expert in self._resident:
            order, self._order = self._order, None
            del self._resident[expert]
            self._cold.discard(expert)
            if order is not None:
                order.remove(expert)
            self._order = order

    def victim(self, blocked: Container[int]) -> int | None:
        if self._order is None:
            key = self._standing if self._cold else self._rank
            self._order = sorted(self._resident, key=key)
        for expert in self._order:
            if expert not in blocked:
                return expert
        return None

    def spares(self, victim: int, expert: int) -> bool:
        return False


class Lru(Ranked):
    """Least recently used: the reference. Of one use, lower numbers go first."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[int, int] = {}

    def _note(self, experts: list[int]) -> None:
        self._last.update(dict.fromkeys(experts, self._now))

    def _rank(self, expert: int) -> Rank:
        return (self._last.get(expert, 0), expert)


class Slru(Lru):
    """Segmented: a resident that is used again is protected from those used once.

    When more than `protected` are, the least recently used of them is protected no longer.
    """

    def __init__(self, protected: int) -> None:
        super().__init__()
        self._most = protected
        self._protected: OrderedDict[int, None] = OrderedDict()  # the least recently used first

    def _note(self, experts: list[int]) -> None:
        super()._note(experts)
        for expert in experts:
            if expert in self._resident:
                self._protected[expert] = None
                self._protected.move_to_end(expert)
        while len(self._protected) > self._most:
            self._protected.popitem(last=False)

    def drop(self, expert: int) -> None:
        super().drop(expert)
        self._protected.pop(expert, None)

    def _rank(self, expert: int) -> Rank:
        return (expert in self._protected, *super()._rank(expert))


class LeastStale(Ranked):
    """What the present pass does not use goes first, in the order in which it came.

    The Least-Stale idea of SpecMD (arXiv 2602.03921), which is about one cache for all layers,
    within a layer: experts that were not in the latest use are stale, and leave first in, first
    out, whatever their use before; the others leave last.
    """

    def __init__(self) -> None:
        super().__init__()
        self._fresh: frozenset[int] = frozenset()

    def _note(self, experts: list[int]) -> None:
        self._fresh = frozenset(experts)

    def _rank(self, expert: int) -> Rank:
        return (expert in self._fresh,)


class Lfu(Ranked):
    """Least frequently used, where a use counts half as much after `half_life` more uses.

    Uses of experts that are not resident are remembered too.
    """

    def __init__(self, half_life: float = 32.0) -> None:
        super().__init__()
        self._growth = 2.0 ** (1.0 / half_life)
        self._weight = 1.0  # of a use now: it grows, in place of all counts before shrinking
        self._counts: dict[int, float] = {}

    def _note(self, experts: list[int]) -> None:
        self._weight *= self._growth
        if self._weight > 2.0**100:
            for expert in self._counts:
                self._counts[expert] /= self._weight
            self._weight = 1.0
        for expert in experts:
            self._counts[expert] = self._counts.get(expert, 0.0) + self._weight

    def _rank(self, expert: int) -> Rank:
        return (self._counts.get(expert, 0.0),)


class Lfru(Lfu):
    """Frequency over age: the decayed count of uses, divided by the uses since the latest one.

    The age counts from `grace`, as the first few uses without an expert tell little. A newcomer
    that would rank below 1 / `margin` of the victim is not kept, which wins where slots are scarce;
    the doubt is the newcomer's, who has been of use just now.
    """

    def __init__(self, half_life: float = 32.0, grace: float = 3.0, margin: float = 2.0) -> None:
        super().__init__(half_life)
        self._grace = grace
        self._margin = margin
        self._last: dict[int, int] = {}

    def _note(self, experts: list[int]) -> None:
        super()._note(experts)
        self._last.update(dict.fromkeys(experts, self._now))

    def _rank(self, expert: int) -> Rank:
        age = self._now - self._last.get(expert, 0) + self._grace
        return (self._counts.get(expert, 0.0) / age,)

    def spares(self, victim: int, expert: int) -> bool:
        return self._standing(victim)[0] > self._margin * self._rank(expert)[0]


class Duel(Lfru):
    """`Lfru`, giving way to `Lru` while recency alone proves the better guide.

    Where the two would give up different experts, these fight a duel: the one that is used first
    shows that whoever gave it up was wrong. The mean outcome of the latest duels, about `memory` of
    them, decides who rules; `Lru` does when it wins by more than `doubt`. The two books of duels may
    differ after Ctrl-C: a rival that only one of them knows is passed over.
    """

    def __init__(self, memory: float = 64.0, doubt: float = 0.15) -> None:
        super().__init__()
        self._share = 1.0 / memory
        self._doubt = doubt
        self.lead = 0.0  # from 1, the frequent were always right to stay, down to -1
        self._by_age: list[int] = []  # residents, the least recently used last; empty: to be sorted
        self._oldest: int | None = None  # what `Lru` would have given up, when last asked
        self._frequent = -1  # what `Lfru` would have, then
        self._rival: dict[int, int] = {}  # given up by `Lfru` -> by `Lru` in its place
        self._rivals: dict[int, set[int]] = {}  # and the other way

    def _note(self, experts: list[int]) -> None:
        for expert in experts:
            rival = self._rival.pop(expert, None)
            if rival is not None:
                self._rivals.get(rival, set()).discard(expert)
                self.lead += (-1.0 - self.lead) * self._share
            for beaten in self._rivals.pop(expert, ()):
                self._rival.pop(beaten, None)
                self.lead += (1.0 - self.lead) * self._share
        super()._note(experts)
        self._by_age = []

    @property
    def recency_rules(self) -> bool:
        return self.lead < -self._doubt

    def victim(self, blocked: Container[int]) -> int | None:
        chosen = super().victim(blocked)
        if chosen is None or chosen in self._cold:
            self._oldest = None
            return chosen
        self._oldest = self._least_recent(blocked)
        self._frequent = chosen
        return self._oldest if self.recency_rules else chosen

    def _least_recent(self, blocked: Container[int]) -> int:
        """What `Lru` gives up; there is a resident that is not blocked. The sorted list lasts until
        the next use: what is blocked now was used now, and so is at its far end."""
        while True:
            if not self._by_age:
                last = self._last
                by_age = sorted(self._resident, key=lambda e: (last.get(e, 0), e), reverse=True)
                self._by_age = by_age
            oldest = self._by_age[-1]
            if oldest in self._resident and oldest not in blocked:
                return oldest
            self._by_age.pop()

    def spares(self, victim: int, expert: int) -> bool:
        """As the protocol says; to be asked about the latest victim, for whose place a duel opens."""
        if self._oldest is None:
            return super().spares(victim, expert)
        spared = super().spares(self._frequent, expert)
        self._open_duel(expert if spared else self._frequent, self._oldest)
        return spared and not self.recency_rules

    def _open_duel(self, expert: int, rival: int) -> None:
        if expert == rival:
            return
        before = self._rival.get(expert)
        if before is not None:
            self._rivals.get(before, set()).discard(expert)
        self._rival[expert] = rival
        self._rivals.setdefault(rival, set()).add(expert)


# by name: makes the policy of a layer with so many slots
POLICIES: Mapping[str, Callable[[int], Policy]] = {
    "lru": lambda n_slots: Lru(),
    "lfu": lambda n_slots: Lfu(),
    "lfru": lambda n_slots: Lfru(),
    "slru": lambda n_slots: Slru(protected=max(1, n_slots // 2)),
    "stale": lambda n_slots: LeastStale(),
    "duel": lambda n_slots: Duel(),
}
AUTO = "duel"  # never below lru in replay, beyond noise, and mostly above: see bench/LOG.md
