"""The feed-forward half of a layer: dense, or a router with experts that come from the hot store.

The one rule: each unique expert of a chunk is fetched once, whatever the number of rows that want
it (the batch union), and what arrives when never shows in the result: every selection is computed
into a place of its own, and a row adds its selections in the order of its own choices.
"""

from contextlib import closing

import numpy as np

from diskmoe.engine.kernels.basic import add, silu_mul
from diskmoe.engine.kernels.experts import combine, expert_ffn, expert_scratch_bytes
from diskmoe.engine.kernels.matmul import matmul, matmul_scratch_bytes
from diskmoe.engine.kernels.workers import Workers
from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.router import choose_experts
from diskmoe.engine.model.scratch import Floats, Scratch
from diskmoe.engine.model.union import union_of
from diskmoe.engine.model.weights import FfnWeights, LayerWeights
from diskmoe.experts.store import ExpertStore
from diskmoe.experts.tiles import RecordLayout


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
        union = union_of(ids, self._config.experts)
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
