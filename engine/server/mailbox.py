"""What threads have to say to a client, in order, for the coroutine that answers it.

The rule kept here: whoever puts something in never waits, and wakes nobody who is not waiting: beside a
thread that decodes a token in some milliseconds, a turn of the loop for each is a twentieth of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Of the loop that it is made in, for one coroutine that takes things out."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._things: deque[T] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, thing: T) -> None:
        """From any thread."""
        self._things.append(thing)
        waiter = self._waiter
        if waiter is not None:
            with suppress(RuntimeError):  # the loop has ended: nobody listens
                self._loop.call_soon_threadsafe(_wake, waiter)

    async def take(self, seconds: float | None = None) -> list[T]:
        """All there is, as soon as there is something; nothing when that is not so in time."""
        if not self._things:
            await self._changed(seconds)
        found = list(self._things)
        for _ in found:  # what comes meanwhile stays
            self._things.popleft()
        return found

    async def _changed(self, seconds: float | None) -> None:
        self._waiter = waiter = self._loop.create_future()
        timer = None if seconds is None else self._loop.call_later(seconds, _wake, waiter)
        try:
            if not self._things:  # `put` looks for who waits after it has put
                await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
