"""A grammar as a draft source: the bytes that it expects next, as the model's own tokens.

automaton = Automaton(load("fit.gbnf"))
source = GrammarSource(automaton, tokenizer, prompt_ids, cap=24)
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.spans import DEFAULT_CAP, Spans, Tokenizer
from diskmoe.grammar_draft.walker import Walker
from diskmoe.mtp.source import Draft

Tags = tuple[str, str]


class GrammarSource:
    """Drafts for one text that may follow a grammar, or leave it at any time."""

    name = "grammar"
    prior = (0.98,)
    cheap = True
    grades = ()

    def __init__(
        self,
        automaton: Automaton,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        *,
        cap: int = DEFAULT_CAP,
        continues: bool = False,
        tags: Tags | None = None,
        thinking: bool = False,
        begun: bool = False,
    ) -> None:
        """cap: tokens of a span. continues: the text goes on where the prompt ends, else it begins
        anew. tags: of the model's thinking blocks; thinking: the prompt has opened one. begun: it
        is known that the text begins with the grammar."""
        walker = Walker(automaton, None if tags is None else (tags[0].encode(), tags[1].encode()))
        self._spans = Spans(walker, tokenizer, cap)
        self._cap = cap
        if continues and not begun:
            self._spans.accept(prompt)
        else:
            self._spans.restart(prompt, thinking, begun)

    @property
    def gave_up(self) -> str:
        return self._spans.walker.off

    def drafts(self, chain: Sequence[int]) -> Generator[Draft, None, None]:
        """A whole span, behind other drafts too where their bytes fit."""
        for token in self._spans.propose(self._cap, chain):
            yield Draft(token)

    def observe(self, tokens: Sequence[int]) -> None:
        self._spans.accept(tokens)
