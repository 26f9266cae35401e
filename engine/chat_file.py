"""A conversation on disk, written only when asked for, and read only for the model it was held with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diskmoe.engine.errors import BadRequest
from diskmoe.experts.whole import write_whole

VERSION = 1
MOST_BYTES = 64 << 20


def save_chat(path: Path, fingerprint: str, messages: Sequence[dict[str, str]]) -> None:
    """Writes the file whole. Raises BadRequest when it cannot be written."""
    content = {"version": VERSION, "model": fingerprint, "messages": list(messages)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [json.dumps(content, ensure_ascii=False, indent=1).encode()])
    except (OSError, ValueError) as error:  # a zero byte in a name is a ValueError
        why = getattr(error, "strerror", None) or error
        raise BadRequest(f"{path} cannot be written: {why}") from None


def load_chat(path: Path, fingerprint: str) -> list[dict[str, Any]]:
    """The messages of a file. Raises BadRequest: no such file, damaged, or of another model."""
    try:
        if path.exists() and not path.is_file():  # a pipe or a device may have no end
            raise BadRequest(f"{path} is no saved chat: it is no ordinary file")
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise BadRequest(f"{path} is larger than {MOST_BYTES >> 20} MiB: it is no saved chat")
        content = json.loads(raw.decode())
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise BadRequest(f"{path} is no saved chat: it is not JSON") from None
    if not isinstance(content, dict) or content.get("version") != VERSION:
        found = content.get("version") if isinstance(content, dict) else None
        raise BadRequest(f"{path} is no saved chat of version {VERSION} (its version is {found!r})")
    if content.get("model") != fingerprint:
        raise BadRequest(
            f"{path} was held with another model ({str(content.get('model'))[:12]}, this one is "
            f"{fingerprint[:12]}): load it with that one"
        )
    messages = content.get("messages")
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise BadRequest(f"{path} is damaged: its messages are no list of objects")
    return messages
