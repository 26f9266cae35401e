"""Latent attention (MLA) of a chunk of rows over a cache of latents; see `kernels.latent`."""

from dataclasses import replace

import numpy as np

from diskmoe.engine.kernels.attention import AttendShape, add_attend
from diskmoe.engine.kernels.attention_chosen import add_attend_chosen
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
from diskmoe.engine.kernels.matrix import Matrix
from diskmoe.engine.kernels.products import KIND, is_integer
from diskmoe.engine.kernels.program import Rows, address_of_array, rows_of
from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.indexer import (
    add_choice_of_keys,
    add_index,
    index_lists,
    index_projections,
    index_scratch_bytes,
)
from diskmoe.engine.model.kvcache import KvCache
from diskmoe.engine.model.latent_config import LatentShape
from diskmoe.engine.model.phases import RowBuilder, padded, preparation_bytes, prepared_rows
from diskmoe.engine.model.roles import LatentWeights, Projection

NORM_EPSILON = 1e-6  # of the norms of latents, whatever the model's other norms have


def add_latent_mix(
    builder: RowBuilder,
    config: ModelConfig,
    weights: LatentWeights,
    turning: Turning,
    kv: KvCache,
    kv_layer: int,
    threads: int,
) -> None:
    """Phases: of rows of one text at positions start.. over all earlier ones and themselves."""
    shape, n = _shape(config), builder.n
    heads = LatentHeads(config.heads, shape.plain, shape.turning, shape.rank, shape.value)
    indexer = weights.indexer if kv.index_keys(kv_layer) is not None else None
    q = builder.rows("latent.q", config.q_width)
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
    if indexer is not None:
        add_index(builder, config, indexer, turning, kv, kv_layer)
    values = builder.rows("latent.values", config.heads * shape.value)
    for first in range(0, n, PIECE):
        count = min(PIECE, n - first)
        here = replace(turning, start=address_of_array(starts[first // PIECE :]))
        if indexer is not None:
            add_choice_of_keys(builder, config, first, count, here.start, kv, kv_layer)
        lists = index_lists(builder, config).from_row(first) if kv.indexed else None
        _add_piece(
            builder,
            config,
            heads,
            count,
            q.from_row(first),
            weights.kv_b,
            here,
            kv,
            kv_layer,
            lists,
            values.from_row(first),
            threads,
        )
    builder.keep(kv, weights, starts)


def add_latent_close(
    builder: RowBuilder,
    config: ModelConfig,
    weights: LatentWeights,
    y: Rows,  # (n, hidden)
) -> None:
    """Phases: y += what came of the rows, of any texts."""
    o, width = weights.o, config.heads * _shape(config).value
    values = builder.rows("latent.values", width)
    inputs = builder.prepared("latent.values", values, width, [o.matrix.kind])
    product = Product(o.matrix, inputs[o.matrix.kind], y, o.bias_address, adds=True)
    add_products(builder, [product], builder.n)
    builder.keep(weights)


def add_latent_projections(
    builder: RowBuilder,
    config: ModelConfig,
    x: Rows,  # (n, hidden), normed
    weights: LatentWeights,
    indexed: bool,
) -> None:
    """Phases for queries, for latents, to the rows "latent.kv", and for what an indexer wants."""
    shape, indexer = _shape(config), weights.indexer if indexed else None
    q = builder.rows("latent.q", config.q_width)
    of_state = [(weights.kv_a, builder.rows("latent.kv", shape.width))]
    of_latent = [(weights.q, q)]
    if indexer is not None:
        more_of_state, more_of_latent = index_projections(builder, config, indexer)
        of_state += more_of_state
        of_latent += more_of_latent
    if weights.q_a is None or weights.q_a_norm is None:
        _project(builder, "attention.x", x, config.hidden, of_state + of_latent)
        return
    latent = builder.rows("latent.q_a", shape.q_rank)
    _project(builder, "attention.x", x, config.hidden, [(weights.q_a, latent), *of_state])
    add_norm(builder, builder.n, latent, weights.q_a_norm, NORM_EPSILON, latent)
    _project(builder, "latent.q_a", latent, shape.q_rank, of_latent)


def _project(
    builder: RowBuilder, name: str, x: Rows, cols: int, parts: list[tuple[Projection, Rows]]
) -> None:
    """Phases: all rows of x through each of these projections."""
    inputs = builder.prepared(name, x, cols, [projection.matrix.kind for projection, _ in parts])
    products = [
        Product(projection.matrix, inputs[projection.matrix.kind], to, projection.bias_address)
        for projection, to in parts
    ]
    add_products(builder, products, builder.n)


def _add_piece(
    builder: RowBuilder,
    config: ModelConfig,
    heads: LatentHeads,
    n: int,
    q: Rows,
    matrix: Matrix,
    turning: Turning,
    kv: KvCache,
    kv_layer: int,
    lists: Rows | None,  # of the keys that the rows see; None: all
    values: Rows,
    threads: int,
) -> None:
    """Phases for n rows, at most PIECE: their values from their queries."""
    scratch, most = builder.scratch, min(builder.n, PIECE)
    folded = rows_of(scratch.take("latent.folded", most, heads.heads * heads.width))
    mixed = rows_of(scratch.take("latent.mixed", most * heads.heads, heads.rank))
    add_fold(builder, n, heads, q, matrix, turning, folded)
    keys, same = kv.parts(kv_layer)
    shape = AttendShape(heads.heads, 1, heads.width, heads.rank)
    out = Rows(mixed.address, mixed.step * heads.heads)
    start, scale = turning.start, config.attention_scale
    if lists is None:
        add_attend(builder, n, shape, folded, kv.kind, keys, same, start, scale, out, threads)
    else:
        assert config.indexer is not None
        top = config.indexer.top
        add_attend_chosen(
            builder, n, shape, folded, kv.kind, keys, start, scale, top, lists, out, threads
        )
    if is_integer(matrix.kind):
        name = f"latent.mixed for {matrix.kind}"
        room = prepared_rows(scratch, name, most * heads.heads, heads.rank, matrix.kind)
        mixed = add_preparation(builder, n * heads.heads, heads.rank, matrix.kind, mixed, room)
    add_unfold(builder, n, heads, matrix, mixed, values)


def _shape(config: ModelConfig) -> LatentShape:
    assert config.latent is not None
    return config.latent


def latent_scratch_bytes(
    config: ModelConfig, n: int, positions: int, formats: frozenset[str]
) -> int:
    """Bytes of working arrays for chunks of up to ``n`` rows."""
    shape, heads, piece = _shape(config), config.heads, min(n, PIECE)
    kinds = [KIND[name] for name in formats]
    values = heads * shape.value
    rows = sum(map(padded, (config.q_width, shape.q_rank, shape.width, values)))
    floats = n * rows + piece * heads * (shape.width + shape.rank)
    prepared = preparation_bytes(piece * heads, shape.rank, kinds)
    for cols in (config.hidden, shape.q_rank, values):
        prepared += preparation_bytes(n, cols, kinds)
    return 4 * floats + prepared + index_scratch_bytes(config, n, positions)
