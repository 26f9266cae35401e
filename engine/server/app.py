"""The server as an ASGI application: routes, bounds, who may ask.

The rules kept here: no path of a request leads to a file; what comes in is bounded before it is
read; every refusal has OpenAI's form.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from diskmoe.engine.decode import check_prompt
from diskmoe.engine.errors import BadGrammar, DiskMoeError
from diskmoe.engine.replies import Reply
from diskmoe.engine.server.answering import streamed, whole
from diskmoe.engine.server.asked import Asked, chat_asked, completion_asked
from diskmoe.engine.server.desk import Desk, Event
from diskmoe.engine.server.fields import json_object
from diskmoe.engine.server.languages import Languages
from diskmoe.engine.server.metrics import metrics
from diskmoe.engine.server.refusals import Refusal, refusal_of

LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Rules:
    """Who may ask, and how much."""

    api_key: str | None = None
    most_bytes: int = 8 << 20  # of a request's body
    hosts: tuple[str, ...] | None = LOOPBACK  # names that a request may call us by; None: any


class Server:
    """The application of a desk: ``Server(desk, Rules()).app``."""

    def __init__(
        self, desk: Desk, rules: Rules, created: int = 0, languages: Languages | None = None
    ) -> None:
        self._desk = desk
        self._rules = rules
        self._name = desk.model.opened.name
        self._created = created
        self._languages = languages or Languages()
        routes = [
            Route("/v1/chat/completions", self._open(self._chat), methods=["POST"]),
            Route("/v1/completions", self._open(self._complete), methods=["POST"]),
            Route("/v1/models", self._open(self._models), methods=["GET"]),
            Route("/v1/models/{name}", self._open(self._model), methods=["GET"]),
            Route("/metrics", self._open(self._metrics), methods=["GET"]),
            Route("/health", self._health, methods=["GET"]),
        ]
        refused = {Refusal: _refused, HTTPException: _refused_by_path, Exception: self._failed}
        self.app = Starlette(routes=routes, exception_handlers=refused)  # pyright: ignore[reportArgumentType]

    def _open(self, handler: Handler) -> Handler:
        """The handler for those who may ask."""

        async def checked(request: Request) -> Response:
            self._check(request)
            try:
                return await handler(request)
            except (DiskMoeError, BadGrammar) as error:
                raise refusal_of(error) from None

        return checked

    def _check(self, request: Request) -> None:
        rules = self._rules
        if rules.api_key is not None:
            given = request.headers.get("authorization", "")
            wanted = f"Bearer {rules.api_key}"
            if not hmac.compare_digest(given.encode(), wanted.encode()):
                raise Refusal(
                    401,
                    "the API key is missing or wrong: send Authorization: Bearer KEY",
                    code="invalid_api_key",
                )
        elif rules.hosts is not None:
            # a page of another site can make a browser ask us under that site's name
            host = request.headers.get("host", "")
            name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
            if name not in rules.hosts:
                raise Refusal(403, f"this server is not called {name[:80]!r}")

    async def _chat(self, request: Request) -> Response:
        return await self._answer(request, chat_asked)

    async def _complete(self, request: Request) -> Response:
        return await self._answer(request, completion_asked)

    async def _answer(self, request: Request, understood: Callable[..., Asked]) -> Response:
        values = json_object(await self._body(request))
        desk = self._desk
        # templates and tokenizers take their time: not in the way of other clients
        asked = await asyncio.to_thread(
            understood, values, desk.model.text, self._name, self._languages
        )
        check_prompt(asked.prompt.ids, desk.model.config.vocab, desk.model.opened.context)
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event] = asyncio.Queue()

        def emit(found: Event) -> None:
            with suppress(RuntimeError):  # the loop has ended: nobody listens
                loop.call_soon_threadsafe(events.put_nowait, found)

        job = desk.submit(asked, emit)
        reply = Reply(self._name, asked.chat)
        if asked.stream:
            head = {"cache-control": "no-store", "x-accel-buffering": "no"}
            body = streamed(job, events, reply, asked)
            return StreamingResponse(body, media_type="text/event-stream", headers=head)
        return JSONResponse(await whole(request, job, events, reply))

    async def _body(self, request: Request) -> bytes:
        most, body = self._rules.most_bytes, bytearray()
        too_long = Refusal(413, f"the body is longer than {most} bytes", code="body_too_long")
        with suppress(ValueError):
            if int(request.headers.get("content-length", 0)) > most:
                raise too_long
        try:
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise too_long
        except ClientDisconnect:
            raise Refusal(499, "the client has left") from None
        return bytes(body)

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self._name:
            raise Refusal(404, f"the model {name[:60]!r} is not here; there is {self._name!r}")
        return JSONResponse(self._card())

    async def _failed(self, request: Request, error: Exception) -> Response:
        return JSONResponse(self._desk.failed(error).body, 500)

    def _card(self) -> dict[str, Any]:
        model = self._desk.model
        return {
            "id": self._name,
            "object": "model",
            "created": self._created,
            "owned_by": "local",
            "context": model.opened.context,
            "family": model.config.family,
        }

    async def _metrics(self, request: Request) -> Response:
        return PlainTextResponse(metrics(self._desk), media_type="text/plain; version=0.0.4")

    async def _health(self, request: Request) -> Response:
        desk = self._desk
        return JSONResponse({"status": "ok", "running": desk.running, "waiting": desk.waiting})


async def _refused(request: Request, error: Refusal) -> Response:
    head = {"www-authenticate": "Bearer"} if error.status == 401 else {}
    if error.status == 429:
        head["retry-after"] = "5"
    return JSONResponse(error.body, error.status, headers=head)


async def _refused_by_path(request: Request, error: HTTPException) -> Response:
    what = f"{request.method} {request.url.path[:120]}"
    said = {404: f"there is no {what} here", 405: f"{what} is not the way to ask this"}
    refusal = Refusal(error.status_code, said.get(error.status_code, str(error.detail)))
    return JSONResponse(refusal.body, error.status_code, headers=error.headers)
