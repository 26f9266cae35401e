"""What a forward of n rows costs at this moment: seconds, and misses that each row brings.

    T(n) = work(n) + wait_per_miss * (m_0 + ... + m_{n-1})

work(n) is the running mean of forwards of n rows without what they waited for the disk, or a line
through those of other n where n was not seen yet; m_j are the running means of the misses that row
j brought, as the first of its forward to want an expert. So a change of hit rate shows in T(n) for
all n at once, and rows that were never tried have a price too.
"""

from __future__ import annotations

from collections.abc import Sequence

MEMORY = 8  # forwards that a running mean of seconds remembers
ROW_MEMORY = 16  # and of a row's misses
ROW_SHARE = 0.5  # of a forward of one row, that a second row costs until that was seen
OUTLIER = 3.0  # times the mean: the machine was busy with something else


class _Mean:
    """A running mean: of all at first, then of about the latest `memory`."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self.count = 0
        self.value = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += (value - self.value) / min(self.count, self._memory)


class Costs:
    """The running cost of forwards, by their number of rows."""

    def __init__(self) -> None:
        self._work: dict[int, _Mean] = {}
        self._misses: list[_Mean] = []  # by row
        self._waited = _Mean(ROW_MEMORY)
        self._missed = _Mean(ROW_MEMORY)
        self._line = (0.0, 0.0)  # seconds of a forward without rows, of a row

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return bool(self._work)

    def count(self, rows: int) -> int:
        """How many forwards of so many rows were measured."""
        return self._work[rows].count if rows in self._work else 0

    def measured(self, seconds: float, waited: float, misses: Sequence[float]) -> None:
        """A forward took `seconds`, of which it `waited` for reads; misses: by row, so many rows."""
        rows, work = len(misses), max(seconds - waited, 0.0)
        mean = self._work.setdefault(rows, _Mean(MEMORY))
        if mean.count > 1:
            work = min(work, OUTLIER * mean.value)
        mean.add(work)
        self._fit()
        for row, missed in enumerate(misses):
            if row == len(self._misses):
                self._misses.append(_Mean(ROW_MEMORY))
            self._misses[row].add(missed)
        self._waited.add(waited)
        self._missed.add(sum(misses))

    def _fit(self) -> None:
        """The line through the means, each weighed by how often it was measured."""
        points = [(n, mean.value, min(mean.count, MEMORY)) for n, mean in self._work.items()]
        total = sum(weight for _, _, weight in points)
        mean_n = sum(n * weight for n, _, weight in points) / total
        mean_t = sum(t * weight for _, t, weight in points) / total
        spread = sum(weight * (n - mean_n) ** 2 for n, _, weight in points)
        # one forward's worth of doubt in how the share of a row is first guessed
        guess = ROW_SHARE * mean_t / (1 + ROW_SHARE * (mean_n - 1))
        product = sum(weight * (n - mean_n) * (t - mean_t) for n, t, weight in points)
        row = max((product + guess) / (spread + 1.0), 0.0)
        self._line = (mean_t - row * mean_n, row)

    def misses(self, row: int) -> float:
        """The misses that a row of a forward brings, the first being row 0."""
        if not self._misses:
            return 0.0
        return self._misses[min(row, len(self._misses) - 1)].value

    @property
    def wait_per_miss(self) -> float:
        """Seconds that computing waits for a read, per miss."""
        return self._waited.value / self._missed.value if self._missed.value else 0.0

    def seconds(self, rows: int) -> float:
        """T(rows), above 0."""
        misses = sum(self.misses(row) for row in range(rows))
        return max(self._work_of(rows) + self.wait_per_miss * misses, 1e-9)

    def _work_of(self, rows: int) -> float:
        base, row = self._line
        work = base + row * rows
        mean = self._work.get(rows)
        if mean is None:
            return work
        return (mean.value * mean.count + work) / (mean.count + 1)  # the line is one of many

    def all_seconds(self, most: int) -> list[float]:
        """T(1), ..., T(most), none below the one before: noise must not make a row a gift. While
        nothing was measured they are in forwards of one row, not in seconds."""
        if not self._work:
            return [1 + row * ROW_SHARE for row in range(most)]
        found: list[float] = []
        waited, each = 0.0, self.wait_per_miss
        for rows in range(1, most + 1):
            waited += each * self.misses(rows - 1)
            found.append(max([self._work_of(rows) + waited, 1e-9, *found[-1:]]))
        return found
