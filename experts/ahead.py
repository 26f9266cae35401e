"""Reads on speculation: experts that a layer will probably ask for, while the disk is idle.

The rules of this file: a guess never takes a slot from what is resident before the layer has asked
for it; no guess is begun while somebody waits for a read; a guess that has not begun when the layer
asks is called off.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from diskmoe.experts.reader import ReadPool

AHEAD_SLOTS = 2  # guesses read at a time; more only hold up what is asked for next


@dataclass(eq=False)
class Load:
    """A read under way: `expert` of `layer` into `slot`; `kept` when the slot is to be the layer's."""

    layer: int
    expert: int
    slot: int
    kept: bool
    work: Callable[[], None] = field(default=lambda: None)
    started: bool = False
    done: bool = False
    error: BaseException | None = None


class ReadAhead:
    """Guesses and their reads into `slots`; `run` makes the read of a load on a thread, unless
    `call_off` came before it.

    Ctrl-C may fall between any two lines: a slot is spare while no load is known to have it.
    """

    def __init__(
        self,
        slots: Iterable[int],
        pool: ReadPool,
        run: Callable[[Load], None],
        call_off: Callable[[Load], bool],
    ) -> None:
        self._slots = frozenset(slots)
        self._pool = pool
        self._run = run
        self._call_off = call_off
        self._wanted: deque[tuple[int, int]] = deque()
        self._loads: dict[tuple[int, int], Load] = {}

    @property
    def is_busy(self) -> bool:
        """Whether there are guesses at all."""
        return bool(self._wanted or self._loads)

    @property
    def loads(self) -> list[Load]:
        """Reads of guesses that were begun and not taken or given up."""
        return list(self._loads.values())

    def want(self, layer: int, experts: Iterable[int]) -> None:
        """These experts of `layer` are likely to be asked for, the likeliest first."""
        self._wanted = deque((layer, expert) for expert in experts)

    def start(self) -> None:
        """The disk has nothing else to do: read what is wanted, as far as there are spare slots."""
        if not self._wanted:
            return
        spare = self._slots.difference(load.slot for load in self._loads.values())
        for slot in sorted(spare):
            while self._wanted and self._wanted[0] in self._loads:
                self._wanted.popleft()
            if not self._wanted:
                return
            layer, expert = self._wanted.popleft()
            load = Load(layer, expert, slot, kept=True)
            load.work = partial(self._run, load)
            self._loads[layer, expert] = load
            self._pool.submit(load.work, urgent=False)

    def begun(self, layer: int, expert: int) -> Load | None:
        """The read of an expert that is asked for now, if it has begun; else it is called off."""
        load = self._loads.get((layer, expert))
        if load is None or not self._drop(load):
            return load
        return None

    def give(self, load: Load, slot: int) -> None:
        """A begun `load` is the caller's from now on, with its slot; `slot` is spare in exchange."""
        self._slots = (self._slots - {load.slot}) | {slot}
        self._loads.pop((load.layer, load.expert), None)

    def give_up(self, layer: int) -> int:
        """`layer` has asked for what it wants: all guesses that were begun before and not taken are
        wrong. Those not begun are called off; returns how many others have ended by now."""
        if self._wanted and self._wanted[0][0] == layer:
            self._wanted.clear()
        wasted = 0
        for load in self.loads:
            if not self._drop(load) and load.done:
                wasted += 1
                del self._loads[load.layer, load.expert]
        return wasted

    def _drop(self, load: Load) -> bool:
        """Forget a read that has not begun, and never will; False when it has."""
        if not self._call_off(load):
            return False
        self._pool.cancel(load.work)
        del self._loads[load.layer, load.expert]
        return True

    def reset(self, slots: Iterable[int]) -> None:
        """Nothing is guessed, and `slots` are spare. No read of a guess may be under way."""
        self._wanted.clear()
        self._loads.clear()
        self._slots = frozenset(slots)
