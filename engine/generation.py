"""A run under way: token ids in, pieces of text out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING

from diskmoe.engine.observed import LogProbs
from diskmoe.engine.stats import RunStats
from diskmoe.engine.text.session import TextStream

if TYPE_CHECKING:
    from diskmoe.engine.lanes import Text


def of_text(
    tokens: Generator[int, None, None], text: Text, at_end: Callable[[], None]
) -> Generator[int, None, None]:
    """The tokens of a run for as long as its lane is its own."""
    try:
        while True:
            text.check()
            try:
                token = next(tokens)
            except StopIteration:
                return
            text.check()  # what `on_prefill` did may have ended it
            yield token
    finally:
        tokens.close()
        text.end()
        at_end()


class Run:
    """A run under way: iterate for the pieces of its text, cut at whole characters.

    token_ids: those that have come, a stop token included. stats: what it cost; complete at its end.
    """

    def __init__(
        self,
        tokens: Generator[int, None, None],
        stream: TextStream | None,
        stats: RunStats,
        logprobs: Sequence[LogProbs] = (),
    ) -> None:
        self._tokens = tokens
        self._stream = stream
        self._pieces: list[str] = []
        self.token_ids: list[int] = []
        self.stats = stats
        self._logprobs = logprobs  # of a forward's tokens at once, some of them perhaps not yet out
        self._reason: Callable[[], str | None] = lambda: None

    @property
    def text(self) -> str:
        """All text so far; empty for a model without a tokenizer."""
        return "".join(self._pieces)

    @property
    def logprobs(self) -> Sequence[LogProbs]:
        """Of ``token_ids``, where they were asked for."""
        return self._logprobs[: len(self.token_ids)]

    def __iter__(self) -> Iterator[str]:
        for token in self._tokens:
            self.token_ids.append(token)
            reason = self._reason()
            if reason is not None:
                self.stop(reason)
            if self._stream is None:
                continue
            piece = self._kept(self._stream.push([token]))
            if self._stream.stopped is not None:
                self.stop("stop string")
            if piece:
                yield piece
        last = self.rest()
        if last:
            yield last

    def end_when(self, reason: Callable[[], str | None]) -> None:
        """Asked behind each token, whether it prints something or not: a reason ends the run."""
        self._reason = reason

    def stop(self, reason: str) -> None:
        """Ends the run early; what was made stays."""
        self._tokens.close()
        self.stats.stop_reason = reason

    def rest(self) -> str:
        """The text that was held back because a stop string might have begun in it."""
        return "" if self._stream is None else self._kept(self._stream.flush())

    def _kept(self, piece: str) -> str:
        if piece:
            self._pieces.append(piece)
        return piece
