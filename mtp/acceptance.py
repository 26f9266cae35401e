"""How often drafts are right, by source, by their place among the source's drafts, and by grade.

What is kept is P(draft j right | those before it were), from judged drafts alone. A place that was
seen little leans on the source's own guess of itself. So does a grade, or else on its place; and a
grade at a place leans on that grade anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

MEMORY = 16  # judged drafts that a place remembers
GRADE_MEMORY = 32  # and a grade, anywhere or at a place
PLACES = 8  # from the last of these on all are one
_LEAN = 2.0  # judged drafts that the fallback is worth


class _Share:
    """A share of latest events that decays as new ones come."""

    def __init__(self, memory: int) -> None:
        self._keep = 1 - 1 / memory
        self._right = 0.0
        self._count = 0.0

    def add(self, right: bool) -> None:
        self._right = self._right * self._keep + right
        self._count = self._count * self._keep + 1

    def value(self, fallback: float) -> float:
        return (self._right + _LEAN * fallback) / (self._count + _LEAN)


class Acceptance:
    """The chances of one source's drafts."""

    def __init__(self, prior: Sequence[float], grades: Sequence[float] = ()) -> None:
        """prior: of the first, second, ... draft; the last holds for all behind it. grades: of each
        grade, wherever it stands; (): as of its place."""
        self._prior = tuple(prior)
        self._by_grade = tuple(grades)
        self._places: dict[int, _Share] = {}
        self._graded: dict[int, _Share] = {}
        self._both: dict[tuple[int, int], _Share] = {}

    def judged(self, place: int, grade: int, right: bool) -> None:
        """A draft was judged; place: how many of the source's drafts stood before it."""
        place = min(place, PLACES - 1)
        self._places.setdefault(place, _Share(MEMORY)).add(right)
        self._graded.setdefault(grade, _Share(GRADE_MEMORY)).add(right)
        self._both.setdefault((place, grade), _Share(GRADE_MEMORY)).add(right)

    def chance(self, place: int, grade: int | None = None) -> float:
        """The chance of a draft, of any grade or of this one."""
        value = self._prior[min(place, len(self._prior) - 1)]
        place = min(place, PLACES - 1)
        if place in self._places:
            value = self._places[place].value(value)
        if grade is None:
            return value
        if grade < len(self._by_grade):
            value = self._by_grade[grade]
        for seen in (self._graded.get(grade), self._both.get((place, grade))):
            value = value if seen is None else seen.value(value)
        return value
