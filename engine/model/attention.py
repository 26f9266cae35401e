"""Grouped-query attention of a chunk of rows, reading and extending the key-value cache."""

import numpy as np

from diskmoe.engine.kernels.attention import attend
from diskmoe.engine.kernels.basic import add_bias, rms_norm, rope, rope_tables
from diskmoe.engine.kernels.matmul import matmul
from diskmoe.engine.kernels.workers import Workers
from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.kvcache import KvCache
from diskmoe.engine.model.scratch import Floats, Scratch
from diskmoe.engine.model.weights import AttentionWeights, Projection


class Attention:
    """The attention block of every layer of a model; it holds the rope tables, no weights."""

    def __init__(
        self, config: ModelConfig, positions: int, workers: Workers, scratch: Scratch
    ) -> None:
        self._config = config
        self._workers = workers
        self._scratch = scratch
        exponents = np.arange(0, config.rope_dims, 2) / config.rope_dims
        frequencies = (1.0 / config.rope_theta**exponents).astype(np.float32)
        self._cos, self._sin = rope_tables(frequencies, positions)  # (positions, rope_dims / 2)

    @property
    def nbytes(self) -> int:
        """Of the rope tables."""
        return self._cos.nbytes + self._sin.nbytes

    def run(
        self,
        x: Floats,  # (n, hidden), normed
        weights: AttentionWeights,
        kv: KvCache,
        kv_layer: int,
        out: Floats,  # (n, hidden)
    ) -> Floats:
        """out = attention of rows at positions kv.length.. over all earlier ones and themselves.

        The rows' keys and values are written above ``kv.length``, which stays as it is.
        """
        config, start, n = self._config, kv.length, len(x)
        keys, values = kv.layer(kv_layer)  # (positions, kv_heads, head_dim)
        q = self._scratch.take("attention.q", n, config.q_width)
        k = keys[start : start + n].reshape(n, config.kv_width)  # a view: written in place
        v = values[start : start + n].reshape(n, config.kv_width)
        self._project(x, weights.q, q)
        self._project(x, weights.k, k)
        self._project(x, weights.v, v)
        q3 = q.reshape(n, config.heads, config.head_dim)
        k3 = keys[start : start + n]
        if weights.q_norm is not None and weights.k_norm is not None:
            per_head = config.qk_norm == "per_head"
            q_normed, k_normed = (q3, k3) if per_head else (q, k)
            rms_norm(q_normed, weights.q_norm, config.norm_epsilon, q_normed)
            rms_norm(k_normed, weights.k_norm, config.norm_epsilon, k_normed)
        if config.clip_qkv is not None:
            for array in (q, k, v):
                np.clip(array, -config.clip_qkv, config.clip_qkv, out=array)
        interleaved = config.rope_layout == "interleaved"
        rope(q3, self._cos, self._sin, start, interleaved)
        rope(k3, self._cos, self._sin, start, interleaved)
        mixed = self._scratch.take("attention.mixed", n, config.heads, config.head_dim)
        attend(q3, keys, values, start, config.attention_scale, mixed, self._workers)
        return self._project(mixed.reshape(n, config.q_width), weights.o, out)

    def _project(self, x: Floats, projection: Projection, out: Floats) -> Floats:
        matmul(x, projection.matrix, out, self._workers)
        if projection.bias is not None:
            add_bias(out, projection.bias)
        return out


def attention_scratch_bytes(config: ModelConfig, n: int, positions: int) -> int:
    """Bytes of rope tables and working arrays for chunks of up to ``n`` rows."""
    return 4 * (positions * config.rope_dims + 2 * n * config.q_width)
