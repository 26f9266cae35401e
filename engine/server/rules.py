"""Who may ask, and how much: what is looked at before a request is understood.

The rule kept here: what comes in is bounded before it is read.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect, Request

from diskmoe.engine.server.refusals import Refusal

BODIES = 2  # as long as a body may be, that all bodies together may be while they are read
LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")


@dataclass
class _Coming:
    """Bodies of which not all is there yet."""

    bytes: int = 0


@dataclass(frozen=True)
class Rules:
    """The rules of one server."""

    api_key: str | None = None
    most_bytes: int = 8 << 20  # of a request's body
    hosts: tuple[str, ...] | None = LOOPBACK  # names that a request may call us by; None: any
    coming: _Coming = field(default_factory=_Coming)

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises Refusal for who may not ask."""
        if self.api_key is not None:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            # headers are bytes; they are read as latin-1
            key = self.api_key.strip().encode("utf-8", "surrogateescape")
            right = hmac.compare_digest(given.strip().encode("latin-1"), key)
            if scheme.lower() != "bearer" or not right:
                raise Refusal(
                    401,
                    "the API key is missing or wrong: send Authorization: Bearer KEY",
                    code="invalid_api_key",
                )
            return
        # a page of another site can make a browser ask us: under that site's name, or without
        # being able to read the answer
        host = headers.get("host", "").lower()
        if self.hosts is not None and _name(host) not in self.hosts:
            raise Refusal(403, f"this server is not called {host[:80]!r}: ask it by its address")
        origin = headers.get("origin")
        if origin is not None and _place(origin) != host:
            raise Refusal(403, f"pages of {origin[:80]!r} may not ask this server")

    async def body(self, request: Request) -> bytes:
        """The JSON that a request brings. Raises Refusal for what is none, or too much."""
        _check_kind(request.headers)
        most, body = self.most_bytes, bytearray()
        too_long = Refusal(
            413,
            f"the body is longer than {most} bytes: send less, or start the server with a larger "
            "BODY_BYTES",
            code="body_too_long",
        )
        with suppress(ValueError):
            if int(request.headers.get("content-length", 0)) > most:
                raise too_long
        coming = self.coming
        try:
            async for chunk in request.stream():
                body += chunk
                coming.bytes += len(chunk)
                if len(body) > most:
                    raise too_long
                if coming.bytes > BODIES * most:
                    raise Refusal(
                        429,
                        f"the bodies of requests are longer than {BODIES * most} bytes together: "
                        "try again later",
                        code="queue_full",
                    )
            return bytes(body)
        except ClientDisconnect:
            raise Refusal(499, "the client has left") from None
        finally:
            coming.bytes -= len(body)


def _name(host: str) -> str:
    """A Host header without its port."""
    return host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host


def _place(origin: str) -> str:
    """The host of an Origin header, as a Host header has it."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _check_kind(headers: Mapping[str, str]) -> None:
    """Raises Refusal where the body is said to be something else than JSON in UTF-8."""
    kind, _, more = headers.get("content-type", "").lower().partition(";")
    kind = kind.strip()
    if kind and kind != "application/json" and not kind.endswith("+json"):
        raise Refusal(
            415, f"the body is said to be {kind[:60]!r}: send Content-Type: application/json"
        )
    charset = more.partition("charset=")[2].partition(";")[0].strip(" \"'")
    if charset and charset not in ("utf-8", "utf8", "us-ascii"):
        raise Refusal(415, f"the body is said to be in {charset[:60]!r}: send it in UTF-8")
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise Refusal(415, f"the body is said to be packed ({coding[:60]!r}): send it as it is")
