"""How prompts get into the caches of texts while other texts are decoded.

The rules kept here: a chunk of a prompt gives way between its layers, so nobody waits for more than one
of them, or than a forward takes; its rows wait in the model's working memory, so there is one chunk at a
time; and what another text's cache holds already is copied, not computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.model.forward import Transformer
from diskmoe.engine.model.kvcache import KvCache
from diskmoe.engine.model.scratch import Floats
from diskmoe.engine.turns import Turns


class _Lane(Protocol):
    """What is asked of a lane."""

    @property
    def kv(self) -> KvCache: ...


class _Lanes(Protocol):
    """What is asked of the lanes: see ``engine.lanes``."""

    @property
    def transformer(self) -> Transformer: ...
    @property
    def seconds(self) -> float: ...
    def expect(self, text: Any) -> None: ...
    def expect_no_more(self, text: Any) -> None: ...
    def take_over(self, lane: Any, ids: Sequence[int]) -> int: ...
    def chunk_ended(self, text: Any, rows: int) -> None: ...


class Reader(Protocol):
    """A text that has a prompt."""

    copied: int

    @property
    def lane(self) -> _Lane: ...
    @property
    def reuse(self) -> bool: ...
    def alone(self) -> AbstractContextManager[None]: ...
    def check(self) -> None: ...


class Prompts:
    """Those of the texts in these lanes."""

    def __init__(self, lanes: _Lanes) -> None:
        self._lanes = lanes
        self._chunk = Turns()
        self._chunks = 0  # so far

    def read(
        self, text: Reader, ids: npt.NDArray[Any], on_layer: Callable[[int, int], None] | None
    ) -> Floats:
        """A chunk goes into a text's cache; no logits. What is told of its layers may end the text,
        and begin another in its lane: then not a layer more is computed."""
        lanes, kv = self._lanes, text.lane.kv
        model, layers = lanes.transformer, len(lanes.transformer.layers)
        lanes.expect(text)  # who has just read the same need not wait long for it
        with self._chunk:
            self._chunks += 1
            here = self._chunks

            def tell(done: int) -> None:
                if on_layer is not None:
                    on_layer(done, layers)
                    text.check()
                    if self._chunks != here:  # in another lane, but in the same working memory
                        raise BadRequest("another text was read within the progress of this one")

            with text.alone():
                copied = lanes.take_over(text.lane, kv.tokens + ids.tolist()) if text.reuse else 0
            text.copied += copied
            if copied < len(ids):
                lanes.expect_no_more(text)
            steps = model.prompt(ids[copied:], kv)
            while not self._in_one_turn(text, steps, tell, len(ids) - copied):
                pass
        return np.zeros((0, model.vocab_size), np.float32)

    def _in_one_turn(
        self, text: Reader, steps: Iterator[int], tell: Callable[[int], None], rows: int
    ) -> bool:
        """Some layers of a chunk of so many rows, for as long as a forward takes; whether it is
        whole."""
        with text.alone():
            give_way = time.perf_counter() + self._lanes.seconds
            for done in steps:
                tell(done)
                if time.perf_counter() > give_way:
                    return False
            self._lanes.chunk_ended(text, rows)
            return True
