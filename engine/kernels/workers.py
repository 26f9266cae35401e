"""Threads that stay, and share the items of a program's phases among them.

The rules of this file:

* when `run` is left, by return or by any exception, no thread works for that call any more, so the
  memory it was given can be reused or freed;
* nobody waits for a thread that has not come: items are claimed by compare and swap on one word
  that also holds the phase's number, so a thread that was late or asleep claims nothing of a phase
  that is over, and a phase ends when its items are done, not when all threads have arrived;
* a thread that finds no work spins for about a tenth of a millisecond and gives way from then on;
  after some time, longer while a program runs, it sleeps until it is woken. Whether it sleeps
  changes speed only.

The pool's words, in lines of 128 bytes of their own: CLAIM (phase number << 24 | next item), DONE
(items done of this phase), STOP, SLEEPERS, NUMBER, RUNNING (a program runs), a ring of phases. A phase is copied into
the ring before it is published, and what is read there is used only after the claim succeeded.
"""

import ctypes
import sys
import threading
import time
from queue import SimpleQueue
from types import TracebackType

import numpy as np

from diskmoe.compiled.functions import inner, kernel
from diskmoe.engine.kernels.atomics import (
    add_word,
    call_phase,
    call_yield,
    load_word,
    pause,
    store_word,
    swap_word_if,
)
from diskmoe.engine.kernels.program import Builder, Program
from diskmoe.experts.tiles import aligned_zeros

_DONE, _STOP, _SLEEPERS, _NUMBER, _RUNNING, _RING = (128 * i for i in range(1, 7))  # CLAIM is 0
_RING_PHASES = 16  # of 64 bytes
_ITEM_BITS = 24
_SPIN_SECONDS = 100e-6
_YIELDS = 20  # between programs
_LONG_YIELDS = 20_000  # while one runs
_SLEEP, _END = 1, 0


class Workers:
    """`n_threads` threads in all; the caller's own thread is one of them.

        with Workers(2) as workers:
            workers.run(program)

    Calls from several threads take turns.
    """

    def __init__(self, n_threads: int) -> None:
        if n_threads < 1:
            raise ValueError(f"workers need at least 1 thread, not {n_threads}")
        self.n_threads = n_threads
        self._turn = threading.Lock()
        self._memory = aligned_zeros(_RING + 64 * _RING_PHASES, 128)
        self._address = self._memory.ctypes.data
        self._words = self._memory.view(np.int64)
        self._yield = _yield_address()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._parts = 0 if n_threads == 1 else 2 * n_threads
        if n_threads == 1:
            return
        spins = _spins(_SPIN_SECONDS)
        self._patience = spins // 4  # of the caller, before it gives way to a thread it waits for
        self._words[_STOP // 8] = 1
        _serve(self._address, self._parts, spins, self._yield)  # compiled here, for all threads
        self._words[_STOP // 8] = 0
        life = (self._memory, self._address, self._parts, spins, self._yield, self._bell)
        for number in range(1, n_threads):
            thread = threading.Thread(
                target=_work, args=life, name=f"diskmoe-{number}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def run(self, program: Program) -> None:
        """Do the phases of a program in turn; returns when the last item is done.

        Python notices Ctrl-C after that only. RuntimeError after `close`, unless n_threads is 1.
        """
        with self._turn:
            if not self._parts:
                _run_alone(program.address, program.count)
                return
            if not self._threads:
                raise RuntimeError("these workers are closed")
            if program.worth_waking and self._words[_SLEEPERS // 8]:
                self._wake()
            _run(
                self._address,
                program.address,
                program.count,
                self._parts,
                self._patience,
                self._yield,
            )

    def _wake(self) -> None:
        for _ in range(_take_sleepers(self._address)):
            self._bell.put(None)

    def close(self) -> None:
        """End and join the threads; a second close does nothing."""
        with self._turn:
            self._words[_STOP // 8] = 1
            for _ in self._threads:
                self._bell.put(None)
            for thread in self._threads:
                thread.join()
            self._threads.clear()

    def __enter__(self) -> "Workers":  # noqa: PYI034 - Self is newer than Python 3.10
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def ready_pool() -> None:
    """Compiles what a pool needs, or finds it on disk."""
    with Workers(1) as alone, Workers(2) as two:
        nothing = Builder().program()
        alone.run(nothing)
        two.run(nothing)
        _take_sleepers(two._address)


def _work(
    memory: np.ndarray,
    address: int,
    parts: int,
    spins: int,
    give_way: int,
    bell: "SimpleQueue[None]",
) -> None:
    """A thread's life. `memory` is an argument so that it outlives the thread."""
    while _serve(address, parts, spins, give_way) != _END:
        bell.get()


def _yield_address() -> int:
    """Of the system's function that gives way to another thread."""
    if sys.platform == "win32":
        function = ctypes.windll.kernel32.SwitchToThread
    else:
        function = ctypes.CDLL(None).sched_yield
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _spins(seconds: float) -> int:
    """How many pauses take this long here: they differ tenfold between processors."""
    tried, best = 1000, 1.0
    for _ in range(4):
        begin = time.perf_counter()
        _pause_often(tried)
        best = min(best, time.perf_counter() - begin)
    return int(min(100_000, max(200, tried * seconds / max(best, 1e-9))))


@kernel
def _pause_often(times):  # pragma: no cover - compiled
    for _ in range(times):
        pause()


@inner
def _help(pool, parts):  # pragma: no cover - compiled
    """Claim and do items of the open phase until none is left; the claim word that was seen last.

    A claim is a share of what is left, so that the first are long and the last are short.
    """
    while True:
        claim = load_word(pool)
        phase = pool + _RING + ((claim >> _ITEM_BITS) % _RING_PHASES) * 64
        function = load_word(phase)
        arguments = load_word(phase + 8)
        n_items = load_word(phase + 16)
        first = claim & ((1 << _ITEM_BITS) - 1)
        left = n_items - first
        if left <= 0:
            return claim
        count = min(left, max(load_word(phase + 24), left // parts))
        if swap_word_if(pool, claim, claim + count):
            call_phase(function, arguments, first, first + count)
            add_word(pool + _DONE, count)


@kernel
def _run_alone(table, count):  # pragma: no cover - compiled
    for phase in range(table, table + count * 32, 32):
        call_phase(load_word(phase), load_word(phase + 8), 0, load_word(phase + 16))


@kernel
def _run(pool, table, count, parts, patience, give_way):  # pragma: no cover - compiled
    """The caller's side: publish phase after phase of a table, work, wait for what is under way."""
    number = load_word(pool + _NUMBER)
    store_word(pool + _RUNNING, 1)
    for phase in range(table, table + count * 32, 32):
        function = load_word(phase)
        arguments = load_word(phase + 8)
        n_items = load_word(phase + 16)
        least = load_word(phase + 24)
        if n_items <= least:
            call_phase(function, arguments, 0, n_items)
            continue
        number += 1
        entry = pool + _RING + (number % _RING_PHASES) * 64
        store_word(entry, function)
        store_word(entry + 8, arguments)
        store_word(entry + 16, n_items)
        store_word(entry + 24, least)
        store_word(pool + _DONE, 0)
        store_word(pool, number << _ITEM_BITS)
        _help(pool, parts)
        waited = 0
        while load_word(pool + _DONE) != n_items:
            waited += 1
            if waited < patience:
                pause()
            else:
                call_yield(give_way)
    store_word(pool + _NUMBER, number)
    store_word(pool + _RUNNING, 0)


@kernel
def _serve(pool, parts, spins, give_way):  # pragma: no cover - compiled
    """A worker's side: _SLEEP when nothing came for a while, _END when the pool is closed."""
    seen = np.int64(-1)
    idle = np.int64(0)
    while True:
        if load_word(pool + _STOP) != 0:
            return _END
        claim = load_word(pool)
        if claim != seen:
            seen = _help(pool, parts)
            idle = 0
        elif idle < spins:
            idle += 1
            pause()
        elif idle < spins + (_YIELDS if load_word(pool + _RUNNING) == 0 else _LONG_YIELDS):
            idle += 1
            call_yield(give_way)
        else:
            add_word(pool + _SLEEPERS, 1)
            if load_word(pool) == seen and load_word(pool + _STOP) == 0:
                return _SLEEP
            if not _take_one_sleeper(pool):
                return _SLEEP  # somebody is about to ring for this thread
            idle = 0


@inner
def _take_one_sleeper(pool):  # pragma: no cover - compiled
    """Take this thread off the sleepers; False when it was taken off already."""
    while True:
        sleepers = load_word(pool + _SLEEPERS)
        if sleepers <= 0:
            return False
        if swap_word_if(pool + _SLEEPERS, sleepers, sleepers - 1):
            return True


@kernel
def _take_sleepers(pool):  # pragma: no cover - compiled
    """All sleepers, who are none afterwards."""
    while True:
        sleepers = load_word(pool + _SLEEPERS)
        if swap_word_if(pool + _SLEEPERS, sleepers, 0):
            return sleepers
