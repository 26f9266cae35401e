"""The bookkeeping of a layer's slots, without bytes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskmoe.experts.policy import POLICIES, Lru
from diskmoe.experts.slots import LayerSlots, most_recent_first


def filled(n_slots: int, *experts: int) -> LayerSlots:
    layer = LayerSlots(range(n_slots), Lru())
    arrive(layer, layer.plan(sorted(experts)).loads)
    return layer


def arrive(layer: LayerSlots, loads: list[tuple[int, int]]) -> None:
    for expert, slot in loads:
        layer.arrived(expert, slot)


def test_the_least_recently_used_give_way_and_never_one_of_the_union() -> None:
    layer = filled(3, 0, 1, 2)
    layer.plan([0])
    plan = layer.plan([0, 5])
    assert (plan.hits, plan.loads, plan.passing) == ([(0, 0)], [(5, 1)], [])
    arrive(layer, plan.loads)
    plan = layer.plan([0, 2, 5, 7])
    assert (plan.loads, plan.passing, plan.misses) == ([], [7], 1)


def test_a_prompt_counts_for_half_the_slots_and_fills_the_free_ones() -> None:
    layer = filled(4, 0, 1, 2)
    plan = layer.plan([5, 6, 7, 8], ranked=[8, 7, 6, 5])
    assert [expert for expert, _ in plan.loads] == [7, 8]
    assert plan.passing == [5, 6]
    assert set(layer.slot_of) == {1, 2}


def test_what_fills_a_free_slot_for_a_prompt_is_the_first_to_go() -> None:
    layer = LayerSlots(range(4), Lru())
    arrive(layer, layer.plan([1, 2, 3, 4], ranked=[4, 3, 2, 1]).loads)
    arrive(layer, layer.plan([8, 9]).loads)
    assert set(layer.slot_of) == {3, 4, 8, 9}


def test_what_only_drafts_want_takes_places_after_the_others() -> None:
    layer = filled(3, 0, 1, 2)
    plan = layer.plan([2, 4, 5, 6], doubted={2, 4, 5})
    assert [expert for expert, _ in plan.loads] == [4, 6]
    assert (plan.hits, plan.passing) == ([(2, 2)], [5])


@pytest.mark.parametrize("name", POLICIES)
def test_what_was_read_for_nothing_is_given_up_next_unless_it_is_used(name: str) -> None:
    layer = LayerSlots(range(4), POLICIES[name](4))
    for union in ([1, 2, 3], [1, 2, 9]):
        arrive(layer, layer.plan(union, doubted={9}).loads)
    layer.cool([9, 7])  # 7 is not resident
    arrive(layer, layer.plan([4]).loads)
    assert set(layer.slot_of) == {1, 2, 3, 4}
    layer.cool([4])
    layer.plan([4])
    arrive(layer, layer.plan([5]).loads)
    assert 4 in layer.slot_of


def test_pinned_experts_are_never_given_up() -> None:
    layer = LayerSlots(range(3), Lru())
    slot = layer.pin()
    assert slot is not None
    layer.arrived(9, slot)
    for expert in range(8):
        arrive(layer, layer.plan([expert]).loads)
    assert layer.slot_of[9] == slot
    assert layer.plan([9]).hits == [(9, slot)]


def test_the_last_slot_is_neither_pinned_nor_retired() -> None:
    layer = LayerSlots(range(2), Lru())
    assert layer.pin() is not None
    assert layer.pin() is None
    layer = filled(2, 0, 1)
    assert layer.retire() in (0, 1)
    assert layer.retire() is None
    assert layer.n_slots == len(layer.slot_of) == 1


@pytest.mark.parametrize("name", POLICIES)
def test_slots_can_be_retired_after_any_union(name: str) -> None:
    layer = LayerSlots(range(6), POLICIES[name](6))
    for union in ([0, 1, 2, 3, 4, 5], [0, 1, 2, 6, 7, 8], [3, 6, 7, 8, 9]):
        arrive(layer, layer.plan(union).loads)
    while layer.retire() is not None:
        arrive(layer, layer.plan([6, 7]).loads)
    assert layer.n_slots == len(layer.slot_of) == 1


@given(rows=st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3, unique=True), min_size=1))
def test_most_recent_first_names_each_expert_once_by_its_last_row(rows: list[list[int]]) -> None:
    seen: list[int] = []
    for row in reversed(rows):
        seen += [expert for expert in row if expert not in seen]
    assert most_recent_first(np.array(rows, np.int32)) == seen


@settings(deadline=None)
@given(data=st.data(), n_slots=st.integers(1, 6))
def test_slots_are_never_lost_nor_given_twice(data: st.DataObject, n_slots: int) -> None:
    layer = LayerSlots(range(n_slots), Lru())
    for _ in range(data.draw(st.integers(0, 12))):
        ids = sorted(data.draw(st.sets(st.integers(0, 9), max_size=8)))
        ranked = data.draw(st.permutations(ids)) if data.draw(st.booleans()) else None
        doubted = data.draw(st.sets(st.sampled_from(ids))) if ids and ranked is None else set()
        plan = layer.plan(ids, ranked, doubted)
        parts = [e for e, _ in plan.hits] + [e for e, _ in plan.loads] + plan.passing
        assert sorted(parts) == ids
        arrived = data.draw(st.integers(0, len(plan.loads)))
        arrive(layer, plan.loads[:arrived])
        if arrived < len(plan.loads):
            layer.abandon(10)
        layer.cool(doubted)
        slots = list(layer.slot_of.values())
        assert len(set(slots)) == len(slots) <= n_slots
        assert not any(expert not in layer.slot_of for expert in layer._policy._resident)  # type: ignore[attr-defined]
