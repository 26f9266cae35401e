"""How many drafts are worth their rows: as many as make the most tokens per second.

With a_j the chance of draft j where those before it were right, k drafts are expected to yield
E(k) = 1 + a_1 + a_1 a_2 + ... tokens in T(k + 1) seconds, and k is the argmax of E(k) / T(k + 1),
0 among them (the utility of Cascade, arXiv 2506.20675, with the disk in its price). Chances and
prices are running means, so now and then one draft more than that is tried, and a forward goes
without any, for the sake of knowing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from diskmoe.mtp.costs import Costs

PLAIN_EVERY = 64  # forwards in a row with drafts, until one goes without ...
SO_MUCH_BETTER = 2.0  # ... unless drafts are so many times as fast, or so they seem
DEEPER_EVERY = 16  # choices; twice as many each time that drafts do not pay at all, up to
MOST_WAIT = 256
_FIRST_PLAIN = 4  # forwards with drafts until one without is known
_SHOWN = 8  # places and rows in the report


class Planner:
    """The planner of one text. `fixed`: other drafts than a grammar's are always so many. `costs`:
    what is known from other texts; it is added to."""

    def __init__(self, fixed: int | None = None, costs: Costs | None = None) -> None:
        self.fixed = fixed
        self.costs = costs or Costs()
        self.probing = False  # one draft more than pays is wanted now
        self.declined = 0  # forwards whose drafts did not pay
        self._depths: Counter[int] = Counter()
        self._places: list[list[int]] = []  # by place in the forward: judged, accepted
        self._seconds = [1.0]  # T(1), ...
        self._since_plain = 0
        self._until_deeper = self._wait = DEEPER_EVERY

    def begin(self, most: int) -> None:
        """A forward with up to `most` drafts is to be planned."""
        if self.fixed is not None:
            self._seconds = [1.0] * (most + 1)
            return
        self._seconds = self.costs.all_seconds(most + 1)
        self._until_deeper -= 1
        self.probing = self._until_deeper <= 0

    def rate(self, chances: Sequence[float], spent: float = 0.0) -> float:
        """Expected tokens per second with drafts of these chances, after `spent` seconds of finding
        them."""
        expected = reach = 1.0
        for chance in chances:
            reach *= chance
            expected += reach
        return expected / (self._seconds[min(len(chances), len(self._seconds) - 1)] + spent)

    def best(self, chances: Sequence[float], spent: float = 0.0) -> tuple[int, float]:
        """(k, its rate) of the best k first drafts of these chances."""
        expected = reach = 1.0
        best, most = 0, 1.0 / (self._seconds[0] + spent)
        for k, chance in enumerate(chances[: len(self._seconds) - 1], 1):
            reach *= chance
            expected += reach
            rate = expected / (self._seconds[k] + spent)
            if rate > most:
                best, most = k, rate
        return best, most

    def choose(self, chances: Sequence[float], spent: float, idle: bool) -> int:
        """How many of these drafts to submit. idle: there was a source that was not even asked.

        Drafts of chance 1 at the front are submitted always: each is a row of this forward or of the
        next, so there is nothing to weigh.
        """
        k, rate = len(chances), 0.0
        if self.fixed is None:
            k, rate = self.best(chances, spent)
            certain = next((i for i, chance in enumerate(chances) if chance < 1), len(chances))
            k = max(k, certain)
            if self._is_plain_due and not certain and rate < SO_MUCH_BETTER / self._seconds[0]:
                self.picked(0)
                return 0
            if self.probing:
                self._wait = DEEPER_EVERY if k else min(2 * self._wait, MOST_WAIT)
                self._until_deeper = self._wait
                k = min(k + 1, len(chances))
            self.declined += not k and bool(chances or idle)
        self.picked(k)
        return k

    @property
    def _is_plain_due(self) -> bool:
        return self._since_plain >= (PLAIN_EVERY if self.costs.count(1) > 1 else _FIRST_PLAIN)

    def picked(self, k: int) -> None:
        """A forward has k drafts."""
        self._depths[k] += 1
        self._since_plain = self._since_plain + 1 if k else 0

    def judged(self, place: int, right: bool) -> None:
        """The draft at this place of a forward, from 0, was judged."""
        while len(self._places) <= place:
            self._places.append([0, 0])
        self._places[place][0] += 1
        self._places[place][1] += right

    def summary(self) -> dict[str, Any]:
        """What the report says of the planner; seconds and misses as they were last."""
        rows = range(1, min(max(self._depths, default=0), _SHOWN - 1) + 2)
        known = self.costs.known
        return {
            "fixed": self.fixed,
            "depths": {str(k): self._depths[k] for k in sorted(self._depths)},
            "accepted_by_position": [list(pair) for pair in self._places],
            "seconds_by_rows": [self.costs.seconds(n) for n in rows] if known else [],
            "misses_by_row": [self.costs.misses(n - 1) for n in rows] if known else [],
            "declined": self.declined,
        }
