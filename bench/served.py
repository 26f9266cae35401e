"""A server in a process of its own, and clients of it that note when each piece of an answer came.

    with served(["--model=DIR"], say) as server:
        answer = server.stream("/v1/completions", {"prompt": [1, 2], "max_tokens": 8})
        answer.tok_per_s, answer.first_seconds

The rule of this file: a client measures what a client sees; what it does for each piece is to read a
line and look at the clock, and all else when the answer has ended.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from itertools import pairwise
from typing import Any

from diskmoe.bench.launch import ENGINE, RunFailed, environment, kill
from diskmoe.engine.text.files import one_line

Say = Callable[[str], None]

START_SECONDS = 300.0  # to load a model
ANSWER_SECONDS = 600.0  # between two signs of life
_STOP_SECONDS = 20.0
_ADDRESS = re.compile(r"serving\s+http://([^/\s]+)/v1")
_KEPT_LINES = 40  # of what a server says


@dataclass(frozen=True)
class Answer:
    """What a client got, by its own clock: seconds since a moment that all clients share."""

    sent: float
    arrived: tuple[float, ...]  # each piece of text
    ended: float
    text: str
    usage: Mapping[str, Any]

    @property
    def tokens(self) -> int:
        return self.usage["completion_tokens"]

    @property
    def first(self) -> float:
        """When its first token came: without text, as the server tells it."""
        return self.arrived[0] if self.arrived else self.sent + self.told["ttft_seconds"]

    @property
    def last(self) -> float:
        return self.arrived[-1] if self.arrived else self.ended

    @property
    def first_seconds(self) -> float:
        return self.first - self.sent

    @property
    def tok_per_s(self) -> float:
        """Tokens after the first / seconds from it to the last. RunFailed where all came at once."""
        if self.last == self.first:
            raise RunFailed(
                f"an answer's {self.tokens} tokens came at once: ask for more (--tokens)"
            )
        return (self.tokens - 1) / (self.last - self.first)

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces."""
        return [after - before for before, after in pairwise(self.arrived)]

    @property
    def told(self) -> Mapping[str, Any]:
        """What the server says of it beside OpenAI's fields."""
        return self.usage["diskmoe"]


class Server:
    """A server that runs at an address."""

    def __init__(self, address: str) -> None:
        self._address = address

    def stream(
        self, path: str, body: Mapping[str, Any], at_piece: Callable[[], None] = lambda: None
    ) -> Answer:
        """One streamed request. at_piece: called after each part that has come.

        Raises RunFailed: it was refused, or ended before its end.
        """
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        came: list[tuple[float, bytes]] = []
        sent = time.perf_counter()
        with self._asked("POST", path, asked) as response:
            while some := response.read1():  # as much as has come
                came.append((time.perf_counter(), some))
                at_piece()
        return _answer(sent, came, time.perf_counter())

    def counted(self) -> dict[str, float]:
        """The server's own counters, by name."""
        with self._asked("GET", "/metrics") as response:
            lines = response.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and line[0] != "#")
        return {name.removeprefix("diskmoe_"): float(value) for name, value in pairs}

    @contextmanager
    def _asked(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> Iterator[HTTPResponse]:
        connection = HTTPConnection(self._address, timeout=ANSWER_SECONDS)
        content = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, content, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                said = one_line(response.read(2000).decode("utf-8", "replace"), 300)
                raise RunFailed(f"the server refused {path} ({response.status}): {said}")
            yield response
        except (OSError, HTTPException) as error:
            raise RunFailed(f"the server did not answer {path}: {error}") from None
        finally:
            connection.close()


def _answer(sent: float, came: Sequence[tuple[float, bytes]], ended: float) -> Answer:
    arrived, parts, usage = [], [], None
    for at, event in _events(came):
        if "error" in event:
            raise RunFailed(f"the server failed at an answer: {event['error'].get('message')}")
        usage = event.get("usage") or usage
        for choice in event.get("choices", ()):
            delta = choice.get("delta", choice)
            words = [delta.get(name) for name in ("reasoning_content", "content", "text")]
            piece = "".join(word for word in words if word)
            if piece:
                arrived.append(at)
                parts.append(piece)
    if usage is None:
        raise RunFailed("the server ended a stream before its end")
    return Answer(sent, tuple(arrived), ended, "".join(parts), usage)


def _events(came: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, dict[str, Any]]]:
    """(when its end came, event) of the objects in a stream of server-sent events."""
    rest = b""
    for at, some in came:
        *lines, rest = (rest + some).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                yield at, json.loads(line[len(b"data: ") :])


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Inside, a signal to end leaves by an exception, so that servers end with their benchmark. In the
    main thread only."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def served(flags: Sequence[str], say: Say) -> Iterator[Server]:
    """A server with these flags, from when it listens; it is ended at the end.

    Raises RunFailed: it ended, or did not listen in time; with what it said.
    """
    command = (*ENGINE, "serve", "--host=127.0.0.1", "--port=0", *flags)
    with tempfile.TemporaryDirectory(prefix="diskmoe-bench-") as state:
        process = subprocess.Popen(
            command,
            env=environment(state),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        log = _Log(process)
        try:
            address = log.address(START_SECONDS)
            say(f"server    process {process.pid} at {address}: {' '.join(flags)}")
            yield Server(address)
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                kill(process)
                process.wait()
            log.thread.join()


class _Log:
    """Reads what a server says, so that it never waits for us."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: list[str] = []
        self._found = ""
        self._known = threading.Event()  # its address, or that there will be none
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._lines = [*self._lines[1 - _KEPT_LINES :], line.strip()]
                match = _ADDRESS.search(line)
                if match:
                    self._found = match[1]
                    self._known.set()
        self._known.set()

    def address(self, seconds: float) -> str:
        self._known.wait(seconds)
        if self._found:
            return self._found
        said = next((line for line in self._lines[::-1] if line.startswith("error:")), "")
        said = said or (self._lines[-1] if self._lines else "nothing")
        raise RunFailed(f"the server did not begin to listen; it said: {one_line(said, 300)}")
