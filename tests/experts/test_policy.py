"""The order in which experts are given up, against twins that keep the whole history."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskmoe.experts.policy import POLICIES, Duel, LeastStale, Lfru, Lfu, Lru, Policy, Slru
from diskmoe.experts.slots import LayerSlots

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

    def cool(self, expert: int) -> None:
        self.cold |= {expert} & set(self.resident)

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
        st.tuples(st.just("cool"), st.sampled_from(EXPERTS)),
        st.tuples(st.just("drop"), st.sampled_from(EXPERTS)),
    ),
    max_size=60,
)


@pytest.mark.parametrize("case", CASES)
@settings(deadline=None)
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
        elif step == "cool":
            policy.cool(what)
            twin.cool(what)
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


@settings(deadline=None)
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


@pytest.mark.parametrize("name", ["lru", "lfu", "slru", "stale"])
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


class NaiveDuel:
    """Two rankings and a list of duels; who rules is worked out from all outcomes, each time."""

    def __init__(self, memory: float, doubt: float) -> None:
        self.frequent, self.recent = Lfru(), Lru()
        self.memory, self.doubt = memory, doubt
        self.duels: list[tuple[int, int]] = []  # (given up by the first, by the second)
        self.outcomes: list[int] = []
        self.choices: list[int | None] = [None, None]

    def recency_rules(self) -> bool:
        ages = range(len(self.outcomes) - 1, -1, -1)
        weights = [(1 - 1 / self.memory) ** age / self.memory for age in ages]
        return sum(w * o for w, o in zip(weights, self.outcomes, strict=True)) < -self.doubt

    def use(self, experts: list[int]) -> None:
        for expert in experts:
            self.outcomes += [-1 for frequent, _ in self.duels if frequent == expert]
            self.duels = [duel for duel in self.duels if duel[0] != expert]
            self.outcomes += [1 for _, recent in self.duels if recent == expert]
            self.duels = [duel for duel in self.duels if duel[1] != expert]
        self.frequent.use(experts)
        self.recent.use(experts)

    def admit(self, expert: int, hot: bool = True) -> None:
        self.frequent.admit(expert, hot)
        self.recent.admit(expert, hot)

    def drop(self, expert: int) -> None:
        self.frequent.drop(expert)
        self.recent.drop(expert)

    def victim(self, blocked: frozenset[int]) -> int | None:
        self.choices = [self.frequent.victim(blocked), self.recent.victim(blocked)]
        return self.choices[self.recency_rules()]

    def spares(self, victim: int, expert: int) -> bool:
        frequent, recent = self.choices
        assert frequent is not None and recent is not None
        spared = self.frequent.spares(frequent, expert)
        given_up = expert if spared else frequent
        if given_up != recent:
            self.duels = [duel for duel in self.duels if duel[0] != given_up]
            self.duels.append((given_up, recent))
        return spared and not self.recency_rules()


@settings(deadline=None)
@given(unions=st.lists(st.sets(st.integers(0, 8), min_size=1, max_size=3), max_size=60))
def test_a_duel_goes_as_the_list_of_all_duels_says(unions: list[set[int]]) -> None:
    ours = LayerSlots(range(4), Duel(memory=3, doubt=0.3))
    twin = LayerSlots(range(4), NaiveDuel(memory=3, doubt=0.3))  # type: ignore[arg-type]
    for union in unions:
        plans = [layer.plan(sorted(union)) for layer in (ours, twin)]
        assert plans[0] == plans[1]
        for layer in (ours, twin):
            for expert, slot in plans[0].loads:
                layer.arrived(expert, slot)


def hits(policy: Policy, unions: list[list[int]], n_slots: int) -> int:
    layer, total = LayerSlots(range(n_slots), policy), 0
    for union in unions:
        plan = layer.plan(union)
        total += len(plan.hits)
        for expert, slot in plan.loads:
            layer.arrived(expert, slot)
    return total


def test_recency_rules_where_an_expert_stays_for_a_while_and_its_past_says_nothing() -> None:
    rng = np.random.default_rng(6)
    union, unions = {0, 1, 2, 3}, []
    for _ in range(600):
        union = {e for e in union if rng.random() < 0.85}
        while len(union) < 4:
            union.add(int(rng.integers(40)))
        unions.append(sorted(union))
    duel = Duel()
    rate, recent, frequent = (hits(p, unions, 6) for p in (duel, Lru(), Lfru()))
    assert duel.recency_rules
    assert frequent < rate and recent - rate < (recent - frequent) / 2


def test_frequency_rules_where_few_are_used_always_and_many_once() -> None:
    unions = [sorted({t % 3, 10 + t}) for t in range(300)]
    duel = Duel()
    assert hits(duel, unions, 4) > hits(Lru(), unions, 4)
    assert not duel.recency_rules and duel.lead > 0.5
