"""Answers in OpenAI's form, as dictionaries: whole, or in the pieces of a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diskmoe.engine.stats import RunStats
from diskmoe.engine.tools.parts import Argued, Called, Part, Said

_FINISHED = ("stop token", "stop string", "grammar complete", "tool call")


def finish_reason(stats: RunStats, called: bool = False) -> str:
    """called: tools are; what is cut short within a call is "length" all the same."""
    if stats.stop_reason not in _FINISHED:
        return "length"
    return "tool_calls" if called else "stop"


@dataclass
class Reply:
    """One answer: its name, its time, and how its parts are written."""

    model: str
    chat: bool
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.id = ("chatcmpl-" if self.chat else "cmpl-") + secrets.token_hex(12)

    def whole(
        self, message: Mapping[str, Any], stats: RunStats, logprobs: Any = None
    ) -> dict[str, Any]:
        """The answer to a request that is no stream: a chat's message, or ``{"content": text}``."""
        reason = finish_reason(stats, bool(message.get("tool_calls")))
        if self.chat:
            choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", **message}}
        else:
            choice = {"index": 0, "text": message["content"]}
        choice |= {"logprobs": logprobs, "finish_reason": reason}
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._head(kind), "choices": [choice], "usage": usage(stats)}

    def first(self) -> dict[str, Any]:
        """What a chat's stream begins with."""
        return self._chunk({"role": "assistant", "content": ""}, None)

    def part(self, part: Part, logprobs: Any = None) -> dict[str, Any]:
        """A part of the answer, as the next chunk of a stream."""
        if isinstance(part, Called):
            function = {"name": part.name, "arguments": ""}
            call = {"index": part.index, "id": part.id, "type": "function", "function": function}
            return self._chunk({"tool_calls": [call]}, None, logprobs)
        if isinstance(part, Argued):
            call = {"index": part.index, "function": {"arguments": part.text}}
            return self._chunk({"tool_calls": [call]}, None, logprobs)
        if not self.chat:
            return self._text_chunk(part.text, None, logprobs)
        reasoning = isinstance(part, Said) and part.reasoning
        delta = {"reasoning_content" if reasoning else "content": part.text}
        return self._chunk(delta, None, logprobs)

    def last(self, stats: RunStats, called: bool = False, logprobs: Any = None) -> dict[str, Any]:
        reason = finish_reason(stats, called)
        if self.chat:
            return self._chunk({}, reason, logprobs)
        return self._text_chunk("", reason, logprobs)

    def usage(self, stats: RunStats) -> dict[str, Any]:
        """Behind the last one, where it is asked for."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self._head(kind), "choices": [], "usage": usage(stats)}

    def _chunk(
        self, delta: Mapping[str, Any], reason: str | None, logprobs: Any = None
    ) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _text_chunk(self, text: str, reason: str | None, logprobs: Any = None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return {**self._head("text_completion"), "choices": [choice]}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def usage(stats: RunStats) -> dict[str, Any]:
    """OpenAI's usage object, with what drafts and experts did beside it."""
    decode = stats.decode
    drafts: Mapping[str, Any] = {
        name: {"judged": a.judged, "accepted": a.accepted, "acceptance": a.acceptance}
        for name, a in stats.drafts.items()
    }
    return {
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": stats.tokens,
        "total_tokens": stats.prompt_tokens + stats.tokens,
        "prompt_tokens_details": {"cached_tokens": stats.reused_tokens},
        "diskmoe": {
            "tok_per_s": stats.tok_per_s,
            "ttft_seconds": stats.ttft_seconds,
            "prefill_seconds": stats.prefill.seconds,
            "forwards": decode.forwards,
            "tokens_per_forward": stats.tokens_per_forward,
            "hits": decode.hits,
            "misses": decode.misses,
            "hit_rate": decode.hit_rate,
            "miss_bytes": decode.miss_bytes,
            "bytes_per_token": stats.bytes_per_token,
            "read_wait_seconds": decode.read_wait_seconds,
            "compute_seconds": decode.compute_seconds,
            "drafts": drafts,
            "stop_reason": stats.stop_reason,
        },
    }
