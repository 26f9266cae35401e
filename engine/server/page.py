"""The page at ``/``: one file with its own style and script, and what a browser may do with it.

The rule of this file: the page is served as it lies in the package, and its policy names the only
style and the only script that may run, by their digests; so whatever a model writes stays text.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from pathlib import Path

from starlette.responses import Response


def page() -> Response:
    """The page, ready to be sent as often as it is asked for."""
    text = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    head = {
        "content-security-policy": policy(text),
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "cache-control": "no-cache",
    }
    return Response(text, media_type="text/html", headers=head)


def policy(text: str) -> str:
    """What a browser is to allow a page of this text: its own parts, its own server, no more."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_digests(text, 'script')}",
            f"style-src {_digests(text, 'style')}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        )
    )


def _digests(text: str, tag: str) -> str:
    parts: list[str] = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    sums = (hashlib.sha256(part.encode()).digest() for part in parts)
    return " ".join(f"'sha256-{b64encode(each).decode()}'" for each in sums) or "'none'"
