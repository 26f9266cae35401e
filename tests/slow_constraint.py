"""A constraint that is plainly right: each token is fed to the sets of stacks byte by byte."""

from __future__ import annotations

from diskmoe.grammar_draft.automaton import Automaton, State
from diskmoe.grammar_draft.rules import Grammar
from diskmoe.grammar_draft.vocabulary import Vocabulary


class SlowConstraint:
    """What `Constraint` must say; the state behind a token that ended the text is None."""

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary):
        self.automaton = Automaton(grammar)
        self.vocabulary = vocabulary
        self.start = self.automaton.start

    def accept(self, state: State, token: int) -> State | None:
        """The state behind a token that does not end the text."""
        data = self.vocabulary.texts[token] or b""
        if token in self.vocabulary.ends or (not data and token not in self.vocabulary.special):
            return None
        if token in self.vocabulary.special:
            data = b""
        return self.automaton.advance_token(state, token, data)

    def mask(self, state: State) -> set[int]:
        """The tokens that may come next."""
        vocabulary = self.vocabulary
        found = {t for t in range(len(vocabulary)) if self.accept(state, t) is not None}
        return found | set(vocabulary.ends) if state.may_end else found
