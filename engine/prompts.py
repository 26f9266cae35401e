"""How prompts get into the caches of texts while other texts are decoded.

The rules kept here: a chunk of a prompt gives way between its layers, so nobody waits for more than one
of them, or than a forward takes; its rows wait in the model's working memory, so there is one chunk at a
time; and what another text's cache holds already is copied, not computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.model.scratch import Floats
from diskmoe.engine.turns import Turns

if TYPE_CHECKING:
    from diskmoe.engine.lanes import Lanes, Text


class Prompts:
    """Those of the texts in these lanes."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._chunk = Turns()
        self._chunks = 0  # so far

    def read(
        self, text: Text, ids: npt.NDArray[Any], on_layer: Callable[[int, int], None] | None
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
            while not self._in_one_turn(text, steps, tell):
                pass
            if copied < len(ids):
                lanes.books.ended([text], lanes.books.prefill, len(ids) - copied)
        return np.zeros((0, model.vocab_size), np.float32)

    def _in_one_turn(self, text: Text, steps: Iterator[int], tell: Callable[[int], None]) -> bool:
        """Some layers of a chunk, for as long as a forward takes; whether it is whole."""
        lanes = self._lanes
        with text.alone(lanes.books.prefill):
            give_way = time.perf_counter() + lanes.seconds
            for done in steps:
                tell(done)
                if time.perf_counter() > give_way:
                    return False
            lanes.left_for(text, lanes.transformer.hidden, ())
            lanes.on_forward()
            return True
