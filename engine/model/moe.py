"""The feed-forward half of a layer: dense, or a router with experts that come from the hot store.

The one rule: each unique expert of a chunk is fetched once, whatever the number of rows that want
it (the batch union), and what arrives when never shows in the result: every selection is computed
into a place of its own, and a row adds its selections in the order of its own choices.
"""

from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskmoe.engine.kernels.basic import add, silu_mul
from diskmoe.engine.kernels.experts import combine, expert_ffn, expert_scratch_bytes
from diskmoe.engine.kernels.matmul import matmul, matmul_scratch_bytes
from diskmoe.engine.kernels.workers import Workers
from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.router import choose_experts
from diskmoe.engine.model.scratch import Floats, Scratch
from diskmoe.engine.model.weights import FfnWeights, LayerWeights
from diskmoe.experts.store import ExpertStore
from diskmoe.experts.tiles import RecordLayout

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Union:
    """The unique experts of a chunk and who selected them.

    A selection is numbered row * top_k + choice; ``order`` lists selections expert by expert.
    """

    experts: Ints  # (m,) ascending
    counts: Ints  # (m,) selections of each
    begins: Ints  # (m,) where each expert's selections begin in `order`
    order: Ints  # (rows * top_k,)

    def selections(self, positions: Ints) -> tuple[Ints, Ints]:
        """For experts at ``positions`` of the union: (row_begin (m + 1,), selections (total,))."""
        counts = self.counts[positions]
        row_begin = np.zeros(len(positions) + 1, np.int32)
        np.cumsum(counts, out=row_begin[1:])
        shift = np.repeat(self.begins[positions] - row_begin[:-1], counts)
        return row_begin, self.order[shift + np.arange(row_begin[-1], dtype=np.int32)]


def union_of(ids: Ints) -> Union:
    """ids (n, top_k) -> their union. Within an expert, selections keep the order of the rows."""
    flat = ids.reshape(-1)
    experts, counts = np.unique(flat, return_counts=True)
    counts = counts.astype(np.int32)
    begins = np.zeros(len(counts), np.int32)
    np.cumsum(counts[:-1], out=begins[1:])
    order = np.argsort(flat, kind="stable").astype(np.int32)
    return Union(experts.astype(np.int32, copy=False), counts, begins, order)


class FeedForward:
    """The feed-forward block of every layer of a model; it holds no weights."""

    def __init__(
        self, config: ModelConfig, store: ExpertStore, workers: Workers, scratch: Scratch
    ) -> None:
        self._config = config
        self._store = store
        self._workers = workers
        self._scratch = scratch
        self.selections = 0  # (row, expert) pairs so far; never a count of reads

    def run(self, x: Floats, weights: LayerWeights, y: Floats) -> None:
        """y (n, hidden) += feed-forward of x (n, hidden), which is normed."""
        if weights.dense is not None:
            add(y, self._dense(x, weights.dense))
            return
        self._routed(x, weights, y)
        if weights.shared is not None:
            add(y, self._dense(x, weights.shared))

    def _dense(self, x: Floats, weights: FfnWeights) -> Floats:
        n = len(x)
        gate = self._scratch.take("ffn.gate", n, weights.gate.rows)
        up = self._scratch.take("ffn.up", n, weights.up.rows)
        out = self._scratch.take("ffn.out", n, weights.down.rows)
        matmul(x, weights.gate, gate, self._workers)
        matmul(x, weights.up, up, self._workers)
        silu_mul(gate, up, gate)
        return matmul(gate, weights.down, out, self._workers)

    def _routed(self, x: Floats, weights: LayerWeights, y: Floats) -> None:
        assert weights.router is not None
        n, top_k = len(x), self._config.top_k
        ids, shares = choose_experts(x, weights.router, self._config, self._workers, self._scratch)
        union = union_of(ids)
        self.selections += n * top_k
        out = self._scratch.take("moe.selected", n * top_k, self._config.hidden)
        store = self._store
        # closing: an error or Ctrl-C in a kernel ends the fetch before anybody asks for more
        with closing(store.fetch(weights.layer, union.experts)) as batches:
            for positions, slots in batches:
                row_begin, selections = union.selections(positions)
                expert_ffn(
                    x,
                    selections // np.int32(top_k),
                    selections,
                    row_begin,
                    slots,
                    store.arena.bytes,
                    store.record_layout,
                    out,
                    self._workers,
                )
        index = np.arange(n * top_k, dtype=np.int32).reshape(n, top_k)
        combine(out, index, shares, y)


def feed_forward_scratch_bytes(config: ModelConfig, n: int, layout: RecordLayout) -> int:
    """Bytes of working arrays for chunks of up to ``n`` rows, the kernels' own included."""
    width = max(config.dense_width, config.shared_width)
    floats = n * (2 * width + config.hidden) + n * config.experts
    floats += n * config.top_k * config.hidden
    kernels = max(
        expert_scratch_bytes(n * config.top_k, layout),
        matmul_scratch_bytes(n, max(width, config.hidden)),
    )
    return 4 * floats + kernels
