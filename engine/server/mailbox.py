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

    def __init__(self, urgent: tuple[type, ...] = ()) -> None:
        """urgent: things of these kinds disturb a rest."""
        self._loop = asyncio.get_running_loop()
        self._things: deque[T] = deque()
        self._urgent = urgent
        self._waiter: asyncio.Future[None] | None = None  # for anything
        self._rester: asyncio.Future[None] | None = None  # for what is urgent

    def put(self, thing: T) -> None:
        """From any thread."""
        self._things.append(thing)
        waiter = self._waiter or (self._rester if isinstance(thing, self._urgent) else None)
        if waiter is not None:
            with suppress(RuntimeError):  # the loop has ended: nobody listens
                self._loop.call_soon_threadsafe(_wake, waiter)

    async def rest(self, seconds: float) -> None:
        """Lets things come together for so long, or until one of them is urgent."""
        self._rester = rester = self._loop.create_future()
        timer = self._loop.call_later(seconds, _wake, rester)
        try:
            if not any(isinstance(thing, self._urgent) for thing in list(self._things)):
                await rester
        finally:
            self._rester = None
            timer.cancel()

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
