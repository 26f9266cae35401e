"""The batch union: the unique experts that a chunk of rows selected, and who selected them.

A selection is numbered row * top_k + choice. The one rule: within an expert, selections keep that
order, so what is computed for a row never depends on how the union was cut into batches.
"""

import numpy as np
import numpy.typing as npt

from diskmoe.compiled.functions import kernel

Ints = npt.NDArray[np.int32]


class Union:
    """Who selected which expert. The arrays are filled by ``fill`` and kept for the next chunk."""

    def __init__(self, n_selections: int, n_experts: int) -> None:
        most = min(n_experts, n_selections)
        self._experts = np.empty(most, np.int32)
        self._begins = np.empty(most + 1, np.int32)
        self._place = np.empty(n_experts, np.int32)
        self.order = np.empty(n_selections, np.int32)  # the selections, expert by expert
        self.rows = np.empty(n_selections, np.int32)  # of `order`
        self._found = 0

    @property
    def experts(self) -> Ints:
        """(m,) ascending."""
        return self._experts[: self._found]

    @property
    def begins(self) -> Ints:
        """(m + 1,) where each expert's selections begin in `order`."""
        return self._begins[: self._found + 1]

    @property
    def first_rows(self) -> Ints:
        """(m,) the first row that selected each expert."""
        return self.rows[self._begins[: self._found]]

    def fill(self, ids: Ints) -> None:
        """ids i32 (rows, top_k), each a known expert and unique within its row."""
        self._found = _count(ids, self._place, self._experts, self._begins, self.order, self.rows)

    def selections(self, positions: Ints) -> tuple[Ints, Ints]:
        """For the experts at ``positions``: (row_begin (len + 1,), their selections in turn)."""
        found = np.empty(len(self.order), np.int32)
        row_begin, total = self.gather(positions, np.empty_like(found), found)
        return row_begin, found[:total]

    def gather(self, positions: Ints, rows: Ints, selections: Ints) -> tuple[Ints, int]:
        """Fill in the selections of the experts at ``positions``, in turn, and their rows.

        Returns (row_begin (len + 1,), how many there are).
        """
        row_begin = np.empty(len(positions) + 1, np.int32)
        total = _gather(positions, self._begins, self.order, self.rows, row_begin, rows, selections)
        return row_begin, total


def union_of(ids: Ints, n_experts: int) -> Union:
    """ids i32 (rows, top_k), each below ``n_experts`` and unique within its row -> their union."""
    union = Union(ids.size, n_experts)
    union.fill(ids)
    return union


@kernel
def _count(ids, place, experts, begins, order, rows):  # pragma: no cover - compiled
    """Counting sort of selections by expert; returns the number of unique experts."""
    n, top_k = ids.shape
    place[:] = 0  # first: how many; then: where the next one goes
    for row in range(n):
        for choice in range(top_k):
            place[ids[row, choice]] += 1
    m = 0
    begin = 0
    for e in range(len(place)):
        count = place[e]
        place[e] = begin
        if count:
            experts[m] = e
            begins[m] = begin
            m += 1
            begin += count
    begins[m] = begin
    for row in range(n):
        for choice in range(top_k):
            e = ids[row, choice]
            order[place[e]] = row * top_k + choice
            rows[place[e]] = row
            place[e] += 1
    return m


@kernel
def _gather(
    positions, begins, order, rows_in_order, row_begin, rows, selections
):  # pragma: no cover - compiled
    total = 0
    for j in range(len(positions)):
        row_begin[j] = total
        for t in range(begins[positions[j]], begins[positions[j] + 1]):
            rows[total] = rows_in_order[t]
            selections[total] = order[t]
            total += 1
    row_begin[len(positions)] = total
    return total
