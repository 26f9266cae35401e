"""The server as an ASGI application: routes, and the way of a request to the desk.

The rules kept here: no path of a request leads to a file; every refusal has OpenAI's form; nothing
that takes its time is done on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from diskmoe.engine.decode import check_prompt
from diskmoe.engine.errors import BadGrammar, DiskMoeError
from diskmoe.engine.replies import Reply
from diskmoe.engine.server.answering import streamed, whole
from diskmoe.engine.server.asked import Asked, chat_asked, completion_asked
from diskmoe.engine.server.desk import Desk, Ended, Event, Failed, Gone, Job
from diskmoe.engine.server.fields import json_object
from diskmoe.engine.server.languages import Languages
from diskmoe.engine.server.leaving import Stream, unless_left
from diskmoe.engine.server.live import Live
from diskmoe.engine.server.mailbox import Mailbox
from diskmoe.engine.server.metrics import metrics
from diskmoe.engine.server.page import page
from diskmoe.engine.server.refusals import Refusal, refusal_of
from diskmoe.engine.server.rules import Rules
from diskmoe.engine.tools.calling import Calling
from diskmoe.engine.writer import Writer
from diskmoe.grammar_draft.patience import patient

Handler = Callable[[Request], Awaitable[Response]]
Understand = Callable[..., Asked]

# requests with these wait for each other's grammars, and no other request does
OF_GRAMMARS = {"grammar", "response_format", "tools"}
THREADS = 2


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
        self._page_itself = page()
        self.calling = Calling.of(desk.model.text)
        self._texts = _pool("diskmoe-request")
        self._grammars = _pool("diskmoe-grammar")
        routes = [
            Route("/v1/chat/completions", self._open(self._chat), methods=["POST"]),
            Route("/v1/completions", self._open(self._complete), methods=["POST"]),
            Route("/v1/models", self._open(self._models), methods=["GET"]),
            Route("/v1/models/{name}", self._open(self._model), methods=["GET"]),
            Route("/metrics", self._open(self._metrics), methods=["GET"]),
            Route("/health", self._health, methods=["GET"]),
            Route("/live", self._open(Live(desk).respond), methods=["GET"]),
            Route("/", self._page, methods=["GET"]),
        ]
        refused = {Refusal: _refused, HTTPException: _refused_by_path, Exception: self._failed}
        self.app = Starlette(routes=routes, exception_handlers=refused)  # pyright: ignore[reportArgumentType]
        self.app.router.redirect_slashes = False

    def _open(self, handler: Handler) -> Handler:
        """The handler for those who may ask."""

        async def checked(request: Request) -> Response:
            self._rules.check(request.headers)
            try:
                return await handler(request)
            except (DiskMoeError, BadGrammar) as error:
                raise refusal_of(error) from None

        return checked

    async def _chat(self, request: Request) -> Response:
        return await self._answer(request, partial(chat_asked, calling=self.calling))

    async def _complete(self, request: Request) -> Response:
        return await self._answer(request, completion_asked)

    async def _answer(self, request: Request, understood: Understand) -> Response:
        values = json_object(await self._rules.body(request))
        loop = asyncio.get_running_loop()
        events: Mailbox[Event] = Mailbox(urgent=(Ended, Failed))
        job = self._desk.enter(events.put)
        try:
            # templates, tokenizers and grammars take their time: not in the way of other clients
            pool = self._grammars if values.keys() & OF_GRAMMARS else self._texts
            asked = await unless_left(
                request, loop.run_in_executor(pool, self._ready, values, understood, job)
            )
            reply, text = Reply(self._name, asked.chat), self._desk.model.text
            writer = Writer(reply, text, asked.logprobs is not None)
            self._desk.submit(job, asked)
        except BaseException as error:
            refusal = job.refusal
            job.cancel()
            if isinstance(error, Gone):
                raise refusal from None
            raise
        if asked.stream:
            return Stream(streamed(job, events, writer, asked.usage_at_end), job.cancel)
        return JSONResponse(await whole(request, job, events, writer))

    def _ready(self, values: Mapping[str, Any], understood: Understand, job: Job) -> Asked:
        """What is asked for, checked, its grammar compiled; Gone as soon as nobody wants it."""
        model = self._desk.model
        with patient(job.check):
            job.check()
            try:
                asked = understood(values, model.text, self._name, self._languages)
            except RecursionError:
                raise Refusal(400, "the request is nested too deeply") from None
            check_prompt(asked.prompt.ids, model.config.vocab, model.opened.context)
            model.make_ready(asked.wanted, asked.prompt)
            return asked

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

    async def _page(self, request: Request) -> Response:
        """For everybody who knows us: it has no secrets, and asks for the key itself."""
        if self._rules.api_key is None:
            self._rules.check(request.headers)
        return self._page_itself

    async def _health(self, request: Request) -> Response:
        desk = self._desk
        return JSONResponse({"status": "ok", "running": desk.running, "waiting": desk.waiting})


def _pool(name: str) -> ThreadPoolExecutor:
    """Threads that are there from the start, so that a server has as many at any time."""
    pool, all_there = ThreadPoolExecutor(THREADS, name), Barrier(THREADS)
    for _ in range(THREADS):
        pool.submit(all_there.wait)
    return pool


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
