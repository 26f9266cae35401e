"""Attention of a chunk of rows, reading and extending the key-value cache.

It has three parts, so that rows of several texts can share the first and the last: ``project`` goes
in by matrices, ``mix`` is what a text's rows have with its cache, ``close`` goes back by a matrix.

The rule of this file: which kind of attention a layer has is said by its weights; grouped-query
attention is here, latent attention in `latent.py`.
"""

import numpy as np

from diskmoe.engine.kernels.attention import AttendShape, add_attend
from diskmoe.engine.kernels.basic import add_norm, rope_tables
from diskmoe.engine.kernels.gates import add_open, add_split
from diskmoe.engine.kernels.heads import HeadShape, add_heads
from diskmoe.engine.kernels.latent import Turning
from diskmoe.engine.kernels.matmul import Product, add_products
from diskmoe.engine.kernels.products import KIND
from diskmoe.engine.kernels.program import Rows, address_of_array
from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.kvcache import KvCache
from diskmoe.engine.model.latent import (
    add_latent_close,
    add_latent_mix,
    add_latent_projections,
    latent_scratch_bytes,
)
from diskmoe.engine.model.phases import RowBuilder, padded, preparation_bytes
from diskmoe.engine.model.roles import AttentionWeights, LatentWeights
from diskmoe.engine.model.rope import Yarn, rope_frequencies


class Attention:
    """The attention block of every layer of a model; it holds the rope tables, no weights."""

    def __init__(self, config: ModelConfig, positions: int, threads: int) -> None:
        self._config = config
        self._threads = threads
        frequencies = rope_frequencies(config.rope_theta, config.rope_dims, config.rope_scaling)
        scaling = config.rope_scaling
        magnitude = scaling.magnitude if isinstance(scaling, Yarn) else 1.0
        # (positions, rope_dims / 2)
        self._cos, self._sin = rope_tables(frequencies, positions, magnitude)
        self.start = np.zeros(1, np.int64)  # position of the first row: set before a program runs

    @property
    def nbytes(self) -> int:
        """Of the rope tables."""
        return self._cos.nbytes + self._sin.nbytes

    def project(
        self,
        builder: RowBuilder,
        x: Rows,  # (n, hidden), normed
        weights: AttentionWeights | LatentWeights,
        indexed: bool,
    ) -> None:
        """Phases: queries, keys and values of rows of any texts, whose caches are `indexed`."""
        config, n = self._config, builder.n
        if isinstance(weights, LatentWeights):
            add_latent_projections(builder, config, x, weights, indexed)
            return
        q, k, v = self._projected(builder)
        parts = ((weights.q, q), (weights.k, k), (weights.v, v))
        kinds = [projection.matrix.kind for projection, _ in parts]
        inputs = builder.prepared("attention.x", x, config.hidden, kinds)
        products = [
            Product(projection.matrix, inputs[projection.matrix.kind], out, projection.bias_address)
            for projection, out in parts
        ]
        add_products(builder, products, n)
        builder.keep(weights)

    def mix(
        self,
        builder: RowBuilder,
        weights: AttentionWeights | LatentWeights,
        kv: KvCache,
        kv_layer: int,
    ) -> None:
        """Phases: of rows of one text at positions start.. over all earlier ones and themselves.

        The rows' keys and values are written above ``kv.length``, which stays as it is.
        """
        config, n = self._config, builder.n
        start = address_of_array(self.start)
        interleaved = config.rope_layout == "interleaved"
        if isinstance(weights, LatentWeights):
            turning = Turning(self._cos, self._sin, interleaved, start)
            add_latent_mix(builder, config, weights, turning, kv, kv_layer, self._threads)
            return
        q, k, v = self._projected(builder)
        wide = q
        if config.q_gate:
            q = builder.rows("attention.queries", config.q_width)
            add_split(builder, n, config.heads, config.head_dim, wide, q)
        head_norms = None
        if weights.q_norm is not None and weights.k_norm is not None:
            if config.qk_norm == "per_head":
                head_norms = weights.q_norm, weights.k_norm
            else:
                add_norm(builder, n, q, weights.q_norm, config.norm_epsilon, q)
                add_norm(builder, n, k, weights.k_norm, config.norm_epsilon, k)
        keys, values = kv.parts(kv_layer)
        add_heads(
            builder,
            n,
            HeadShape(config.heads, config.kv_heads, config.head_dim),
            q,
            k,
            v,
            head_norms,
            config.norm_epsilon,
            config.clip_qkv,
            (self._cos, self._sin),
            interleaved,
            start,
            kv.kind,
            keys,
            values,
        )
        mixed = builder.rows("attention.mixed", config.q_width)
        add_attend(
            builder,
            n,
            AttendShape(
                config.heads, config.kv_heads, config.head_dim, config.head_dim, weights.window
            ),
            q,
            kv.kind,
            keys,
            values,
            start,
            config.attention_scale,
            mixed,
            self._threads,
            0 if weights.sinks is None else address_of_array(weights.sinks),
        )
        if config.q_gate:
            add_open(builder, n, config.heads, config.head_dim, wide, mixed)
        builder.keep(kv, weights)

    def close(
        self,
        builder: RowBuilder,
        weights: AttentionWeights | LatentWeights,
        y: Rows,  # (n, hidden)
    ) -> None:
        """Phases: y += what came of the rows, of any texts."""
        if isinstance(weights, LatentWeights):
            add_latent_close(builder, self._config, weights, y)
            return
        o, width = weights.o, self._config.q_width
        mixed = builder.rows("attention.mixed", width)
        inputs = builder.prepared("attention.mixed", mixed, width, [o.matrix.kind])
        product = Product(o.matrix, inputs[o.matrix.kind], y, o.bias_address, adds=True)
        add_products(builder, [product], builder.n)
        builder.keep(weights)

    def _projected(self, builder: RowBuilder) -> tuple[Rows, Rows, Rows]:
        """Where queries (with their gates, where they have some), keys and values are."""
        config = self._config
        q = builder.rows("attention.q", config.q_outputs)
        k = builder.rows("attention.k", config.kv_width)
        return q, k, builder.rows("attention.v", config.kv_width)


def attention_scratch_bytes(
    config: ModelConfig, n: int, positions: int, formats: frozenset[str]
) -> int:
    """Bytes of rope tables and working arrays for chunks of up to ``n`` rows."""
    tables = 4 * positions * config.rope_dims
    if config.latent is not None:
        return tables + latent_scratch_bytes(config, n, positions, formats)
    kinds = [KIND[name] for name in formats]
    rows = padded(config.q_outputs) + padded(config.q_width) + 2 * padded(config.kv_width)
    if config.q_gate:
        rows += padded(config.q_width)
    prepared = preparation_bytes(n, config.hidden, kinds)
    prepared += preparation_bytes(n, config.q_width, kinds)
    return tables + 4 * n * rows + prepared
