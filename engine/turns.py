"""Whose turn it is: a lock that keeps the order in which threads asked for it."""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager

from diskmoe.engine.decode import Drafts
from diskmoe.mtp.source import Draft


class Turns:
    """A lock that is given in the order in which it was asked for. The thread that has it may take it
    again: what is told of a prompt's progress may begin another text."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._line: deque[object] = deque()
        self._owner: int | None = None  # the thread that has it, and how often it took it
        self._taken = 0

    @property
    def is_mine(self) -> bool:
        """Whether the thread that asks has it."""
        return self._owner == threading.get_ident()

    def __enter__(self) -> None:
        me, thread = object(), threading.get_ident()
        with self._changed:
            if self.is_mine:
                self._taken += 1
                return
            self._line.append(me)
            try:
                self._changed.wait_for(lambda: self._line[0] is me)
            except BaseException:  # Ctrl-C: those behind are not to wait for it
                self._line.remove(me)
                self._changed.notify_all()
                raise
            self._owner, self._taken = thread, 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._taken -= 1
            if not self._taken:
                self._owner = None
                self._line.popleft()
                self._changed.notify_all()


class DraftsInTurn:
    """Drafts of a text whose sources compute, when it is its turn; see ``decode.Drafts``."""

    def __init__(self, drafts: Drafts, turn: Callable[[], AbstractContextManager[None]]) -> None:
        self.forwarded, self.emitted = drafts.forwarded, drafts.emitted
        self._drafts = drafts
        self._turn = turn

    def propose(self, room: int) -> list[Draft]:
        with self._turn():
            return self._drafts.propose(room)
