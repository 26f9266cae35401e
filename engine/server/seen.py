"""Which experts the rows of each layer chose, noted only while somebody looks.

The rule of this file: ``record`` runs in the middle of a forward, so it makes a few small lists and
nothing else; whoever looks does the rest, in a thread of their own and without a lock. What they find
is of each layer's latest rows: while a forward is under way, the layers it has passed are newer.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from diskmoe.engine.model.moe import Ints
from diskmoe.experts.store import ExpertStore

Bits = npt.NDArray[np.bool_]
_MOST = 2**32 - 1
_FEW = 64  # experts, of all rows


class Seen:
    """Of the layers of one hot store. ``model.look(seen.record)``."""

    def __init__(self, store: ExpertStore, layers: Sequence[int]) -> None:
        self.layers = layers
        self._store = store
        self._places = {layer: place for place, layer in enumerate(layers)}
        self._uses = array("q", bytes(8 * len(layers) * store.n_experts))
        # the same memory; for a few experts an element of an array is faster
        self._table = np.frombuffer(self._uses, np.int64).reshape(len(layers), store.n_experts)
        # by layer: how often rows came, what the latest chose, and which of that had to be read
        self._latest: list[tuple[int, list[int], list[int]]] = [(0, [], []) for _ in layers]

    def record(self, layer: int, ids: Ints, phase: int) -> None:
        """See ``Model.look``: ids i32 (rows, top_k)."""
        place, n_experts, uses = self._places[layer], self._store.n_experts, self._uses
        if ids.size > _FEW:
            counts = np.bincount(ids.ravel(), minlength=n_experts)
            self._table[place] += counts
            chosen: list[int] = np.flatnonzero(counts).tolist()
        else:
            chosen = ids.ravel().tolist()
            for expert in chosen:
                uses[place * n_experts + expert] += 1
        missing = self._store.missing(layer, chosen)
        self._latest[place] = (self._latest[place][0] + 1, chosen, missing)

    def resident(self) -> Bits:
        """Which experts are in memory: (layers, experts)."""
        return self._bits([self._store.resident(layer) for layer in self.layers])

    def latest(self) -> tuple[list[int], Bits, Bits]:
        """How often rows came to each layer; which experts the latest chose and had in memory, and
        which had to be read (what a guess had read ahead in time is among them): (layers, experts)."""
        latest = list(self._latest)
        misses = self._bits([missing for _, _, missing in latest])
        chosen = self._bits([chosen for _, chosen, _ in latest])
        return [turns for turns, _, _ in latest], chosen & ~misses, misses

    def uses(self) -> npt.NDArray[np.uint32]:
        """How many rows chose each expert while somebody looked: (layers, experts)."""
        counts = np.array(self._uses, np.uint64)
        return (
            np.minimum(counts, _MOST).astype("<u4").reshape(len(self.layers), self._store.n_experts)
        )

    def _bits(self, experts: Sequence[Sequence[int] | Ints]) -> Bits:
        bits = np.zeros((len(self.layers), self._store.n_experts), bool)
        for place, each in enumerate(experts):
            bits[place, each] = True
        return bits
