"""One client's connection: uvicorn's, with bounds on clients that are slow, silent or many.

The rules kept here: what is no HTTP is refused in the form of all refusals; a client that neither
sends nor takes anything is let go of; there are never more connections than were foreseen.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from diskmoe.engine.server.refusals import Refusal

SLOW_SECONDS = 60.0  # for a request to come whole; for a client to take something of its answer
LOOKS = 12  # in that time


class Connection(H11Protocol):
    """``uvicorn.Config(http=Connection, limit_concurrency=most_connections)``."""

    slow_seconds = SLOW_SECONDS

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._most = self.limit_concurrency
        self.limit_concurrency = None  # uvicorn would answer in another form
        self._asking_since = 0.0  # on the loop's clock
        self._stuck_since = 0.0
        self._left_to_send = 0
        self._next_look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._asking_since = self._stuck_since = self.loop.time()
        if self._most is not None and len(self.connections) > self._most:
            self._refuse(
                Refusal(503, "too many connections are open: close some, or ask again later")
            )
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._asking_since = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's answer to what is no HTTP, called while h11's error is handled."""
        error = sys.exc_info()[1]
        status = getattr(error, "error_status_hint", 400)
        said = " ".join(str(error or msg).split())[:200]
        self._refuse(Refusal(status, f"this is no HTTP request that can be read: {said}"))

    def _refuse(self, refusal: Refusal) -> None:
        """Answers without the application, if no answer has begun, and closes."""
        body = json.dumps(refusal.body).encode()
        head = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            answer = h11.Response(status_code=refusal.status, headers=head)
            for part in (answer, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(part) or b"")
        self.transport.close()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None:  # its application is to answer nothing more
            cycle.disconnected = True
            cycle.message_event.set()

    def _look_later(self) -> None:
        self._next_look = self.loop.call_later(self.slow_seconds / LOOKS, self._look)

    def _look(self) -> None:
        """Whether the client does its part."""
        now, left = self.loop.time(), self.transport.get_write_buffer_size()
        if not left or left != self._left_to_send:
            self._stuck_since, self._left_to_send = now, left
        asking = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        since = self._stuck_since if left or not asking else self._asking_since
        if now - since > self.slow_seconds:
            self.transport.abort()
        else:
            self._look_later()
