"""Clients that leave before they have their answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from diskmoe.engine.server.refusals import Refusal

T = TypeVar("T")


async def unless_left(request: Request, work: Awaitable[T]) -> T:
    """What the work comes to. Refusal as soon as the client has gone; the work is then cancelled."""
    task = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait([task, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Refusal(499, "the client has left")
        return task.result()
    finally:
        leaving.cancel()
        task.cancel()


class Stream(StreamingResponse):
    """A stream of events; whoever makes them is told of its end, also where it never began."""

    def __init__(self, events: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        head = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=head)
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


async def _left(request: Request) -> None:
    """Comes back when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
