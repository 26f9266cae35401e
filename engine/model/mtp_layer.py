"""The layer of a model's draft head, by the kernels and the working memory of the model's own.

What is done with it stands in ``diskmoe.mtp.head``; this file lends it the parts. The one rule: a
row's bits depend on its token, its state and the rows before it only, as everywhere in the model.

    weights = mtp_weights(load_dense(source, config, head=True), config)
    layer = MtpLayer(transformer, weights, store, kv, workers)
    z = layer.project([7, 9], states)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from diskmoe.engine.kernels.basic import add_norm, rms_norm
from diskmoe.engine.kernels.experts import batch_bytes
from diskmoe.engine.kernels.matmul import Product, add_products
from diskmoe.engine.kernels.matrix import Matrix
from diskmoe.engine.kernels.products import KIND
from diskmoe.engine.kernels.program import Program, Rows, rows_of
from diskmoe.engine.kernels.workers import Workers
from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.families import FAMILIES
from diskmoe.engine.model.forward import Transformer
from diskmoe.engine.model.kvcache import KvCache
from diskmoe.engine.model.phases import RowBuilder, preparation_bytes
from diskmoe.engine.model.scratch import Floats, Scratch
from diskmoe.engine.model.tensors import mtp_name
from diskmoe.engine.model.weights import DenseWeights, LayerWeights
from diskmoe.experts.store import ExpertStore
from diskmoe.experts.tiles import RecordLayout

_KEPT_PROGRAMS = 64  # by numbers of rows


@dataclass(frozen=True, eq=False)
class MtpWeights:
    """The head's own tensors, and its layer: views of `dense`."""

    dense: DenseWeights
    embedding_norm: Floats
    hidden_norm: Floats
    projection: Matrix  # (hidden, 2 x hidden)
    layer: LayerWeights
    final_norm: Floats


def mtp_weights(dense: DenseWeights, config: ModelConfig) -> MtpWeights:
    """The weights of the first head by role."""
    names, layer = FAMILIES[config.family].names, config.layers

    def norm(template: str) -> Floats:
        return dense.vector(mtp_name(config, template, layer))

    return MtpWeights(
        dense=dense,
        embedding_norm=norm(names.mtp_embedding_norm),
        hidden_norm=norm(names.mtp_hidden_norm),
        projection=dense.matrix(mtp_name(config, names.mtp_projection, layer)),
        layer=dense.layer(config, layer),
        final_norm=norm(names.mtp_final_norm),
    )


class _Entry(NamedTuple):
    """How a number of rows comes into the layer: what is filled in, the program, what it makes."""

    embedded: Floats  # (n, hidden)
    states: Floats
    program: Program
    z: Floats


class MtpLayer:
    """See ``diskmoe.mtp.head.MtpLayer``. Transformer and workers are lent; the store is its own."""

    def __init__(
        self,
        transformer: Transformer,
        weights: MtpWeights,
        store: ExpertStore,
        kv: KvCache,  # of one layer
        workers: Workers,
    ) -> None:
        self.kv = kv
        self._transformer = transformer
        self._config = transformer.config
        self._weights = weights
        self._store = store
        self._workers = workers
        self._scratch = Scratch()
        self._entries: dict[int, _Entry] = {}
        self._most = 0  # rows that the scratch has room for
        transformer.lend(weights.layer, store)

    @property
    def formats(self) -> frozenset[str]:
        """Of its matrices, and of its experts; the router is f32 always."""
        return frozenset(
            [*self._weights.dense.formats.values(), self._store.record_layout.gate.format]
        )

    def project(self, tokens: Sequence[int], states: Floats) -> Floats:
        entry = self._entry(len(tokens))
        entry.embedded[:] = self._transformer.embed(tokens)
        entry.states[:] = states
        self._workers.run(entry.program)
        return entry.z

    def run(self, z: Floats, prompt: bool) -> None:
        self._transformer.run_layer(self._weights.layer, z, self.kv, 0, prompt)

    def normed(self, row: Floats) -> Floats:
        epsilon = self._config.norm_epsilon
        return rms_norm(row, self._weights.final_norm, epsilon, np.empty_like(row))

    def logits(self, state: Floats) -> Floats:
        return self._transformer.head(state[None])[0]

    def for_another_text(self, kv: KvCache) -> MtpLayer:
        """The same layer, by the same weights, store and working memory, with a cache of its own."""
        other = copy(self)
        other.kv = kv
        return other

    def close(self) -> None:
        """Ends the store's threads and gives its memory back."""
        self._store.close()

    def _entry(self, n: int) -> _Entry:
        if n > self._most or len(self._entries) >= _KEPT_PROGRAMS:
            self._entries.clear()  # their working rows move, or there are many
            self._most = max(n, self._most)
        if n not in self._entries:
            self._entries[n] = self._make(n)
        return self._entries[n]

    def _make(self, n: int) -> _Entry:
        hidden, epsilon = self._config.hidden, self._config.norm_epsilon
        weights, builder = self._weights, RowBuilder(n, self._scratch)
        embedded = self._scratch.take("embedded", n, hidden)
        states = self._scratch.take("states", n, hidden)
        z = self._scratch.take("z", n, hidden)
        both = builder.rows("both", 2 * hidden)
        behind = Rows(both.address + 4 * hidden, both.step)
        add_norm(builder, n, rows_of(embedded), weights.embedding_norm, epsilon, both)
        add_norm(builder, n, rows_of(states), weights.hidden_norm, epsilon, behind)
        kind = weights.projection.kind
        inputs = builder.prepared("both", both, 2 * hidden, [kind])
        product = Product(weights.projection, inputs[kind], rows_of(z), exact=True)
        add_products(builder, [product], n)
        return _Entry(embedded, states, builder.program(), z)


def mtp_scratch_bytes(
    config: ModelConfig, rows: int, layout: RecordLayout, formats: Iterable[str]
) -> int:
    """Bytes that the layer takes beside weights, cache and store, and beside what the model itself
    takes for as many rows."""
    kinds = [KIND[name] for name in formats]
    prepared = preparation_bytes(rows, 2 * config.hidden, kinds)
    prepared += preparation_bytes(rows, config.hidden, [KIND[layout.gate.format]])
    return 4 * rows * 5 * config.hidden + prepared + batch_bytes(layout, rows * config.top_k)
