"""Layers with a gated delta rule, in place of attention, for a chunk of rows, in the same three parts."""

import numpy as np
import numpy.typing as npt

from diskmoe.engine.kernels.delta import DeltaInputs, DeltaVectors, Grouped, add_delta
from diskmoe.engine.kernels.delta_shape import DeltaShape
from diskmoe.engine.kernels.matmul import Matrix, Product, add_products
from diskmoe.engine.kernels.products import KIND
from diskmoe.engine.kernels.program import Rows, address_of_array
from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.kvcache import KvCache
from diskmoe.engine.model.phases import RowBuilder, padded, preparation_bytes
from diskmoe.engine.model.roles import DeltaWeights


class DeltaNet:
    """The block of every layer with a delta rule of a model; it holds neither weights nor states."""

    def __init__(self, config: ModelConfig, start: npt.NDArray[np.int64]) -> None:
        """start (1,): the position of the first row, set before a program runs."""
        self._config = config
        self._start = start

    def project(
        self,
        builder: RowBuilder,
        x: Rows,  # (n, hidden), normed
        weights: DeltaWeights,
        indexed: bool,  # of no account: there are no keys
    ) -> None:
        """Phases: what goes into the states, of rows of any texts."""
        inputs = _inputs(builder, weights)
        kinds = [matrix.kind for matrix, _ in inputs]
        prepared = builder.prepared("delta.x", x, self._config.hidden, kinds)
        products = [Product(matrix, prepared[matrix.kind], out) for matrix, out in inputs]
        add_products(builder, products, builder.n)
        builder.keep(weights)

    def mix(self, builder: RowBuilder, weights: DeltaWeights, kv: KvCache, kv_layer: int) -> None:
        """Phases: what a text's rows get from the state that all earlier rows have made."""
        config, n, shape = self._config, builder.n, self._config.delta
        assert shape is not None
        rows = [out for _, out in _inputs(builder, weights)]
        if weights.z is None:
            inputs = _together(shape, rows[0], rows[1])
        else:
            inputs = _apart(shape, *rows)
        part = kv.state(kv_layer)
        out = builder.rows("delta.out", shape.value_width)
        add_delta(
            builder,
            n,
            shape,
            inputs,
            DeltaVectors(weights.conv, weights.log, weights.bias, weights.norm),
            part,
            address_of_array(self._start),
            config.norm_epsilon,
            builder.rows("delta.mixed", shape.channels, part.kept + n).address,
            builder.rows("delta.gates", 2 * shape.value_heads, part.kept + n).address,
            out,
        )
        builder.keep(kv, weights, self._start)

    def close(
        self,
        builder: RowBuilder,
        weights: DeltaWeights,
        y: Rows,  # (n, hidden)
    ) -> None:
        """Phases: y += what came of the rows, of any texts."""
        assert self._config.delta is not None
        width, kind = self._config.delta.value_width, weights.out.kind
        inner = builder.prepared("delta.out", builder.rows("delta.out", width), width, [kind])
        add_products(builder, [Product(weights.out, inner[kind], y, adds=True)], builder.n)
        builder.keep(weights)


def _inputs(builder: RowBuilder, weights: DeltaWeights) -> list[tuple[Matrix, Rows]]:
    """The matrices that go in, and where their results are."""
    matrices = [weights.qkv, weights.b]
    matrices += [matrix for matrix in (weights.z, weights.a) if matrix is not None]
    return [(m, builder.rows(f"delta.in {i}", m.rows)) for i, m in enumerate(matrices)]


def _apart(shape: DeltaShape, qkv: Rows, b: Rows, z: Rows, a: Rows) -> DeltaInputs:
    """Heads lie in their order, q before k before v."""
    shared = shape.value_heads // shape.key_heads
    keys, values = 4 * shape.key_dim, 4 * shape.value_dim * shared
    return DeltaInputs(
        q=Grouped(qkv, keys),
        k=_behind(qkv, 4 * shape.key_width, keys),
        v=_behind(qkv, 8 * shape.key_width, values),
        z=Grouped(z, values),
        b=Grouped(b, 4 * shared),
        a=Grouped(a, 4 * shared),
    )


def _together(shape: DeltaShape, qkvz: Rows, ba: Rows) -> DeltaInputs:
    """For each key head: its q, its k, the v of its value heads, their z; their b, their a."""
    shared = shape.value_heads // shape.key_heads
    keys, values = 4 * shape.key_dim, 4 * shape.value_dim * shared
    group = 2 * keys + 2 * values
    return DeltaInputs(
        q=Grouped(qkvz, group),
        k=_behind(qkvz, keys, group),
        v=_behind(qkvz, 2 * keys, group),
        z=_behind(qkvz, 2 * keys + values, group),
        b=Grouped(ba, 8 * shared),
        a=_behind(ba, 4 * shared, 8 * shared),
    )


def _behind(rows: Rows, nbytes: int, group_step: int) -> Grouped:
    """The part of rows that begins so many bytes into them."""
    return Grouped(Rows(rows.address + nbytes, rows.step), group_step)


def delta_scratch_bytes(config: ModelConfig, n: int, kept: int, formats: frozenset[str]) -> int:
    """Bytes of working arrays for chunks of up to ``n`` rows."""
    shape = config.delta
    if shape is None:
        return 0
    kinds = [KIND[name] for name in formats]
    width, heads = shape.value_width, shape.value_heads
    inputs = padded(shape.channels) + padded(width) + 2 * padded(heads)
    floats = n * (inputs + padded(width))
    floats += (n + kept) * (padded(shape.channels) + padded(2 * heads))
    prepared = preparation_bytes(n, config.hidden, kinds) + preparation_bytes(n, width, kinds)
    return 4 * floats + prepared
