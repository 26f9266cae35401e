"""Tokens that nothing else can take the place of, as a draft source: where a grammar is enforced
and leaves one, or a thinking block is being ended.

source = CertainSource(course)
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from diskmoe.grammar_draft.course import Course
from diskmoe.mtp.source import Draft


class CertainSource:
    """Drafts for one text that are always right."""

    name = "forced"
    prior = (1.0,)
    cheap = True
    grades = ()
    gave_up = ""

    def __init__(self, course: Course) -> None:
        self._course = course

    def drafts(self, chain: Sequence[int]) -> Generator[Draft, None, None]:
        """As long as there is but one token."""
        said = list(chain)
        while (state := self._course.after(said)) is not None:
            token = self._course.rules.only(state)
            if token is None:
                return
            yield Draft(token)
            said.append(token)

    def observe(self, tokens: Sequence[int]) -> None:
        """The course is taken along by what picks the tokens."""
