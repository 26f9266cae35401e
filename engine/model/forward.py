"""The decoder: token ids in, logits out, for one row or many, over a key-value cache.

    model = Transformer(config, load_dense(checkpoint, config), store, KvCache(config, 4096), workers)
    logits = model.forward(prompt_ids)            # (1, vocab), of the last row

The one rule: a row's logits do not depend on how many rows were computed with it, on the number of
threads, or on which experts were in memory (row invariance); so a verify of drafts, a prefill in
chunks and plain decoding all tell the same story, to the bit.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from copy import copy
from typing import Literal

import numpy as np
import numpy.typing as npt

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.kernels.basic import rms_norm
from diskmoe.engine.kernels.matmul import matmul, matmul_scratch_bytes
from diskmoe.engine.kernels.products import KIND
from diskmoe.engine.kernels.program import Program
from diskmoe.engine.kernels.workers import Workers
from diskmoe.engine.model.attention import Attention, attention_scratch_bytes
from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.deltanet import DeltaNet, delta_scratch_bytes
from diskmoe.engine.model.kvcache import KEPT_ROWS, KvCache
from diskmoe.engine.model.lookahead import LookAhead, Recall
from diskmoe.engine.model.moe import Choose, FeedForward, Record, feed_forward_scratch_bytes
from diskmoe.engine.model.phases import padded
from diskmoe.engine.model.programs import Programs, Span
from diskmoe.engine.model.roles import LayerWeights
from diskmoe.engine.model.scratch import Floats, Scratch
from diskmoe.engine.model.weights import DenseWeights
from diskmoe.experts.store import ExpertStore, StoreCounters
from diskmoe.experts.tiles import RecordLayout

Wanted = Literal["last", "all", "none"]


class Transformer:
    """A model ready to run. It owns its scratch; weights, store, cache and workers are lent."""

    def __init__(
        self,
        config: ModelConfig,
        weights: DenseWeights,
        store: ExpertStore,
        kv: KvCache,
        workers: Workers,
        look_ahead: bool = False,
        prefetch: bool = False,
    ) -> None:
        """look_ahead: guess each layer's experts one layer before and count how good the guesses
        are; prefetch: and let the store read them while the disk has nothing else to do."""
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
        self._attention = Attention(config, kv.capacity, workers.n_threads)
        self._ahead = LookAhead(config) if look_ahead or prefetch else None
        self._feed_forward = FeedForward(
            config, store, workers, self._scratch, self._ahead, prefetch
        )
        self._lent: dict[int, FeedForward] = {}  # by number of a layer that is none of the model's
        self._hidden: Floats = np.zeros((0, config.hidden), np.float32)
        self._programs = Programs(
            config,
            self._scratch,
            self._attention,
            DeltaNet(config, self._attention.start),
            self._feed_forward_of,
            lambda: (self._feed_forward, *self._lent.values()),
            self._ahead,
            dict(zip(map(id, self._layers), self._layers[1:], strict=False)),
        )

    @property
    def layers(self) -> Sequence[LayerWeights]:
        """The model's own, first to last."""
        return self._layers

    @property
    def vocab_size(self) -> int:
        """Rows of the head: ids are below it; the tokenizer may have fewer."""
        return self.config.vocab

    @property
    def programs_made(self) -> int:
        """So far: a forward that makes some takes longer than the next will."""
        return self._programs.made

    @property
    def copied(self) -> int:
        """Rows of prompts so far that were not computed."""
        return 0

    @property
    def counters(self) -> StoreCounters:
        """What the hot store did so far, and those of lent layers."""
        total = copy(self._store.counters)
        for each in self._lent.values():
            total = total + each.counters
        return total

    @property
    def selections(self) -> int:
        """(row, expert) pairs computed so far: rows x layers with experts x top-k."""
        return sum(each.selections for each in (self._feed_forward, *self._lent.values()))

    @property
    def row_misses(self) -> list[int]:
        """Of the latest forward that was no prompt's: how many experts were missing, by the first
        row that wants them, over all layers. (What guesses read ahead is among them.)"""
        return self._feed_forward.row_misses

    def begin_rows(self, n: int, certain: Sequence[int] = (0,)) -> None:
        """A decode forward of n rows begins, of which the `certain` are of no draft."""
        self._feed_forward.begin_rows(n, certain)

    def accepted(self, rows: Container[int]) -> None:
        """Tell the hot store that of the latest forward's rows only these were of use."""
        self._feed_forward.accepted(rows)

    @property
    def hidden(self) -> Floats:
        """(n, hidden) after the final norm, all rows of the last forward; valid until the next."""
        return self._hidden

    def forward(
        self,
        ids: npt.ArrayLike,
        rows: Wanted = "last",
        on_layer: Callable[[int, int], None] | None = None,
        kv: KvCache | None = None,
    ) -> Floats:
        """Append the tokens to the cache and return logits of the last row, of all, or of none.

        ids (n,) -> f32 (1 | n | 0, vocab), an array of the caller's own. Where n is 0 nothing
        happens. kv: another cache than the model's own. Rows of which no logits are wanted are a
        prompt's: see `prompt`. Raises BadRequest for an id outside the vocabulary or when n rows do
        not fit the cache, ReadFailed when an expert cannot be read; the cache is then as it was
        before. ``on_layer(done, layers)`` is called after each layer.
        """
        tokens = self._checked(ids)
        n = len(tokens)
        if n == 0:
            self._hidden = self._hidden[:0]
            return np.zeros((0, self.config.vocab), np.float32)
        kv = self.kv if kv is None else kv
        told = on_layer or (lambda done, layers: None)
        if rows == "none":
            for done in self.prompt(tokens, kv):
                told(done, len(self._layers))
            return np.zeros((0, self.config.vocab), np.float32)
        kv.begin(n)
        self.begin_rows(n)
        x = self._embed(tokens, self._scratch.take("forward.x", n, self.config.hidden))
        for index, layer in enumerate(self._layers):
            self.run_layer(layer, x, kv, index)
            told(index + 1, len(self._layers))
        logits = self.head(wanted_rows(self.normed(x), rows))
        kv.advance(n, tokens.tolist())
        return logits

    def prompt(self, ids: npt.ArrayLike, kv: KvCache) -> Iterator[int]:
        """Append the tokens of a prompt's chunk to a cache, a layer at each step; the layers so far.

        Between two steps other texts may have forwards, but no other prompt: its rows wait in the
        scratch. The cache has the chunk, and ``hidden`` is its, when there is no step left; a chunk
        that is left before has changed nothing. Most of its experts pass through the hot store and
        leave it as it is. Errors are those of `forward`.
        """
        tokens = self._checked(ids)
        if not len(tokens):
            self._hidden = self._hidden[:0]
            return
        kv.begin(len(tokens))
        x = self._embed(tokens, self._scratch.take("prompt.x", len(tokens), self.config.hidden))
        for index, layer in enumerate(self._layers):
            self.run_layer(layer, x, kv, index, True)
            yield index + 1
        self.normed(x)
        kv.advance(len(tokens), tokens.tolist())

    def normed(self, x: Floats) -> Floats:
        """x (n, hidden) after the final norm, which is ``hidden`` from then on."""
        out = self._scratch.take("forward.hidden", len(x), self.config.hidden)
        self._hidden = rms_norm(x, self._final_norm, self.config.norm_epsilon, out)
        return self._hidden

    def run_layer(
        self, layer: LayerWeights, x: Floats, kv: KvCache, kv_layer: int, prompt: bool = False
    ) -> None:
        """x (n, hidden) goes through one decoder layer, in place.

        The rows stand at positions kv.length and on; their keys and values are written, and
        ``kv.length`` is left to the caller (``kv.advance``).
        """
        made = self._programs.whole(layer, x, kv, kv_layer, prompt)
        self._attention.start[0] = kv.length
        self._workers.run(made.first)
        self._run_experts(layer, len(x), made.last, prompt)

    def share_layer(
        self, layer: LayerWeights, x: Floats, spans: Sequence[Span], kv_layer: int
    ) -> None:
        """x (n, hidden), rows of several texts, goes through one decoder layer, in place.

        As `run_layer` for each of the spans, but all rows go through a matrix, and through an
        expert, together.
        """
        before, between, after = self._programs.shared(layer, x, spans, kv_layer)
        self._workers.run(before.first)
        for span, made in zip(spans, between, strict=True):
            self._attention.start[0] = span.kv.length
            self._workers.run(made.first)
        self._workers.run(after.first)
        self._run_experts(layer, len(x), after.last, False)

    def _run_experts(self, layer: LayerWeights, n: int, last: Program | None, prompt: bool) -> None:
        if last is not None:
            self._feed_forward_of(layer).run_experts(layer.layer, n, prompt)
            self._workers.run(last)

    def lend(self, layer: LayerWeights, store: ExpertStore) -> None:
        """A layer beside the model's own, for ``run_layer``; its experts come from this store."""
        self._lent[layer.layer] = FeedForward(self.config, store, self._workers, self._scratch)

    def _feed_forward_of(self, layer: LayerWeights) -> FeedForward:
        return self._lent.get(layer.layer, self._feed_forward)

    def new_recall(self) -> Recall | None:
        """Counts from now on how good the guesses of the next layer's experts are, in the object
        returned; None when nobody guesses."""
        if self._ahead is None:
            return None
        self._ahead.recall = Recall()
        return self._ahead.recall

    def choose_with(self, choose: Choose | None) -> None:
        """For benchmarks: ``choose(layer, ids, shares)`` may change what the router chose."""
        self._feed_forward.choose = choose

    def record_with(self, record: Record | None) -> None:
        """``record(layer, ids, phase)`` is told what every layer's rows chose (``experts.trace``)."""
        self._feed_forward.record = record

    def head(self, hidden: Floats) -> Floats:
        """hidden (m, hidden), after a final norm -> logits f32 (m, vocab), a new array."""
        logits = np.empty((len(hidden), self.config.vocab), np.float32)
        matmul(hidden, self._head, logits, self._workers)
        if self.config.logit_scale != 1:
            logits *= np.float32(self.config.logit_scale)
        return logits

    def embed(self, ids: npt.ArrayLike) -> Floats:
        """Embedding rows (n, hidden), a new array."""
        tokens = self._checked(ids)
        out = np.empty((len(tokens), self.config.hidden), np.float32)
        return self._embed(tokens, out)

    def _embed(self, tokens: npt.NDArray[np.int32], out: Floats) -> Floats:
        self._embedding.take(tokens, out)
        if self.config.embedding_scale != 1:
            out *= np.float32(self.config.embedding_scale)
        return out

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


def wanted_rows(hidden: Floats, rows: Wanted) -> Floats:
    return {"last": hidden[-1:], "all": hidden, "none": hidden[:0]}[rows]


def scratch_bytes(
    config: ModelConfig,
    rows: int,
    logit_rows: int,
    positions: int,
    layout: RecordLayout,
    formats: Iterable[str] = ("f32", "q8"),
    kept: int = KEPT_ROWS,
) -> int:
    """Bytes a Transformer takes beside weights, cache and store, for the memory plan.

    For chunks of up to ``rows`` rows, logits of ``logit_rows``, a cache of ``positions`` that keeps
    ``kept`` rows, and dense matrices in these ``formats``.
    """
    dense = frozenset(formats)
    own = 4 * (rows * (2 * config.hidden + padded(config.hidden)) + logit_rows * config.vocab)
    head = max(matmul_scratch_bytes(logit_rows, config.hidden, KIND[name]) for name in dense)
    return (
        own
        + head
        + attention_scratch_bytes(config, rows, positions, dense)
        + delta_scratch_bytes(config, rows, kept, dense)
        + feed_forward_scratch_bytes(config, rows, layout, dense)
    )
