"""The feed of the page: its figures are those of reports, and watching changes nothing."""

import json
import socket
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import httpx
import numpy as np
import pytest
from tiny_server import CONTEXT, listen, write_model

from diskmoe.engine.api import Model, Options
from diskmoe.engine.server.app import Server
from diskmoe.engine.server.desk import Desk
from diskmoe.engine.server.live import figures
from diskmoe.engine.server.rules import Rules
from diskmoe.engine.server.seen import Seen
from diskmoe.engine.stats import Phase, RunStats
from diskmoe.experts.trace import DECODE, PROMPT

ASK = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12}


def ask(client: httpx.Client, **more: Any) -> dict[str, Any]:
    reply = client.post("/v1/chat/completions", json={**ASK, **more})
    assert reply.status_code == 200, reply.text
    return reply.json()


@contextmanager
def watching(client: httpx.Client) -> Iterator[Iterator[dict[str, Any]]]:
    """The events of the feed."""
    with client.stream("GET", "/live") as reply:
        assert reply.status_code == 200, reply.read()
        yield (json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: "))


def until(events: Iterator[dict[str, Any]], what: str, wanted: Any = lambda found: True) -> Any:
    return next(each[what] for each in events if what in each and wanted(each[what]))


def bits(packed: str, layers: int, experts: int) -> np.ndarray:
    found = np.unpackbits(np.frombuffer(b64decode(packed), np.uint8), bitorder="little")
    return found[: layers * experts].reshape(layers, experts).astype(bool)


def test_the_feed_says_what_the_model_is_and_what_is_resident(
    client: httpx.Client, desk: Desk
) -> None:
    ask(client)
    model = desk.model
    with watching(client) as events:
        about = until(events, "model")
        now = until(events, "now")
    layers, experts = about["moe_layers"], about["experts"]
    assert layers == list(model.config.moe_layers) and experts == model.config.experts
    resident = bits(now["resident"], len(layers), experts)
    for place, layer in enumerate(layers):
        assert np.flatnonzero(resident[place]).tolist() == model.store.resident(layer).tolist()
    assert now["slots"] == sum(model.store.slots(layer) for layer in layers)
    assert 0 < now["resident_bytes"] and about["budget_bytes"] == model.memory.budget_bytes


def test_figures_since_the_start_are_those_of_all_requests(client: httpx.Client) -> None:
    with watching(client) as events:
        before = until(events, "now")["total"]
        usages = [ask(client, seed=seed, temperature=1)["usage"] for seed in range(3)]
        tokens = sum(usage["completion_tokens"] for usage in usages)
        now = until(events, "now", lambda now: now["total"]["tokens"] == before["tokens"] + tokens)
    after = now["total"]
    for name in ("hits", "misses", "miss_bytes", "forwards"):
        wanted = sum(usage["diskmoe"][name] for usage in usages)
        assert after[name] - before[name] == wanted
        assert now["recent"][name] == wanted  # all of it was in the latest seconds
    recent = now["recent"]
    assert recent["hit_rate"] == recent["hits"] / (recent["hits"] + recent["misses"])
    assert recent["bytes_per_token"] == recent["miss_bytes"] / tokens
    parts = ("read_wait_seconds", "compute_seconds", "other_seconds")
    assert sum(recent[part] for part in parts) == pytest.approx(recent["decode_seconds"])


def test_the_parts_of_the_time_are_its_whole() -> None:
    decode = Phase(forwards=3, read_wait_seconds=1.0, forward_seconds=4.0, seconds=6.0)
    found = figures(RunStats(tokens=3, decode=decode))
    assert (found["read_wait_seconds"], found["compute_seconds"]) == (1.0, 3.0)
    assert (found["other_seconds"], found["tok_per_s"]) == (2.0, 0.5)


def test_what_the_latest_rows_used_is_told_by_hit_and_miss(
    client: httpx.Client, desk: Desk
) -> None:
    top_k = desk.model.config.top_k
    with watching(client) as events:
        about, quiet = until(events, "model"), until(events, "now")
        shape = len(about["moe_layers"]), about["experts"]
        ask(client)
        now = until(
            events, "now", lambda now: now["turns"] != quiet["turns"] and not now["running"]
        )
        uses = until(events, "uses", lambda uses: any(b64decode(uses)))
    hits, misses = bits(now["hits"], *shape), bits(now["misses"], *shape)
    assert not (hits & misses).any()
    assert ((hits | misses).sum(axis=1) == top_k).all()  # one row, each expert once
    assert len(set(now["turns"])) == 1
    counts = np.frombuffer(b64decode(uses), "<u4").reshape(shape)
    assert (counts.sum(axis=1) >= 12 * top_k).all()


class Store:
    """As much of a hot store as `Seen` asks of one."""

    n_experts = 6

    def __init__(self) -> None:
        self.here = {2: [0, 5], 7: [1]}

    def missing(self, layer: int, experts: list[int]) -> list[int]:
        return [expert for expert in experts if expert not in self.here[layer]]

    def resident(self, layer: int) -> np.ndarray:
        return np.array(self.here[layer], np.int32)


def test_rows_are_counted_and_experts_are_told_once() -> None:
    store: Any = Store()
    seen = Seen(store, [2, 7])
    seen.record(2, np.array([[0, 1], [0, 4]], np.int32), DECODE)
    seen.record(7, np.array([[1, 1]], np.int32), DECODE)
    seen.record(2, np.array([[5, 0]], np.int32), DECODE)
    assert seen.uses().tolist() == [[3, 1, 0, 0, 1, 1], [0, 2, 0, 0, 0, 0]]
    turns, hits, misses = seen.latest()
    assert turns == [2, 1]
    assert [np.flatnonzero(row).tolist() for row in hits] == [[0, 5], [1]]
    assert not misses.any()
    store.here[2] = []
    seen.record(2, np.array([[5, 5]], np.int32), DECODE)
    assert [np.flatnonzero(row).tolist() for row in seen.latest()[2]] == [[5], []]
    assert seen.resident().sum() == 1


def test_a_prompts_many_rows_are_counted_as_a_few_are() -> None:
    store: Any = Store()
    ids = np.random.default_rng(2).integers(0, 6, (40, 3)).astype(np.int32)
    at_once, one_by_one = Seen(store, [2, 7]), Seen(store, [2, 7])
    at_once.record(7, ids, PROMPT)
    for row in ids:
        one_by_one.record(7, row[None], PROMPT)
    assert at_once.uses().tolist() == one_by_one.uses().tolist()
    assert at_once.uses().sum() == ids.size
    _, hits, misses = at_once.latest()
    assert (hits | misses)[1].all() and hits[1].tolist() == [expert == 1 for expert in range(6)]


def test_an_answer_is_the_same_whether_somebody_looks_or_not(client: httpx.Client) -> None:
    asked = {"max_tokens": 60, "temperature": 1.0, "seed": 3}
    unseen = ask(client, **asked)["choices"]
    with watching(client) as events:
        until(events, "now")
        assert ask(client, **asked)["choices"] == unseen


def test_nothing_is_noted_while_nobody_looks(
    client: httpx.Client, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    ended = threading.Event()

    def look(record: Any) -> None:
        told.append(record)
        if record is None:
            ended.set()

    monkeypatch.setattr(desk.model, "look", look)
    with watching(client) as first, watching(client) as second:
        until(first, "now")
        until(second, "now")
    assert ended.wait(10)
    assert len(told) == 2 and told[0] is not None and told[1] is None


def test_so_many_may_look_and_a_place_is_free_again(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diskmoe.engine.server.live.MOST_WATCHERS", 1)
    with watching(client) as events:
        until(events, "now")
        refused = client.get("/live")
        assert refused.status_code == 429
        assert "1 pages are open" in refused.json()["error"]["message"]
    for _ in range(500):
        with client.stream("GET", "/live") as reply:
            if reply.status_code == 200:
                return
    pytest.fail("the place was not given back")


def test_a_watcher_that_does_not_read_holds_up_nobody(client: httpx.Client, address: str) -> None:
    where = urlparse(address)
    with socket.create_connection((where.hostname, where.port)) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        deaf.sendall(b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        with watching(client) as events:
            until(events, "now")
            ask(client, max_tokens=200)
            until(events, "now", lambda now: not now["running"])


def test_the_feed_asks_for_the_key_and_the_name(desk: Desk, client: httpx.Client) -> None:
    assert client.get("/live", headers={"host": "evil.example"}).status_code == 403
    uvicorn, address, thread = listen(Server(desk, Rules(api_key="secret")).app)
    try:
        with httpx.Client(base_url=address, timeout=30) as other:
            assert other.get("/live").status_code == 401
            other.headers["authorization"] = "Bearer secret"
            with watching(other) as events:
                assert until(events, "model")["name"] == "tiny"
    finally:
        uvicorn.should_exit = True
        thread.join(10)


def test_who_asks_for_the_head_of_the_feed_gets_no_stream(client: httpx.Client) -> None:
    reply = client.head("/live")
    assert reply.status_code == 200 and reply.headers["content-type"].startswith(
        "text/event-stream"
    )


def test_a_model_without_experts_has_a_feed_too(tmp_path: Path) -> None:
    path = write_model(tmp_path / "dense", family="qwen3")
    with Model.load(path, Options(ctx=CONTEXT)) as model:
        desk = Desk(model, most_waiting=2, most_seconds=60, say=pytest.fail)
        uvicorn, address, thread = listen(Server(desk, Rules()).app)
        try:
            with httpx.Client(base_url=address, timeout=30) as client, watching(client) as events:
                assert until(events, "model")["moe_layers"] == []
                ask(client)
                now = until(events, "now", lambda now: now["total"]["tokens"] == 12)
                assert now["total"]["hit_rate"] is None and now["resident"] == ""
                desk.end()
                assert all("now" in each or "uses" in each for each in events)  # and then it ends
        finally:
            uvicorn.should_exit = True
            thread.join(10)
            desk.close()
