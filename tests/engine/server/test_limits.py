"""What holds clients within bounds, on real sockets: time, connections, keys; and signs of life."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from tiny_server import CONTEXT, connected, posted, serving, until

from diskmoe.engine.api import Model, Options
from diskmoe.engine.server import answering
from diskmoe.engine.server.connection import Connection
from diskmoe.engine.server.desk import Desk, Failed
from diskmoe.engine.server.rules import Rules

ASK = {"prompt": "Hi", "max_tokens": 3}
LONG = {"prompt": "Hi", "max_tokens": 900, "stream": True}


class Hasty(Connection):
    slow_seconds = 0.5


def answered(address: str) -> bool:
    return httpx.post(f"{address}/v1/completions", json=ASK, timeout=20).status_code == 200


def test_a_client_that_takes_nothing_holds_up_nobody_and_is_let_go_of(desk: Desk) -> None:
    with serving(desk, connection=Hasty, buffer_bytes=4096) as (server, address):
        before = desk.totals.tokens
        with connected(address, posted(LONG), buffer_bytes=4096):
            until(lambda: desk.running == 1)
            assert answered(address)
            # its text is made to the end though nobody reads it, or it is let go of before
            until(lambda: desk.running == 0)
            until(lambda: not server.server_state.connections)
        assert desk.totals.tokens > before
        assert answered(address)


def test_bodies_that_are_on_their_way_are_bounded_together(desk: Desk) -> None:
    rules = Rules(most_bytes=1000)
    with serving(desk, rules) as (_, address):
        most = posted({**ASK, "prompt": "x" * 900})[:-10]  # the end of it never comes
        with connected(address, most), connected(address, most):
            until(lambda: rules.coming.bytes > 1600)
            refused = httpx.post(
                f"{address}/v1/completions", json={"prompt": "x" * 900}, timeout=20
            )
            assert refused.status_code == 429 and refused.headers["retry-after"]
            assert refused.json()["error"]["message"].startswith("the bodies of requests are")
        until(lambda: rules.coming.bytes == 0)
        assert answered(address)


@pytest.mark.parametrize("said", [0, 1, 25, 90])
def test_a_client_that_does_not_say_all_of_it_is_let_go_of(desk: Desk, said: int) -> None:
    with serving(desk, connection=Hasty) as (server, address):
        with connected(address, posted({**ASK, "prompt": "x" * 500})[:said]) as line:
            until(lambda: bool(server.server_state.connections))
            assert answered(address)
            assert line.recv(100) == b""
        until(lambda: not server.server_state.connections)
        assert desk.waiting == desk.running == 0


def test_one_byte_now_and_then_is_not_enough(desk: Desk) -> None:
    with serving(desk, connection=Hasty) as (_, address), connected(address) as line:
        began = time.monotonic()
        with pytest.raises(OSError):
            for byte in posted({**ASK, "prompt": "x" * 5000}):
                line.sendall(bytes([byte]))
                time.sleep(0.05)
                assert time.monotonic() - began < 10


def test_a_slow_answer_is_no_slow_client(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = desk.model.generate

    def slow(*args: Any, **more: Any) -> Any:
        time.sleep(3 * Hasty.slow_seconds)
        return generate(*args, **more)

    monkeypatch.setattr(desk.model, "generate", slow)
    with serving(desk, connection=Hasty) as (_, address):
        assert answered(address)


def test_more_connections_than_were_foreseen_are_told_so(desk: Desk) -> None:
    with serving(desk, most=3) as (server, address):
        lines = [connected(address) for _ in range(3)]
        until(lambda: len(server.server_state.connections) == 3)
        with connected(address) as one_more:
            found = b"".join(iter(lambda: one_more.recv(10_000), b""))
            assert found.startswith(b"HTTP/1.1 503 ")
            error = json.loads(found.partition(b"\r\n\r\n")[2])["error"]
            assert error["type"] == "server_error" and "connections" in error["message"]
        for line in lines:
            line.close()
        until(lambda: not server.server_state.connections)
        assert answered(address)


@pytest.mark.parametrize("key", ["secret", "schlüssel", "ключ", " secret\n", "a\udcff"])
def test_a_key_opens_everything_but_health_and_nothing_else_does(desk: Desk, key: str) -> None:
    with (
        serving(desk, Rules(api_key=key)) as (_, address),
        httpx.Client(base_url=address) as client,
    ):
        paths = ("/v1/models", "/v1/models/tiny", "/metrics")
        right = f"Bearer {key.strip()}".encode("utf-8", "surrogateescape")
        for head in (
            b"Bearer",
            b"Bearer x",
            b"Bearer wrong",
            right + b"x",
            right[7:],
            b"Basic " + right[7:],
        ):
            for path in paths:
                reply = client.get(path, headers={b"authorization": head})
                assert reply.status_code == 401 and reply.headers["www-authenticate"] == "Bearer"
            assert client.post("/v1/completions", json=ASK).status_code == 401
        for head in (right, b"bearer " + right[7:]):
            for path in paths:
                assert client.get(path, headers={b"authorization": head}).status_code == 200
        assert client.get("/health").status_code == 200


def test_a_request_that_waits_longer_than_it_may_is_refused(model_path: Path) -> None:
    with Model.load(model_path, Options(ctx=CONTEXT, cap=4)) as model:
        desk = Desk(model, most_waiting=2, most_seconds=0.2, say=pytest.fail)
        may, generate = threading.Event(), model.generate

        def slow(*args: Any, **more: Any) -> Any:
            assert may.wait(20)
            return generate(*args, **more)

        model.generate = slow  # pyright: ignore[reportAttributeAccessIssue]
        with serving(desk) as (_, address):
            first = connected(address, posted(ASK))
            until(lambda: desk.running == 1)
            second = connected(address, posted(ASK))
            until(lambda: desk.waiting == 1)
            time.sleep(0.3)
            may.set()
            found = second.recv(10_000) + second.recv(10_000)
            assert found.startswith(b"HTTP/1.1 503 ") and b'"timeout"' in found
            first.close()
            second.close()
        desk.close()


def test_a_server_that_ends_takes_nothing_more(model_path: Path) -> None:
    with Model.load(model_path, Options(ctx=CONTEXT, cap=4)) as model:
        desk = Desk(model, most_waiting=2, most_seconds=60, say=pytest.fail)
        with serving(desk) as (_, address):
            desk.end()
            reply = httpx.post(f"{address}/v1/completions", json=ASK, timeout=20)
            assert reply.status_code == 503 and reply.json()["error"]["code"] == "ending"
        desk.close()
        assert not any(thread.is_alive() for thread in desk._threads)


def test_an_internal_error_is_said_and_ends_one_request_only(model_path: Path) -> None:
    said: list[str] = []
    with Model.load(model_path, Options(ctx=CONTEXT, cap=4)) as model:
        desk = Desk(model, most_waiting=2, most_seconds=60, say=said.append)
        generate, model.generate = model.generate, None  # pyright: ignore[reportAttributeAccessIssue]
        with serving(desk) as (_, address):
            reply = httpx.post(f"{address}/v1/completions", json=ASK, timeout=20)
            assert reply.status_code == 500
            assert (
                reply.json()["error"]["message"]
                == "the server has failed at this request; its log says why"
            )
            assert len(said) == 1 and said[0].startswith("error: internal: TypeError")
            model.generate = generate  # pyright: ignore[reportAttributeAccessIssue]
            assert answered(address)
        desk.close()


def test_streams_give_signs_of_life_while_they_wait_and_while_a_prompt_is_read(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "ALIVE_SECONDS", 0.05)
    options = Options(ctx=CONTEXT, cap=1, prefill_chunk=32, disk_bps=2_000_000)
    with Model.load(model_path, options) as model:
        desk = Desk(model, most_waiting=2, most_seconds=60, say=pytest.fail)
        with serving(desk) as (_, address), httpx.Client(base_url=address, timeout=60) as client:
            with connected(address, posted({**LONG, "max_tokens": 100})):
                until(lambda: desk.running == 1)
                body = {"prompt": "word " * 60, "max_tokens": 3, "stream": True}
                with client.stream("POST", "/v1/completions", json=body) as reply:
                    lines = [line for line in reply.iter_lines() if line]
            first = next(n for n, line in enumerate(lines) if line.startswith("data: "))
            assert ": waiting" in lines[:first]
            assert any(line.startswith(": prompt ") for line in lines[:first])
            assert lines[-1] == "data: [DONE]"
        desk.close()


def test_a_text_that_prints_nothing_is_looked_after_token_by_token(model_path: Path) -> None:
    with Model.load(model_path, Options(ctx=CONTEXT, cap=4)) as model:
        run = model.generate("Hi", limit=50)
        run.end_when(lambda: "gone" if len(run.token_ids) == 3 else None)
        run._stream = None  # as of a model without a tokenizer
        assert not list(run)
        assert len(run.token_ids) == 3 and run.stats.stop_reason == "gone"


def test_a_place_given_up_while_it_waits_says_so_to_nobody(desk: Desk) -> None:
    events: list[Any] = []
    job = desk.enter(events.append)
    assert desk.waiting == 1
    job.cancel()
    job.cancel()
    assert desk.waiting == 0 and not any(isinstance(each, Failed) for each in events)
