"""Where requests become runs: a thread for each text at once, and a queue of bounded length.

The rules kept here: a request is answered by the same run that a program would get alone; whoever
leaves is forgotten within a layer of the model; nobody waits for a client that reads slowly.

    desk = Desk(model, most_waiting=16)
    job = desk.submit(asked, emit)            # emit(event) is called from another thread
    job.cancel()
    desk.close()
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field

from diskmoe.engine.api import Model
from diskmoe.engine.errors import BadGrammar, DiskMoeError
from diskmoe.engine.generation import Run
from diskmoe.engine.server.asked import Asked
from diskmoe.engine.server.refusals import Refusal, refusal_of
from diskmoe.engine.stats import RunStats
from diskmoe.engine.text.thinking import Thinking


@dataclass(frozen=True)
class Reading:
    """So many rows of the prompt are read."""

    done: int
    rows: int


@dataclass(frozen=True)
class Piece:
    """Text as it comes."""

    text: str
    reasoning: bool


@dataclass(frozen=True)
class Ended:
    """All was said."""

    stats: RunStats


@dataclass(frozen=True)
class Failed:
    """Nothing more comes."""

    refusal: Refusal


Event = Reading | Piece | Ended | Failed


class _Gone(Exception):
    """The client has left, or its time is over."""


@dataclass(eq=False)
class Job:
    """A request on its way."""

    asked: Asked
    emit: Callable[[Event], None]
    begins_before: float  # clock: it is over then
    gone: threading.Event = field(default_factory=threading.Event)
    stats: RunStats | None = None  # of its run, while there is one

    def cancel(self) -> None:
        """Nobody wants the answer any more."""
        self.gone.set()

    @property
    def reason(self) -> str | None:
        """Why it must end now, if it must."""
        if self.gone.is_set():
            return "cancelled"
        return "time limit" if time.monotonic() > self.begins_before else None


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
        """A run, as far as it is."""
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
        self.running = 0
        self.waiting = 0
        self._most_waiting = most_waiting
        self._most_seconds = most_seconds
        self._say = say
        self._debug = debug
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._open: set[Job] = set()
        self._threads = [
            threading.Thread(target=self._work, name=f"diskmoe-text-{number}", daemon=True)
            for number in range(model.options.parallel)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, asked: Asked, emit: Callable[[Event], None]) -> Job:
        """Raises Refusal 429 when too many wait, 503 when the server is ending."""
        job = Job(asked, emit, time.monotonic() + self._most_seconds)
        with self._lock:
            if self.waiting >= self._most_waiting + len(self._threads) - self.running:
                raise Refusal(
                    429,
                    f"{self.running} requests run and {self.waiting} wait, more are not taken: try "
                    "again later",
                    code="queue_full",
                )
            self.waiting += 1
            self._open.add(job)
        self._jobs.put(job)
        return job

    def so_far(self) -> Totals:
        """Of the requests that have ended and, as far as they are, of those that run."""
        with self._lock:
            found = deepcopy(self.totals)
            for job in self._open:
                if job.stats is not None:
                    found.add(job.stats)
            return found

    def cancel(self) -> None:
        """Ends all that runs or waits, soon."""
        for job in list(self._open):
            job.cancel()

    def close(self) -> None:
        """Ends all runs, then the threads."""
        self.cancel()
        for _ in self._threads:
            self._jobs.put(None)
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
            job = self._jobs.get()
            if job is None:
                return
            with self._lock:
                self.waiting -= 1
                self.running += 1
            try:
                job.emit(self._done(job))
            finally:
                with self._lock:
                    self.running -= 1
                    self._open.discard(job)

    def _done(self, job: Job) -> Event:
        stats: RunStats | None = None
        try:
            if job.reason is not None:
                raise _Gone
            run = self._begin(job)
            stats = job.stats = run.stats
            thinking = Thinking.of(self.model.text, job.asked.prompt.ids)
            for piece in run:
                self._emit_parts(job, thinking, run, piece)
                if job.reason is not None:
                    run.stop(job.reason)
                    self._emit_parts(job, thinking, run, run.rest())
                    break
        except _Gone:
            if stats is None or job.reason == "cancelled":
                stats = stats or RunStats()
            stats.stop_reason = job.reason or "cancelled"
        except (DiskMoeError, BadGrammar) as error:
            self._count(job, failed=1)
            return Failed(refusal_of(error))
        except Exception as error:  # noqa: BLE001 - a bug of ours ends one request, not the server
            self._count(job, failed=1)
            return Failed(self.failed(error))
        self._count(job, stats, cancelled=int(stats.stop_reason == "cancelled"))
        return Ended(stats)

    def _begin(self, job: Job) -> Run:
        asked = job.asked

        def tell(done: int, rows: int) -> None:
            if job.reason is not None:
                raise _Gone
            job.emit(Reading(done, rows))

        room = self.model.opened.context - len(asked.prompt.ids)
        return self.model.generate(
            asked.prompt,
            sampling=asked.sampling,
            limit=max(1, room) if asked.limit is None else asked.limit,
            stop=asked.stop,
            on_prefill=tell,
            grammar=asked.grammar,
            constrain=asked.grammar is not None,
        )

    def _emit_parts(self, job: Job, thinking: Thinking, run: Run, piece: str) -> None:
        for reasoning, text in thinking.parts(piece, run.token_ids):
            job.emit(Piece(text, reasoning and job.asked.chat))

    def _count(
        self, job: Job, stats: RunStats | None = None, cancelled: int = 0, failed: int = 0
    ) -> None:
        with self._lock:
            totals = self.totals
            totals.requests += 1
            totals.cancelled += cancelled
            totals.failed += failed
            job.stats = None
            if stats is not None:
                totals.add(stats)
