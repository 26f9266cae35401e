"""The order in which slots are given up."""

from diskmoe.experts.policy import Lru


def test_the_slot_touched_longest_ago_goes_first() -> None:
    lru = Lru(range(4))
    for slot in (2, 0, 3, 1, 2):
        lru.touch(slot)
    assert lru.victim(()) == 0
    lru.touch(0)
    assert lru.victim(()) == 3


def test_blocked_slots_are_passed_over() -> None:
    lru = Lru(range(3))
    assert lru.victim({0, 1}) == 2
    assert lru.victim({0, 1, 2}) is None


def test_a_slot_given_back_goes_next() -> None:
    lru = Lru(range(3))
    lru.touch(0)
    lru.give_back(0)
    assert lru.victim(()) == 0
