"""What the slots of one layer hold, and what a union does to them: bookkeeping without any I/O.

The rules of this file: what a plan decides depends on earlier plans only, never on when a read
arrives, so a replay of recorded routing predicts a run's hits exactly; the slot of an expert of the
union at hand is never given up; a slot claims an expert only after ``arrived``.

    plan = layer.plan([3, 17, 40])        # hits, loads (into slots of the layer), passing
    for expert, slot in plan.loads: ...   # read, then:
        layer.arrived(expert, slot)
"""

from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskmoe.experts.policy import Policy

PROMPT_SHARE = 0.5  # of a layer's slots, at most, that a prompt takes from what decoding used


@dataclass(frozen=True)
class Plan:
    """Where the experts of a union are, or are to be put. Pairs are (expert, slot)."""

    hits: list[tuple[int, int]]
    loads: list[tuple[int, int]]  # to be read into a slot of the layer, and kept
    passing: list[int]  # to be read into a scratch slot, and not kept

    @property
    def misses(self) -> int:
        return len(self.loads) + len(self.passing)


class LayerSlots:
    """The slots of one layer; `policy` ranks what they hold."""

    def __init__(self, slots: Iterable[int], policy: Policy) -> None:
        self._slots = set(slots)
        self._free = sorted(self._slots, reverse=True)  # the lowest is taken first
        self._policy = policy
        self.slot_of: dict[int, int] = {}  # expert -> slot whose bytes are complete
        self.evictions = 0

    @property
    def slots(self) -> Collection[int]:
        """All of them: of residents, of loads, free and pinned."""
        return self._slots

    @property
    def n_slots(self) -> int:
        return len(self._slots)

    def hit_slots(self, ids: list[int]) -> list[int] | None:
        """The slots of a union that is resident and counts as a whole; None, and nothing has
        changed, when an expert is missing. What ``plan`` would say, for the common case."""
        try:
            slots = [self.slot_of[expert] for expert in ids]
        except KeyError:
            return None
        self._policy.use(ids)
        return slots

    def plan(
        self,
        ids: list[int],
        ranked: Sequence[int] | None = None,
        doubted: Container[int] = (),
    ) -> Plan:
        """What to do for the union `ids`, ascending and unique. Residents change at once: experts
        that are given up are gone, those to be loaded come with ``arrived``.

        ranked None: every expert counts as used and takes the place of others. For a prompt: the
        same experts, those of its last rows first (see ``most_recent_first``). Then only so many
        of them count as `PROMPT_SHARE` of the slots; the others fill slots that are free.
        doubted: those that only drafts want. They count too, but take places after the others; see
        ``cool`` for when the drafts were wrong.
        """
        counting = ids if ranked is None else ranked[: max(1, int(self.n_slots * PROMPT_SHARE))]
        counts = frozenset(counting)
        self._policy.use(sorted(counting))
        hits = [(expert, self.slot_of[expert]) for expert in ids if expert in self.slot_of]
        union = frozenset(ids)
        loads: list[tuple[int, int]] = []
        passing: list[int] = []
        for expert in ranked or sorted(ids, key=doubted.__contains__):
            if expert in self.slot_of:
                continue
            slot = self._room(expert, union) if expert in counts else self._unused()
            if slot is None:
                passing.append(expert)
                continue
            self._policy.admit(expert, expert in counts)
            loads.append((expert, slot))
        return Plan(hits, sorted(loads), sorted(passing))

    def _unused(self) -> int | None:
        return self._free.pop() if self._free else None

    def _room(self, expert: int, union: frozenset[int]) -> int | None:
        """A slot for an expert that counts; None when all are worth more, or are in the union."""
        if self._free:
            return self._free.pop()
        victim = self._policy.victim(union)
        if victim is None or self._policy.spares(victim, expert):
            return None
        return self._give_up(victim)

    def _give_up(self, expert: int) -> int:
        # Ctrl-C may fall between any two lines: what is in `slot_of` is known to the policy
        slot = self.slot_of.pop(expert)
        self._policy.drop(expert)
        self.evictions += 1
        return slot

    def arrived(self, expert: int, slot: int) -> None:
        """All bytes of a planned load are in its slot."""
        self.slot_of[expert] = slot

    def cool(self, experts: Iterable[int]) -> None:
        """Nobody needed these: they are given up before all others, until they are used."""
        for expert in experts:
            self._policy.cool(expert)

    def exchange(self, slot: int, other: int) -> None:
        """`other`, which was no slot of this layer, takes the place of `slot`, planned for a load."""
        self._slots = self._slots ^ {slot, other}  # at once, whenever Ctrl-C falls

    def abandon(self, n_experts: int) -> None:
        """Planned loads that have not arrived by now will not come: their slots are free again."""
        for expert in range(n_experts):
            if expert not in self.slot_of:
                self._policy.drop(expert)
        self._free = sorted(self._slots.difference(self.slot_of.values()), reverse=True)

    def pin(self) -> int | None:
        """A free slot for an expert that is never to be given up: the policy does not hear of it.
        None when only one is left, which the others need."""
        return self._free.pop() if len(self._free) > 1 else None

    def retire(self) -> int | None:
        """Takes a slot from the layer for good, a free one or the next victim's; None for the last
        one, and when all that is left is pinned."""
        if self.n_slots <= 1:
            return None
        slot = self._unused()
        if slot is None:
            victim = self._policy.victim(frozenset())
            if victim is None:
                return None
            slot = self._give_up(victim)
        self._slots.discard(slot)
        return slot


def most_recent_first(ids: npt.NDArray[np.int32]) -> list[int]:
    """The unique experts of ids i32 (rows, top_k), those of the last row first."""
    flat = ids[::-1].ravel()
    _, first = np.unique(flat, return_index=True)
    return flat[np.sort(first)].tolist()
