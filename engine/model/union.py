"""The batch union: the unique experts that a chunk of rows selected, and who selected them.

A selection is numbered row * top_k + choice. The one rule: within an expert, selections keep that
order, so what is computed for a row never depends on how the union was cut into batches.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskmoe.experts.compiled import kernel

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Union:
    """Made by ``union_of``. ``order`` lists the selections expert by expert."""

    experts: Ints  # (m,) ascending
    begins: Ints  # (m + 1,) where each expert's selections begin in `order`
    order: Ints  # (rows * top_k,)

    def selections(self, positions: Ints) -> tuple[Ints, Ints]:
        """For the experts at ``positions``: (row_begin (len + 1,), their selections in turn)."""
        row_begin = np.empty(len(positions) + 1, np.int32)
        found = np.empty(len(self.order), np.int32)
        total = _gather(positions, self.begins, self.order, row_begin, found)
        return row_begin, found[:total]


def union_of(ids: Ints, n_experts: int) -> Union:
    """ids i32 (rows, top_k), each below ``n_experts`` and unique within its row -> their union."""
    flat = ids.reshape(-1)
    experts = np.empty(min(n_experts, len(flat)), np.int32)
    begins = np.empty(len(experts) + 1, np.int32)
    order = np.empty(len(flat), np.int32)
    m = _count(flat, n_experts, experts, begins, order)
    return Union(experts[:m], begins[: m + 1], order)


@kernel
def _count(flat, n_experts, experts, begins, order):  # pragma: no cover - compiled
    """Counting sort of selections by expert; returns the number of unique experts."""
    place = np.zeros(n_experts, np.int32)  # first: how many; then: where the next one goes
    for e in flat:
        place[e] += 1
    m = 0
    begin = 0
    for e in range(n_experts):
        count = place[e]
        place[e] = begin
        if count:
            experts[m] = e
            begins[m] = begin
            m += 1
            begin += count
    begins[m] = begin
    for selection in range(len(flat)):
        e = flat[selection]
        order[place[e]] = selection
        place[e] += 1
    return m


@kernel
def _gather(positions, begins, order, row_begin, found):  # pragma: no cover - compiled
    total = 0
    for j in range(len(positions)):
        row_begin[j] = total
        for t in range(begins[positions[j]], begins[positions[j] + 1]):
            found[total] = order[t]
            total += 1
    row_begin[len(positions)] = total
    return total
