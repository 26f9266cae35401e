"""The programs of layers: made once for the rows they are for, and kept.

The one rule: programs hold addresses of working arrays, so all of them are made again when the
scratch moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from diskmoe.engine.kernels.program import Program, Rows, address_of_array
from diskmoe.engine.model.attention import Attention
from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.deltanet import DeltaNet
from diskmoe.engine.model.kvcache import KvCache
from diskmoe.engine.model.lookahead import LookAhead
from diskmoe.engine.model.moe import FeedForward
from diskmoe.engine.model.phases import RowBuilder
from diskmoe.engine.model.roles import DeltaWeights, LayerWeights
from diskmoe.engine.model.scratch import Floats, Scratch

KEPT = 64  # runs of rows, of one text, whose programs are kept: a prompt's, and 1 to 49 with drafts
PROGRAM_BYTES = 10 << 10  # of a layer for one run of rows; 9.2 KiB were measured


class Span(NamedTuple):
    """The rows of one text in a forward of several."""

    kv: KvCache
    first: int
    n: int


class Made(NamedTuple):
    """The programs of a layer, or of a part of it: all of a dense one, or what is before the experts."""

    first: Program
    last: Program | None  # after the experts


class _Mixing(Protocol):
    """What stands before the feed-forward, in three parts: see `model.attention`."""

    def project(self, builder: RowBuilder, x: Rows, weights: Any, indexed: bool) -> None: ...
    def mix(self, builder: RowBuilder, weights: Any, kv: KvCache, kv_layer: int) -> None: ...
    def close(self, builder: RowBuilder, weights: Any, y: Rows) -> None: ...


_Add = Callable[
    [RowBuilder, RowBuilder], Program | None
]  # to what is before the experts, and after


class Programs:
    """Those of a model's layers, and of layers that it is lent."""

    def __init__(
        self,
        config: ModelConfig,
        scratch: Scratch,
        attention: Attention,
        delta: DeltaNet,
        feed_forward_of: Callable[[LayerWeights], FeedForward],
        feed_forwards: Callable[[], Sequence[FeedForward]],
        ahead: LookAhead | None,
        following: Mapping[int, LayerWeights],
    ) -> None:
        """feed_forwards: all there are. following: the layer behind each, by its id."""
        self._config = config
        self._scratch = scratch
        self._attention = attention
        self._delta = delta
        self._feed_forward_of = feed_forward_of
        self._feed_forwards = feed_forwards
        self._ahead = ahead
        self._following = following
        # by the rows' first and number; those used last stand last
        self._kept: dict[tuple[int, int], dict[Any, Made]] = {}
        self._held = 0  # programs in it
        self._moves = 0  # of the scratch, when they were made
        self.made = 0  # so far

    def whole(
        self, layer: LayerWeights, x: Floats, kv: KvCache, kv_layer: int, prompt: bool
    ) -> Made:
        """All of a layer for x (n, hidden), rows of one text."""
        at, step = address_of_array(x), x.strides[0]

        def add(first: RowBuilder, last: RowBuilder) -> Program | None:
            self._project(first, layer, Rows(at, step), kv.indexed)
            self._mixing(layer).mix(first, layer.attention, kv, kv_layer)
            return self._close_and_feed(first, last, layer, Rows(at, step))

        key = (id(layer), at, id(kv), kv_layer, prompt)
        return self._of(0, len(x), key, layer, kv, add, prompt)

    def shared(
        self, layer: LayerWeights, x: Floats, spans: Sequence[Span], kv_layer: int
    ) -> tuple[Made, list[Made], Made]:
        """Of a layer for x (n, hidden), rows of several texts: what is before their caches, what
        each has with its own, and what is after them."""
        at, step = address_of_array(x), x.strides[0]
        indexed = any(span.kv.indexed for span in spans)

        def add_before(first: RowBuilder, last: RowBuilder) -> None:
            self._project(first, layer, Rows(at, step), indexed)

        def add_after(first: RowBuilder, last: RowBuilder) -> Program | None:
            return self._close_and_feed(first, last, layer, Rows(at, step))

        key = (id(layer), at, indexed)
        while True:
            moves = self._scratch.moves
            between = [self._between(layer, span, kv_layer) for span in spans]
            before = self._of(0, len(x), ("before", *key), layer, None, add_before)
            # the last to be made: what the feed-forward has for these rows is there afterwards
            after = self._of(0, len(x), ("after", *key), layer, None, add_after)
            if moves == self._scratch.moves:  # else one does not look where another has written
                return before, between, after

    def _between(self, layer: LayerWeights, span: Span, kv_layer: int) -> Made:
        def add(first: RowBuilder, last: RowBuilder) -> None:
            self._mixing(layer).mix(first, layer.attention, span.kv, kv_layer)

        key = ("between", id(layer), id(span.kv), kv_layer)
        return self._of(span.first, span.n, key, layer, span.kv, add)

    def _of(
        self,
        begin: int,
        n: int,
        key: tuple[object, ...],
        layer: LayerWeights,
        kv: KvCache | None,
        add: _Add,
        prompt: bool = False,
    ) -> Made:
        """The programs of this key for n rows from `begin` on, which `add` makes where there are
        none."""
        if self._moves != self._scratch.moves:
            self._forget()
        of_rows = self._kept.pop((begin, n), {})
        self._kept[begin, n] = of_rows
        found = of_rows.get(key)
        if found is not None:
            return found
        while True:
            self._moves = self._scratch.moves
            first = RowBuilder(n, self._scratch, begin, prompt)
            last = add(first, RowBuilder(n, self._scratch, begin))
            if self._moves == self._scratch.moves:
                break
            self._forget()
        self.made += 1
        first.keep(layer, kv)  # what the key names stays alive, so no other thing gets its id
        made = self._kept.setdefault((begin, n), {})[key] = Made(first.program(), last)
        self._held += 1
        while self._held > KEPT * self._config.layers and len(self._kept) > 1:
            self._forget_rows(next(iter(self._kept)))
        return made

    def _mixing(self, layer: LayerWeights) -> _Mixing:
        return self._delta if isinstance(layer.attention, DeltaWeights) else self._attention

    def _project(self, builder: RowBuilder, layer: LayerWeights, x: Rows, indexed: bool) -> None:
        epsilon = self._config.norm_epsilon
        normed = builder.normed("layer.normed", x, layer.attention_norm, epsilon)
        self._mixing(layer).project(builder, normed, layer.attention, indexed)

    def _close_and_feed(
        self, first: RowBuilder, last: RowBuilder, layer: LayerWeights, x: Rows
    ) -> Program | None:
        """Returns the program after the experts, where the layer has some."""
        self._mixing(layer).close(first, layer.attention, x)
        feed_forward = self._feed_forward_of(layer)
        normed = first.normed("layer.normed", x, layer.ffn_norm, self._config.norm_epsilon)
        feed_forward.add(first, normed, layer, x)
        if self._ahead is not None and id(layer) in self._following:
            self._ahead.add(first, x, self._following[id(layer)])
        return None if layer.dense is not None else feed_forward.finish(last, normed, layer, x)

    def _forget(self) -> None:
        self._kept.clear()
        self._held = 0
        for each in self._feed_forwards():
            each.forget()
        self._moves = self._scratch.moves

    def _forget_rows(self, rows: tuple[int, int]) -> None:
        """What was made for these, (first, number), is not used any more."""
        begin, n = rows
        self._held -= len(self._kept.pop(rows))
        if not begin:
            for each in self._feed_forwards():
                each.forget(n)
