"""``diskmoe serve``: a model behind OpenAI's endpoints."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FrameType

import uvicorn

from diskmoe.engine.api import Model
from diskmoe.engine.commands import OF_REQUESTS
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.opening import opening, say_notes
from diskmoe.engine.options import Options
from diskmoe.engine.server.app import Server
from diskmoe.engine.server.connection import Connection
from diskmoe.engine.server.desk import Desk
from diskmoe.engine.server.languages import Languages
from diskmoe.engine.server.rules import LOOPBACK, Rules
from diskmoe.engine.setting_sources import Value

Say = Callable[[str], None]

DEFAULT_PARALLEL = 2
GRACE_SECONDS = 1  # for streams to end in good order; less than an interrupt is waited for
MORE_CONNECTIONS = 100  # than requests that run or wait: idle ones, and some to be refused


class _Uvicorn(uvicorn.Server):
    """Ends what runs as soon as it is told to stop."""

    def __init__(self, config: uvicorn.Config, desk: Desk) -> None:
        super().__init__(config)
        self._desk = desk
        self.signal = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.signal = sig
        self._desk.end()
        super().handle_exit(sig, frame)


def serve(values: Mapping[str, Value], notes: list[str], say: Say) -> int:
    """Loads the model and serves until it is told to stop. Returns the exit code.

    Raises:
        DiskMoeError: whatever makes it impossible, before a request is taken.
    """
    say_notes(values, notes, say)
    key = values["API_KEY"].value
    if key is not None and not key.strip():
        raise BadRequest("API_KEY is empty: give a key, or leave it out")
    unused = [
        name
        for name in OF_REQUESTS
        if values[name].source not in ("default", "env TEMP", "env PROMPT")
    ]
    if unused:
        say(f"note      {', '.join(unused)} has no effect: each request says it for itself")

    def fitted(options: Options) -> Options:
        span = values["GRAMMAR_DRAFT"].value  # any request may come with a grammar
        return replace(
            options,
            parallel=values["PARALLEL"].value or DEFAULT_PARALLEL,
            span=span,
            draft_rows=max(span, options.draft_rows),
        )

    with _listening(values["HOST"].value, values["PORT"].value) as listener:
        with opening(values, say, fitted) as prepared:
            pass  # each request says what it asks for
        with Model.finish(prepared, say) as model:
            return _serve(model, listener, values, say)


def _serve(model: Model, listener: socket.socket, values: Mapping[str, Value], say: Say) -> int:
    host, key = values["HOST"].value, values["API_KEY"].value
    desk = Desk(
        model, values["QUEUE"].value, values["REQUEST_SECONDS"].value, say, values["DEBUG"].value
    )
    try:
        rules = Rules(key, values["BODY_BYTES"].value, LOOPBACK if host in LOOPBACK else None)
        languages = Languages(values["SCHEMA_BLANKS"].value, values["SCHEMA_LAX"].value)
        served = Server(desk, rules, int(time.time()), languages)
        say(served.calling.line)
        port = listener.getsockname()[1]
        say(
            f"serving   http://{host}:{port}/v1, {model.options.parallel} texts at once, "
            f"{values['QUEUE'].value} may wait"
        )
        say(f"page      http://{host}:{port}/ to chat and to watch")
        if key is None and host not in LOOPBACK:
            say("note      anybody who reaches this address may ask: API_KEY=... asks for a key")
        config = uvicorn.Config(
            served.app,
            http=Connection,
            ws="none",
            limit_concurrency=model.options.parallel + values["QUEUE"].value + MORE_CONNECTIONS,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            lifespan="off",
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        server = _Uvicorn(config, desk)
        # uvicorn raises it once more when all is closed: we end in good order then
        signal.signal(signal.SIGTERM, lambda *_: None)
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:  # uvicorn hands it on when all is closed
            pass
        return 130 if server.signal == signal.SIGINT else 0
    finally:
        desk.close()


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens. BadRequest: no such address, or taken."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind)
    except OSError as error:
        raise BadRequest(f"HOST={host[:80]} is no address: {error.strerror or error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # connections inherit it: a client whose machine is gone is noticed
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise BadRequest(
            f"{host}:{port} cannot be listened at: {error.strerror or error}; give another PORT"
        ) from None
    return listener
