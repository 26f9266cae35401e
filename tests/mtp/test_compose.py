"""Drafts of a text: who is asked, what is cut, and accounts that add up."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from diskmoe.mtp.compose import Composer
from diskmoe.mtp.guard import PAUSE, WINDOW


@dataclass
class Says:
    """A source that always says the same."""

    drafts: list[int]
    name: str = "says"
    gave_up: str = ""
    asked: list[tuple[list[int], int]] = field(default_factory=list)
    heard: list[int] = field(default_factory=list)

    def propose(self, history: Sequence[int], room: int) -> list[int]:
        self.asked.append((list(history), room))
        return self.drafts

    def observe(self, tokens: Sequence[int]) -> None:
        self.heard += tokens


def composer(*sources: Says, most: int = 8, **more) -> Composer:
    return Composer(sources, [7, 8], vocab_size=10, most=most, **more)


def test_a_source_is_asked_with_the_prompt_and_all_that_followed() -> None:
    source = Says([1, 2])
    drafts = composer(source)
    assert drafts.propose(5) == [1, 2]
    drafts.emitted(1)
    drafts.emitted(3)
    drafts.propose(3)
    assert source.asked == [([7, 8], 5), ([7, 8, 1, 3], 3)] and source.heard == [1, 3]


def test_what_is_too_long_or_no_id_of_the_model_is_cut() -> None:
    assert composer(Says([1, 2, 3])).propose(2) == [1, 2]
    assert composer(Says([1, 2, 3]), most=1).propose(9) == [1]
    assert composer(Says([1, 10, 2])).propose(9) == [1]
    assert composer(Says([-1, 2])).propose(9) == []
    assert composer(Says([1])).propose(0) == []


def test_the_first_source_with_drafts_is_taken() -> None:
    none, some, other = Says([], "none"), Says([4], "some"), Says([5], "other")
    drafts = composer(none, some, other)
    assert drafts.propose(4) == [4] and not other.asked
    drafts.emitted(4)
    assert drafts.accounts["some"].accepted == 1 and drafts.accounts["other"].judged == 0


def test_drafts_are_judged_up_to_the_first_wrong_one() -> None:
    drafts = composer(Says([1, 2, 3, 4]))
    drafts.propose(4)
    assert [drafts.emitted(token) for token in (1, 9)] == [True, False]
    account = drafts.accounts["says"]
    assert (account.proposed, account.judged, account.accepted) == (4, 2, 1)
    assert account.acceptance == 0.5


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
