"""An answer as it comes: what is reasoning, what is said, and which tools are called.

answer = Answer(model.generate(prompt, ...), Thinking.of(model.text, prompt.ids), reader)
for part in answer:
    ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diskmoe.engine.generation import Run
from diskmoe.engine.observed import LogProbs
from diskmoe.engine.text.thinking import Thinking
from diskmoe.engine.tools.parts import Part, Said
from diskmoe.engine.tools.reading import Reader

_BY_ITSELF = ("stop token", "grammar complete", "stop string")


class Answer:
    """Iterate for its parts."""

    def __init__(
        self, run: Run, thinking: Thinking, reader: Reader | None = None, several: bool = True
    ) -> None:
        """reader: of calls, None: there are none. several: it goes on behind a call."""
        self.run = run
        self._thinking = thinking
        self._reader = reader
        self._several = several
        self._told = 0  # log-probabilities

    def __iter__(self) -> Iterator[Part]:
        for piece in self.run:
            yield from self.parts(piece)
        yield from self.last()

    def parts(self, piece: str) -> Iterator[Part]:
        """Of the run's next piece of text."""
        reader = self._reader
        for reasoning, text in self._thinking.parts(piece, self.run.token_ids):
            if reasoning or reader is None:
                yield Said(text, reasoning)
            elif not self.over:
                yield from reader.feed(text)
                if self.over:
                    self.run.stop("tool call")

    def last(self) -> Iterator[Part]:
        """What was held back, at the end."""
        if self._reader is not None and not self.over:
            yield from self._reader.end(self.run.stats.stop_reason not in _BY_ITSELF)

    @property
    def over(self) -> bool:
        """Whether the one call that was wanted is all there."""
        reader = self._reader
        return not self._several and reader is not None and reader.calls > 0 and reader.open is None

    @property
    def called(self) -> bool:
        """Whether a call has begun."""
        return self._reader is not None and self._reader.calls > 0

    @property
    def notes(self) -> Sequence[str]:
        """What was odd."""
        return () if self._reader is None else self._reader.notes

    def logprobs(self) -> Sequence[LogProbs]:
        """Of the tokens since they were last asked for."""
        fresh = self.run.logprobs[self._told :]
        self._told += len(fresh)
        return fresh
