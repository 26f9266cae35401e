"""The decoder: token ids in, logits out, for one row or many, over a key-value cache.

    model = Transformer(config, load_dense(checkpoint, config), store, KvCache(config, 4096), workers)
    logits = model.forward(prompt_ids)            # (1, vocab), of the last row

The one rule: a row's logits do not depend on how many rows were computed with it, on the number of
threads, or on which experts were in memory (row invariance); so a verify of drafts, a prefill in
chunks and plain decoding all tell the same story, to the bit.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.kernels.basic import add, rms_norm
from diskmoe.engine.kernels.matmul import matmul, matmul_scratch_bytes, take_rows
from diskmoe.engine.kernels.workers import Workers
from diskmoe.engine.model.attention import Attention, attention_scratch_bytes
from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.kvcache import KvCache
from diskmoe.engine.model.moe import FeedForward, feed_forward_scratch_bytes
from diskmoe.engine.model.scratch import Floats, Scratch
from diskmoe.engine.model.weights import DenseWeights, LayerWeights
from diskmoe.experts.store import ExpertStore, StoreCounters
from diskmoe.experts.tiles import RecordLayout

Rows = Literal["last", "all", "none"]


class Transformer:
    """A model ready to run. It owns its scratch; weights, store, cache and workers are lent."""

    def __init__(
        self,
        config: ModelConfig,
        weights: DenseWeights,
        store: ExpertStore,
        kv: KvCache,
        workers: Workers,
    ) -> None:
        self.config = config
        self.kv = kv
        self._weights = weights  # keeps the memory of the views below
        self._workers = workers
        self._store = store
        self._scratch = Scratch()
        self._embedding = weights.embedding(config)
        self._final_norm = weights.final_norm(config)
        self._head = weights.head(config)
        self._layers = [weights.layer(config, i) for i in range(config.layers)]
        self._attention = Attention(config, kv.capacity, workers, self._scratch)
        self._feed_forward = FeedForward(config, store, workers, self._scratch)
        self._hidden: Floats = np.zeros((0, config.hidden), np.float32)

    @property
    def vocab_size(self) -> int:
        """Rows of the head: ids are below it; the tokenizer may have fewer."""
        return self.config.vocab

    @property
    def counters(self) -> StoreCounters:
        """What the hot store did so far."""
        return self._store.counters

    @property
    def selections(self) -> int:
        """(row, expert) pairs computed so far: rows x layers with experts x top-k."""
        return self._feed_forward.selections

    @property
    def hidden(self) -> Floats:
        """(n, hidden) after the final norm, all rows of the last forward; valid until the next."""
        return self._hidden

    def forward(self, ids: npt.ArrayLike, rows: Rows = "last") -> Floats:
        """Append the tokens to the cache and return logits of the last row, of all, or of none.

        ids (n,) -> f32 (1 | n | 0, vocab), an array of the caller's own. Where n is 0 nothing
        happens. Raises BadRequest for an id outside the vocabulary or when n rows do not fit the
        cache, ReadFailed when an expert cannot be read; the cache is then as it was before.
        """
        tokens = self._checked(ids)
        n = len(tokens)
        if n == 0:
            self._hidden = self._hidden[:0]
            return np.zeros((0, self.config.vocab), np.float32)
        self.kv.check_room(n)
        x = self._scratch.take("forward.x", n, self.config.hidden)
        take_rows(self._embedding, tokens, x)
        for index, layer in enumerate(self._layers):
            self.run_layer(layer, x, self.kv, index)
        hidden = self._scratch.take("forward.hidden", n, self.config.hidden)
        self._hidden = rms_norm(x, self._final_norm, self.config.norm_epsilon, hidden)
        wanted = {"last": hidden[-1:], "all": hidden, "none": hidden[:0]}[rows]
        logits = self.head(wanted)
        self.kv.advance(n)
        return logits

    def run_layer(self, layer: LayerWeights, x: Floats, kv: KvCache, kv_layer: int) -> None:
        """x (n, hidden) goes through one decoder layer, in place.

        The rows stand at positions kv.length and on; their keys and values are written, and
        ``kv.length`` is left to the caller (``kv.advance``).
        """
        n = len(x)
        normed = self._scratch.take("layer.normed", n, self.config.hidden)
        out = self._scratch.take("layer.out", n, self.config.hidden)
        rms_norm(x, layer.attention_norm, self.config.norm_epsilon, normed)
        add(x, self._attention.run(normed, layer.attention, kv, kv_layer, out))
        rms_norm(x, layer.ffn_norm, self.config.norm_epsilon, normed)
        self._feed_forward.run(normed, layer, x)

    def head(self, hidden: Floats) -> Floats:
        """hidden (m, hidden), after a final norm -> logits f32 (m, vocab), a new array."""
        logits = np.empty((len(hidden), self.config.vocab), np.float32)
        return matmul(hidden, self._head, logits, self._workers)

    def embed(self, ids: npt.ArrayLike) -> Floats:
        """Embedding rows (n, hidden), a new array."""
        tokens = self._checked(ids)
        out = np.empty((len(tokens), self.config.hidden), np.float32)
        return take_rows(self._embedding, tokens, out)

    def _checked(self, ids: npt.ArrayLike) -> npt.NDArray[np.int32]:
        tokens = np.asarray(ids)
        if tokens.size == 0:
            return np.zeros(0, np.int32)
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise BadRequest(f"token ids must be a list of whole numbers, not {tokens.dtype}")
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self.config.vocab:
            wrong = low if low < 0 else high
            raise BadRequest(f"token id {wrong} is outside the vocabulary of {self.config.vocab}")
        return tokens.astype(np.int32)


def scratch_bytes(
    config: ModelConfig, rows: int, logit_rows: int, positions: int, layout: RecordLayout
) -> int:
    """Bytes a Transformer takes beside weights, cache and store, for the memory plan.

    For chunks of up to ``rows`` rows, logits of ``logit_rows`` and a cache of ``positions``.
    """
    own = 4 * (4 * rows * config.hidden + logit_rows * config.vocab)
    return (
        own
        + attention_scratch_bytes(config, rows, positions)
        + feed_forward_scratch_bytes(config, rows, layout)
        + matmul_scratch_bytes(rows, max(config.hidden, config.q_width))
    )
