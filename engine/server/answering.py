"""An answer as its client gets it: in pieces, or at once.

The rule kept here: whoever leaves is told to the desk at once, and nobody is waited for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request

from diskmoe.engine.server.desk import Ended, Event, Failed, Job, Piece, Reading
from diskmoe.engine.server.events import DONE, comment, event
from diskmoe.engine.server.leaving import unless_left
from diskmoe.engine.server.mailbox import Mailbox
from diskmoe.engine.writer import Writer

ALIVE_SECONDS = 5.0  # between two signs of life of a stream that has nothing to say
REST_SECONDS = 0.04  # between two writes to a client: what comes meanwhile goes together


async def streamed(
    job: Job, events: Mailbox[Event], writer: Writer, usage_at_end: bool
) -> AsyncIterator[bytes]:
    """Events as they come; comments while there are none, so that nobody takes us for dead."""
    try:
        if writer.reply.chat:
            yield event(writer.reply.first())
        while True:
            found = await events.take(ALIVE_SECONDS)
            news = [each for each in found if each is found[-1] or not isinstance(each, Reading)]
            said = b"".join(_written(each, writer, usage_at_end) for each in news)
            yield said or comment("waiting")
            if found and isinstance(found[-1], Ended | Failed):
                break
            await events.rest(REST_SECONDS)
        yield DONE
    finally:
        job.cancel()


def _written(found: Event, writer: Writer, usage_at_end: bool) -> bytes:
    if isinstance(found, Reading):
        return comment(f"prompt {found.done} of {found.rows}")
    if isinstance(found, Piece):
        return event(writer.chunk(found.part, found.logprobs))
    if isinstance(found, Failed):
        return event(found.refusal.body)
    last = event(writer.last(found.stats, found.logprobs))
    return last + event(writer.reply.usage(found.stats)) if usage_at_end else last


async def whole(
    request: Request, job: Job, events: Mailbox[Event], writer: Writer
) -> dict[str, Any]:
    """The answer at once, unless the client leaves before."""
    try:
        return await unless_left(request, _gathered(events, writer))
    finally:
        job.cancel()


async def _gathered(events: Mailbox[Event], writer: Writer) -> dict[str, Any]:
    while True:
        for found in await events.take():
            if isinstance(found, Piece):
                writer.add(found.part, found.logprobs)
            elif isinstance(found, Failed):
                raise found.refusal
            elif isinstance(found, Ended):
                return writer.whole(found.stats, found.logprobs)
        await events.rest(REST_SECONDS)
