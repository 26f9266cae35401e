"""The order in which experts are given up, against twins that keep the whole history."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskmoe.experts.policy import POLICIES, LeastStale, Lfru, Lfu, Lru, Policy, Slru

EXPERTS = range(7)


class Twin:
    """Remembers all that happened and judges by the definition, from the start, each time."""

    def __init__(self, rank: Callable[["Twin", int], tuple[float, ...]]) -> None:
        self.rank = rank
        self.uses: list[list[int]] = []
        self.resident_at: list[list[int]] = []  # when each use began
        self.resident: list[int] = []  # the eldest first
        self.cold: set[int] = set()

    def use(self, experts: list[int]) -> None:
        self.uses.append(experts)
        self.resident_at.append(list(self.resident))
        self.cold -= set(experts)

    def standing(self, expert: int) -> tuple[float, ...]:
        return (-1.0,) if expert in self.cold else self.rank(self, expert)

    def count(self, expert: int, half_life: float) -> float:
        now = len(self.uses)
        return sum(0.5 ** ((now - t) / half_life) for t in self.times(expert))

    def times(self, expert: int) -> list[int]:
        return [t for t, used in enumerate(self.uses, 1) if expert in used]


def lru(twin: Twin, expert: int) -> tuple[float, ...]:
    return (max(twin.times(expert), default=0), expert)


def lfu(half_life: float) -> Callable[[Twin, int], tuple[float, ...]]:
    return lambda twin, expert: (twin.count(expert, half_life),)


def lfru(half_life: float, grace: float) -> Callable[[Twin, int], tuple[float, ...]]:
    def rank(twin: Twin, expert: int) -> tuple[float, ...]:
        age = len(twin.uses) - max(twin.times(expert), default=0)
        return (twin.count(expert, half_life) / (age + grace),)

    return rank


def stale(twin: Twin, expert: int) -> tuple[float, ...]:
    return (bool(twin.uses) and expert in twin.uses[-1],)


def slru(protected: int) -> Callable[[Twin, int], tuple[float, ...]]:
    def rank(twin: Twin, expert: int) -> tuple[float, ...]:
        kept: list[int] = []  # the least recently used first
        for used, there in zip(twin.uses, twin.resident_at, strict=True):
            kept = [e for e in kept if e in there and e not in used] + [
                e for e in used if e in there
            ]
            kept = kept[-protected:]
        return (expert in kept and expert in twin.resident, *lru(twin, expert))

    return rank


def close(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return len(a) == len(b) and all(map(math.isclose, a, b))


CASES = {
    "lru": (Lru, lru),
    "slru": (lambda: Slru(2), slru(2)),
    "stale": (LeastStale, stale),
    "lfu": (Lfu, lfu(32)),
    "lfu forgetting fast": (lambda: Lfu(0.1), lfu(0.1)),  # counts are scaled down every ten uses
    "lfru": (Lfru, lfru(32, 3)),
    "lfru forgetting fast": (lambda: Lfru(0.5, 1.0, 1.0), lfru(0.5, 1.0)),
}
_SOME = st.sets(st.sampled_from(EXPERTS), max_size=4)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("use"), _SOME),
        st.tuples(st.just("victim"), _SOME),
        st.tuples(st.just("admit"), st.tuples(st.sampled_from(EXPERTS), st.booleans())),
        st.tuples(st.just("drop"), st.sampled_from(EXPERTS)),
    ),
    max_size=60,
)


@pytest.mark.parametrize("case", CASES)
@given(steps=_STEPS)
def test_the_victim_is_the_one_that_the_definition_names(case: str, steps: list) -> None:
    make, rank = CASES[case]
    policy: Policy = make()
    twin = Twin(rank)
    for step, what in steps:
        if step == "use":
            policy.use(sorted(what))
            twin.use(sorted(what))
        elif step == "admit" and what[0] not in twin.resident:
            policy.admit(*what)
            twin.resident.append(what[0])
            twin.cold |= set() if what[1] else {what[0]}
        elif step == "drop":
            policy.drop(what)
            twin.resident = [e for e in twin.resident if e != what]
            twin.cold.discard(what)
        elif step == "victim":
            free = [e for e in twin.resident if e not in what]
            victim = policy.victim(what)
            assert victim in free if free else victim is None
            if victim is not None:
                lowest = min(map(twin.standing, free))
                assert close(twin.standing(victim), lowest)
                if len({twin.standing(e) for e in free}) == 1:
                    assert victim == free[0]


@given(steps=_STEPS, victim=st.sampled_from(EXPERTS), newcomer=st.sampled_from(EXPERTS))
def test_lfru_spares_what_is_worth_a_margin_more(steps: list, victim: int, newcomer: int) -> None:
    policy, twin = Lfru(4, 3, 1.5), Twin(lfru(4, 3))
    for step, what in steps:
        if step == "use":
            policy.use(sorted(what))
            twin.use(sorted(what))
    (kept,), (new,) = twin.standing(victim), twin.standing(newcomer)
    if not math.isclose(kept, 1.5 * new):
        assert policy.spares(victim, newcomer) == (kept > 1.5 * new)


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "lfru"])
def test_the_other_policies_keep_every_newcomer(name: str) -> None:
    policy = POLICIES[name](2)
    policy.admit(0)
    for _ in range(50):
        policy.use([0])
    assert not policy.spares(0, 1)


@pytest.mark.parametrize("name", POLICIES)
def test_uses_of_experts_that_are_not_resident_are_harmless(name: str) -> None:
    policy = POLICIES[name](2)
    policy.use([3, 4])
    policy.drop(3)
    assert policy.victim(()) is None
    policy.admit(4)
    policy.use([3])
    assert policy.victim(()) == 4 and policy.victim({4}) is None


@pytest.mark.parametrize("name", POLICIES)
def test_what_is_admitted_cold_goes_first_until_it_is_used(name: str) -> None:
    policy = POLICIES[name](4)
    policy.use([0])
    policy.admit(0)
    policy.use([1])
    policy.admit(1)
    policy.admit(2, hot=False)
    assert policy.victim(()) == 2
    policy.use([2])
    assert policy.victim(()) == 0


def test_lfru_keeps_what_is_used_often_from_what_is_used_once() -> None:
    policy = Lfru()
    policy.admit(0)
    for _ in range(10):
        policy.use([0])
    for newcomer in range(1, 9):  # not used for eight uses, and still worth more than any of them
        policy.use([newcomer])
        assert policy.spares(0, newcomer)
    for _ in range(100):
        policy.use([1])
    assert not policy.spares(0, 1)
