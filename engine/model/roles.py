"""A layer's weights by role: views of the dense weights, as the blocks of a layer want them."""

from dataclasses import dataclass

from diskmoe.engine.kernels.matrix import Matrix
from diskmoe.engine.kernels.program import address_of_array
from diskmoe.engine.model.scratch import Floats


@dataclass(frozen=True, eq=False)
class Projection:
    matrix: Matrix
    bias: Floats | None

    @property
    def bias_address(self) -> int:
        return 0 if self.bias is None else address_of_array(self.bias)


@dataclass(frozen=True, eq=False)
class AttentionWeights:
    q: Projection
    k: Projection
    v: Projection
    o: Projection
    q_norm: Floats | None  # (head_dim,) or (q_width,)
    k_norm: Floats | None
    sinks: Floats | None  # (heads,)
    window: int  # keys that a row sees; 0: all


@dataclass(frozen=True, eq=False)
class IndexerWeights:
    q: Projection  # (index heads * index dims, q_rank)
    k: Projection  # (index dims, hidden)
    k_norm: Floats  # (index dims,)
    k_bias: Floats
    shares: Projection  # (index heads, hidden), f32


@dataclass(frozen=True, eq=False)
class LatentWeights:
    q_a: Projection | None  # (q_rank, hidden), normed before q; None: q takes the hidden state
    q_a_norm: Floats | None
    q: Projection  # (heads * (plain + turning), q_rank | hidden)
    kv_a: Projection  # (rank + turning, hidden)
    kv_a_norm: Floats  # (rank,)
    kv_b: Matrix  # (heads * (plain + value), rank)
    o: Projection  # (hidden, heads * value)
    indexer: IndexerWeights | None  # of a layer that chooses keys


@dataclass(frozen=True, eq=False)
class DeltaWeights:
    """A layer with a delta rule. Where q, k, v and z are one matrix, ``z`` is None; likewise ``a``."""

    qkv: Matrix  # (channels, hidden), or with z: (channels + value width, hidden), by key head
    z: Matrix | None  # (value width, hidden)
    b: Matrix  # (value heads, hidden), or with a: (2 * value heads, hidden), by key head; f32
    a: Matrix | None
    conv: Floats  # (taps, 1, channels)
    log: Floats  # (value heads,)
    bias: Floats  # (value heads,)
    norm: Floats  # (value dim,)
    out: Matrix  # (hidden, value width)


@dataclass(frozen=True, eq=False)
class FfnWeights:
    gate: Matrix  # (width, hidden)
    up: Matrix
    down: Matrix  # (hidden, width)
    switch: Floats | None = None  # (hidden,): the result times sigmoid of its product with the row


@dataclass(frozen=True, eq=False)
class RouterWeights:
    matrix: Matrix  # (experts, hidden), f32
    bias: Floats | None  # (experts,)
    correction_bias: Floats  # (experts,), zeros where the family has none


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """A layer: ``dense`` or ``router`` (+ ``shared``) is there, never both."""

    layer: int
    attention_norm: Floats
    attention: AttentionWeights | LatentWeights | DeltaWeights
    ffn_norm: Floats
    dense: FfnWeights | None
    router: RouterWeights | None
    shared: FfnWeights | None
