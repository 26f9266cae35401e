"""The feed-forward half of a layer: dense, or a router with experts that come from the hot store.

The one rule: each unique expert of a chunk is fetched once, whatever the number of rows that want
it (the batch union), and what arrives when never shows in the result: every selection is computed
into a place of its own, and a row adds its selections in the order of its own choices.
"""

from collections.abc import Callable, Container, Sequence
from contextlib import closing

import numpy as np
import numpy.typing as npt

from diskmoe.engine.kernels.experts import (
    ExpertBatch,
    add_combine,
    add_gate_up,
    batch_bytes,
)
from diskmoe.engine.kernels.ffn_shape import FfnShape, Swiglu
from diskmoe.engine.kernels.gates import add_switch
from diskmoe.engine.kernels.matmul import Product, add_products
from diskmoe.engine.kernels.products import KIND
from diskmoe.engine.kernels.program import Program, Rows, address_of_array
from diskmoe.engine.kernels.workers import Workers
from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.lookahead import LookAhead
from diskmoe.engine.model.phases import RowBuilder, padded, preparation_bytes
from diskmoe.engine.model.roles import FfnWeights, LayerWeights
from diskmoe.engine.model.router import add_choice
from diskmoe.engine.model.scratch import Floats, Scratch
from diskmoe.engine.model.union import Union
from diskmoe.experts.slots import most_recent_first
from diskmoe.experts.store import ExpertStore, StoreCounters
from diskmoe.experts.tiles import RecordLayout
from diskmoe.experts.trace import DECODE, PROMPT

Ints = npt.NDArray[np.int32]
Choose = Callable[[int, Ints, Floats], None]
Record = Callable[[int, Ints, int], None]


class _Routed:
    """What the layers with experts share for chunks of ``n`` rows."""

    def __init__(
        self, config: ModelConfig, layout: RecordLayout, n: int, x: Rows, scratch: Scratch
    ) -> None:
        total = n * config.top_k
        self.ids = np.zeros((n, config.top_k), np.int32)
        self.shares = np.zeros((n, config.top_k), np.float32)
        self.union = Union(total, config.experts)
        self._selected = scratch.take("moe.selected", total, padded(config.hidden))
        self.selected = Rows(address_of_array(self._selected), self._selected.strides[0])

        def room(name: str, nbytes: int) -> Floats:
            return scratch.take(f"moe.{name}", -(-nbytes // 4))

        swiglu = _swiglu(config)
        self.batch = ExpertBatch(layout, x, self.selected, False, total, room=room, swiglu=swiglu)


class FeedForward:
    """The feed-forward block of every layer of a model; it holds no weights."""

    def __init__(
        self,
        config: ModelConfig,
        store: ExpertStore,
        workers: Workers,
        scratch: Scratch,
        ahead: LookAhead | None = None,
        prefetch: bool = False,
    ) -> None:
        self._config = config
        self._store = store
        self._workers = workers
        self._scratch = scratch
        self._arena = address_of_array(store.arena.bytes)
        self._routed: dict[int, _Routed] = {}  # by number of rows
        self.selections = 0  # (row, expert) pairs so far; never a count of reads
        # for benchmarks: may change the ids and shares of a layer's rows after the router
        self.choose: Choose | None = None
        # told what each layer's rows chose: (layer, ids (n, top_k), PROMPT or DECODE)
        self.record: Record | None = None
        self._ahead = ahead
        self._prefetch = prefetch
        # of the latest decode forward: experts that were missing, by the first row that wants them
        self.row_misses: list[int] = []
        self._certain: Sequence[int] = (0,)  # those of its rows that are of no draft
        self._drafted: list[tuple[int, int, int]] = []  # row, layer, expert: missing, for drafts

    @property
    def counters(self) -> StoreCounters:
        """What the store of these layers did so far."""
        return self._store.counters

    def forget(self, n: int | None = None) -> None:
        """What was made for n rows, or all of it, is not used any more."""
        if n is None:
            self._routed.clear()
        else:
            self._routed.pop(n, None)

    def begin_rows(self, n: int, certain: Sequence[int] = (0,)) -> None:
        """A decode forward of n rows begins. All but the `certain` are of drafts, so are in doubt."""
        self.row_misses, self._certain, self._drafted = [0] * n, certain, []

    def accepted(self, rows: Container[int]) -> None:
        """Of the latest decode forward only these rows were of use: what was read for the others
        alone is the first that the hot store gives up."""
        drafted, self._drafted = self._drafted, []
        for row, layer, expert in drafted:
            if row not in rows:
                self._store.cool(layer, [expert])

    def add(self, builder: RowBuilder, x: Rows, weights: LayerWeights, y: Rows) -> None:
        """Phases for x (n, hidden), normed: all of a dense layer, y += its result; else routing."""
        if weights.dense is not None:
            self._add_dense(builder, x, weights.dense, y)
            return
        assert weights.router is not None
        config, layout = self._config, self._store.record_layout
        kind = KIND[layout.gate.format]
        prepared = builder.prepared("moe.x", x, config.hidden, [kind])[kind]
        routed = self._routed.get(builder.n)
        if routed is None:
            routed = _Routed(config, layout, builder.n, prepared, self._scratch)
            self._routed[builder.n] = routed
        ids, shares = address_of_array(routed.ids), address_of_array(routed.shares)
        add_choice(builder, x, weights.router, config, ids, shares)

    def finish(self, builder: RowBuilder, x: Rows, weights: LayerWeights, y: Rows) -> Program:
        """The program of a layer with experts after its experts: y += all of their results."""
        config, n = self._config, builder.n
        routed = self._routed[n]
        shares = address_of_array(routed.shares)
        add_combine(builder, n, config.top_k, config.hidden, routed.selected, 0, shares, y)
        if weights.shared is not None:
            self._add_dense(builder, x, weights.shared, y)
        builder.keep(routed)
        return builder.program()

    def run_experts(self, layer: int, n: int, prompt: bool) -> None:
        """Compute the experts that the router chose for ``n`` rows, hits first.

        `prompt`: the rows are of a prompt, which takes little from what decoding has in the store.
        """
        routed, top_k = self._routed[n], self._config.top_k
        if self.choose is not None:
            self.choose(layer, routed.ids, routed.shares)
        record = self.record  # another thread may take it away between two looks
        if record is not None:
            record(layer, routed.ids, PROMPT if prompt else DECODE)
        if self._ahead is not None and not prompt:
            self._look_ahead(self._ahead, layer, routed.ids)
        union = routed.union
        union.fill(routed.ids)
        self.selections += n * top_k
        batch, store, total = routed.batch, self._store, n * top_k
        ranked = most_recent_first(routed.ids) if prompt else None
        slots = None if prompt else store.resident_slots(layer, union.experts)
        if slots is not None:
            batch.rows[:], batch.selections[:] = union.rows, union.order
            batch.run(slots, union.begins, self._arena, total, self._workers)
            return
        doubted = () if prompt else self._note_missing(layer, union, routed.ids)
        # closing: an error or Ctrl-C in a kernel ends the fetch before anybody asks for more
        with closing(store.fetch(layer, union.experts, ranked, doubted)) as batches:
            for positions, slots in batches:
                row_begin, total = union.gather(positions, batch.rows, batch.selections)
                batch.run(slots, row_begin, self._arena, total, self._workers)

    def _note_missing(self, layer: int, union: Union, ids: Ints) -> frozenset[int]:
        """Counts what is missing by row; the experts that only rows in doubt want."""
        if not self.row_misses:  # nobody said that these are rows of a decode forward
            return frozenset()
        if len(self.row_misses) == 1:  # plain decoding pays for nothing else
            self.row_misses[0] += len(self._store.missing(layer, union.experts.tolist()))
            return frozenset()
        first = dict(zip(union.experts.tolist(), union.first_rows.tolist(), strict=True))
        doubted = frozenset(first).difference(ids[list(self._certain)].ravel().tolist())
        for expert in self._store.missing(layer, first):
            row = first[expert]
            self.row_misses[row] += 1
            if expert in doubted:
                self._drafted.append((row, layer, expert))
        return doubted

    def _look_ahead(self, ahead: LookAhead, layer: int, ids: Ints) -> None:
        ahead.judge(layer, ids)
        guess = ahead.guess(layer + 1, len(ids))
        if guess is not None and self._prefetch:
            likely = guess[:, : self._config.top_k].T.ravel()  # every row's best guess first
            self._store.look_ahead(layer + 1, list(dict.fromkeys(likely.tolist())))

    def _add_dense(self, builder: RowBuilder, x: Rows, weights: FfnWeights, y: Rows) -> None:
        matrices = (weights.gate, weights.up, weights.down)
        n, shape = builder.n, FfnShape.of_matrices(*matrices, _swiglu(self._config))
        gate_kind, up_kind, down_kind = shape.kinds
        hidden, width = weights.gate.cols, weights.gate.rows
        inputs = builder.prepared("ffn.x", x, hidden, [gate_kind, up_kind])
        inner = builder.rows("ffn.inner", width)
        entries, first = np.array([[0, 0, n]], np.int64), np.zeros(1, np.int64)
        add_gate_up(
            builder,
            shape,
            (inputs[gate_kind], inputs[up_kind]),
            address_of_array(entries),
            0,
            inner,
            address_of_array(first),
            1,
            n,
        )
        if weights.switch is not None:
            switch = address_of_array(weights.switch)
            add_switch(builder, n, x, switch, hidden, inner, width)
        inputs = builder.prepared("ffn.inner", inner, width, [down_kind])
        add_products(builder, [Product(weights.down, inputs[down_kind], y, adds=True)], n)
        builder.keep(entries, first, weights)


def _swiglu(config: ModelConfig) -> Swiglu:
    return Swiglu(config.swiglu_limit, config.swiglu_alpha)


def feed_forward_scratch_bytes(
    config: ModelConfig, n: int, layout: RecordLayout, formats: frozenset[str]
) -> int:
    """Bytes of working arrays for chunks of up to ``n`` rows, the kernels' own included."""
    width = max(config.dense_width, config.shared_width)
    floats = n * (padded(width) + padded(config.experts))
    floats += n * config.top_k * (padded(config.hidden) + 2)
    kinds = [KIND[name] for name in formats]
    prepared = preparation_bytes(n, config.hidden, kinds) + preparation_bytes(n, width, kinds)
    prepared += preparation_bytes(n, config.hidden, [KIND[layout.gate.format]])
    return 4 * floats + prepared + batch_bytes(layout, n * config.top_k)
