"""Where one text stands under what constrains it, and where guesses at it would lead.

The one rule: states are walked once. What was worked out for a chain of drafts is kept while the
chain stays, and when the text takes it up the state is there already; to go back is to look at an
earlier one.

    course = Course(Constraint(grammar, vocabulary))
    mask = course.rules.mask(course.state)      # of the next token
    course.after([5, 7])                        # the state behind two drafts, None: they do not fit
    course.take(5)                              # the text goes on
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from diskmoe.grammar_draft.constraint import State
from diskmoe.grammar_draft.errors import DeadEnd
from diskmoe.grammar_draft.vocabulary import Vocabulary, Words

_SHOWN = 40  # bytes of a text's end that a message shows


class Rules(Protocol):
    """What constrains a text; see ``diskmoe.grammar_draft.constraint.Constraint``."""

    @property
    def name(self) -> str: ...
    @property
    def vocabulary(self) -> Vocabulary: ...
    @property
    def start(self) -> State: ...
    def mask(self, state: State) -> Words: ...
    def known(self, state: State) -> bool: ...
    def accept(self, state: State, token: int) -> State | None: ...
    def allows(self, state: State, token: int) -> bool: ...
    def only(self, state: State) -> int | None: ...
    def complete(self, state: State) -> bool: ...
    def wanted(self, state: State) -> str: ...


class Course:
    """One text under its rules."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.state = rules.start
        self._chain: list[int] = []
        self._behind: list[State | None] = []  # the states behind each of them
        self._said = b""

    @property
    def complete(self) -> bool:
        """Whether the text is a whole document that nothing may follow."""
        return self.rules.complete(self.state)

    def after(self, chain: Sequence[int]) -> State | None:
        """The state behind tokens that the text may go on by; None where it may not.

        Nothing goes on behind a document that is complete, not even a token that ends texts: the
        text is over.
        """
        same = 0
        while same < min(len(chain), len(self._chain)) and chain[same] == self._chain[same]:
            same += 1
        del self._chain[same:], self._behind[same:]
        state = self._behind[-1] if same else self.state
        for token in chain[same:]:
            if state is not None:
                done = self.rules.complete(state)
                state = None if done else self.rules.accept(state, token)
            self._chain.append(token)
            self._behind.append(state)
        return state

    def take(self, token: int) -> None:
        """The text went on by a token that was allowed."""
        if self._chain and self._chain[0] == token and self._behind[0] is not None:
            state = self._behind.pop(0)
            del self._chain[0]
        else:
            self._chain, self._behind = [], []
            state = self.rules.accept(self.state, token)
        if state is None:
            raise DeadEnd(f"{self.rules.name}: token {token} was taken where it is not allowed")
        self.state = state
        printed = self.rules.vocabulary.texts[token] or b""
        self._said = (self._said + printed)[-_SHOWN:]

    def dead_end(self) -> DeadEnd:
        """What to raise where no token may come."""
        where = f"behind {self._said.decode(errors='replace')!r}" if self._said else "at the start"
        return DeadEnd(
            f"{self.rules.name}: no token of the model can follow {where}: the grammar wants "
            f"{self.rules.wanted(self.state)}"
        )
