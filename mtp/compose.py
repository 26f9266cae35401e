"""The chain of drafts of each forward of a text: whose they are, how many, and how they did.

A chain is a span that a grammar forces, then the best of the other sources, then the next forced
span where the bytes between them lead to one, and so on; the planner says how much of it is worth
its rows. The one rule: the accounts are kept token by token, as tokens are emitted, so they add up
wherever a text ends: judged = accepted + wrong, and emitted = accepted + what the model picked.

    composer = Composer([grammar], [ngram, head], vocab_size, most=24)
    drafts = composer.propose(room)
    for token in verified:              # what the forward over these drafts was good for
        composer.emitted(token)
    composer.accounts["grammar"].acceptance
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from diskmoe.mtp.acceptance import Acceptance
from diskmoe.mtp.costs import OUTLIER
from diskmoe.mtp.guard import PAUSE, WINDOW, Guard
from diskmoe.mtp.planner import Planner
from diskmoe.mtp.source import Draft, DraftSource

OTHER_MOST = 16  # drafts of a source that is no grammar, in one forward
MODEL_MOST = 4  # drafts of a model that are reckoned with before it is asked
LEAST_REACH = 0.03  # a chain is not worked out beyond where the text comes so rarely
_MEMORY = 16  # drafts that the price of a source's drafts remembers
_AT_ONCE = 8  # tokens that a source reads with a draft as if they were one


@dataclass
class Account:
    """What became of a source's drafts. Judged are those up to and including the first wrong one
    of a forward."""

    proposed: int = 0
    judged: int = 0
    accepted: int = 0
    pauses: int = 0  # times that the guard switched the source off
    off: bool = False  # at the end: by the guard, or since the source has given up
    # of the first, second, ... draft that the source had in a forward: judged, accepted
    by_position: list[list[int]] = field(default_factory=list)

    @property
    def acceptance(self) -> float | None:
        """accepted / judged; None when nothing was judged."""
        return self.accepted / self.judged if self.judged else None

    def judge(self, place: int, right: bool) -> None:
        """A draft was judged; place: how many drafts of the source stood before it."""
        self.judged += 1
        self.accepted += right
        while len(self.by_position) <= place:
            self.by_position.append([0, 0])
        self.by_position[place][0] += 1
        self.by_position[place][1] += right


class _Entry:
    """A source with its guard, its account, its chances and its price."""

    def __init__(self, source: DraftSource) -> None:
        self.source = source
        self.guard = Guard()
        self.certain = min(source.prior) == 1  # it is never wrong: there is nothing to guard
        self.account = Account()
        self.acceptance = Acceptance(source.prior, source.grades)
        self.seconds = 0.0  # that a draft takes, once known; of cheap ones nobody asks
        self.unread = math.inf  # tokens since it was asked; at first there is the prompt to read
        self.ended = False  # it has given up, and that was said

    def note_seconds(self, seconds: float) -> None:
        """A draft took so long. After a pause that is the most that it can be: the source had to
        read up, and counted as the price of drafts that would keep it from being asked again."""
        if self.unread > _AT_ONCE:
            self.seconds = min(self.seconds, seconds)
        elif self.seconds:
            self.seconds += (min(seconds, OUTLIER * self.seconds) - self.seconds) / _MEMORY
        else:
            self.seconds = seconds


@dataclass(frozen=True)
class _Link:
    """A draft in a chain."""

    entry: _Entry
    draft: Draft
    place: int  # among its source's drafts
    chance: float


class Composer:
    """Makes the chains of one text from its sources and keeps their accounts."""

    def __init__(
        self,
        forced: Sequence[DraftSource],
        others: Sequence[DraftSource],
        vocab_size: int,
        most: int,
        planner: Planner | None = None,
        guard: bool = True,
        say: Callable[[str], None] = lambda line: None,
        known: dict[str, Acceptance] | None = None,
        fits: Callable[[Sequence[int]], bool] = lambda chain: True,
    ) -> None:
        """forced: sources of near-certain spans; others: of guesses, of which the best is taken.
        most: drafts of a forward. guard: whether sources that are mostly wrong go off. say: gets
        one line when one does. known: how often models that draft were right in other texts, by
        their name; it is added to. What is looked up is another matter in each text. fits: whether
        the text may go on by a chain at all, where a grammar is enforced: a draft that it forbids
        is none."""
        known = {} if known is None else known
        self._forced = [_Entry(source) for source in forced]
        self._others = [_Entry(source) for source in others]
        for entry in self._others:
            if not entry.source.cheap:
                entry.acceptance = known.setdefault(entry.source.name, entry.acceptance)
        self._entries = [*self._forced, *self._others]
        self._vocab_size = vocab_size
        self._most = most
        self.planner = planner or Planner()
        self._guard = guard
        self._say = say
        self._fits = fits
        self._chain: list[_Link] = []  # as worked out; what follows the submitted ones is watched
        self._submitted = 0
        self._at = 0  # drafts of the chain that were right by now
        self._spent = 0.0  # seconds, in finding this chain

    @property
    def accounts(self) -> dict[str, Account]:
        """By the name of the source."""
        return {entry.source.name: entry.account for entry in self._entries}

    def propose(self, room: int) -> list[Draft]:
        """Drafts for the next forward, at most `room`."""
        self._chain, self._submitted, self._at, self._spent = [], 0, 0, 0.0
        limit = min(room, self._most)
        if limit <= 0:
            return []
        self.planner.begin(limit)
        idle = self._grow(limit)
        self._submitted = self.planner.choose(self._chances, self._spent, idle)
        submitted = self._chain[: self._submitted]
        for link in submitted:
            link.entry.account.proposed += 1
        return [link.draft for link in submitted]

    @property
    def _chances(self) -> list[float]:
        return [link.chance for link in self._chain]

    def _grow(self, limit: int) -> bool:
        """Works the chain out; True where a source was not asked, as it would not pay."""
        others, idle = OTHER_MOST if self.planner.fixed is None else self.planner.fixed, False
        self._force(limit)
        while (room := min(limit - len(self._chain), others)) > 0:
            links, idle = self._best_links(room)
            for link in links:
                self._chain.append(link)
                others -= 1
                if self._force(limit):
                    break  # what is forced is surer than what the source would say next
            else:
                break
        return idle

    def _force(self, limit: int) -> bool:
        """Adds what is forced behind the chain; whether anything is."""
        before = len(self._chain)
        for entry in self._forced:
            self._chain += self._links(entry, limit - len(self._chain))
        return len(self._chain) > before

    def _best_links(self, room: int) -> tuple[list[_Link], bool]:
        """What the best of the other sources says, and whether one was not asked."""
        chances = self._chances
        _, bar = self.planner.best(chances, self._spent)
        costly: tuple[float, _Entry] | None = None
        best: list[_Link] = []
        most = 0.0
        for entry in self._others:
            if not entry.source.cheap:
                rate = self._likely_rate(entry, chances, self._allowed(entry, room))
                if rate and (costly is None or rate > costly[0]):
                    costly = rate, entry
                continue
            links = self._links(entry, room)
            _, rate = self.planner.best([*chances, *(link.chance for link in links)], self._spent)
            if links and rate > most:
                most, best = rate, links
        if costly is not None and (
            costly[0] > max(bar, most) or (self.planner.probing and not best)
        ):
            return self._links(costly[1], room), False
        return best, costly is not None

    def _likely_rate(self, entry: _Entry, chances: list[float], room: int) -> float:
        """The best rate with drafts of a model behind the chain, before it is asked for any."""
        chances, found = [*chances], 0.0
        for place in range(min(room, MODEL_MOST)):
            chances.append(entry.acceptance.chance(place))
            spent = self._spent + entry.seconds * (place + 1)
            found = max(found, self.planner.rate(chances, spent))
        return found

    def _said(self, entry: _Entry) -> int:
        """How many drafts of a source the chain has."""
        return sum(link.entry is entry for link in self._chain)

    def _allowed(self, entry: _Entry, room: int) -> int:
        """How many more drafts of a source the chain may have."""
        if not self._guard or entry.certain or room <= 0:
            return room
        said = self._said(entry)
        return min(room, entry.guard.allowed(room + said) - said)

    def _links(self, entry: _Entry, room: int) -> list[_Link]:
        """What a source says behind the chain, up to the first that is no id of the model or is
        forbidden, and for as long as the next may be of use."""
        room, said = self._allowed(entry, room), self._said(entry)
        found: list[_Link] = []
        if room <= 0:
            return found
        chances, reach = self._chances, math.prod(self._chances)
        began = time.perf_counter()
        chain = [link.draft.token for link in self._chain]
        with closing(entry.source.drafts(list(chain))) as drafts:
            for draft in drafts:
                chain.append(draft.token)
                if not (0 <= draft.token < self._vocab_size and self._fits(chain)):
                    break
                place = said + len(found)
                link = _Link(entry, draft, place, entry.acceptance.chance(place, draft.grade))
                found.append(link)
                chances.append(link.chance)
                reach *= link.chance
                if len(found) == room or not self._goes_on(entry, chances, reach):
                    break
        if not entry.source.cheap and self.planner.fixed is None:
            seconds = time.perf_counter() - began
            self._spent += seconds
            if found:
                entry.note_seconds(seconds / len(found))
            entry.unread = 0
        return found

    def _goes_on(self, entry: _Entry, chances: list[float], reach: float) -> bool:
        """Whether one more draft of a source is likely to be worth working it out."""
        if self.planner.fixed is not None or entry in self._forced:
            return True
        if entry.source.cheap:
            return reach >= LEAST_REACH
        more = [*chances, entry.acceptance.chance(len(chances) - len(self._chain))]
        here = self.planner.rate(chances, self._spent)
        return self.planner.rate(more, self._spent + entry.seconds) > here

    def forwarded(self, seconds: float, waited: float, misses: Sequence[float]) -> None:
        """What the forward over the drafts took; see ``Costs.measured``."""
        self.planner.costs.measured(seconds, waited, misses)

    def emitted(self, token: int) -> bool:
        """The text went on by this token; True when a submitted draft had it right."""
        accepted = False
        if self._at < len(self._chain):
            link = self._chain[self._at]
            right = link.draft.token == token
            link.entry.acceptance.judged(link.place, link.draft.grade, right)
            if self._at < self._submitted:
                self._judge(link, right)
                accepted = right
            if right:
                self._at += 1
            else:
                self._chain = []
        for entry in self._entries:
            entry.guard.emitted()
            entry.unread += 1
            entry.source.observe([token])
            self._note(entry)
        return accepted

    def _judge(self, link: _Link, right: bool) -> None:
        entry = link.entry
        entry.account.judge(link.place, right)
        self.planner.judged(self._at, right)
        if self._guard and entry.guard.judged(right):
            self._say(
                f"guard     {entry.source.name} drafts go off: of the latest "
                f"{WINDOW} over half were wrong; one is tried after {PAUSE} tokens"
            )

    def _note(self, entry: _Entry) -> None:
        gave_up = entry.source.gave_up
        if gave_up and not entry.ended:
            entry.ended = True
            self._say(f"note      {entry.source.name} drafts end: {gave_up}")
        entry.account.pauses = entry.guard.pauses
        entry.account.off = entry.guard.off or bool(gave_up)
