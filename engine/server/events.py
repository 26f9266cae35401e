"""What a stream of server-sent events is made of."""

from __future__ import annotations

import json
from typing import Any

DONE = b"data: [DONE]\n\n"
_json = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps makes one for every call


def event(data: dict[str, Any]) -> bytes:
    return f"data: {_json(data)}\n\n".encode()


def comment(text: str) -> bytes:
    """What keeps a stream alive and says nothing to clients."""
    return f": {text}\n\n".encode()
