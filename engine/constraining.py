"""What constrains runs of a model: grammars made ready for its vocabulary, and kept for the next."""

from __future__ import annotations

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.options import check_constrain
from diskmoe.engine.text.side import TextSide
from diskmoe.grammar_draft.constraint import Constraint
from diskmoe.grammar_draft.course import Course
from diskmoe.grammar_draft.rules import Grammar
from diskmoe.grammar_draft.vocabulary import Vocabulary

KEPT = 16  # grammars


def mode_of(constrain: str | bool) -> str:
    """How to enforce: "0" (not at all), "1", "mask" or "check". Raises BadRequest for others."""
    if isinstance(constrain, bool):
        return "1" if constrain else "0"
    check_constrain(constrain)
    return constrain


class Constraints:
    """The constraints of one model."""

    def __init__(self, text: TextSide) -> None:
        self._text = text
        self._vocabularies: dict[frozenset[int], Vocabulary] = {}
        # with the grammar, which keeps its id() its own
        self._made: dict[tuple[int, frozenset[int]], tuple[Grammar, Constraint]] = {}

    def course(self, grammar: Grammar | None, ends: frozenset[int]) -> Course:
        """What a new text is to follow. ends: the ids that end it.

        Raises:
            BadRequest: no grammar, or a model without a tokenizer.
        """
        if grammar is None:
            raise BadRequest("nothing to constrain by: give a grammar or a schema")
        key = id(grammar), ends
        made = self._made.pop(key, None)
        if made is None:
            if len(self._made) >= KEPT:
                del self._made[next(iter(self._made))]
            made = grammar, Constraint(grammar, self._vocabulary(ends))
        self._made[key] = made  # the latest stands last
        return Course(made[1])

    def _vocabulary(self, ends: frozenset[int]) -> Vocabulary:
        known = self._vocabularies.get(ends)
        if known is None:
            tokenizer = self._text.tokenizer
            if tokenizer is None:
                raise BadRequest(
                    f"a grammar is of text, and {self._text.path} has no tokenizer.json"
                )
            known = Vocabulary(tokenizer.token_bytes, tokenizer.special_text, ends)
            self._vocabularies[ends] = known
        return known
