"""What a stream of server-sent events is made of."""

from __future__ import annotations

import json
from typing import Any

DONE = b"data: [DONE]\n\n"


def event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def comment(text: str) -> bytes:
    """What keeps a stream alive and says nothing to clients."""
    return f": {text}\n\n".encode()
