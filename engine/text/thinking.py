"""Which parts of an answer are reasoning: what stands between a model's thinking tags.

The tags are told by their tokens, so it is the same whether they are printed or not; where they are,
they are in neither part.

    thinking = Thinking.of(text_side, prompt_ids)
    for piece in run:
        for reasoning, part in thinking.parts(piece, run.token_ids):
            print(part, end="")
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diskmoe.engine.text.side import TextSide


class Thinking:
    """Of one answer."""

    def __init__(self, tags: tuple[str, str] | None, ids: tuple[int, int], inside: bool) -> None:
        """tags: what opens and closes a block, None where a model has none; ids: their tokens;
        inside: the answer begins within a block."""
        self._tags = tags
        self._ids = ids
        self._inside = inside
        self._seen = 0  # tokens of the answer

    @classmethod
    def of(cls, text: TextSide, prompt: Sequence[int]) -> Thinking:
        """For the answer to a prompt."""
        tags, inside = text.thinking(prompt)
        tokenizer = text.tokenizer
        if tags is None or tokenizer is None:
            return cls.none()
        opening, closing = (tokenizer.token_id(tag) for tag in tags)
        assert opening is not None and closing is not None
        return cls(tags, (opening, closing), inside)

    @classmethod
    def none(cls) -> Thinking:
        """Where all is text."""
        return cls(None, (-1, -1), False)

    def parts(self, piece: str, token_ids: Sequence[int]) -> Iterator[tuple[bool, str]]:
        """(is it reasoning, text) of the next piece; token_ids: of the answer, with the piece's."""
        fresh, self._seen = token_ids[self._seen :], len(token_ids)
        for token in fresh:
            if token not in self._ids:
                continue
            assert self._tags is not None
            opens = token == self._ids[0]
            before, tag, behind = piece.partition(self._tags[0 if opens else 1])
            if tag:  # it is printed
                yield from self._part(before)
                piece = behind
            self._inside = opens
        yield from self._part(piece)

    def _part(self, text: str) -> Iterator[tuple[bool, str]]:
        if text:
            yield self._inside, text
