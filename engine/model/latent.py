"""Latent attention (MLA) of a chunk of rows over a cache of latents; see `kernels.latent`."""

from dataclasses import replace

import numpy as np

from diskmoe.engine.kernels.attention import AttendShape, add_attend
from diskmoe.engine.kernels.basic import add_norm
from diskmoe.engine.kernels.latent import (
    PIECE,
    LatentHeads,
    Turning,
    add_fold,
    add_keep_latents,
    add_unfold,
)
from diskmoe.engine.kernels.matmul import Product, add_preparation, add_products
from diskmoe.engine.kernels.products import KIND, is_integer
from diskmoe.engine.kernels.program import Rows, address_of_array, rows_of
from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.kvcache import KvCache
from diskmoe.engine.model.latent_config import LatentShape
from diskmoe.engine.model.phases import RowBuilder, padded, preparation_bytes, prepared_rows
from diskmoe.engine.model.weights import LatentWeights

NORM_EPSILON = 1e-6  # of the norms of latents, whatever the model's other norms have


def add_latent_attention(
    builder: RowBuilder,
    config: ModelConfig,
    x: Rows,  # (n, hidden), normed
    weights: LatentWeights,
    turning: Turning,
    kv: KvCache,
    kv_layer: int,
    y: Rows,  # (n, hidden)
    threads: int,
) -> None:
    """Phases: y += attention of rows at positions start.. over all earlier ones and themselves."""
    shape, n = _shape(config), builder.n
    heads = LatentHeads(config.heads, shape.plain, shape.turning, shape.rank, shape.value)
    q = _add_projections(builder, config, x, weights)
    keys, _ = kv.parts(kv_layer)
    starts = np.zeros(-(-n // PIECE), np.int64)
    add_keep_latents(
        builder,
        n,
        heads,
        builder.rows("latent.kv", shape.width),
        weights.kv_a_norm,
        NORM_EPSILON,
        turning,
        kv.kind,
        keys,
        address_of_array(starts),
    )
    values = builder.rows("latent.values", config.heads * shape.value)
    for first in range(0, n, PIECE):
        _add_piece(
            builder,
            config,
            heads,
            min(PIECE, n - first),
            q.from_row(first),
            weights,
            replace(turning, start=address_of_array(starts[first // PIECE :])),
            kv,
            kv_layer,
            values.from_row(first),
            threads,
        )
    o = weights.o
    inputs = builder.prepared("latent.values", values, config.heads * shape.value, [o.matrix.kind])
    product = Product(o.matrix, inputs[o.matrix.kind], y, o.bias_address, adds=True)
    add_products(builder, [product], n)
    builder.keep(kv, weights, starts)


def _add_projections(
    builder: RowBuilder, config: ModelConfig, x: Rows, weights: LatentWeights
) -> Rows:
    """Phases for queries, which are returned, and for latents, to the rows "latent.kv"."""
    shape, n = _shape(config), builder.n
    q = builder.rows("latent.q", config.q_width)
    first, out = weights.q, q
    if weights.q_a is not None:
        first, out = weights.q_a, builder.rows("latent.q_a", shape.q_rank)
    parts = ((first, out), (weights.kv_a, builder.rows("latent.kv", shape.width)))
    kinds = [projection.matrix.kind for projection, _ in parts]
    inputs = builder.prepared("attention.x", x, config.hidden, kinds)
    add_products(
        builder,
        [Product(p.matrix, inputs[p.matrix.kind], to, p.bias_address) for p, to in parts],
        n,
    )
    if weights.q_a_norm is not None:
        add_norm(builder, n, out, weights.q_a_norm, NORM_EPSILON, out)
        kind = weights.q.matrix.kind
        inputs = builder.prepared("latent.q_a", out, shape.q_rank, [kind])
        add_products(builder, [Product(weights.q.matrix, inputs[kind], q)], n)
    return q


def _add_piece(
    builder: RowBuilder,
    config: ModelConfig,
    heads: LatentHeads,
    n: int,
    q: Rows,
    weights: LatentWeights,
    turning: Turning,
    kv: KvCache,
    kv_layer: int,
    values: Rows,
    threads: int,
) -> None:
    """Phases for n rows, at most PIECE: their values from their queries."""
    scratch, most = builder.scratch, min(builder.n, PIECE)
    folded = rows_of(scratch.take("latent.folded", most, heads.heads * heads.width))
    mixed = rows_of(scratch.take("latent.mixed", most * heads.heads, heads.rank))
    add_fold(builder, n, heads, q, weights.kv_b, turning, folded)
    keys, same = kv.parts(kv_layer)
    add_attend(
        builder,
        n,
        AttendShape(heads.heads, 1, heads.width, heads.rank),
        folded,
        kv.kind,
        keys,
        same,
        turning.start,
        config.attention_scale,
        Rows(mixed.address, mixed.step * heads.heads),
        threads,
    )
    kind = weights.kv_b.kind
    if is_integer(kind):
        name = f"latent.mixed for {kind}"
        room = prepared_rows(scratch, name, most * heads.heads, heads.rank, kind)
        mixed = add_preparation(builder, n * heads.heads, heads.rank, kind, mixed, room)
    add_unfold(builder, n, heads, weights.kv_b, mixed, values)


def _shape(config: ModelConfig) -> LatentShape:
    assert config.latent is not None
    return config.latent


def latent_scratch_bytes(config: ModelConfig, n: int, formats: frozenset[str]) -> int:
    """Bytes of working arrays for chunks of up to ``n`` rows."""
    shape, heads, piece = _shape(config), config.heads, min(n, PIECE)
    kinds = [KIND[name] for name in formats]
    values = heads * shape.value
    rows = sum(map(padded, (config.q_width, shape.q_rank, shape.width, values)))
    floats = n * rows + piece * heads * (shape.width + shape.rank)
    prepared = preparation_bytes(piece * heads, shape.rank, kinds)
    for cols in (config.hidden, shape.q_rank, values):
        prepared += preparation_bytes(n, cols, kinds)
    return 4 * floats + prepared
