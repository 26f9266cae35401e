"""Several texts at once on one model: each has a lane, and lanes share forwards.

A lane has the caches of one text. Texts may be decoded in a thread each: what computes takes turns,
first come, first served, and rows of texts that are decoded at the same time go through the model
in one forward (``model.together``); prompts give way to them (``engine.prompts``). The rules kept
here: what a text gets never depends on who is beside it; and nobody waits for a text that is slow to
ask: a forward begins with those that are there within a fraction of the time it takes.

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
from weakref import ReferenceType, ref

import numpy as np
import numpy.typing as npt

from diskmoe.engine.books import Booked, Books
from diskmoe.engine.errors import BadRequest, DiskMoeError
from diskmoe.engine.forks import Home
from diskmoe.engine.model.forward import Transformer, Wanted
from diskmoe.engine.model.kvcache import KvCache
from diskmoe.engine.model.mtp_layer import MtpLayer
from diskmoe.engine.model.scratch import Floats
from diskmoe.engine.model.together import Answer, Part, Together
from diskmoe.engine.prompts import Prompts
from diskmoe.engine.stats import Phase
from diskmoe.engine.turns import Turns

PATIENCE = 0.25  # of the latest shared forward's seconds, that one waits for others to join
NEW_PATIENCE = 0.05  # the same, at the first forward of a text, for others that were not expected
LEAST_PATIENCE = 0.002  # seconds


@dataclass(eq=False)
class _Request:
    """A text's rows, and what came of them."""

    text: Text
    part: Part
    logits: Floats | None = None
    error: DiskMoeError | None = None  # its own


@dataclass(eq=False)
class _Batch:
    """Rows of texts that are to go through the model together. Its first text's thread computes."""

    requests: list[_Request] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None


class Text(Booked):
    """A text in its lane: what ``decode`` asks of a model."""

    def __init__(self, lanes: Lanes, lane: Lane, reuse: bool) -> None:
        """reuse: it may go on from what other texts have left."""
        super().__init__(lanes.books)
        self.lane = lane
        self.reuse = reuse
        self.number = lanes.lanes.index(lane)  # of the lane
        self.copied = 0  # rows of its prompt that were not computed, as another cache had them
        self.row_misses: Sequence[int] = ()
        self.hidden: Floats = np.zeros((0, 0), np.float32)  # (n, hidden) of its latest rows
        self.places: Sequence[int] = ()  # of these among those of the forward
        self.useful: set[int] | None = None  # of that one, if it had drafts: what is known
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
            return self._lanes.prompts.read(self, np.asarray(ids), on_layer)
        return self._lanes.forward(self, Part(self.lane.kv, np.asarray(ids), rows))

    @contextmanager
    def alone(self, phase: Phase | None = None) -> Iterator[None]:
        """Inside, nobody else computes, and what is read is booked on this text, in a phase: else
        that of its latest forward."""
        with self._lanes.turns:
            self.check()
            with self.books.booked([self], phase or self.phase, self._lanes.crowded):
                yield

    @property
    def is_new(self) -> bool:
        """Whether no token of it was decoded yet."""
        return self.phase is self.books.prefill

    def accepted(self, rows: int) -> None:
        """Of its latest rows the first so many were of use. Others may have had a forward since:
        what is noted belongs to the one that these rows were in."""
        if self.useful is not None:
            self.useful.update(self.places[:rows])
            self._lanes.accepted()

    def check(self) -> None:
        """BadRequest when its run has ended, or in a fork of its process."""
        self._lanes.home.check()
        if self.lane.text is not self:
            raise BadRequest("this run was ended by a newer one, or the model was closed")

    def end(self) -> None:
        """The lane is free; what its cache holds may serve the next text."""
        if not self._lanes.home.is_here:
            return
        with self.lane.changing:  # or a text that takes the lane now would lose it
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
        self.changing = threading.RLock()  # whose lane it is, and where its cache ends
        self.begun = 0  # the number of its latest text
        self._text: ReferenceType[Text] | None = None

    @property
    def text(self) -> Text | None:
        """Whose it is. A text that nobody has any more, as its run was never begun, has no lane."""
        return None if self._text is None else self._text()

    @text.setter
    def text(self, text: Text | None) -> None:
        self._text = None if text is None else ref(text)

    def keep(self, length: int) -> None:
        """Of what its caches hold only so many positions; a head's may have fewer."""
        self.kv.trim(length)
        if self.head is not None:
            self.head.kv.trim(min(length, self.head.kv.length))


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
        self.books = Books(transformer)
        self.home = Home()
        self.turns = Turns()
        self.prompts = Prompts(self)
        self.lanes = [Lane(kv, head) for kv, head in zip(caches, heads, strict=True)]
        self._on_forward = on_forward
        self._on_accepted = on_accepted
        self._together = Together(transformer)
        self._begun = 0
        self._closed = False
        self._joined = threading.Condition()
        self._open: _Batch | None = None
        self._expected: set[Text] = set()  # texts that will probably ask for the next forward
        self.seconds = 0.1  # of the latest forward; a guess as long as there was none
        self._useful: set[int] | None = None  # rows of the latest forward with drafts, as known

    def begin(self, ids: Sequence[int], reuse: bool = True) -> tuple[Text, int]:
        """A lane for a new text, and how many positions of its cache can be reused.

        It is a free lane, if there is one: that which has most of the text, else the one not used
        for longest. If there is none, the text that began first has ended, at its next forward at
        the latest. BadRequest after `close`.
        """
        with self.turns:  # not in the middle of another's forward
            if self._closed:
                raise BadRequest("the model was closed: load it again")
            free = [lane for lane in self.lanes if lane.text is None]
            known = ids[:-1]  # the last token's row is the first of decoding
            lane = max(
                free or self.lanes,
                key=lambda lane: (bool(free and reuse) and lane.kv.holds(known), -lane.begun),
            )
            with lane.changing:
                latest = lane.text
                if latest is not None:
                    latest.end()
                self._begun += 1
                lane.begun = self._begun
                text = Text(self, lane, reuse)
                lane.text = text
                lane.keep(lane.kv.holds(known) if reuse else 0)
                if reuse:
                    self.take_over(lane, known)
                return text, lane.kv.length

    def close(self) -> None:
        """No text goes on, and none begins."""
        with self.turns:
            self._closed = True
            for text in filter(None, [lane.text for lane in self.lanes]):
                text.end()

    def forget(self) -> None:
        """Texts to come go on from nothing that earlier ones have left."""
        with self.turns:
            for lane in self.lanes:
                if lane.text is None:
                    lane.kv.trim(0)

    def forward(self, text: Text, part: Part) -> Floats:
        """A text's part of a forward with the texts that ask at the same time; its logits."""
        part.kv.check_room(len(np.asarray(part.ids)))
        begin = part.kv.length
        while True:
            request = _Request(text, part)
            with self._joined:
                # who leads a batch wants the turn, so who has it does not wait for one
                batch = (None if self.turns.is_mine else self._open) or _Batch()
                self._open = self._open or batch
                batch.requests.append(request)
                self._expected.add(text)
                self._joined.notify_all()
            if batch.requests[0] is request:
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
            text.kv.trim(begin)  # which may have its rows already

    def accepted(self) -> None:
        """A text has noted which of its rows were of use."""
        if len(self.lanes) == 1:
            with self.turns:
                self._judge()

    def expect(self, text: Text) -> None:
        """A text will ask for the next forward soon."""
        with self._joined:
            self._expected.add(text)

    def expect_no_more(self, text: Text) -> None:
        """A text will not ask for the next forward, or not soon."""
        with self._joined:
            self._expected.discard(text)
            self._joined.notify_all()

    def take_over(self, lane: Lane, ids: Sequence[int]) -> int:
        """Positions of a text of these tokens that the lane's cache had not, and another's has, are
        copied; how many."""
        here = lane.kv.length
        for other in self.lanes:
            with other.changing:  # its text may take drafts back at any time
                found = 0 if other is lane else other.kv.holds(ids)
                if found > lane.kv.length:
                    lane.kv.take_over(other.kv, found)
        return lane.kv.length - here

    @property
    def crowded(self) -> bool:
        """Whether there are several texts."""
        return sum(lane.text is not None for lane in self.lanes) > 1

    def _lead(self, batch: _Batch) -> None:
        """Waits for others, then computes for all. Errors are the batch's."""
        try:
            with self._joined:
                self._joined.wait_for(
                    lambda: self._expected <= {request.text for request in batch.requests},
                    max(LEAST_PATIENCE, PATIENCE * self.seconds),
                )
                if batch.requests[0].text.is_new:  # who began with it may be about to ask
                    self._joined.wait_for(
                        lambda: len(batch.requests) == len(self.lanes),
                        max(LEAST_PATIENCE, NEW_PATIENCE * self.seconds),
                    )
            with self.turns:
                with self._joined:
                    self._open = None if self._open is batch else self._open
                    self._expected = {request.text for request in batch.requests}
                self._judge()
                self._compute_for([request for request in batch.requests if _goes_on(request)])
        except BaseException as error:
            batch.error = error
            if not isinstance(error, Exception):
                raise
        finally:
            with self._joined:
                self._open = None if self._open is batch else self._open
            batch.done.set()

    def _compute_for(self, requests: Sequence[_Request]) -> None:
        """Together; where that fails one by one, so that an error is of the text that makes it."""
        try:
            if requests:
                self._compute(requests)
        except DiskMoeError as error:
            if len(requests) == 1:
                requests[0].error = error
            else:
                for request in requests:
                    self._compute_for([request])

    def _compute(self, requests: Sequence[_Request]) -> None:
        began, model = time.perf_counter(), self.transformer
        parts = [request.part for request in requests]
        texts = [request.text for request in requests]
        with self.books.booked(texts, self.books.decode, self.crowded):
            if len(parts) == 1:
                logits = model.forward(parts[0].ids, parts[0].rows, None, parts[0].kv)
                rows = range(len(model.hidden))
                answers = [Answer(logits, model.hidden, rows)]
            else:
                answers = self._together.forward(parts)
        self.seconds = time.perf_counter() - began
        n_rows = sum(len(answer.hidden) for answer in answers)
        self.books.ended(texts, self.books.decode, n_rows)
        drafts = n_rows > len(answers)
        self._useful = {answer.places[0] for answer in answers} if drafts else None
        for request, answer in zip(requests, answers, strict=True):
            self._left_for(request.text, answer.hidden, answer.places)
            request.logits = answer.logits
        self._on_forward()

    def chunk_ended(self, text: Text, rows: int) -> None:
        """So many rows of a prompt were computed, and its cache has them."""
        self._left_for(text, self.transformer.hidden, ())
        if rows:
            self.books.ended([text], self.books.prefill, rows)
        self._on_forward()

    def _left_for(self, text: Text, hidden: Floats, places: Sequence[int]) -> None:
        """What the latest forward left for a text, as its head needs it after others' forwards."""
        text.hidden = hidden.copy() if text.lane.head and len(self.lanes) > 1 else hidden
        text.places, text.useful = places, self._useful
        text.row_misses = [self.transformer.row_misses[place] for place in places]

    def _judge(self) -> None:
        """What was of use in the latest forward with drafts is told, as far as it is known."""
        if self._useful is not None:
            rows, self._useful = sorted(self._useful), None
            self.transformer.accepted(rows)
            self._on_accepted(rows)


def _goes_on(request: _Request) -> bool:
    """Whether the text of a request is still there; it is told if not."""
    try:
        request.text.check()
    except BadRequest as error:
        request.error = error
    return request.error is None
