"""An answer as its client gets it: in pieces, or at once.

The rule kept here: whoever leaves is told to the desk at once, and nobody is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request

from diskmoe.engine.replies import Reply
from diskmoe.engine.server.asked import Asked
from diskmoe.engine.server.desk import Ended, Event, Failed, Job, Piece, Reading
from diskmoe.engine.server.events import DONE, comment, event
from diskmoe.engine.server.mailbox import Mailbox
from diskmoe.engine.server.refusals import Refusal

ALIVE_SECONDS = 5.0  # between two signs of life of a stream that has nothing to say
REST_SECONDS = 0.04  # between two writes to a client: what comes meanwhile goes together


async def streamed(
    job: Job, events: Mailbox[Event], reply: Reply, asked: Asked
) -> AsyncIterator[bytes]:
    """Events as they come; comments while there are none, so that nobody takes us for dead."""
    try:
        if asked.chat:
            yield event(reply.first())
        while True:
            found = await events.take(ALIVE_SECONDS)
            said = b"".join(_written(each, reply, asked) for each in found if _is_news(each, found))
            yield said or comment("waiting")
            if found and isinstance(found[-1], Ended | Failed):
                break
            await asyncio.sleep(REST_SECONDS)
        yield DONE
    finally:
        job.cancel()


def _is_news(found: Event, among: Sequence[Event]) -> bool:
    """All but how far a prompt was, when there is more to say."""
    return found is among[-1] or not isinstance(found, Reading)


def _written(found: Event, reply: Reply, asked: Asked) -> bytes:
    if isinstance(found, Reading):
        return comment(f"prompt {found.done} of {found.rows}")
    if isinstance(found, Piece):
        return event(reply.piece(found.text, found.reasoning))
    if isinstance(found, Failed):
        return event(found.refusal.body)
    last = event(reply.last(found.stats))
    return last + event(reply.usage(found.stats)) if asked.usage_at_end else last


async def whole(request: Request, job: Job, events: Mailbox[Event], reply: Reply) -> dict[str, Any]:
    """The answer at once, unless the client leaves before."""
    leaving = asyncio.create_task(_left(request))
    parts: dict[bool, list[str]] = {True: [], False: []}
    try:
        while True:
            coming = asyncio.create_task(events.take())
            await asyncio.wait([coming, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                coming.cancel()
                raise Refusal(499, "the client has left")
            for found in coming.result():
                if isinstance(found, Piece):
                    parts[found.reasoning].append(found.text)
                elif isinstance(found, Failed):
                    raise found.refusal
                elif isinstance(found, Ended):
                    reasoning = "".join(parts[True]).strip("\n")
                    content = "".join(parts[False])
                    content = content.lstrip("\n") if reasoning else content
                    message = {"content": content}
                    if reasoning:
                        message["reasoning_content"] = reasoning
                    return reply.whole(message, found.stats)
            await asyncio.sleep(REST_SECONDS)
    finally:
        leaving.cancel()
        job.cancel()


async def _left(request: Request) -> None:
    """Comes back when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
