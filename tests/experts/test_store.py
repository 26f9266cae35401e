"""The hot store against a simple model, with sources that are slow, broken or gone."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskmoe.experts.ahead import Load
from diskmoe.experts.errors import ReadFailed
from diskmoe.experts.store import WAVE_SLOTS, ExpertStore
from diskmoe.experts.tiles import RecordLayout, record_layout

LAYERS, EXPERTS = (3, 5), 12


class FakeSource:
    """Records whose bytes tell layer and expert; loads can be held back or made to fail."""

    expert_format = "q8"
    layers = LAYERS
    n_experts = EXPERTS
    scratch_bytes = 0
    io_mode = "none"
    files: tuple[Path, ...] = ()

    def __init__(self) -> None:
        self.record_layout: RecordLayout = record_layout("q8", 32, 16)
        self.loads: list[tuple[int, int]] = []
        self.before: Callable[[int, int], object] = lambda layer, expert: None

    def disk_bytes(self, layer: int, expert: int) -> int:
        return 1000 + expert

    def load(self, layer: int, expert: int, slot: np.ndarray) -> None:
        self.loads.append((layer, expert))
        slot[:] = 255  # half-way, the bytes are nobody's
        self.before(layer, expert)
        slot[:] = layer * 16 + expert

    def hurry(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def make(source: FakeSource) -> Iterator[Callable[[int], ExpertStore]]:
    stores = []

    def build(slots: int, io_threads: int = 3) -> ExpertStore:
        stores.append(ExpertStore(source, slots, LAYERS, EXPERTS, io_threads))
        return stores[-1]

    yield build
    for store in stores:
        store.close()


def ids(*experts: int) -> np.ndarray:
    return np.array(experts, np.int32)


def consume(
    store: ExpertStore, layer: int, experts: np.ndarray, doubted: Container[int] = ()
) -> list[list[int]]:
    """Fetch all, checking every byte on the way; the experts of each batch."""
    batches = []
    for positions, slots in store.fetch(layer, experts, None, doubted):
        assert positions.dtype == slots.dtype == np.int32
        for position, slot in zip(positions, slots, strict=True):
            assert (store.arena.slot(slot) == layer * 16 + experts[position]).all()
        batches.append([int(e) for e in experts[positions]])
    seen = sorted(expert for batch in batches for expert in batch)
    assert seen == [int(e) for e in experts]
    return batches


def claims_are_true(store: ExpertStore) -> bool:
    """Every expert that the store calls resident has its bytes in a slot."""
    return all(
        (store.arena.slot(slot) == layer * 16 + expert).all()
        for layer, state in store._layers.items()
        for expert, slot in state.slot_of.items()
    )


def test_each_expert_is_read_once_and_then_hit(make: Callable, source: FakeSource) -> None:
    store = make(8)
    consume(store, 3, ids(1, 4, 9))
    consume(store, 3, ids(1, 4, 9))
    assert sorted(source.loads) == [(3, 1), (3, 4), (3, 9)]
    counters = store.counters
    assert (counters.hits, counters.misses, store.evictions) == (3, 3, 0)
    assert counters.miss_bytes == 3000 + 1 + 4 + 9
    assert list(store.resident(3)) == [1, 4, 9]
    assert list(store.resident(5)) == []


def test_hits_come_first_in_one_batch(make: Callable) -> None:
    store = make(8)
    consume(store, 3, ids(2, 7))
    assert consume(store, 3, ids(0, 2, 5, 7))[0] == [2, 7]


def test_layers_do_not_share_slots(make: Callable) -> None:
    store = make(2)
    consume(store, 3, ids(0, 1))
    consume(store, 5, ids(0, 1))
    assert list(store.resident(3)) == list(store.resident(5)) == [0, 1]
    assert claims_are_true(store)


def test_one_slot_serves_a_union_of_eight(make: Callable, source: FakeSource) -> None:
    store = make(1)
    consume(store, 3, ids(*range(8)))
    assert sorted(source.loads) == [(3, e) for e in range(8)]
    assert consume(store, 3, ids(0, 7))[0] == [0]  # one was kept, the others passed through


def test_a_prompt_takes_free_slots_and_half_of_those_in_use(make: Callable) -> None:
    store = make(4)
    consume(store, 3, ids(0, 1))
    list(store.fetch(3, ids(*range(2, 9)), ranked=[8, 7, 6, 5, 4, 3, 2]))
    assert list(store.resident(3)) == [0, 1, 7, 8]  # the free slots went to the last rows
    list(store.fetch(3, ids(*range(2, 7)), ranked=[6, 5, 4, 3, 2]))
    assert list(store.resident(3)) == [5, 6, 7, 8]
    assert claims_are_true(store)


def test_all_misses_are_under_way_at_once_up_to_the_free_slots(
    make: Callable, source: FakeSource
) -> None:
    store = make(4, io_threads=8)
    together = threading.Barrier(4)
    source.before = lambda layer, expert: together.wait(10)
    consume(store, 3, ids(0, 1, 2, 3))  # would hang if one read waited for another


def test_misses_are_read_while_hits_are_looked_at(make: Callable, source: FakeSource) -> None:
    store = make(4)
    consume(store, 3, ids(1))
    begun = threading.Event()
    source.before = lambda layer, expert: begun.set()
    batches = store.fetch(3, ids(1, 2))
    positions, _ = next(batches)
    assert list(positions) == [0]
    assert begun.wait(timeout=10)
    assert [list(positions) for positions, _ in batches] == [[1]]


def test_a_batch_stays_valid_until_the_next_step(make: Callable) -> None:
    store = make(2)
    fetch = store.fetch(3, ids(0, 1, 2, 3, 4, 5))
    for positions, slots in fetch:
        held = {int(slot): int(position) for position, slot in zip(positions, slots, strict=True)}
        # give reads that would overwrite a held slot time to do so
        threading.Event().wait(0.01)
        for slot, position in held.items():
            assert (store.arena.slot(slot) == 3 * 16 + position).all()


def test_a_failed_read_is_raised_and_claims_nothing(make: Callable, source: FakeSource) -> None:
    store = make(4)
    consume(store, 3, ids(0, 1, 2, 3))

    def fail(layer: int, expert: int) -> None:
        if expert == 8:
            raise ReadFailed("file x: layer 3, expert 8")

    source.before = fail
    with pytest.raises(ReadFailed, match="expert 8"):
        consume(store, 3, ids(7, 8, 9))
    assert 8 not in store.resident(3)
    assert claims_are_true(store)
    source.before = lambda layer, expert: None
    consume(store, 3, ids(7, 8, 9))


def test_an_abandoned_fetch_claims_only_what_is_whole(make: Callable, source: FakeSource) -> None:
    store = make(4)
    consume(store, 3, ids(0, 1))
    slow = threading.Event()
    source.before = lambda layer, expert: slow.wait(timeout=10)
    fetch = store.fetch(3, ids(0, 5, 6, 7))
    next(fetch)
    threading.Timer(0.05, slow.set).start()
    fetch.close()
    assert claims_are_true(store)
    consume(store, 3, ids(0, 5, 6, 7))
    assert claims_are_true(store)


def test_an_abandoned_fetch_calls_off_reads_that_have_not_begun(
    make: Callable, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(8, io_threads=1)
    consume(store, 3, ids(0))
    slow = threading.Event()
    source.before = lambda layer, expert: slow.wait(timeout=10)
    fetch = store.fetch(3, ids(0, 1, 2, 3, 4))
    next(fetch)
    arrivals = store._arrivals

    def called_off() -> list[Load]:
        slow.set()
        return arrivals()

    monkeypatch.setattr(store, "_arrivals", called_off)
    fetch.close()
    assert len(source.loads) <= 2  # the hit's own, and the one that was under way
    assert store.counters.miss_bytes == sum(1000 + expert for _, expert in source.loads)
    assert claims_are_true(store)


def test_ctrl_c_in_the_caller_leaves_the_store_usable(make: Callable) -> None:
    store = make(3)
    with pytest.raises(KeyboardInterrupt):
        for _ in store.fetch(3, ids(0, 1, 2, 3, 4)):
            raise KeyboardInterrupt
    assert claims_are_true(store)
    consume(store, 3, ids(0, 1, 2, 3, 4))


def test_a_fetch_that_was_overtaken_says_so(make: Callable) -> None:
    store = make(2)
    first = store.fetch(3, ids(0, 1, 2, 3))
    next(first)
    consume(store, 5, ids(0, 1))
    with pytest.raises(RuntimeError, match="overtaken"):
        next(first)
    consume(store, 3, ids(0, 1, 2, 3))
    assert claims_are_true(store)


def test_a_quick_look_gives_way_to_a_fetch_under_way(make: Callable, source: FakeSource) -> None:
    store = make(4)
    consume(store, 3, ids(0, 1))
    consume(store, 5, ids(0, 1))
    gate = threading.Event()
    source.before = lambda layer, expert: gate.wait(10)
    reading = store.fetch(3, ids(0, 1, 2))
    next(reading)
    assert store.resident_slots(5, ids(0, 1)) is None
    gate.set()
    assert len(list(reading)) == 1
    assert store.resident_slots(5, ids(0, 1)) is not None


@pytest.mark.parametrize("wrong", [(1, 1), (2, 1), (-1, 2), (0, EXPERTS)])
def test_ids_that_are_not_ascending_experts_are_refused(
    make: Callable, wrong: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="expert_ids"):
        make(4).fetch(3, ids(*wrong))


def test_slots_may_differ_by_layer_and_never_exceed_the_experts(source: FakeSource) -> None:
    store = ExpertStore(source, {3: 2, 5: 100}, LAYERS, EXPERTS)
    assert (store.slots(3), store.slots(5)) == (2, EXPERTS)
    assert store.arena.n_slots == 2 + EXPERTS + WAVE_SLOTS
    store.close()
    with pytest.raises(ValueError, match="at least one"):
        ExpertStore(source, 0, LAYERS, EXPERTS)


def test_pinned_experts_are_read_at_once_and_stay(make: Callable, source: FakeSource) -> None:
    store = make(3)
    assert store.pin(3, ids(4, 9, 11)) == 2  # a slot is left for the others
    assert source.loads == [(3, 4), (3, 9)]
    for expert in range(EXPERTS):
        consume(store, 3, ids(expert))
    assert {4, 9} < set(store.resident(3).tolist())
    assert store.slots(3) == 3
    assert claims_are_true(store)


def test_a_store_that_shrinks_gives_memory_back_and_goes_on(source: FakeSource) -> None:
    store = ExpertStore(source, {3: 6, 5: 3}, LAYERS, EXPERTS)
    consume(store, 3, ids(*range(6)))
    consume(store, 5, ids(0, 1))
    slot_bytes = store.arena.slot_bytes
    assert store.shrink(3 * slot_bytes - 1) == 3 * slot_bytes
    assert (store.slots(3), store.slots(5)) == (3, 3)  # those with most gave
    assert list(store.resident(3)) == [3, 4, 5]
    assert claims_are_true(store)
    assert store.shrink(100 * slot_bytes) == 4 * slot_bytes
    assert (store.slots(3), store.slots(5)) == (1, 1)
    consume(store, 3, ids(*range(EXPERTS)))
    consume(store, 5, ids(*range(EXPERTS)))
    store.close()


_UNIONS = st.lists(
    st.tuples(
        st.sampled_from(LAYERS), st.sets(st.integers(0, EXPERTS - 1), max_size=9), st.booleans()
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(unions=_UNIONS, slots=st.integers(1, 10), threads=st.integers(1, 4))
def test_any_unions_behave_like_a_simple_lru(
    unions: list[tuple[int, set[int], bool]], slots: int, threads: int
) -> None:
    source = FakeSource()
    store = ExpertStore(source, slots, LAYERS, EXPERTS, threads)
    model: dict[int, OrderedDict[int, None]] = {layer: OrderedDict() for layer in LAYERS}
    hits = misses = 0
    try:
        for layer, union, quick in unions:
            experts = ids(*sorted(union))
            before = set(store.resident(layer).tolist())
            reads = len(source.loads)
            found = store.resident_slots(layer, experts) if quick else None
            if found is None:
                assert not quick or union - before  # it knows all that is there
                consume(store, layer, experts)
            else:
                for expert, slot in zip(experts, found, strict=True):
                    assert (store.arena.slot(slot) == layer * 16 + expert).all()
            after = set(store.resident(layer).tolist())
            assert claims_are_true(store)
            assert len(after) <= slots
            hits += len(before & union)
            misses += len(union - before)
            # read once each, and only what was not there
            assert sorted(source.loads[reads:]) == sorted((layer, e) for e in union - before)
            lru = model[layer]
            for expert in sorted(union - set(lru)):
                if len(lru) == slots and not set(lru) <= union:
                    del lru[next(e for e in lru if e not in union)]
                if len(lru) < slots:
                    lru[expert] = None
            for expert in sorted(union & set(lru)):
                lru.move_to_end(expert)
            assert after == set(lru)
        assert (store.counters.hits, store.counters.misses) == (hits, misses)
        assert store.counters.miss_bytes == sum(1000 + expert for _, expert in source.loads)
    finally:
        store.close()


@settings(max_examples=30, deadline=None)
@given(unions=_UNIONS, slots=st.integers(1, 6), data=st.data())
def test_failures_and_desertions_never_leave_a_false_claim(
    unions: list[tuple[int, set[int], bool]], slots: int, data: st.DataObject
) -> None:
    source = FakeSource()
    # a draw may end the example: before there are threads that nobody would end
    broken = data.draw(st.sets(st.integers(0, EXPERTS - 1), max_size=3))
    store = ExpertStore(source, slots, LAYERS, EXPERTS, 2)

    def fail(layer: int, expert: int) -> None:
        if expert in broken:
            raise ReadFailed("no")

    source.before = fail
    try:
        for layer, union, _ in unions:
            steps = data.draw(st.integers(0, 4))
            fetch = store.fetch(layer, ids(*sorted(union)))
            try:
                for _ in range(steps):
                    next(fetch, None)
            except ReadFailed:
                pass
            fetch.close()
            assert claims_are_true(store)
            assert not broken & set(store.resident(layer).tolist())
    finally:
        store.close()
