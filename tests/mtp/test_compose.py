"""Drafts of a text: who is asked, what is cut, and accounts that add up."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import pytest

from diskmoe.mtp.compose import Composer
from diskmoe.mtp.guard import PAUSE, WINDOW
from diskmoe.mtp.planner import Planner
from diskmoe.mtp.source import Draft


@dataclass
class Says:
    """A source that always says the same."""

    says: list[int]
    name: str = "says"
    gave_up: str = ""
    prior: tuple[float, ...] = (0.9,)
    cheap: bool = True
    grades: tuple[float, ...] = ()
    asked: int = 0
    heard: list[int] = field(default_factory=list)

    def drafts(self, chain: Sequence[int]) -> Generator[Draft, None, None]:
        for token in self.says:
            self.asked += 1
            yield Draft(token)

    def observe(self, tokens: Sequence[int]) -> None:
        self.heard += tokens


def composer(*sources: Says, most: int = 8, **more) -> Composer:
    """With whatever is proposed submitted, unless a planner is given."""
    more.setdefault("planner", Planner(fixed=48))
    return Composer([], sources, vocab_size=10, most=most, **more)


def proposed(drafts: Composer, room: int) -> list[int]:
    return [draft.token for draft in drafts.propose(room)]


def test_a_source_hears_all_that_was_emitted_and_works_out_no_more_than_is_asked_for() -> None:
    source = Says([1, 2, 3])
    drafts = composer(source)
    assert proposed(drafts, 2) == [1, 2] and source.asked == 2
    drafts.emitted(1)
    drafts.emitted(3)
    assert source.heard == [1, 3]


def test_what_is_too_long_or_no_id_of_the_model_is_cut() -> None:
    assert proposed(composer(Says([1, 2, 3])), 2) == [1, 2]
    assert proposed(composer(Says([1, 2, 3]), most=1), 9) == [1]
    assert proposed(composer(Says([1, 10, 2])), 9) == [1]
    assert proposed(composer(Says([-1, 2])), 9) == []
    assert proposed(composer(Says([1])), 0) == []


def test_of_several_sources_the_one_that_promises_most_is_taken() -> None:
    none, some, other = Says([], "none"), Says([4], "some"), Says([5, 6], "other")
    drafts = composer(none, some, other)
    assert proposed(drafts, 4) == [5, 6]
    drafts.emitted(5)
    assert drafts.accounts["other"].accepted == 1 and drafts.accounts["some"].judged == 0


def test_drafts_are_judged_up_to_the_first_wrong_one() -> None:
    drafts = composer(Says([1, 2, 3, 4]))
    drafts.propose(4)
    assert [drafts.emitted(token) for token in (1, 9)] == [True, False]
    account = drafts.accounts["says"]
    assert (account.proposed, account.judged, account.accepted) == (4, 2, 1)
    assert account.acceptance == 0.5
    drafts.propose(2)
    assert [drafts.emitted(token) for token in (1, 2)] == [True, True]
    assert account.by_position == [[2, 2], [2, 1]]


def test_the_token_behind_the_drafts_is_none_of_them() -> None:
    drafts = composer(Says([1]))
    drafts.propose(4)
    assert [drafts.emitted(1), drafts.emitted(1)] == [True, False]
    assert drafts.accounts["says"].judged == 1


def test_drafts_that_a_text_ended_before_are_not_judged() -> None:
    drafts = composer(Says([1, 2, 3]))
    drafts.propose(4)
    drafts.emitted(1)
    drafts.propose(4)
    drafts.emitted(9)
    account = drafts.accounts["says"]
    assert (account.proposed, account.judged, account.accepted) == (6, 2, 1)


def fail(drafts: Composer, times: int) -> int:
    """Emits wrong tokens; how many forwards had drafts."""
    drafted = 0
    for _ in range(times):
        drafted += bool(drafts.propose(8))
        drafts.emitted(9)
    return drafted


def test_a_source_that_is_wrong_goes_off_with_one_line_and_is_probed_with_one_draft() -> None:
    said: list[str] = []
    source = Says([1, 2, 3])
    drafts = composer(source, say=said.append)
    assert fail(drafts, 100) == WINDOW // 2 + 1
    assert len(said) == 1 and "says drafts go off" in said[0]
    assert drafts.accounts["says"].off and drafts.accounts["says"].pauses == 1
    assert fail(drafts, PAUSE) == 1 and len(said) == 1
    halving = [3, 3, 2] + [1] * (WINDOW // 2 - 2)  # of 8, 4, 2, 1, ... that it may give
    assert drafts.accounts["says"].proposed == sum(halving) + 1


def test_without_the_guard_a_wrong_source_goes_on() -> None:
    said: list[str] = []
    drafts = composer(Says([1] * 8), guard=False, say=said.append)
    assert fail(drafts, 100) == 100 and not said
    assert drafts.accounts["says"].proposed == 800


def test_a_source_that_gives_up_says_so_once() -> None:
    said: list[str] = []
    source = Says([])
    drafts = composer(source, say=said.append)
    drafts.emitted(1)
    source.gave_up = "it is too hard"
    fail(drafts, 3)
    assert said == ["note      says drafts end: it is too hard"] and drafts.accounts["says"].off


def test_a_source_that_gives_up_while_the_guard_has_it_off_says_so_too() -> None:
    said: list[str] = []
    source = Says([1])
    drafts = composer(source, say=said.append)
    fail(drafts, WINDOW)
    source.gave_up = "it is too hard"
    fail(drafts, 3)
    assert [line.split()[0] for line in said] == ["guard", "note"]


@dataclass
class Table(Says):
    """A source that goes on from the chain's last token."""

    after: dict[int, list[int]] = field(default_factory=dict)

    def drafts(self, chain: Sequence[int]) -> Generator[Draft, None, None]:
        for token in self.after.get(chain[-1] if chain else -1, []):
            self.asked += 1
            yield Draft(token)


def test_a_chain_is_a_forced_span_then_a_guess_then_the_next_forced_span() -> None:
    forced = Table([], "grammar", after={-1: [1, 2], 4: [5]})
    guess = Table([], "ngram", after={2: [3, 4], 5: [6, 7]})
    drafts = Composer([forced], [guess], 10, most=8, planner=Planner(fixed=3))
    assert proposed(drafts, 8) == [1, 2, 3, 4, 5, 6]  # three that are not forced
    for token in (1, 2, 3, 9):
        drafts.emitted(token)
    accounts = drafts.accounts
    assert (accounts["grammar"].proposed, accounts["grammar"].accepted) == (3, 2)
    assert (accounts["ngram"].proposed, accounts["ngram"].judged) == (3, 2)
    assert drafts.planner.summary()["accepted_by_position"] == [[1, 1], [1, 1], [1, 1], [1, 0]]


def test_a_chain_ends_where_the_forward_has_no_more_room() -> None:
    forced = Table([], "grammar", after={-1: [1, 2], 4: [5]})
    guess = Table([], "ngram", after={2: [3, 4]})
    drafts = Composer([forced], [guess], 10, most=8, planner=Planner(fixed=8))
    assert [proposed(drafts, room) for room in (1, 3, 4, 9)] == [
        [1],
        [1, 2, 3],
        [1, 2, 3, 4],
        [1, 2, 3, 4, 5],
    ]


def test_a_source_that_costs_a_forward_is_asked_for_no_more_than_pays() -> None:
    head = Says([1, 2, 3, 4], "mtp", prior=(0.9, 0.05), cheap=False)
    drafts = composer(head, planner=planner(2e-3, 1e-3))
    assert proposed(drafts, 8) == [1] and head.asked == 1
    dear = Says([1], "mtp", prior=(0.1,), cheap=False)
    drafts = composer(dear, planner=planner(1e-3, 1e-3))
    assert proposed(drafts, 8) == [] and dear.asked == 0
    assert drafts.planner.declined == 1


@dataclass
class Slow(Says):
    """Reads the prompt when it is asked first, for so many seconds, and then takes none."""

    clock: list[float] = field(default_factory=lambda: [0.0])
    reading: float = 1.0
    each: float = 0.0

    def drafts(self, chain: Sequence[int]) -> Generator[Draft, None, None]:
        self.clock[0] += self.reading + self.each
        self.reading = 0.0
        yield from super().drafts(chain)


def test_what_a_source_reads_before_its_first_draft_is_no_price_of_drafts(monkeypatch) -> None:
    """It made sources look dear and kept them from being asked until it was forgotten."""
    head = Slow([1], "mtp", prior=(0.9,), cheap=False)
    monkeypatch.setattr("time.perf_counter", lambda: head.clock[0])
    drafts = composer(head, planner=planner(1e-2, 1e-3))
    for _ in range(4):
        assert proposed(drafts, 8) == [1]
        assert drafts.emitted(1)
        drafts.emitted(2)
    assert head.asked == 4


def test_what_a_source_reads_after_a_pause_only_ever_makes_its_price_less(monkeypatch) -> None:
    head = Slow([1], "mtp", prior=(0.9,), cheap=False)
    monkeypatch.setattr("time.perf_counter", lambda: head.clock[0])
    drafts = composer(head, planner=planner(1e-2, 1e-3))

    def asked(forwards: int) -> int:
        before = head.asked
        for _ in range(forwards):
            for draft in drafts.propose(8):
                assert drafts.emitted(draft.token)
            drafts.emitted(2)
        return head.asked - before

    assert asked(1) == 1
    head.each = 0.1  # it is held up when the price is first known
    assert asked(1) == 1 and asked(1) == 0
    head.each = 0.0
    assert asked(40) > 20


@pytest.mark.parametrize("seconds", [0.0, 100.0])
def test_fixed_numbers_of_drafts_are_made_whatever_they_cost(monkeypatch, seconds: float) -> None:
    head = Slow([1, 2, 3], "mtp", prior=(0.1,), cheap=False, each=seconds)
    monkeypatch.setattr("time.perf_counter", lambda: head.clock[0])
    drafts = composer(head, planner=Planner(fixed=2), guard=False)
    for _ in range(40):
        assert proposed(drafts, 8) == [1, 2]
        drafts.emitted(9)


def test_drafts_that_were_not_submitted_are_watched_all_the_same() -> None:
    """A source whose guesses come true is trusted again without a row being spent on it."""
    guess = Says([1], "ngram", prior=(0.1,))
    drafts = composer(guess, planner=planner(1e-3, 5e-4))
    waited = 0
    while not proposed(drafts, 8):
        assert not drafts.emitted(1)
        waited += 1
    assert 0 < waited < 8 and drafts.accounts["ngram"].judged == 0


def planner(base: float, row: float) -> Planner:
    """One that has seen forwards of 1 to 4 rows, often."""
    made = Planner()
    for rows in (1, 2, 3, 4) * 8:
        made.costs.measured(base + row * rows, 0.0, [0] * rows)
    return made


def test_a_guess_gives_way_to_what_is_forced_behind_it() -> None:
    forced = Table([], "grammar", after={1: [7, 8]})
    guess = Table([], "ngram", after={-1: [1, 2, 3], 8: [4]})
    drafts = Composer([forced], [guess], 10, most=8, planner=Planner(fixed=8))
    assert proposed(drafts, 8) == [1, 7, 8, 4]
