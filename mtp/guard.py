"""Switches a draft source off while most of what it says is wrong.

A draft counts when it was judged: those behind the first wrong one never were. As soon as more than
half of the latest `WINDOW` are wrong the source goes off; `PAUSE` tokens later it may try one draft,
which decides whether it is on again or waits as long once more. Till then a wrong draft halves how
many the source may give at once and a right one doubles it: one that is always wrong costs few rows
before it goes off, and one that is mostly right notices nothing.
"""

from __future__ import annotations

from collections import deque

WINDOW = 32  # judged drafts
PAUSE = 256  # tokens
FIRST = 8  # drafts at once, of a source that nothing is known about
_MOST = 64  # where doubling ends; sources give fewer


class Guard:
    """Watches one source during one text."""

    def __init__(self) -> None:
        self._latest: deque[bool] = deque(maxlen=WINDOW)
        self._room = FIRST
        self._wait: int | None = None  # tokens until a probe; None: the source is on
        self.pauses = 0  # how often it went off, failed probes not counted

    @property
    def off(self) -> bool:
        """Whether the source is off, or on probation with one draft."""
        return self._wait is not None

    def allowed(self, room: int) -> int:
        """How many of `room` drafts the source may give now."""
        if self._wait is None:
            return min(room, self._room)
        return min(room, 1) if self._wait <= 0 else 0

    def emitted(self) -> None:
        """A token was emitted."""
        if self._wait is not None:
            self._wait -= 1

    def judged(self, right: bool) -> bool:
        """A draft was judged; True when the source goes off by it."""
        if self._wait is not None:
            self._wait = None if right else PAUSE
            return False
        self._room = min(2 * self._room, _MOST) if right else max(1, self._room // 2)
        self._latest.append(right)
        if 2 * self._latest.count(False) <= WINDOW:
            return False
        self._latest.clear()
        self._wait = PAUSE
        self.pauses += 1
        return True
