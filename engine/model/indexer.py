"""Choosing the keys that rows of latent attention see; see `kernels.indexer`.

The rule of this file: a list is written by a layer that chooses, and read by it and by the layers up
to the next one that does. All of them have the same rows, and lists lie in the scratch until then.
"""

from dataclasses import replace

from diskmoe.engine.kernels.attention_blocks import KEYS
from diskmoe.engine.kernels.indexer import IndexHeads, add_choose, add_index_heads
from diskmoe.engine.kernels.latent import PIECE, Turning
from diskmoe.engine.kernels.program import Rows, rows_of
from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.kvcache import KvCache
from diskmoe.engine.model.latent_config import IndexerShape
from diskmoe.engine.model.phases import RowBuilder, padded
from diskmoe.engine.model.roles import IndexerWeights, Projection

NORM_EPSILON = 1e-6  # of the keys' norm, whatever the model's other norms have

Parts = list[tuple[Projection, Rows]]


def index_projections(
    builder: RowBuilder, config: ModelConfig, weights: IndexerWeights
) -> tuple[Parts, Parts]:
    """What is made of the hidden state, and of the latent of queries, and where it goes."""
    shape = _shape(config)
    of_state = [
        (weights.k, builder.rows("index.k", shape.dims)),
        (weights.shares, builder.rows("index.shares", shape.heads)),
    ]
    return of_state, [(weights.q, _queries(builder, shape))]


def add_index(
    builder: RowBuilder,
    config: ModelConfig,
    weights: IndexerWeights,
    turning: Turning,
    kv: KvCache,
    kv_layer: int,
) -> None:
    """Phases, after the projections: queries made ready, and keys put into the cache."""
    keys = kv.index_keys(kv_layer)
    assert keys is not None
    turning = replace(turning, interleaved=_shape(config).interleaved)
    add_index_heads(
        builder,
        builder.n,
        _heads(config),
        _queries(builder, _shape(config)),
        builder.rows("index.k", _shape(config).dims),
        (weights.k_norm, weights.k_bias),
        NORM_EPSILON,
        turning,
        kv.kind,
        keys,
    )


def add_choice_of_keys(
    builder: RowBuilder,
    config: ModelConfig,
    first: int,
    n: int,
    start: int,  # address of the position of row `first`
    kv: KvCache,
    kv_layer: int,
) -> None:
    """Phases: the keys of rows first..first+n-1, at most PIECE, go to their lists."""
    keys = kv.index_keys(kv_layer)
    assert keys is not None
    scores = builder.scratch.take("index.scores", min(builder.n, PIECE), _blocks(kv.capacity))
    add_choose(
        builder,
        n,
        _heads(config),
        _queries(builder, _shape(config)).from_row(first),
        builder.rows("index.shares", _shape(config).heads).from_row(first),
        kv.kind,
        keys,
        start,
        rows_of(scores),
        index_lists(builder, config).from_row(first),
    )


def index_lists(builder: RowBuilder, config: ModelConfig) -> Rows:
    """i32 (n, top), of the last layer that chose."""
    return builder.lasting("index.lists", _shape(config).top)


def index_scratch_bytes(config: ModelConfig, n: int, positions: int) -> int:
    """Bytes of working arrays for chunks of up to ``n`` rows, and a cache of ``positions``."""
    if config.indexer is None or positions <= config.indexer.top:
        return 0
    shape = config.indexer
    rows = padded(shape.heads * shape.dims) + padded(shape.dims) + padded(shape.heads) + shape.top
    return 4 * (n * rows + min(n, PIECE) * _blocks(positions))


def _queries(builder: RowBuilder, shape: IndexerShape) -> Rows:
    return builder.rows("index.q", shape.heads * shape.dims)


def _blocks(positions: int) -> int:
    """Numbers of whole blocks of keys."""
    return -(-positions // KEYS) * KEYS


def _heads(config: ModelConfig) -> IndexHeads:
    shape = _shape(config)
    return IndexHeads(shape.heads, shape.dims, shape.top)


def _shape(config: ModelConfig) -> IndexerShape:
    assert config.indexer is not None
    return config.indexer
