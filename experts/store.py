"""The hot store: for a layer's union of experts, slots with their bytes in, as they arrive.

The rules of this file:

* each expert of a union is read at most once per fetch, and all misses are under way at once as far
  as there are slots to read into;
* a slot claims an expert only while all of that expert's bytes are in it, whatever fails or is
  abandoned half-way;
* the slot of an expert that the caller still has to see, or is looking at, is never given up.

What is kept is decided by ``LayerSlots`` before anything is read. What is not kept (most of a long
prompt, a union larger than its layer) passes through scratch slots that all layers share.

    for positions, slots in store.fetch(layer, ids):   # ids ascending, unique
        ...                                            # ids[positions] are in arena slots `slots`
"""

import heapq
import threading
import time
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from diskmoe.experts.ahead import Load, ReadAhead
from diskmoe.experts.arena import Arena
from diskmoe.experts.policy import Lru, Policy
from diskmoe.experts.reader import ReadPool
from diskmoe.experts.records import RecordSource
from diskmoe.experts.slots import LayerSlots

Ids = npt.NDArray[np.int32]
WAVE_SLOTS = 8  # scratch slots for what passes: some in work while others are read


@dataclass
class StoreCounters:
    """Totals since the start. A hit or miss is one unique expert of one fetch (DESIGN, Words)."""

    hits: int = 0
    misses: int = 0
    miss_bytes: int = 0  # asked of the disk by misses
    read_wait_seconds: float = 0.0  # the caller waited and had nothing else to do
    read_seconds: float = 0.0  # from the first read of a fetch to its last arrival
    hideable_seconds: float = 0.0  # of these, what the caller's work could have covered
    ahead_hits: int = 0  # of the hits, those that a guess had read in time
    ahead_bytes: int = 0  # read on a guess that was right in time, or wrong; never in miss_bytes

    def __add__(self, other: "StoreCounters") -> "StoreCounters":
        each = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return StoreCounters(**each)

    def __sub__(self, other: "StoreCounters") -> "StoreCounters":
        each = {f.name: getattr(self, f.name) - getattr(other, f.name) for f in fields(self)}
        return StoreCounters(**each)


class ExpertStore:
    """Slots of expert records, per layer, filled from `source` on demand.

    slots_per_layer: one number for all layers, or one for each; `wave_slots` more are shared by all.
    policy: makes the policy of a layer from its number of slots. ahead_slots: reads on speculation
    at a time, see ``look_ahead``. Not for use by several threads.
    """

    def __init__(
        self,
        source: RecordSource,
        slots_per_layer: int | Mapping[int, int],
        layers: Sequence[int],
        n_experts: int,
        io_threads: int = 2,
        policy: Callable[[int], Policy] = lambda n_slots: Lru(),
        wave_slots: int = WAVE_SLOTS,
        ahead_slots: int = 0,
    ) -> None:
        self.record_layout = source.record_layout
        self.n_experts = n_experts
        self.counters = StoreCounters()
        self._source = source
        self._layers: dict[int, LayerSlots] = {}
        n_slots = 0
        for layer in layers:
            per_layer = isinstance(slots_per_layer, Mapping)
            wanted = slots_per_layer[layer] if per_layer else slots_per_layer
            count = min(int(wanted), n_experts)
            if count < 1:
                raise ValueError(f"layer {layer}: {count} slots; at least one is needed")
            self._layers[layer] = LayerSlots(range(n_slots, n_slots + count), policy(count))
            n_slots += count
        if wave_slots < 1 and self._layers:
            raise ValueError(f"{wave_slots} scratch slots; at least one is needed")
        self._waves = range(n_slots, n_slots + wave_slots)
        self._scratch = list(self._waves)
        n_slots += wave_slots
        # what layers and guesses have, and exchange
        self._lent = set(range(n_slots + ahead_slots)).difference(self._waves)
        self.arena = Arena(n_slots + ahead_slots, self.record_layout.nbytes)
        self._pool = ReadPool(io_threads)
        self._ahead = ReadAhead(
            range(n_slots, n_slots + ahead_slots), self._pool, self._run, self._call_off
        )
        self._under_way: dict[int, Load] = {}  # slot -> its read
        self._changed = threading.Condition()  # guards `started` and `done` of loads
        self._ticket = 0
        self._unfinished: LayerSlots | None = None  # the layer of a fetch that has not ended

    def slots(self, layer: int) -> int:
        """How many slots the layer has."""
        return self._layers[layer].n_slots

    def resident(self, layer: int) -> Ids:
        """The experts whose bytes are in memory, ascending."""
        return np.array(sorted(self._layers[layer].slot_of), np.int32)

    @property
    def evictions(self) -> int:
        """Experts that were given up for others, since the start."""
        return sum(layer.evictions for layer in self._layers.values())

    def resident_slots(self, layer: int, expert_ids: Ids) -> Ids | None:
        """The arena slots of these experts, as a fetch that hits only; None when one is missing.

        For the common case that nothing is to be read: None changes nothing, and `fetch` does it
        all. expert_ids as for `fetch`; the slots hold the experts until the next fetch.
        """
        if self._unfinished is not None:
            return None
        slots = self._layers[layer].hit_slots(expert_ids.tolist())
        if slots is None:
            return None
        self._ticket += 1
        self.counters.hits += len(slots)
        if self._ahead.is_busy:
            self._give_up_guesses(layer)
            self._ahead.start()
        return np.array(slots, np.int32)

    def look_ahead(self, layer: int, experts: Iterable[int]) -> None:
        """Rows will probably ask `layer` for these experts next, the likeliest first.

        What is missing is read while nobody waits for a read, if there are `ahead_slots`.
        """
        slot_of = self._layers[layer].slot_of
        self._ahead.want(layer, (expert for expert in experts if expert not in slot_of))

    def missing(self, layer: int, experts: Iterable[int]) -> list[int]:
        """Those of these experts that are not in memory, in their order."""
        slot_of = self._layers[layer].slot_of
        return [expert for expert in experts if expert not in slot_of]

    def cool(self, layer: int, experts: Iterable[int]) -> None:
        """Of these experts, the resident ones are given up first: see ``LayerSlots.cool``."""
        self._layers[layer].cool(experts)

    def fetch(
        self,
        layer: int,
        expert_ids: Ids,
        ranked: Sequence[int] | None = None,
        doubted: Container[int] = (),
    ) -> Generator[tuple[Ids, Ids], None, None]:
        """Yield (positions, slots): ``expert_ids[positions]`` are in arena slots `slots`.

        expert_ids: i32, ascending and unique. Hits come first, in one batch; misses as they arrive.
        `ranked`, for a prompt, and `doubted`, for drafts: see ``LayerSlots.plan``. A batch is valid
        until the next step of the iterator; after it, its scratch slots may be filled with other
        experts. Raises ReadFailed.
        """
        ids: list[int] = expert_ids.tolist()
        if any(a >= b for a, b in pairwise(ids)):
            raise ValueError("expert_ids must be ascending and unique")
        if ids and not 0 <= ids[0] <= ids[-1] < self.n_experts:
            raise ValueError(f"expert_ids {ids[0]}..{ids[-1]} of a layer of {self.n_experts}")
        return self._fetch(layer, ids, ranked, doubted)

    def _fetch(
        self, layer: int, ids: list[int], ranked: Sequence[int] | None, doubted: Container[int]
    ) -> Generator[tuple[Ids, Ids], None, None]:
        self._tidy()  # what an abandoned fetch left under way
        self._source.resume()
        self._ticket += 1
        ticket = self._ticket
        state = self._unfinished = self._layers[layer]
        try:
            plan = state.plan(ids, ranked, doubted)
            guessed, loads = self._guessed(layer, plan.loads)
            batch, passing = plan.hits + guessed, plan.passing[::-1]
            self.counters.hits += len(batch)
            self.counters.misses += plan.misses - len(guessed)
            positions = {expert: position for position, expert in enumerate(ids)}
            missing, clock = plan.misses - len(guessed), _Clock()
            self._submit(layer, loads, passing)
            while batch or missing:
                if not missing:
                    self._ahead.start()
                if batch:
                    slots = [slot for _, slot in batch]
                    clock.hand_over()
                    yield (
                        np.array([positions[expert] for expert, _ in batch], np.int32),
                        np.array(slots, np.int32),
                    )
                    if ticket != self._ticket:
                        raise RuntimeError(f"a later fetch has overtaken this one (layer {layer})")
                    clock.take_back()
                    self._scratch += [slot for slot in slots if slot in self._waves]
                    self._submit(layer, loads, passing)
                batch = self._wait(clock) if missing else []
                missing -= len(batch)
            clock.book(self.counters)
            self._unfinished = None
        except (KeyboardInterrupt, GeneratorExit):
            self._source.hurry()
            raise
        finally:
            if ticket == self._ticket:
                self._tidy()

    def _guessed(
        self, layer: int, planned: list[tuple[int, int]]
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Of the planned loads: what a guess has brought by now, and what is still to be read, in
        falling order; a guess whose read is under way is neither."""
        if not self._ahead.is_busy:
            return [], planned[::-1]
        state, here, loads = self._layers[layer], [], []
        for expert, slot in planned:
            load = self._ahead.begun(layer, expert)
            if load is None:
                loads.append((expert, slot))
                continue
            state.exchange(slot, load.slot)
            self._under_way[load.slot] = load
            self._ahead.give(load, slot)
            if load.done and load.error is None:
                state.arrived(expert, load.slot)
                del self._under_way[load.slot]
                here.append((expert, load.slot))
                self.counters.ahead_hits += 1
                self.counters.ahead_bytes += self._source.disk_bytes(layer, expert)
        self._give_up_guesses(layer)
        return here, loads[::-1]

    def _give_up_guesses(self, layer: int) -> None:
        wasted = self._ahead.give_up(layer)
        if wasted:
            self.counters.ahead_bytes += wasted * self._source.disk_bytes(layer, 0)

    def _submit(self, layer: int, loads: list[tuple[int, int]], passing: list[int]) -> None:
        """Start reads, in the order of the experts and so of the disk, while there are slots.

        Both lists are descending; what is started is taken from their ends.
        """
        while loads or (passing and self._scratch):
            kept = bool(loads) and not (passing and self._scratch and passing[-1] < loads[-1][0])
            expert, slot = loads.pop() if kept else (passing.pop(), self._scratch.pop())
            load = self._under_way[slot] = Load(layer, expert, slot, kept)
            self._pool.submit(partial(self._run, load))

    def _call_off(self, load: Load) -> bool:
        """True when the read had not begun, and never will."""
        with self._changed:
            load.done = load.done or not load.started
            return not load.started

    def _run(self, load: Load) -> None:
        """On a reader thread."""
        with self._changed:
            if load.done:
                return
            load.started = True
        try:
            self._source.load(load.layer, load.expert, self.arena.slot(load.slot))
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            load.error = error
        with self._changed:
            load.done = True
            self._changed.notify()

    def _wait(self, clock: "_Clock") -> list[tuple[int, int]]:
        """What has arrived, at least one (expert, slot), ascending; raises what a read raised."""
        begin = time.perf_counter()
        loads = self._arrivals()
        clock.waited(begin, time.perf_counter())
        for load in loads:
            self._admit(load)
        for load in loads:
            if load.error is not None:
                raise load.error
        return sorted((load.expert, load.slot) for load in loads)

    def _arrivals(self) -> list[Load]:
        with self._changed:
            while not (loads := [load for load in self._under_way.values() if load.done]):
                self._changed.wait()
        return loads

    def _admit(self, load: Load) -> None:
        # Ctrl-C may fall between any two lines: the claim (`slot_of`) is always made last
        self._under_way.pop(load.slot, None)
        if load.started:
            self.counters.miss_bytes += self._source.disk_bytes(load.layer, load.expert)
        if load.kept and load.started and load.error is None:
            self._layers[load.layer].arrived(load.expert, load.slot)

    def _tidy(self) -> None:
        """End a fetch that was left or failed: call off reads that have not begun and wait for the
        others; what arrives whole is kept."""
        if self._unfinished is None:
            return
        for load in [*self._under_way.values(), *self._ahead.loads]:
            self._call_off(load)
        while self._under_way:
            for load in self._arrivals():
                self._admit(load)
        with self._changed:
            self._changed.wait_for(lambda: all(load.done for load in self._ahead.loads))
        self._unfinished.abandon(self.n_experts)
        self._scratch = list(self._waves)
        owned = {slot for layer in self._layers.values() for slot in layer.slots}
        self._ahead.reset(self._lent.difference(owned))
        self._unfinished = None

    def pin(self, layer: int, expert_ids: Ids) -> int:
        """Read these experts into slots that they keep for good; how many found room.

        A layer keeps one slot for the others. Before anything is fetched; raises ReadFailed.
        """
        state = self._layers[layer]
        pinned = 0
        for expert in expert_ids.tolist():
            slot = state.pin() if expert not in state.slot_of else None
            if slot is None:
                continue
            self._source.load(layer, expert, self.arena.slot(slot))
            state.arrived(expert, slot)
            pinned += 1
        return pinned

    def shrink(self, n_bytes: int) -> int:
        """Give back at least so many bytes, as far as every layer keeps a slot; the bytes freed.

        The layers with the most slots give first. 0 where the system has no way to take it.
        """
        if not self.arena.can_release:
            return 0
        self._tidy()
        freed = 0
        largest = [(-state.n_slots, layer) for layer, state in self._layers.items()]
        heapq.heapify(largest)
        while freed < n_bytes and largest:
            _, layer = heapq.heappop(largest)
            slot = self._layers[layer].retire()
            if slot is not None:
                self._lent.discard(slot)
                self.arena.release(slot)
                freed += self.arena.slot_bytes
                heapq.heappush(largest, (-self._layers[layer].n_slots, layer))
        return freed

    def close(self) -> None:
        """End the reader threads and give the memory back; the source is closed too."""
        self._ticket += 1
        self._source.hurry()
        self._tidy()
        self._pool.close()
        self._source.close()
        self.arena.close()


class _Clock:
    """The times of one fetch: how long its reads took and how much of that could be hidden."""

    def __init__(self) -> None:
        self._begin = self._last = time.perf_counter()
        self._wait = self._work = self._last_work = 0.0
        self._handed = 0.0

    def hand_over(self) -> None:
        self._handed = time.perf_counter()

    def take_back(self) -> None:
        self._last_work = time.perf_counter() - self._handed
        self._work += self._last_work

    def waited(self, begin: float, end: float) -> None:
        self._wait += end - begin
        self._last = end

    def book(self, counters: StoreCounters) -> None:
        """What was computed before the last arrival might all have been done while reads ran."""
        counters.read_wait_seconds += self._wait
        reading = self._last - self._begin
        counters.read_seconds += reading
        counters.hideable_seconds += min(reading, self._work - self._last_work)
