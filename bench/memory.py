"""How fast memory can be read, and threads to read it with: the ceiling of every kernel.

The rule of this file: the ceiling is measured in the same run, on the same memory and by the same
threads as what is compared with it, window by window in turn, each window on bytes that the caches
do not hold. Absolute speeds mean little on a shared machine; the ratio of two neighbours does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from diskmoe.compiled.functions import kernel
from diskmoe.experts.tiles import PAGE

LINE = 64  # bytes of a cache line


class Crew:
    """`n_threads` threads, the caller's among them, that run a function each and are timed."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._inboxes: list[SimpleQueue[Callable[[], object] | None]] = []
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        for number in range(1, n_threads):
            inbox: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
            thread = threading.Thread(
                target=self._serve, args=(inbox,), name=f"diskmoe-bench-{number}", daemon=True
            )
            thread.start()
            self._inboxes.append(inbox)
            self._threads.append(thread)

    def _serve(self, inbox: SimpleQueue[Callable[[], object] | None]) -> None:
        while (job := inbox.get()) is not None:
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - raised again in `seconds`
                self._done.put(error)
            else:
                self._done.put(None)

    def seconds(self, jobs: Sequence[Callable[[], object]]) -> float:
        """Run one job per thread at once; wall time until the last has ended."""
        begin = time.perf_counter()
        for inbox, job in zip(self._inboxes, jobs[1:], strict=True):
            inbox.put(job)
        jobs[0]()
        errors = [self._done.get() for _ in self._inboxes]
        elapsed = time.perf_counter() - begin
        for error in errors:
            if error is not None:
                raise error
        return elapsed

    def close(self) -> None:
        """End the threads."""
        for inbox in self._inboxes:
            inbox.put(None)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Crew:  # noqa: PYI034 - Self is newer than Python 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _reader(streams: int) -> Any:
    """An intrinsic: the sum of the i64 in `lines` cache lines from an address on.

    It only loads and adds, in vectors as wide as a line, from so many places at once: each stream
    has its part of the lines. `lines` is a multiple of 4 x streams.
    """
    lines_ahead = 4 // streams or 1  # accumulators of a stream: enough that no add waits

    @intrinsic
    def read(typing_context, at, lines):
        def generate(context, builder, signature, args):
            i64 = ir.IntType(64)
            vector = ir.VectorType(i64, 8)

            def number(value: int) -> ir.Constant:
                return ir.Constant(i64, value)

            part = builder.sdiv(args[1], number(streams))
            before, function = builder.block, builder.function
            loop, done = (function.append_basic_block(name) for name in ("read", "done"))
            builder.branch(loop)
            builder.position_at_end(loop)
            line = builder.phi(i64)
            line.add_incoming(number(0), before)
            totals = [builder.phi(vector) for _ in range(streams * lines_ahead)]
            added = []
            for i, total in enumerate(totals):
                stream, ahead = divmod(i, lines_ahead)
                first = builder.add(line, builder.mul(part, number(stream)))
                place = builder.mul(builder.add(first, number(ahead)), number(LINE))
                pointer = builder.inttoptr(builder.add(args[0], place), vector.as_pointer())
                value = builder.load(pointer)
                value.align = 8
                added.append(builder.add(total, value))
                total.add_incoming(ir.Constant(vector, None), before)
                total.add_incoming(added[-1], loop)
            following = builder.add(line, number(lines_ahead))
            line.add_incoming(following, loop)
            builder.cbranch(builder.icmp_signed("<", following, part), loop, done)
            builder.position_at_end(done)
            whole = added[0]
            for value in added[1:]:
                whole = builder.add(whole, value)
            result = builder.extract_element(whole, ir.Constant(ir.IntType(32), 0))
            for lane in range(1, 8):
                lane_value = builder.extract_element(whole, ir.Constant(ir.IntType(32), lane))
                result = builder.add(result, lane_value)
            return result

        return types.int64(types.int64, types.int64), generate

    return read


_read_one = _reader(1)
_read_four = _reader(4)


@kernel
def read_sum(at, lines):  # pragma: no cover - compiled
    """The sum of the i64 in `lines` lines of 64 bytes at an address, modulo 2**64, front to back."""
    return _read_one(at, lines)


@kernel
def read_sum_of_four(at, lines):  # pragma: no cover - compiled
    """The same, from four places at once: what a processor can do when it is helped."""
    return _read_four(at, lines)


def read_seconds(
    crew: Crew, memory: npt.NDArray[np.uint8], begin: int, end: int, read: Any = read_sum
) -> float:
    """Seconds that the crew takes to read memory[begin:end], u8, each thread its own part.

    Both ends are multiples of 4096, so that every part is whole lines for any number of streams.
    """
    address = memory.ctypes.data
    pages = np.linspace(begin // PAGE, end // PAGE, crew.n_threads + 1).astype(np.int64)

    def job(number: int) -> Callable[[], object]:
        first, last = int(pages[number]) * PAGE, int(pages[number + 1]) * PAGE
        if first == last:
            return lambda: None
        return lambda: read(address + first, (last - first) // LINE)

    return crew.seconds([job(number) for number in range(crew.n_threads)])
