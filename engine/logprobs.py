"""Log-probabilities of a text's tokens, in OpenAI's two forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diskmoe.engine.observed import LogProbs
from diskmoe.engine.text.side import TextSide


def chat_logprobs(text: TextSide, found: Sequence[LogProbs]) -> dict[str, Any]:
    """Of a chat: ``{"content": [{"token", "logprob", "bytes", "top_logprobs"}]}``."""
    return {
        "content": [
            {
                **_entry(text, each.token, each.logprob),
                "top_logprobs": [_entry(text, token, value) for token, value in each.top],
            }
            for each in found
        ],
        "refusal": None,
    }


def completion_logprobs(text: TextSide, found: Sequence[LogProbs], begin: int) -> dict[str, Any]:
    """Of a completion: lists by token. begin: characters of the text before the first of these."""
    shown = [_shown(text, each.token).decode("utf-8", "replace") for each in found]
    offsets = [begin]
    for token in shown:
        offsets.append(offsets[-1] + len(token))
    return {
        "tokens": shown,
        "text_offset": offsets[:-1],
        "token_logprobs": [each.logprob for each in found],
        "top_logprobs": [
            {_shown(text, token).decode("utf-8", "replace"): value for token, value in each.top}
            for each in found
        ],
    }


def _entry(text: TextSide, token: int, logprob: float) -> dict[str, Any]:
    data = _shown(text, token)
    return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}


def _shown(text: TextSide, token: int) -> bytes:
    """What a token prints, or how a special one is written."""
    tokenizer = text.tokenizer
    if tokenizer is None:
        return b""
    if token in tokenizer.special_text:
        return tokenizer.special_text[token].encode()
    return tokenizer.token_bytes[token] or b""
