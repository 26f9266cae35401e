"""Several texts at once on one model: each has a lane, and lanes share forwards.

A lane has the caches of one text. Texts may be decoded in a thread each: what computes takes turns,
first come, first served, and rows of texts that are decoded at the same time go through the model
in one forward (``model.together``). The rules kept here: what a text gets never depends on who is
beside it; and nobody waits for a text that is slow to ask: a forward begins with those that are
there within a fraction of the time it takes.

    lanes = Lanes(transformer, [KvCache(config, 4096), KvCache(config, 4096)], [None, None])
    text, reused = lanes.begin(prompt_ids)
    for token in decode(text, prompt_ids, sampler, limit=100, reused=reused): ...
    text.end()
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.engine.decode import Drafts
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.model.forward import Transformer, Wanted
from diskmoe.engine.model.kvcache import KvCache
from diskmoe.engine.model.mtp_layer import MtpLayer
from diskmoe.engine.model.scratch import Floats
from diskmoe.engine.model.together import Answer, Part, Together
from diskmoe.engine.turns import Turns
from diskmoe.experts.store import StoreCounters
from diskmoe.mtp.source import Draft

PATIENCE = 0.25  # of the latest shared forward's seconds, that one waits for others to join
LEAST_PATIENCE = 0.002  # seconds


@dataclass(eq=False)
class _Request:
    """A text's rows, and what came of them."""

    text: Text
    part: Part
    logits: Floats | None = None
    error: BadRequest | None = None  # its own


@dataclass(eq=False)
class _Batch:
    """Rows of texts that are to go through the model together. Its first text's thread computes."""

    requests: list[_Request] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None


class Text:
    """A text in its lane: what ``decode`` asks of a model.

    counters: what the forwards that it took part in, and its own drafting, asked of the hot store;
    of a forward that texts share, each counts the whole.
    """

    def __init__(self, lanes: Lanes, lane: Lane) -> None:
        self.lane = lane
        self.number = lanes.lanes.index(lane)  # of the lane
        self.counters = StoreCounters()
        self.selections = 0
        self.programs_made = 0  # and forwards beside others: neither tells what the next will cost
        self.row_misses: Sequence[int] = ()
        self.hidden: Floats = np.zeros((0, 0), np.float32)  # (n, hidden) of its latest rows
        self.places: Sequence[int] = ()  # of these among those of the forward
        self._lanes = lanes

    @property
    def kv(self) -> OwnCache:
        return OwnCache(self)

    @property
    def vocab_size(self) -> int:
        return self._lanes.transformer.vocab_size

    def forward(
        self, ids: npt.ArrayLike, rows: Wanted, on_layer: Callable[[int, int], None] | None = None
    ) -> Floats:
        """See ``Transformer.forward``. BadRequest when another text has taken the lane."""
        if rows == "none":
            return self._lanes.prompt(self, np.asarray(ids), on_layer)
        return self._lanes.forward(self, Part(self.lane.kv, np.asarray(ids), rows))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, nobody else computes, and what is read is booked on this text."""
        with self._lanes.turns:
            self.check()
            with self._lanes.booked([self]):
                yield

    def accepted(self, rows: int) -> None:
        """Of its latest rows the first so many were of use."""
        self._lanes.accepted(self.places[:rows])

    def check(self) -> None:
        """BadRequest when its run has ended."""
        if self.lane.text is not self:
            raise BadRequest("this run was ended by a newer one, or the model was closed")

    def end(self) -> None:
        """The lane is free; what its cache holds may serve the next text."""
        if self.lane.text is self:
            self.lane.text = None
        self._lanes.expect_no_more(self)


class OwnCache:
    """The cache of a text's lane, for as long as the lane is the text's."""

    def __init__(self, text: Text) -> None:
        self._text = text

    @property
    def length(self) -> int:
        return self._text.lane.kv.length

    @property
    def capacity(self) -> int:
        return self._text.lane.kv.capacity

    def trim(self, length: int) -> None:
        """BadRequest when another text has taken the lane: what is in it is that one's."""
        with self._text.lane.changing:
            self._text.check()
            self._text.lane.kv.trim(length)


class Lane:
    """The caches of one text."""

    def __init__(self, kv: KvCache, head: MtpLayer | None) -> None:
        self.kv = kv
        self.head = head
        self.text: Text | None = None
        self.changing = threading.Lock()  # whose lane it is, and where its cache ends
        self.begun = 0  # the number of its latest text


class Lanes:
    """The lanes of a model, and their turns at the processor."""

    def __init__(
        self,
        transformer: Transformer,
        caches: Sequence[KvCache],
        heads: Sequence[MtpLayer | None],
        on_forward: Callable[[], None] = lambda: None,
        on_accepted: Callable[[Sequence[int]], None] = lambda rows: None,
    ) -> None:
        """caches, heads: of each lane; caches are of equal capacity. on_forward: called after each
        forward, when nobody computes. on_accepted: told which rows of a forward with drafts were of
        use, before the next one."""
        self.transformer = transformer
        self.turns = Turns()
        self.lanes = [Lane(kv, head) for kv, head in zip(caches, heads, strict=True)]
        self._on_forward = on_forward
        self._on_accepted = on_accepted
        self._together = Together(transformer)
        self._begun = 0
        self._forwards = 0
        self._joined = threading.Condition()
        self._open: _Batch | None = None
        self._expected: set[Text] = set()  # texts that will probably ask for the next forward
        self._seconds = 0.0  # of the latest forward
        self._useful: set[int] | None = None  # rows of the latest forward with drafts, as known

    def begin(self, ids: Sequence[int], reuse: bool = True) -> tuple[Text, int]:
        """A lane for a new text, and how many positions of its cache can be reused.

        It is a free lane, if there is one: that which has most of the text, else the one not used
        for longest. If there is none, the text that began first has ended, at its next forward at
        the latest.
        """
        with self.turns:  # not in the middle of another's forward
            free = [lane for lane in self.lanes if lane.text is None]
            lane = max(
                free or self.lanes,
                key=lambda lane: (bool(free and reuse) and lane.kv.reusable(ids), -lane.begun),
            )
            with lane.changing:
                if lane.text is not None:
                    lane.text.end()
                self._begun += 1
                lane.begun = self._begun
                lane.text = Text(self, lane)
                return lane.text, lane.kv.reusable(ids) if reuse else 0

    def close(self) -> None:
        """No text goes on."""
        with self.turns:
            for lane in self.lanes:
                if lane.text is not None:
                    lane.text.end()

    def forget(self) -> None:
        """Texts to come go on from nothing that earlier ones have left."""
        with self.turns:
            for lane in self.lanes:
                if lane.text is None:
                    lane.kv.trim(0)

    def prompt(
        self, text: Text, ids: npt.NDArray[Any], on_layer: Callable[[int, int], None] | None
    ) -> Floats:
        """A chunk of a prompt goes into a text's cache. What is told of its layers may end it, and
        begin another text in its lane: then not a layer more is computed."""

        def told(done: int, layers: int) -> None:
            if on_layer is not None:
                on_layer(done, layers)
                text.check()
                if self._forwards != here:  # in a lane of its own, but in the same working memory
                    raise BadRequest("another text was computed within the progress of this one")

        with text.alone():
            self._forwards += 1
            here = self._forwards
            logits = self.transformer.forward(ids, "none", told, text.lane.kv)
            self._left_for(text, self.transformer.hidden, ())
            self._on_forward()
        return logits

    def forward(self, text: Text, part: Part) -> Floats:
        """A text's part of a forward with the texts that ask at the same time; its logits."""
        part.kv.check_room(len(np.asarray(part.ids)))
        while True:
            request = _Request(text, part)
            with self._joined:
                leads = self._open is None
                batch = self._open = self._open or _Batch()
                batch.requests.append(request)
                self._expected.add(text)
                self._joined.notify_all()
            if leads:
                self._lead(batch)
            else:
                batch.done.wait()
            if request.error is not None:
                raise request.error
            if request.logits is not None:
                return request.logits
            if isinstance(batch.error, Exception):
                raise batch.error
            # the thread that computed for all was interrupted: once more, without it

    def accepted(self, places: Sequence[int]) -> None:
        """These rows of the latest forward were of use."""
        useful = self._useful  # which another thread may judge at any time
        if useful is None:
            return
        useful.update(places)
        if len(self.lanes) == 1:
            with self.turns:
                self._judge()

    def expect_no_more(self, text: Text) -> None:
        """A text will not ask for the next forward."""
        with self._joined:
            self._expected.discard(text)
            self._joined.notify_all()

    @contextmanager
    def booked(self, texts: Sequence[Text]) -> Iterator[None]:
        """What the hot store is asked for inside is booked on each of these texts."""
        model = self.transformer
        counters, selections, made = model.counters, model.selections, model.programs_made
        crowded = sum(lane.text is not None for lane in self.lanes) > 1
        try:
            yield
        finally:
            asked, chosen = model.counters - counters, model.selections - selections
            for text in texts:
                text.counters += asked
                text.selections += chosen
                text.programs_made += model.programs_made - made + crowded

    def _lead(self, batch: _Batch) -> None:
        """Waits for others, then computes for all. Errors are the batch's."""
        try:
            with self._joined:
                self._joined.wait_for(
                    lambda: self._expected <= {request.text for request in batch.requests},
                    max(LEAST_PATIENCE, PATIENCE * self._seconds),
                )
            with self.turns:
                with self._joined:
                    self._open = None
                    self._expected = {request.text for request in batch.requests}
                self._judge()
                self._compute([request for request in batch.requests if _goes_on(request)])
        except BaseException as error:
            batch.error = error
            if not isinstance(error, Exception):
                raise
        finally:
            with self._joined:
                if self._open is batch:
                    self._open = None
            batch.done.set()

    def _compute(self, requests: Sequence[_Request]) -> None:
        if not requests:
            return
        self._forwards += 1
        began, model = time.perf_counter(), self.transformer
        parts = [request.part for request in requests]
        with self.booked([request.text for request in requests]):
            if len(parts) == 1:
                logits = model.forward(parts[0].ids, parts[0].rows, None, parts[0].kv)
                rows = range(len(model.hidden))
                answers = [Answer(logits, model.hidden, rows)]
            else:
                answers = self._together.forward(parts)
        self._seconds = time.perf_counter() - began
        drafts = sum(len(answer.hidden) for answer in answers) > len(answers)
        self._useful = set(range(len(answers))) if drafts else None
        for request, answer in zip(requests, answers, strict=True):
            self._left_for(request.text, answer.hidden, answer.places)
            request.logits = answer.logits
        self._on_forward()

    def _left_for(self, text: Text, hidden: Floats, places: Sequence[int]) -> None:
        """What the latest forward left for a text, as it is needed after the next one's beginning."""
        text.hidden = hidden if len(self.lanes) == 1 else hidden.copy()
        text.places = places
        text.row_misses = [self.transformer.row_misses[place] for place in places]

    def _judge(self) -> None:
        """What was of use in the latest forward with drafts is told, as far as it is known."""
        if self._useful is not None:
            rows, self._useful = sorted(self._useful), None
            self.transformer.accepted(rows)
            self._on_accepted(rows)


class DraftsInTurn:
    """Drafts of a text whose sources compute, in the text's turns; see ``decode.Drafts``."""

    def __init__(self, drafts: Drafts, text: Text) -> None:
        self.forwarded, self.emitted = drafts.forwarded, drafts.emitted
        self._drafts = drafts
        self._text = text

    def propose(self, room: int) -> list[Draft]:
        with self._text.alone():
            return self._drafts.propose(room)


def _goes_on(request: _Request) -> bool:
    """Whether the text of a request is still there; it is told if not."""
    try:
        request.text.check()
    except BadRequest as error:
        request.error = error
        return False
    return True
