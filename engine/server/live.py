"""What the server does at this moment, as a stream of events for its page.

The rules kept here: every figure is one that reports have, by their definitions (``engine.stats``), over
the latest seconds of decoding and since the start; nothing is noted in a forward unless somebody
looks; who looks gets what there is when they are ready for more, so one that reads slowly misses some
of it, and holds up nobody.

    live = Live(desk)
    Route("/live", live.respond)
"""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from diskmoe.engine.replies import usage
from diskmoe.engine.server.desk import Desk
from diskmoe.engine.server.events import comment, event
from diskmoe.engine.server.leaving import Stream
from diskmoe.engine.server.refusals import Refusal
from diskmoe.engine.server.seen import Bits, Seen
from diskmoe.engine.stats import RunStats
from diskmoe.experts.footprint import resident_bytes
from diskmoe.mtp.compose import Account

PERIOD = 0.2  # seconds between two looks
USES_PERIOD = 2.0  # seconds between two looks at how often experts were chosen: the largest part
ALIVE_SECONDS = 5.0  # between two signs of life while nothing changes
RECENT_SECONDS = 5.0  # of decoding: the latest figures are over these
MOST_WATCHERS = 16
_OF_ONE_REQUEST = ("ttft_seconds", "stop_reason")


class Live:
    """The feed of a desk."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._watchers = 0
        self._seen = Seen(desk.model.store, desk.model.config.moe_layers)
        self._earlier: deque[RunStats] = deque(maxlen=64)  # sums since the start, as they were
        self._kept: dict[str, tuple[float, bytes]] = {}  # what all watchers get: when, and what

    async def respond(self, request: Request) -> Response:
        """A stream that ends when the client does. Raises Refusal 429 when too many look."""
        if self._watchers >= MOST_WATCHERS:
            raise Refusal(
                429, f"{self._watchers} pages are open on this server already: close one of them"
            )
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        self._enter()
        return Stream(self._events(), self._leave)

    def _enter(self) -> None:
        self._watchers += 1
        if self._watchers == 1:
            self._kept.clear()
            self._earlier.clear()
            self._earlier.append(self._so_far())
            self._desk.model.look(self._seen.record)

    def _leave(self) -> None:
        self._watchers -= 1
        if not self._watchers:
            self._desk.model.look(None)

    async def _events(self) -> AsyncIterator[bytes]:
        """What a watcher gets: the model once, then what has changed."""
        yield event({"model": self._about()})
        sent: dict[str, bytes] = {}
        said = time.monotonic()
        while not self._desk.ending:
            for name, period in (("now", PERIOD), ("uses", USES_PERIOD)):
                found = self._shared(name, period)
                if found != sent.get(name):
                    sent[name], said = found, time.monotonic()
                    yield found
            if time.monotonic() - said > ALIVE_SECONDS:
                said = time.monotonic()
                yield comment("nothing new")
            await asyncio.sleep(PERIOD)

    def _shared(self, name: str, period: float) -> bytes:
        """What is made once for all who look at the same time."""
        now = time.monotonic()
        made, found = self._kept.get(name, (-1e9, b""))
        if now - made >= period:
            found = event({name: self._now() if name == "now" else packed(self._seen.uses())})
            self._kept[name] = now, found
        return found

    def _about(self) -> dict[str, Any]:
        """What does not change."""
        model = self._desk.model
        return {
            **asdict(model.facts),
            "moe_layers": list(model.config.moe_layers),
            "context": model.opened.context,
            "parallel": model.options.parallel,
        }

    def _now(self) -> dict[str, Any]:
        desk, store = self._desk, self._desk.model.store
        total = self._so_far()
        turns, hits, misses = self._seen.latest()
        return {
            "running": desk.running,
            "waiting": desk.waiting,
            "resident_bytes": resident_bytes() >> 20 << 20,  # whole MiB: it is never quite still
            "slots": sum(map(store.slots, self._seen.layers)),
            "recent": figures(self._recent(total)),
            "total": figures(total),
            "turns": turns,
            "resident": packed_bits(self._seen.resident()),
            "hits": packed_bits(hits),
            "misses": packed_bits(misses),
        }

    def _so_far(self) -> RunStats:
        """All texts since the start as if they were one run."""
        totals, (prefill, decode) = self._desk.so_far(), self._desk.model.phases
        return RunStats(
            prompt_tokens=totals.prompt_tokens,
            reused_tokens=totals.reused_tokens,
            tokens=totals.tokens,
            prefill=replace(prefill),
            decode=replace(decode),
            drafts={
                name: Account(judged=judged, accepted=accepted)
                for name, (judged, accepted) in totals.drafts.items()
            },
        )

    def _recent(self, total: RunStats) -> RunStats:
        """The latest seconds of decoding, whenever they were."""
        earlier = self._earlier
        if not earlier or earlier[-1].decode.forwards != total.decode.forwards:
            earlier.append(total)
        begin = total.decode.seconds - RECENT_SECONDS
        while len(earlier) > 2 and earlier[1].decode.seconds <= begin:
            earlier.popleft()
        return _between(earlier[0], total)


def figures(stats: RunStats) -> dict[str, Any]:
    """What reports say of so much of the work."""
    found: dict[str, Any] = usage(stats)["diskmoe"]
    return {
        **{name: value for name, value in found.items() if name not in _OF_ONE_REQUEST},
        "tokens": stats.tokens,
        "prompt_tokens": stats.prompt_tokens,
        "reused_tokens": stats.reused_tokens,
        "decode_seconds": stats.decode.seconds,
        "other_seconds": stats.decode.other_seconds,
    }


def _between(before: RunStats, after: RunStats) -> RunStats:
    """What came to an earlier sum. A request that fails takes its tokens with it: none is negative."""
    none = Account()
    return RunStats(
        tokens=max(0, after.tokens - before.tokens),
        prompt_tokens=max(0, after.prompt_tokens - before.prompt_tokens),
        reused_tokens=max(0, after.reused_tokens - before.reused_tokens),
        prefill=after.prefill.since(before.prefill),
        decode=after.decode.since(before.decode),
        drafts={
            name: Account(
                judged=max(0, account.judged - before.drafts.get(name, none).judged),
                accepted=max(0, account.accepted - before.drafts.get(name, none).accepted),
            )
            for name, account in after.drafts.items()
        },
    )


def packed(numbers: np.ndarray) -> str:
    """An array's bytes in base64, row by row."""
    return b64encode(np.ascontiguousarray(numbers).tobytes()).decode()


def packed_bits(bits: Bits) -> str:
    """(layers, experts) in base64, a bit each, row by row without gaps, the lowest bit first."""
    return packed(np.packbits(bits, bitorder="little"))
