"""Clients that leave, at any moment: their place is free at once, and no more is computed for them."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tiny_server import CONTEXT, connected, posted, serving, until

from diskmoe.engine.api import Model, Options
from diskmoe.engine.sampling import Sampling
from diskmoe.engine.server.app import THREADS
from diskmoe.engine.server.asked import Asked
from diskmoe.engine.server.desk import Desk
from diskmoe.grammar_draft.patience import breathe

WORDS = "word " * 100  # of a prompt of several chunks
CHUNK = 64
ASK = {"prompt": "Hi", "max_tokens": 4}


class Gate:
    """Layers of a model go one by one, as they are let; counted when they are computed."""

    def __init__(self, model: Model) -> None:
        self.layers = 0
        self._may = threading.Semaphore(0)
        self._arrived = threading.Semaphore(0)
        self._open = False
        compute = model.transformer.run_layer

        def run_layer(*args: Any) -> Any:
            self._arrived.release()
            if not self._open:
                self._may.acquire()
            self.layers += 1
            return compute(*args)

        model.transformer.run_layer = run_layer  # pyright: ignore[reportAttributeAccessIssue]

    def let(self, layers: int) -> None:
        """So many go; comes back when the one behind them is about to."""
        for _ in range(layers):
            self._may.release()
        for _ in range(layers + 1):
            assert self._arrived.acquire(timeout=20)

    def let_all(self) -> None:
        self._open = True
        self._may.release(1000)


@pytest.fixture
def gated(model_path: Path) -> Iterator[tuple[Desk, str, Gate]]:
    """A desk, its address, and the gate of its layers: nothing is computed before it is let."""
    options = Options(ctx=CONTEXT, cap=4, parallel=2, prefill_chunk=CHUNK)
    with Model.load(model_path, options) as model:
        desk = Desk(model, most_waiting=2, most_seconds=60, say=pytest.fail)
        gate = Gate(model)
        with serving(desk) as (_, address):
            yield desk, address, gate
            gate.let_all()
        desk.close()


def reset(line: socket.socket) -> None:
    """Closes without a farewell."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.close()


def is_gone(desk: Desk) -> bool:
    return all(job.reason == "cancelled" for job in desk._running)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("leave", [socket.socket.close, reset])
@pytest.mark.parametrize("layers", [0, 1, 4])
def test_not_a_layer_more_is_begun_for_a_client_that_left_in_its_prompt(
    gated: tuple[Desk, str, Gate],
    stream: bool,
    leave: Callable[[socket.socket], None],
    layers: int,
) -> None:
    desk, address, gate = gated
    with connected(address, posted({"prompt": WORDS, "stream": stream})) as line:
        gate.let(layers)  # and the next one is under way
        leave(line)
        until(lambda: is_gone(desk))
        gate.let_all()
        until(lambda: desk.running == 0)
    assert gate.layers == layers + 1
    assert desk.totals.cancelled == 1


def test_a_job_that_is_cancelled_in_its_prompt_ends_within_a_layer(
    gated: tuple[Desk, str, Gate],
) -> None:
    desk, _, gate = gated
    events: list[object] = []
    job = desk.enter(events.append)
    prompt = desk.model.text.encode_prompt(WORDS, chat="0")
    desk.submit(job, Asked(prompt, Sampling(0), 4, (), False, False, False, None))
    gate.let(2)
    job.cancel()
    gate.let_all()
    until(lambda: desk.running == 0)
    assert gate.layers == 3
    job.cancel()  # twice is once
    assert (desk.totals.requests, desk.totals.cancelled) == (1, 1)


def test_who_leaves_the_queue_makes_room_at_once(gated: tuple[Desk, str, Gate]) -> None:
    desk, address, gate = gated
    with connected(address, posted(ASK)), connected(address, posted(ASK)):
        until(lambda: desk.running == 2)
        with (
            connected(address, posted({**ASK, "stream": True})) as third,
            connected(address, posted(ASK)) as fourth,
        ):
            until(lambda: desk.waiting == 2)
            with httpx.Client(base_url=address, timeout=20) as client:
                full = client.post("/v1/completions", json={"prompt": "x"})
                assert full.status_code == 429 and full.headers["retry-after"]
                third.close()
                until(lambda: desk.waiting == 1)  # nothing was computed meanwhile
                fourth.close()
                until(lambda: desk.waiting == 0)
                assert gate.layers == 0 and desk.running == 2
                with connected(address, posted(ASK)) as fifth:
                    until(lambda: desk.waiting == 1)
                    gate.let_all()
                    assert fifth.recv(100).startswith(b"HTTP/1.1 200 ")
    assert desk.totals.cancelled >= 2


class Endless:
    """Grammars take for ever to be compiled, unless those who want them leave."""

    def __init__(self, model: Model) -> None:
        self.begun, self.given_up = threading.Semaphore(0), threading.Semaphore(0)
        make_ready = model.make_ready

        def endless(wanted: Any, prompt: Any) -> None:
            if wanted.grammar is None:
                make_ready(wanted, prompt)
                return
            self.begun.release()
            try:
                while True:
                    time.sleep(0.001)
                    breathe()
            finally:
                self.given_up.release()

        model.make_ready = endless  # pyright: ignore[reportAttributeAccessIssue]


def test_a_grammar_that_is_made_again_for_its_run_is_given_up_with_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was ready when a request came may have made room for others until it began."""
    begun = threading.Event()

    def long(*args: Any, **how: Any) -> None:
        begun.set()
        end = time.monotonic() + 20
        while time.monotonic() < end:
            time.sleep(0.001)
            breathe()
        pytest.fail("nobody was asked whether it is still wanted")

    monkeypatch.setattr(desk.model, "generate", long)
    before = desk.totals.cancelled
    with serving(desk) as (_, address):
        with connected(address, posted(ASK)):
            assert begun.wait(20)
        until(lambda: desk.running == 0)
    assert desk.totals.cancelled == before + 1


def test_grammars_hold_up_nobody_and_who_leaves_within_one_makes_room_at_once(
    gated: tuple[Desk, str, Gate],
) -> None:
    desk, address, gate = gated
    gate.let_all()
    endless = Endless(desk.model)
    hard = {**ASK, "grammar": 'root ::= "a"'}
    with (
        connected(address, posted(hard)) as first,
        connected(address, posted({**hard, "stream": True})) as second,
    ):
        for _ in range(THREADS):
            assert endless.begun.acquire(timeout=20)
        assert desk.waiting == 2 and desk.running == 0
        with httpx.Client(base_url=address, timeout=20) as client:
            for _ in range(3):
                assert client.post("/v1/completions", json=ASK).status_code == 200
        first.close()
        second.close()
        until(lambda: desk.waiting == 0)
        for _ in range(THREADS):
            assert endless.given_up.acquire(timeout=20)
    assert desk.running == 0 and desk.totals.requests == 3


def test_a_grammar_has_no_more_time_than_its_request(model_path: Path) -> None:
    with Model.load(model_path, Options(ctx=CONTEXT, cap=4)) as model:
        desk = Desk(model, most_waiting=2, most_seconds=0.3, say=pytest.fail)
        Endless(model)
        with serving(desk) as (_, address):
            body = {**ASK, "grammar": 'root ::= "a"', "stream": True}
            reply = httpx.post(f"{address}/v1/completions", json=body, timeout=20)
            assert reply.status_code == 503 and reply.json()["error"]["code"] == "timeout"
            assert desk.waiting == 0
        desk.close()


def test_who_leaves_before_the_stream_begins_is_not_computed_for(
    gated: tuple[Desk, str, Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer's head is never sent: the events' generator is not even begun."""
    desk, address, gate = gated
    submit = desk.submit
    lines: list[socket.socket] = []

    def leaving(job: Any, asked: Any) -> None:
        submit(job, asked)
        reset(lines[0])
        time.sleep(0.3)  # on the loop: the farewell is there when the stream begins

    monkeypatch.setattr(desk, "submit", leaving)
    with connected(address, posted({"prompt": WORDS, "stream": True})) as line:
        lines.append(line)
        until(lambda: desk.running == 1)
        until(lambda: is_gone(desk))
        gate.let_all()
        until(lambda: desk.running == 0)
    assert gate.layers <= 1
