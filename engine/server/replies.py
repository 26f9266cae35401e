"""Answers in OpenAI's form: whole, or in pieces of a stream."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from diskmoe.engine.server.desk import usage
from diskmoe.engine.stats import RunStats

DONE = b"data: [DONE]\n\n"
_FINISHED = {"stop token": "stop", "stop string": "stop", "grammar complete": "stop"}


def finish_reason(stats: RunStats) -> str:
    return _FINISHED.get(stats.stop_reason, "length")


@dataclass
class Reply:
    """One answer: its name, its time, and how its parts are written."""

    model: str
    chat: bool
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.id = ("chatcmpl-" if self.chat else "cmpl-") + secrets.token_hex(12)

    def whole(self, content: str, reasoning: str, stats: RunStats) -> dict[str, Any]:
        """The answer to a request that is no stream."""
        reason = finish_reason(stats)
        if self.chat:
            message: dict[str, Any] = {"role": "assistant", "content": content}
            if reasoning:
                message["reasoning_content"] = reasoning
            choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": reason}
        else:
            choice = {"index": 0, "text": content, "finish_reason": reason}
        choice["logprobs"] = None
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._head(kind), "choices": [choice], "usage": usage(stats)}

    def first(self) -> bytes:
        """What a chat's stream begins with."""
        return self._chunk({"role": "assistant", "content": ""}, None)

    def piece(self, text: str, reasoning: bool) -> bytes:
        if not self.chat:
            return self._text_chunk(text, None)
        return self._chunk({"reasoning_content" if reasoning else "content": text}, None)

    def last(self, stats: RunStats) -> bytes:
        reason = finish_reason(stats)
        return self._chunk({}, reason) if self.chat else self._text_chunk("", reason)

    def usage(self, stats: RunStats) -> bytes:
        """Behind the last one, where it is asked for."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return event({**self._head(kind), "choices": [], "usage": usage(stats)})

    def _chunk(self, delta: dict[str, Any], reason: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return event({**self._head("chat.completion.chunk"), "choices": [choice]})

    def _text_chunk(self, text: str, reason: str | None) -> bytes:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        return event({**self._head("text_completion"), "choices": [choice]})

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def event(data: dict[str, Any]) -> bytes:
    """One of a stream of server-sent events."""
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def comment(text: str) -> bytes:
    """What keeps a stream alive and says nothing to clients."""
    return f": {text}\n\n".encode()
