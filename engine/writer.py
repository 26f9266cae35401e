"""Writes an answer in OpenAI's form from its parts: as chunks of a stream, or put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diskmoe.engine.logprobs import chat_logprobs, completion_logprobs
from diskmoe.engine.observed import LogProbs
from diskmoe.engine.replies import Reply
from diskmoe.engine.stats import RunStats
from diskmoe.engine.text.side import TextSide
from diskmoe.engine.tools.parts import Gathered, Part


class Writer:
    """Of one answer. `logprobs` everywhere: of the tokens since those that came before; they are in
    the next chunk, whatever it is of."""

    def __init__(self, reply: Reply, text: TextSide, with_logprobs: bool, begin: int = 0) -> None:
        """begin: characters of a completion before its first token."""
        self.reply = reply
        self._text = text
        self._with_logprobs = with_logprobs
        self._gathered = Gathered()
        self._noted: list[LogProbs] = []
        self._place = begin

    def add(self, part: Part, logprobs: Sequence[LogProbs] = ()) -> None:
        self._gathered.add(part)
        self._noted += logprobs

    def chunk(self, part: Part, logprobs: Sequence[LogProbs] = ()) -> dict[str, Any]:
        """Of a part."""
        self.add(part, logprobs)
        return self.reply.part(part, self._logprobs())

    def last(self, stats: RunStats, logprobs: Sequence[LogProbs] = ()) -> dict[str, Any]:
        """The last chunk."""
        self._noted += logprobs
        return self.reply.last(stats, self._gathered.called, self._logprobs())

    def whole(self, stats: RunStats, logprobs: Sequence[LogProbs] = ()) -> dict[str, Any]:
        """All of it."""
        self._noted += logprobs
        return self.reply.whole(self._gathered.message, stats, self._logprobs())

    def _logprobs(self) -> dict[str, Any] | None:
        """Of the tokens since they were last asked for, where they are wanted."""
        if not self._with_logprobs:
            return None
        noted, self._noted = self._noted, []
        if self.reply.chat:
            return chat_logprobs(self._text, noted)
        found = completion_logprobs(self._text, noted, self._place)
        self._place += sum(map(len, found["tokens"]))
        return found
