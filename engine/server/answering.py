"""An answer as its client gets it: in pieces, or at once.

The rule kept here: whoever leaves is told to the desk at once, and nobody is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request

from diskmoe.engine.replies import Reply
from diskmoe.engine.server.asked import Asked
from diskmoe.engine.server.desk import Ended, Event, Failed, Job, Piece, Reading
from diskmoe.engine.server.events import DONE, comment, event
from diskmoe.engine.server.refusals import Refusal

ALIVE_SECONDS = 5.0  # between two signs of life of a stream that has nothing to say


async def streamed(
    job: Job, events: asyncio.Queue[Event], reply: Reply, asked: Asked
) -> AsyncIterator[bytes]:
    """Events as they come; comments while there are none, so that nobody takes us for dead."""
    try:
        if asked.chat:
            yield event(reply.first())
        while True:
            try:
                found = await asyncio.wait_for(events.get(), ALIVE_SECONDS)
            except asyncio.TimeoutError:  # of Python 3.10: no TimeoutError there
                yield comment("waiting")
                continue
            if isinstance(found, Reading):
                if events.empty():
                    yield comment(f"prompt {found.done} of {found.rows}")
            elif isinstance(found, Piece):
                yield event(reply.piece(found.text, found.reasoning))
            elif isinstance(found, Failed):
                yield event(found.refusal.body)
                break
            else:
                yield event(reply.last(found.stats))
                if asked.usage_at_end:
                    yield event(reply.usage(found.stats))
                break
        yield DONE
    finally:
        job.cancel()


async def whole(
    request: Request, job: Job, events: asyncio.Queue[Event], reply: Reply
) -> dict[str, Any]:
    """The answer at once, unless the client leaves before."""
    leaving = asyncio.create_task(_left(request))
    parts: dict[bool, list[str]] = {True: [], False: []}
    try:
        while True:
            coming = asyncio.create_task(events.get())
            await asyncio.wait([coming, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                coming.cancel()
                raise Refusal(499, "the client has left")
            found = coming.result()
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
    finally:
        leaving.cancel()
        job.cancel()


async def _left(request: Request) -> None:
    """Comes back when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
