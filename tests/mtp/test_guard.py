"""The guard: when a source goes off, when it is asked again, and what it costs till then."""

from diskmoe.mtp.guard import FIRST, PAUSE, WINDOW, Guard


def went_off(outcomes: list[bool]) -> list[int]:
    """The numbers, from 1, of the judged drafts by which a source goes off."""
    guard = Guard()
    return [n for n, right in enumerate(outcomes, 1) if guard.judged(right)]


def test_half_right_is_enough_and_less_is_not() -> None:
    assert went_off([True, False] * 100) == []
    assert went_off([True, True, False, False] * 100) == []
    assert went_off([True, False, False] * 32)[0] <= WINDOW


def test_only_the_latest_count() -> None:
    half = WINDOW // 2
    assert went_off([True] * 1000 + [False] * (half + 1)) == [1000 + half + 1]
    assert went_off([False] * half + [True] * WINDOW + [False] * half) == []


def test_it_goes_off_as_soon_as_the_window_is_lost() -> None:
    assert went_off([False] * (WINDOW // 2 + 1)) == [WINDOW // 2 + 1]


def test_a_wrong_draft_halves_how_many_may_be_given_and_a_right_one_doubles_it() -> None:
    guard = Guard()
    assert guard.allowed(48) == FIRST and guard.allowed(3) == 3
    for _ in range(3):
        guard.judged(True)
    assert guard.allowed(48) == 48
    for _ in range(9):
        guard.judged(False)
    assert guard.allowed(48) == 1


def off_guard() -> Guard:
    guard = Guard()
    for _ in range(WINDOW):
        if guard.judged(False):
            return guard
    raise AssertionError


def test_a_source_that_is_off_is_not_asked_until_a_probe_of_one_draft() -> None:
    guard = off_guard()
    for _ in range(PAUSE):
        assert guard.off and guard.allowed(24) == 0
        guard.emitted()
    assert guard.allowed(24) == 1 and guard.allowed(0) == 0


def test_a_probe_that_is_right_switches_on_and_a_wrong_one_waits_again() -> None:
    guard = off_guard()
    for _ in range(PAUSE):
        guard.emitted()
    assert not guard.judged(False) and guard.allowed(24) == 0 and guard.pauses == 1
    for _ in range(PAUSE):
        guard.emitted()
    assert not guard.judged(True) and not guard.off and guard.allowed(24) == 1


def test_what_was_judged_before_a_pause_is_forgotten() -> None:
    guard = off_guard()
    for _ in range(PAUSE):
        guard.emitted()
    guard.judged(True)
    assert not any(guard.judged(False) for _ in range(WINDOW // 2))
    assert guard.judged(False) and guard.pauses == 2
