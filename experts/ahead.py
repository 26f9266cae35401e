"""Reads on speculation: experts that a layer will probably ask for, while the disk is idle.

The rules of this file: a guess never takes a slot from what is resident before the layer has asked
for it; no guess is begun while somebody waits for a read; a guess that has not begun when the layer
asks is called off.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

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
    """Guesses and their reads into `spare` slots; `run` makes the read of a load on a thread."""

    def __init__(self, spare: Iterable[int], pool: ReadPool, run: Callable[[Load], None]) -> None:
        self._spare = list(spare)
        self._pool = pool
        self._run = run
        self._wanted: deque[tuple[int, int]] = deque()
        self._loads: dict[tuple[int, int], Load] = {}

    @property
    def is_busy(self) -> bool:
        """Whether there are guesses at all."""
        return bool(self._wanted or self._loads)

    def want(self, layer: int, experts: Iterable[int]) -> None:
        """These experts of `layer` are likely to be asked for, the likeliest first."""
        self._wanted = deque((layer, expert) for expert in experts)

    def start(self) -> None:
        """The disk has nothing else to do: read what is wanted, as far as there are spare slots."""
        while self._wanted and self._spare:
            layer, expert = self._wanted.popleft()
            if (layer, expert) in self._loads:
                continue
            load = Load(layer, expert, self._spare.pop(), kept=True)
            load.work = lambda load=load: self._run(load)
            self._loads[layer, expert] = load
            self._pool.submit(load.work, urgent=False)

    def take(self, layer: int, expert: int, slot: int) -> Load | None:
        """The read of an expert that is asked for now, if it has begun; `slot`, which was meant for
        it, becomes a spare one in exchange."""
        load = self._loads.pop((layer, expert), None)
        if load is None:
            return None
        if self._pool.cancel(load.work):
            self._spare.append(load.slot)
            return None
        self._spare.append(slot)
        return load

    def give_up(self, layer: int) -> int:
        """`layer` has asked for what it wants: all guesses that were begun before and not taken are
        wrong. Those not begun are called off; returns how many others have ended by now."""
        if self._wanted and self._wanted[0][0] == layer:
            self._wanted.clear()
        wasted = 0
        for key, load in list(self._loads.items()):
            called_off = self._pool.cancel(load.work)
            if called_off or load.done:
                wasted += not called_off
                del self._loads[key]
                self._spare.append(load.slot)
        return wasted
