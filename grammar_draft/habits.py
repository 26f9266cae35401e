"""What a text did last time at a place, and how far that can be trusted: learned per run.

A habit is a value and a running share of the times that it was right. It is offered as a guess
while that share is at least one half (a draft that is wrong more often costs more than it saves),
forgotten as it goes wrong and replaced by what happened instead.

    >>> habits = Habits()
    >>> habits.learn("place", 32, few=True)
    >>> habits.guess("place")
    (32, 0.6)
    >>> habits.learn("place", 9, few=True)
    >>> habits.guess("place") is None
    True
"""

from __future__ import annotations

from collections.abc import Hashable

PAYS = 0.5  # a guess that is right less often is not offered
_RATE = 0.35  # weight of the newest outcome
_FIRST_OF_FEW = 0.6  # trust after one outcome where few were possible: an enum, a blank or none
_FIRST = 0.2  # where many were possible: two repetitions are needed
MAX_PLACES = 8192


class Habits:
    """Habits by place; a place is anything hashable."""

    def __init__(self) -> None:
        self._places: dict[Hashable, tuple[int, float]] = {}

    def learn(self, place: Hashable, value: int, few: bool) -> None:
        """What happened at a place. few: whether few other things could have."""
        known = self._places.get(place)
        if known is None:
            if len(self._places) >= MAX_PLACES:
                self._places.clear()
            self._places[place] = (value, _FIRST_OF_FEW if few else _FIRST)
            return
        usual, share = known
        if usual == value:
            self._places[place] = (value, share + (1 - share) * _RATE)
        elif share * (1 - _RATE) >= PAYS:  # once wrong is not yet another habit
            self._places[place] = (usual, share * (1 - _RATE))
        else:
            self._places[place] = (value, share * (1 - _RATE))

    def guess(self, place: Hashable) -> tuple[int, float] | None:
        """(value, share of times it was right), None where no guess pays."""
        known = self._places.get(place)
        return known if known is not None and known[1] >= PAYS else None
