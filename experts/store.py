"""The hot store: for a layer's union of experts, slots with their bytes in, as they arrive.

The rules of this file:

* each expert of a union is read at most once per fetch, and all misses are under way at once as far
  as there are slots to read into;
* a slot claims an expert only while all of that expert's bytes are in it, whatever fails or is
  abandoned half-way;
* the slot of an expert that the caller still has to see, or is looking at, is never given up.

    for positions, slots in store.fetch(layer, ids):   # ids ascending, unique
        ...                                            # ids[positions] are in arena slots `slots`
"""

import threading
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from diskmoe.experts.arena import Arena
from diskmoe.experts.policy import Lru
from diskmoe.experts.reader import ReadPool
from diskmoe.experts.records import RecordSource

Ids = npt.NDArray[np.int32]


@dataclass
class StoreCounters:
    """Totals since the start. A hit or miss is one unique expert of one fetch (DESIGN, Words)."""

    hits: int = 0
    misses: int = 0
    miss_bytes: int = 0  # asked of the disk by misses
    read_wait_seconds: float = 0.0  # the caller waited and had nothing else to do
    evictions: int = 0


@dataclass
class _Load:
    """A read under way: `expert` of `layer` into `slot`."""

    layer: int
    expert: int
    slot: int
    started: bool = False
    done: bool = False
    error: BaseException | None = None


class _LayerSlots:
    """The slots of one layer and what they hold."""

    def __init__(self, first_slot: int, n_slots: int) -> None:
        slots = range(first_slot, first_slot + n_slots)
        self.slot_of: dict[int, int] = {}  # expert -> slot whose bytes are complete
        self.holds: dict[int, int | None] = dict.fromkeys(slots)
        self.policy = Lru(slots)


class ExpertStore:
    """Slots of expert records, per layer, filled from `source` on demand.

    slots_per_layer: one number for all layers, or one for each. Not for use by several threads.
    """

    def __init__(
        self,
        source: RecordSource,
        slots_per_layer: int | Mapping[int, int],
        layers: Sequence[int],
        n_experts: int,
        io_threads: int = 2,
    ) -> None:
        self.record_layout = source.record_layout
        self.n_experts = n_experts
        self.counters = StoreCounters()
        self._source = source
        self._layers: dict[int, _LayerSlots] = {}
        n_slots = 0
        for layer in layers:
            per_layer = isinstance(slots_per_layer, Mapping)
            wanted = slots_per_layer[layer] if per_layer else slots_per_layer
            count = min(int(wanted), n_experts)
            if count < 1:
                raise ValueError(f"layer {layer}: {count} slots; at least one is needed")
            self._layers[layer] = _LayerSlots(n_slots, count)
            n_slots += count
        self.arena = Arena(n_slots, self.record_layout.nbytes)
        self._pool = ReadPool(io_threads)
        self._under_way: dict[int, _Load] = {}  # slot -> its read
        self._changed = threading.Condition()  # guards `started` and `done` of loads
        self._ticket = 0

    def slots(self, layer: int) -> int:
        """How many slots the layer has."""
        return len(self._layers[layer].holds)

    def resident(self, layer: int) -> Ids:
        """The experts whose bytes are in memory, ascending."""
        return np.array(sorted(self._layers[layer].slot_of), np.int32)

    def resident_slots(self, layer: int, expert_ids: Ids) -> Ids | None:
        """The arena slots of these experts, as a fetch that hits only; None when one is missing.

        For the common case that nothing is to be read: None changes nothing, and `fetch` does it
        all. expert_ids as for `fetch`; the slots hold the experts until the next fetch.
        """
        if self._under_way:
            return None
        state = self._layers[layer]
        try:
            slots = [state.slot_of[expert] for expert in expert_ids.tolist()]
        except KeyError:
            return None
        self._ticket += 1
        state.policy.touch_all(slots)
        self.counters.hits += len(slots)
        return np.array(slots, np.int32)

    def fetch(self, layer: int, expert_ids: Ids) -> Generator[tuple[Ids, Ids], None, None]:
        """Yield (positions, slots): ``expert_ids[positions]`` are in arena slots `slots`.

        expert_ids: i32, ascending and unique. Hits come first, in one batch; misses as they arrive.
        A batch is valid until the next step of the iterator; after it, when the union is larger
        than the layer, its slots may be filled with other experts. Raises ReadFailed.
        """
        ids: list[int] = expert_ids.tolist()
        if any(a >= b for a, b in pairwise(ids)):
            raise ValueError("expert_ids must be ascending and unique")
        if ids and not 0 <= ids[0] <= ids[-1] < self.n_experts:
            raise ValueError(f"expert_ids {ids[0]}..{ids[-1]} of a layer of {self.n_experts}")
        return self._fetch(layer, ids)

    def _fetch(self, layer: int, ids: list[int]) -> Generator[tuple[Ids, Ids], None, None]:
        self._settle()  # what an abandoned fetch left under way
        self._ticket += 1
        ticket = self._ticket
        state = self._layers[layer]
        positions = {expert: position for position, expert in enumerate(ids)}
        hits = [expert for expert in ids if expert in state.slot_of]
        waiting = [expert for expert in reversed(ids) if expert not in state.slot_of]
        missing = len(waiting)
        self.counters.hits += len(hits)
        self.counters.misses += missing
        blocked = {state.slot_of[expert] for expert in hits}
        for expert in hits:
            state.policy.touch(state.slot_of[expert])
        try:
            self._submit(layer, waiting, blocked)
            batch = hits
            while batch or missing:
                if batch:
                    slots = [state.slot_of[expert] for expert in batch]
                    yield (
                        np.array([positions[expert] for expert in batch], np.int32),
                        np.array(slots, np.int32),
                    )
                    if ticket != self._ticket:
                        raise RuntimeError(f"a later fetch has overtaken this one (layer {layer})")
                    blocked.difference_update(slots)
                    self._submit(layer, waiting, blocked)
                batch = self._wait() if missing else []
                missing -= len(batch)
        finally:
            if ticket == self._ticket:
                self._settle()

    def _submit(self, layer: int, waiting: list[int], blocked: set[int]) -> None:
        """Start reads of `waiting` experts (from its end) while there are slots to give up."""
        state = self._layers[layer]
        while waiting:
            slot = state.policy.victim(blocked)
            if slot is None:
                return
            expert = waiting.pop()
            self._empty(state, slot)
            state.policy.touch(slot)
            blocked.add(slot)
            load = self._under_way[slot] = _Load(layer, expert, slot)
            self._pool.submit(partial(self._run, load))

    def _empty(self, state: _LayerSlots, slot: int) -> None:
        expert = state.holds[slot]
        if expert is not None:
            if state.slot_of.get(expert) == slot:
                del state.slot_of[expert]
            state.holds[slot] = None
            self.counters.evictions += 1

    def _run(self, load: _Load) -> None:
        """On a reader thread."""
        with self._changed:
            if load.done:  # called off
                return
            load.started = True
        try:
            self._source.load(load.layer, load.expert, self.arena.slot(load.slot))
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            load.error = error
        with self._changed:
            load.done = True
            self._changed.notify()

    def _wait(self) -> list[int]:
        """The experts that have arrived, at least one, ascending; raises what a read raised."""
        begin = time.perf_counter()
        loads = self._arrivals()
        self.counters.read_wait_seconds += time.perf_counter() - begin
        for load in loads:
            self._admit(load)
        for load in loads:
            if load.error is not None:
                raise load.error
        return sorted(load.expert for load in loads)

    def _arrivals(self) -> list[_Load]:
        with self._changed:
            while not (loads := [load for load in self._under_way.values() if load.done]):
                self._changed.wait()
        return loads

    def _admit(self, load: _Load) -> None:
        # Ctrl-C may fall between any two lines: the claim (`slot_of`) is always made last
        state = self._layers[load.layer]
        self._under_way.pop(load.slot, None)
        if load.started:
            self.counters.miss_bytes += self._source.disk_bytes(load.layer, load.expert)
        if load.started and load.error is None:
            state.holds[load.slot] = load.expert
            state.slot_of[load.expert] = load.slot
        else:
            state.policy.give_back(load.slot)

    def _settle(self) -> None:
        """Call off reads that have not begun and wait for the others; what arrives whole is kept."""
        if not self._under_way:
            return
        with self._changed:
            for load in self._under_way.values():
                load.done = load.done or not load.started
        while self._under_way:
            for load in self._arrivals():
                self._admit(load)

    def close(self) -> None:
        """End the reader threads and give the memory back; the source is closed too."""
        self._ticket += 1
        self._settle()
        self._pool.close()
        self._source.close()
        self.arena.close()
