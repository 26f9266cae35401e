"""The clients of scripts/soak_server.py: what each of them does, and whether it got what it should."""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
from soak_asks import CHAT, TEXT, Ask, conversation, hostile_grammar, refused_asks

SECONDS = 300.0  # that an answer may take
MOST_TOLD = 40  # faults, one line each
QUESTIONS = ("Who are you?", "And what do you like?", "Why is that?")


@dataclass
class Tally:
    """What was done and what was wrong with it, over all clients."""

    done: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def did(self, deed: str) -> None:
        with self.lock:
            self.done[deed] += 1

    def fault(self, kind: str, what: str) -> None:
        with self.lock:
            self.wrong[kind] += 1
            if self.wrong.total() <= MOST_TOLD:
                print(f"# {kind}: {what[:400]}", flush=True)


@dataclass
class Known:
    """Requests, and their answers to a single client."""

    asks: list[Ask]
    answers: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    talk: list[tuple[str, str]] = field(default_factory=list)  # a conversation's turns

    def record(self, http: httpx.Client) -> None:
        for ask in self.asks:
            reply = http.post(ask.path, json=ask.body)
            reply.raise_for_status()
            self.answers[ask.name] = answer_of(reply.json())
        for question in QUESTIONS:
            reply = http.post(CHAT, json=conversation(self.talk, question))
            reply.raise_for_status()
            self.talk.append((question, answer_of(reply.json())[0]))


def answer_of(reply: Mapping[str, Any]) -> tuple[Any, ...]:
    """(text, reasoning, calls, why it ended, tokens, their log-probabilities) of an answer."""
    choice = reply["choices"][0]
    message = choice.get("message", {"content": choice.get("text")})
    calls = [call["function"] for call in message.get("tool_calls") or []]
    return (
        message["content"] or "",
        message.get("reasoning_content") or "",
        [(call["name"], call["arguments"]) for call in calls],
        choice["finish_reason"],
        reply["usage"]["completion_tokens"],
        _probabilities([choice]),
    )


def _probabilities(choices: list[Any]) -> list[float]:
    """The log-probabilities of a chat's tokens, where they were asked for."""
    found = [choice.get("logprobs") or {} for choice in choices]
    return [token["logprob"] for each in found for token in each.get("content") or []]


def refusal_flaw(status: int, body: bytes) -> str | None:
    """What is wrong with the form of a refusal."""
    try:
        found = json.loads(body)
        error = found["error"]
        fits = set(found) == {"error"} and set(error) == {"message", "type", "param", "code"}
        fits = fits and isinstance(error["type"], str) and error["message"].isprintable()
        fits = fits and all(isinstance(error[key], str | None) for key in ("param", "code"))
        return None if fits and error["message"] else f"{status} {body[:200]!r}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{status} {body[:200]!r}"


class Client(threading.Thread):
    """One client: it does one thing after another until it is told to stop."""

    def __init__(
        self,
        address: str,
        known: Known,
        tally: Tally,
        seed: int,
        most_bytes: int,
        may_act: threading.Event,
        over: threading.Event,
    ) -> None:
        super().__init__(name=f"client {seed}", daemon=True)
        self.idle = threading.Event()
        self._where = urlsplit(address).hostname, urlsplit(address).port
        self._http = httpx.Client(base_url=address, timeout=SECONDS)
        self._known = known
        self._tally = tally
        self._chance = random.Random(seed)
        self._refused = refused_asks(most_bytes)
        self._may_act = may_act
        self._over = over

    def run(self) -> None:
        deeds = (
            (self.ask, 6),
            (self.stream, 6),
            (self.abort, 5),
            (self.refused, 6),
            (self.hostile, 2),
            (self.talk, 1),
            (self.slow_reader, 1),
            (self.half_open, 1),
            (self.garbage, 2),
            (self.odd_paths, 1),
            (self.watch, 1),
        )
        chosen = [deed for deed, often in deeds for _ in range(often)]
        while not self._over.is_set():
            if not self._may_act.is_set():
                self.idle.set()
                self._may_act.wait(1)
                continue
            self.idle.clear()
            deed = self._chance.choice(chosen)
            try:
                deed()
            except (OSError, httpx.HTTPError) as error:
                if not self._over.is_set():
                    self._tally.fault("lost", f"{deed.__name__}: {type(error).__name__} {error}")
            self._tally.did(deed.__name__)
        self._http.close()

    def ask(self) -> None:
        """A known answer, at once."""
        ask = self._chance.choice(self._known.asks)
        reply = self._patiently(ask.path, ask.body)
        if reply is not None:
            self._compare(ask, answer_of(reply.json()))

    def stream(self, pause: float = 0.0) -> None:
        """A known answer, in pieces."""
        ask = self._chance.choice(self._known.asks)
        for _ in range(1000):
            with self._http.stream("POST", ask.path, json=ask.streamed) as reply:
                if reply.status_code == 200:
                    lines = []
                    for line in reply.iter_lines():
                        lines.append(line)
                        if pause:
                            time.sleep(pause)
                    self._compare(ask, self._joined(ask, lines))
                    return
                reply.read()
                if not self._is_full(reply):
                    return
            time.sleep(self._chance.random())

    def slow_reader(self) -> None:
        """The same, read slowly."""
        self.stream(pause=0.2)

    def talk(self) -> None:
        """A conversation that goes on from its earlier turns."""
        for number, (question, answer) in enumerate(self._known.talk):
            turns = self._known.talk[:number]
            reply = self._patiently(CHAT, conversation(turns, question))
            if reply is not None and answer_of(reply.json())[0] != answer:
                self._tally.fault("answer", f"turn {number} of a conversation")

    def refused(self) -> None:
        """What is no good."""
        path, body = self._chance.choice(self._refused)
        head = {"content-type": "application/json"}
        reply = self._http.post(path, content=body, headers=head)
        if not 400 <= reply.status_code < 500:
            self._tally.fault("accepted", f"{reply.status_code} for {body[:100]!r}")
        self._look_at(reply)

    def hostile(self) -> None:
        """A grammar that is hard to follow."""
        body = hostile_grammar(self._chance)
        body["stream"] = self._chance.random() < 0.3
        self._patiently(self._chance.choice((CHAT,)), body, may_fail=True)

    def abort(self) -> None:
        """Leaves at any moment: within the request, before its answer, in the middle of it."""
        ask = self._chance.choice(self._known.asks)
        body = {**(ask.streamed if self._chance.random() < 0.6 else ask.body), "max_tokens": 400}
        if self._chance.random() < 0.4:  # a prompt of its own, whose prefill is under way
            words = " ".join(str(self._chance.random()) for _ in range(120))
            body = {**body, "prompt": words} if "prompt" in body else body
        data = _request(ask.path, json.dumps(body).encode())
        with socket.create_connection(self._where, SECONDS) as line:
            moment = self._chance.random()
            if moment < 0.2:
                line.sendall(data[: self._chance.randrange(len(data))])
            else:
                line.sendall(data)
            if moment > 0.6:
                line.settimeout(self._chance.random() * 3)
                with suppress(TimeoutError):
                    line.recv(self._chance.randrange(1, 4000))
            elif moment > 0.3:
                time.sleep(self._chance.random())
            if self._chance.random() < 0.5:  # reset, not closed
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def half_open(self) -> None:
        """Says nothing, or half of it, for a while; or says all and hears on."""
        data = _request(TEXT, json.dumps({"prompt": "Hi", "max_tokens": 3}).encode())
        with socket.create_connection(self._where, 10) as line:
            line.sendall(data[: self._chance.choice((0, 1, 20, len(data) - 3, len(data)))])
            if self._chance.random() < 0.5:
                line.shutdown(socket.SHUT_WR)
            time.sleep(self._chance.random() * 2)

    def garbage(self) -> None:
        """What is no HTTP, alone and behind requests that are in order."""
        health = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        chunked = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        noise = self._chance.randbytes(self._chance.randrange(1, 3000))
        data = self._chance.choice(
            (
                noise,
                health + noise + b"\r\n\r\n",
                health * 5,
                chunked + b"zz\r\n{}\r\n0\r\n\r\n",
                chunked + b"5\r\nhello\r\n0\r\n\r\n" + health,
                b"GET / HTTP/9.9\r\n\r\n",
                b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
                b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
                b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
            )
        )
        with socket.create_connection(self._where, 10) as line:
            with suppress(ConnectionError):
                line.sendall(data)
            line.settimeout(1)
            found = b""
            with suppress(OSError):
                while len(found) < 100_000 and (piece := line.recv(10_000)):
                    found += piece
        if b" 500 " in found:
            self._tally.fault("500", f"{found[:200]!r} for {data[:100]!r}")

    def odd_paths(self) -> None:
        """Other ways, other methods."""
        way = self._chance.choice(("GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "FOO"))
        path = self._chance.choice(("/nowhere", "/v1/models/x", CHAT, "/v1/", "/%2e%2e/etc/passwd"))
        reply = self._http.request(way, path)
        if reply.status_code == 200:
            self._tally.fault("accepted", f"{way} {path}")
        self._look_at(reply)
        for path in ("/health", "/v1/models", "/metrics"):
            self._http.get(path).raise_for_status()

    def watch(self) -> None:
        """The page, and what it is told for a while."""
        self._http.get("/").raise_for_status()
        end = time.monotonic() + self._chance.random() * 3
        with self._http.stream("GET", "/live") as reply:
            for line in reply.iter_lines():
                if time.monotonic() > end:
                    break
                if line.startswith("data: "):
                    json.loads(line[6:])

    def _patiently(
        self, path: str, body: Mapping[str, Any], may_fail: bool = False
    ) -> httpx.Response | None:
        """Asks until there is room. None where it is refused, which is a fault unless it may be."""
        for _ in range(1000):
            reply = self._http.post(path, json=body)
            if reply.status_code == 200:
                return reply
            if not self._is_full(reply, may_fail):
                return None
            time.sleep(self._chance.random())
        self._tally.fault("lost", "no room in a thousand times")
        return None

    def _is_full(self, reply: httpx.Response, may_fail: bool = False) -> bool:
        self._look_at(reply)
        if reply.status_code == 429:
            self._tally.did("sent away")
            if "retry-after" not in reply.headers:
                self._tally.fault("form", "429 without retry-after")
            return True
        if not may_fail and not (reply.status_code == 503 and self._over.is_set()):
            self._tally.fault("answer", f"refused: {reply.status_code} {reply.text}")
        return False

    def _look_at(self, reply: httpx.Response) -> None:
        if reply.status_code == 500:
            self._tally.fault("500", reply.text)
        if reply.status_code >= 400:
            self._tally.did("refusals")
            flaw = refusal_flaw(reply.status_code, reply.content)
            if flaw is not None:
                self._tally.fault("form", flaw)

    def _joined(self, ask: Ask, lines: list[str]) -> tuple[Any, ...]:
        """The answer that a stream's lines are pieces of."""
        events = [line[6:] for line in lines if line.startswith("data: ")]
        chunks = [json.loads(event) for event in events[:-1]]
        if events[-1:] != ["[DONE]"] or any("error" in chunk for chunk in chunks):
            return ("a stream without end", *events[-2:])
        parts = {"content": "", "reasoning_content": ""}
        calls: dict[int, list[str]] = {}
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
        for choice in choices:
            delta = choice.get("delta", {"content": choice.get("text")})
            for key in parts:
                parts[key] += delta.get(key) or ""
            for call in delta.get("tool_calls") or []:
                known = calls.setdefault(call["index"], ["", ""])
                known[0] += call["function"].get("name") or ""
                known[1] += call["function"].get("arguments") or ""
        text, thoughts = parts["content"], parts["reasoning_content"].strip("\n")
        text = text.lstrip("\n") if thoughts else text
        tokens = chunks[-1]["usage"]["completion_tokens"]
        called = [(name, arguments) for name, arguments in calls.values()]
        return text, thoughts, called, reasons[-1], tokens, _probabilities(choices)

    def _compare(self, ask: Ask, found: tuple[Any, ...]) -> None:
        self._tally.did("answers")
        wanted = self._known.answers[ask.name]
        if found != wanted and not self._over.is_set():
            self._tally.fault("answer", f"{ask.name}: {found} and not {wanted}")
        if ask.breaks_schema(str(found[0]), "stop" in found):
            self._tally.fault("schema", f"{ask.name}: {found[0]}")


def _request(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
