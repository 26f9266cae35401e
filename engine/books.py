"""What was asked of the hot store: for each text, and for all of them together.

The rule kept here: of a forward that texts share, each text counts the whole and all together count it
once; so a text's numbers say what it would cost alone, and those of all what the machine did.

    books = Books(transformer)
    with books.booked([text], books.decode, crowded=False):
        transformer.forward(...)
    books.ended([text], books.decode, rows=1)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from diskmoe.engine.model.forward import Transformer
from diskmoe.engine.stats import Phase, snapshot
from diskmoe.experts.store import StoreCounters


class Booked:
    """A text's part of the books.

    counters: what the forwards that it took part in, and its own drafting, asked of the hot store.
    programs_made: by these, and forwards beside others: neither tells what the next will cost.
    """

    def __init__(self, books: Books) -> None:
        self.counters = StoreCounters()
        self.selections = 0
        self.programs_made = 0
        self.books = books
        self.phase = books.prefill  # of its latest forward
        self.since = time.perf_counter()  # when that ended


class Books:
    """Of a model, since the start. prefill, decode: sums over the forwards of all texts."""

    def __init__(self, transformer: Transformer) -> None:
        self.prefill, self.decode = Phase(), Phase()
        self._model = transformer
        self._decoded = 0.0  # when the latest forward of decoding ended

    @contextmanager
    def booked(self, texts: Sequence[Booked], phase: Phase, crowded: bool) -> Iterator[None]:
        """What the hot store is asked for inside is booked on each of these texts, and once on the
        phase, with its time. crowded: there are other texts."""
        model, began = self._model, time.perf_counter()
        counters, selections, made = model.counters, model.selections, model.programs_made
        try:
            yield
        finally:
            now, chosen, seconds = model.counters, model.selections, time.perf_counter() - began
            phase.book(snapshot(counters, selections), snapshot(now, chosen), seconds)
            if phase is self.prefill:  # between its turns others are decoded
                phase.seconds += seconds
            for text in texts:
                text.counters += now - counters
                text.selections += chosen - selections
                text.programs_made += model.programs_made - made + crowded

    def ended(self, texts: Sequence[Booked], phase: Phase, rows: int) -> None:
        """A forward of so many rows has ended."""
        now = time.perf_counter()
        phase.count(rows)
        if phase is self.decode:
            # between two forwards of a text it is decoded too: choosing a token takes its time
            phase.seconds += now - max(self._decoded, min(text.since for text in texts))
            self._decoded = now
        for text in texts:
            text.phase, text.since = phase, now
