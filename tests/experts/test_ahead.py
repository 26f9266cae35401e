"""Reads on speculation: they change when bytes arrive, never which."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.experts.test_store import EXPERTS, LAYERS, FakeSource, claims_are_true, consume, ids

from diskmoe.experts.errors import ReadFailed
from diskmoe.experts.store import ExpertStore


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def store(source: FakeSource) -> Iterator[ExpertStore]:
    store = ExpertStore(source, 3, LAYERS, EXPERTS, 2, ahead_slots=2)
    yield store
    store.close()


def rest(store: ExpertStore) -> None:
    """Waits until no read is under way."""
    while any(not load.done for load in store._ahead._loads.values()):
        threading.Event().wait(0.001)


def test_a_right_guess_is_a_hit_and_is_read_once(store: ExpertStore, source: FakeSource) -> None:
    store.look_ahead(5, [7, 1, 2])
    consume(store, 3, ids(0))
    rest(store)
    assert sorted(source.loads) == [(3, 0), (5, 1), (5, 7)]  # as many as there are spare slots
    consume(store, 5, ids(1, 4, 7))
    assert sorted(source.loads) == [(3, 0), (5, 1), (5, 4), (5, 7)]
    counters = store.counters
    assert (counters.hits, counters.misses, counters.ahead_hits) == (2, 2, 2)
    assert counters.ahead_bytes == 1001 + 1007
    assert counters.miss_bytes == 1000 + 1004
    assert claims_are_true(store)


def test_a_wrong_guess_evicts_nothing_and_its_bytes_are_told(
    store: ExpertStore, source: FakeSource
) -> None:
    consume(store, 5, ids(0, 1, 2))
    store.look_ahead(5, [0, 8, 9])
    consume(store, 3, ids(0))
    rest(store)
    assert (5, 8) in source.loads and (5, 9) in source.loads
    consume(store, 5, ids(0, 1, 2))
    assert list(store.resident(5)) == [0, 1, 2]
    assert store.counters.ahead_hits == 0
    assert store.counters.ahead_bytes == 2000
    assert store.counters.misses == 4


def test_nothing_is_guessed_while_somebody_waits_for_a_read(source: FakeSource) -> None:
    store = ExpertStore(source, 3, LAYERS, EXPERTS, 1, ahead_slots=2)
    order: list[tuple[int, int]] = []
    source.before = lambda layer, expert: order.append((layer, expert))
    store.look_ahead(5, [6])
    consume(store, 3, ids(0, 1, 2))
    rest(store)
    assert order == [(3, 0), (3, 1), (3, 2), (5, 6)]
    store.close()


def test_a_guess_whose_read_fails_is_told_only_if_it_was_right(
    store: ExpertStore, source: FakeSource
) -> None:
    def fail(layer: int, expert: int) -> None:
        if (layer, expert) == (5, 7):
            raise ReadFailed("no")

    source.before = fail
    store.look_ahead(5, [7])
    consume(store, 3, ids(0))
    rest(store)
    consume(store, 5, ids(1))
    store.look_ahead(5, [7])
    consume(store, 3, ids(1))
    rest(store)
    with pytest.raises(ReadFailed):
        consume(store, 5, ids(7))
    assert claims_are_true(store)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), slots=st.integers(1, 6), ahead=st.integers(1, 3))
def test_any_guesses_leave_the_same_experts_resident(
    data: st.DataObject, slots: int, ahead: int
) -> None:
    source = FakeSource()
    guessing = ExpertStore(source, slots, LAYERS, EXPERTS, 2, ahead_slots=ahead)
    plain = ExpertStore(FakeSource(), slots, LAYERS, EXPERTS, 2)
    unions = st.sets(st.integers(0, EXPERTS - 1), max_size=6)
    try:
        for layer in LAYERS * data.draw(st.integers(0, 4)):
            other = LAYERS[layer == LAYERS[0]]
            guessing.look_ahead(other, data.draw(st.lists(st.integers(0, EXPERTS - 1))))
            if data.draw(st.booleans()):
                rest(guessing)
            experts = ids(*sorted(data.draw(unions)))
            for store in (guessing, plain):
                if not len(experts) or store.resident_slots(layer, experts) is None:
                    consume(store, layer, experts)
                assert claims_are_true(store)
            assert np.array_equal(guessing.resident(layer), plain.resident(layer))
    finally:
        guessing.close()
        plain.close()
