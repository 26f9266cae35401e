"""Where requests become runs: a thread for each text at once, and a queue of bounded length.

The rules kept here: a request is answered by the same run that a program would get alone; whoever
leaves is forgotten within a layer of the model, and at once where it still waits; nobody waits for a
client that reads slowly.

    desk = Desk(model, most_waiting=16)
    job = desk.enter(emit)                    # emit(event) is called from another thread
    desk.submit(job, asked)                   # as soon as it is known what is asked for
    job.cancel()
    desk.close()
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from diskmoe.engine.answer import Answer
from diskmoe.engine.api import Model
from diskmoe.engine.errors import BadGrammar, DiskMoeError
from diskmoe.engine.observed import LogProbs
from diskmoe.engine.server.asked import Asked
from diskmoe.engine.server.refusals import Refusal, refusal_of
from diskmoe.engine.stats import RunStats
from diskmoe.engine.text.thinking import Thinking
from diskmoe.engine.tools.parts import Part
from diskmoe.grammar_draft.patience import patient


@dataclass(frozen=True)
class Reading:
    """So many rows of the prompt are read."""

    done: int
    rows: int


@dataclass(frozen=True)
class Piece:
    """A part of the answer as it comes, and the log-probabilities of the tokens since the last."""

    part: Part
    logprobs: Sequence[LogProbs] = ()


@dataclass(frozen=True)
class Ended:
    """All was said. logprobs: of tokens behind the last part."""

    stats: RunStats
    logprobs: Sequence[LogProbs] = ()


@dataclass(frozen=True)
class Failed:
    """Nothing more comes."""

    refusal: Refusal


Event = Reading | Piece | Ended | Failed


class Gone(Exception):
    """The client has left, or its time is over."""


class Job:
    """A request on its way: a place at the desk."""

    def __init__(self, desk: Desk, emit: Callable[[Event], None], ends_at: float) -> None:
        """ends_at: on the monotonic clock."""
        self.emit = emit
        self.asked: Asked | None = None  # until it is known
        self.stats: RunStats | None = None  # of its run, while there is one
        self._desk = desk
        self._ends_at = ends_at
        self._gone = threading.Event()

    def cancel(self) -> None:
        """Nobody wants the answer any more; nothing happens where it was given."""
        self._gone.set()
        self._desk.forget(self)

    @property
    def reason(self) -> str | None:
        """Why it must end now, if it must."""
        if self._gone.is_set() or self._desk.ending:
            return "cancelled"
        return "time limit" if time.monotonic() > self._ends_at else None

    def check(self) -> None:
        """Raises Gone when it must end."""
        if self.reason is not None:
            raise Gone

    @property
    def refusal(self) -> Refusal:
        """What is said of one that must end before it has begun."""
        if self.reason == "time limit":
            return Refusal(
                503,
                "the time for a request (REQUEST_SECONDS) has passed before this one began: ask again "
                "when the server has less to do",
                code="timeout",
            )
        if self._desk.ending:
            return Refusal(503, "the server is ending: ask again when it is back", code="ending")
        return Refusal(499, "the client has left")


@dataclass
class Totals:
    """Since the start, over all requests that have ended."""

    requests: int = 0
    cancelled: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    tokens: int = 0
    decode_seconds: float = 0.0
    prefill_seconds: float = 0.0
    drafts: dict[str, list[int]] = field(default_factory=dict)  # by source: judged, accepted

    def add(self, stats: RunStats) -> None:
        """A run's numbers."""
        self.prompt_tokens += stats.prompt_tokens
        self.reused_tokens += stats.reused_tokens
        self.tokens += stats.tokens
        self.decode_seconds += stats.decode.seconds
        self.prefill_seconds += stats.prefill.seconds
        for name, account in list(stats.drafts.items()):
            judged = self.drafts.setdefault(name, [0, 0])
            judged[0] += account.judged
            judged[1] += account.accepted


class Desk:
    """Takes requests for a model."""

    def __init__(
        self,
        model: Model,
        most_waiting: int,
        most_seconds: float,
        say: Callable[[str], None],
        debug: bool = False,
    ) -> None:
        """most_waiting: requests beside those that run. most_seconds: of a request, from its
        arrival. say: told of errors of ours; debug: with a traceback."""
        self.model = model
        self.totals = Totals()
        self.ending = False
        self._most_waiting = most_waiting
        self._most_seconds = most_seconds
        self._say = say
        self._debug = debug
        self._changed = threading.Condition()
        self._entered: set[Job] = set()  # of which it is not known yet what they ask for
        self._line: deque[Job] = deque()
        self._running: set[Job] = set()
        self._threads = [
            threading.Thread(target=self._work, name=f"diskmoe-text-{number}", daemon=True)
            for number in range(model.options.parallel)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def running(self) -> int:
        """Requests that have a text of the model."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that have a place and no text yet."""
        return len(self._entered) + len(self._line)

    def so_far(self) -> Totals:
        """The totals, with those of what runs."""
        with self._changed:
            found = deepcopy(self.totals)
            for job in self._running:
                if job.stats is not None:
                    found.add(job.stats)
            return found

    def enter(self, emit: Callable[[Event], None]) -> Job:
        """A place. Raises Refusal 429 when too many wait, 503 when the server is ending."""
        job = Job(self, emit, time.monotonic() + self._most_seconds)
        with self._changed:
            if self.ending:
                raise job.refusal
            if self.waiting >= self._most_waiting + len(self._threads) - self.running:
                raise Refusal(
                    429,
                    f"{self.running} requests run and {self.waiting} wait, more are not taken: try "
                    "again later",
                    code="queue_full",
                )
            self._entered.add(job)
        return job

    def submit(self, job: Job, asked: Asked) -> None:
        """What is asked for at a place. Raises Gone when it must end already."""
        with self._changed:
            job.check()
            job.asked = asked
            self._entered.discard(job)
            self._line.append(job)
            self._changed.notify()

    def forget(self, job: Job) -> None:
        """A place that waits is free; what runs on it ends by itself."""
        with self._changed:
            if job in self._line:
                self._line.remove(job)
                self._count(job, RunStats(), cancelled=1)
            self._entered.discard(job)

    def end(self) -> None:
        """All that runs or waits ends soon, and nothing more is taken. Safe within a signal."""
        self.ending = True

    def close(self) -> None:
        """Ends all runs, then the threads."""
        self.end()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def failed(self, error: Exception) -> Refusal:
        """Notes an error of ours; what the client is told of it."""
        said = " ".join(str(error).split())[:300]
        self._say(f"error: internal: {type(error).__name__}: {said}; DEBUG=1 shows where")
        if self._debug:
            traceback.print_exception(error)
        return Refusal(500, "the server has failed at this request; its log says why")

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._line or self.ending)
                if not self._line:
                    return
                job = self._line.popleft()
                self._running.add(job)
            try:
                last = self._done(job)
            finally:
                with self._changed:
                    self._running.discard(job)
            job.emit(last)

    def _done(self, job: Job) -> Event:
        """Runs a job; its last event."""
        stats, answer = RunStats(), None
        try:
            if job.reason == "time limit":
                raise job.refusal
            job.check()
            assert job.asked is not None
            with patient(job.check):  # its grammar was ready, and may have had to make room
                answer = self._begin(job, job.asked)
            stats = job.stats = answer.run.stats
            answer.run.end_when(lambda: job.reason)
            for part in answer:
                job.emit(Piece(part, answer.logprobs()))
            for note in answer.notes:
                self._say(f"note      {note}")
        except Gone:
            stats.stop_reason = job.reason or "cancelled"
        except (DiskMoeError, BadGrammar) as error:
            return self._refused(job, refusal_of(error))
        except Refusal as refusal:
            return self._refused(job, refusal)
        except Exception as error:  # noqa: BLE001 - a bug of ours ends one request, not the server
            return self._refused(job, self.failed(error))
        self._count(job, stats, cancelled=int(stats.stop_reason == "cancelled"))
        return Ended(stats, () if answer is None else answer.logprobs())

    def _refused(self, job: Job, refusal: Refusal) -> Failed:
        self._count(job, RunStats(), failed=1)
        return Failed(refusal)

    def _begin(self, job: Job, asked: Asked) -> Answer:
        def tell(done: int, rows: int) -> None:
            job.check()
            job.emit(Reading(done, rows))

        text, prompt = self.model.text, asked.prompt
        thinking = Thinking.of(text, prompt.ids) if asked.chat else Thinking.none()
        room = self.model.opened.context - len(prompt.ids)
        run = self.model.generate(
            prompt,
            sampling=asked.sampling,
            limit=max(1, room) if asked.limit is None else asked.limit,
            stop=asked.stop,
            on_prefill=tell,
            grammar=asked.grammar,
            constrain=asked.grammar is not None,
            triggers=asked.triggers,
            thinking=asked.thinking,
            logprobs=asked.logprobs,
            shown=asked.calling.shown_tokens(text, asked.toolbox),
        )
        several = asked.toolbox is None or asked.toolbox.several
        return Answer(run, thinking, asked.calling.reader(asked.toolbox), several)

    def _count(self, job: Job, stats: RunStats, cancelled: int = 0, failed: int = 0) -> None:
        with self._changed:
            job.stats = None
            self.totals.requests += 1
            self.totals.cancelled += cancelled
            self.totals.failed += failed
            self.totals.add(stats)
