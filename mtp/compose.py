"""The drafts of each forward of a text: whose they are, and how they did.

The one rule: the accounts are kept token by token, as tokens are emitted, so they add up wherever a
text ends: judged = accepted + wrong, and emitted = accepted + what the model picked itself.

    composer = Composer([source], vocab_size, most=24)
    drafts = composer.propose(room)
    for token in verified:              # what the forward over these drafts was good for
        composer.emitted(token)
    composer.accounts["grammar"].acceptance
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

from diskmoe.mtp.guard import PAUSE, WINDOW, Guard
from diskmoe.mtp.source import Draft, DraftSource


@dataclass
class Account:
    """What became of a source's drafts. Judged are those up to and including the first wrong one
    of a forward."""

    proposed: int = 0
    judged: int = 0
    accepted: int = 0
    pauses: int = 0  # times that the guard switched the source off
    off: bool = False  # at the end: by the guard, or since the source has given up

    @property
    def acceptance(self) -> float | None:
        """accepted / judged; None when nothing was judged."""
        return self.accepted / self.judged if self.judged else None


class _Entry:
    """A source with its guard and its account."""

    def __init__(self, source: DraftSource) -> None:
        self.source = source
        self.guard = Guard()
        self.account = Account()


class Composer:
    """Asks the sources of one text for drafts, the first that has some, and keeps their accounts."""

    def __init__(
        self,
        sources: Sequence[DraftSource],
        vocab_size: int,
        most: int,
        guard: bool = True,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """most: drafts of a forward. guard: whether sources that are mostly wrong go off. say: gets
        one line when one does."""
        self._entries = [_Entry(source) for source in sources]
        self._vocab_size = vocab_size
        self._most = most
        self._guard = guard
        self._say = say
        self._author: _Entry | None = None
        self._open: deque[int] = deque()  # drafts of the forward at hand that are not judged yet

    @property
    def accounts(self) -> dict[str, Account]:
        """By the name of the source."""
        return {entry.source.name: entry.account for entry in self._entries}

    def propose(self, room: int) -> list[Draft]:
        """Drafts for the next forward, at most `room`."""
        self._open.clear()
        for entry in self._entries:
            allowed = min(room, self._most)
            if self._guard:
                allowed = entry.guard.allowed(allowed)
            if allowed <= 0:
                continue
            drafts = self._asked(entry.source, allowed)
            if drafts:
                entry.account.proposed += len(drafts)
                self._author = entry
                self._open.extend(draft.token for draft in drafts)
                return drafts
        return []

    def _asked(self, source: DraftSource, most: int) -> list[Draft]:
        """Drafts up to the first that is no id of the model."""
        found: list[Draft] = []
        with closing(source.drafts([])) as drafts:
            for draft in islice(drafts, most):
                if not 0 <= draft.token < self._vocab_size:
                    break
                found.append(draft)
        return found

    def emitted(self, token: int) -> bool:
        """The text went on by this token; True when a draft had it right."""
        right = False
        if self._open:
            right = self._open.popleft() == token
            self._judge(right)
        for entry in self._entries:
            entry.guard.emitted()
            entry.source.observe([token])
            self._note(entry)
        return right

    def _judge(self, right: bool) -> None:
        assert self._author is not None
        account, guard = self._author.account, self._author.guard
        account.judged += 1
        account.accepted += right
        if not right:
            self._open.clear()
        if self._guard and guard.judged(right):
            self._say(
                f"guard     {self._author.source.name} drafts go off: of the latest "
                f"{WINDOW} over half were wrong; one is tried after {PAUSE} tokens"
            )

    def _note(self, entry: _Entry) -> None:
        gave_up = entry.source.gave_up
        if gave_up and not entry.account.off:
            self._say(f"note      {entry.source.name} drafts end: {gave_up}")
        entry.account.pauses = entry.guard.pauses
        entry.account.off = entry.guard.off or bool(gave_up)
