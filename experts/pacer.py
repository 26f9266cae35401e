"""A slow disk for experiments: reads take the time that a disk of a given speed would.

The rule of this file: bytes pass through one pipe in the order in which they were asked for, so
that all threads together read at the set speed, whatever the page cache holds; an idle pipe saves
nothing up. Waiting costs no processor time.
"""

import threading
import time
from collections.abc import Callable


class Pacer:
    """A pipe of `bytes_per_second`, shared by all threads that read.

    >>> pacer = Pacer(1e9)
    >>> due = pacer.ask(1000)  # a read of 1000 bytes begins
    >>> pacer.wait(due)        # it has ended a microsecond after it began, or after the one before
    """

    def __init__(
        self, bytes_per_second: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if not bytes_per_second > 0:
            raise ValueError(f"a disk of {bytes_per_second} bytes per second")
        self.bytes_per_second = bytes_per_second
        self._clock = clock
        self._free_at = 0.0  # when the pipe has passed all that was asked for so far
        self._lock = threading.Lock()
        self._hurried = threading.Event()

    def __str__(self) -> str:
        return f"disk paced at {self.bytes_per_second / 1e6:g} MB/s"

    def ask(self, nbytes: int) -> float:
        """Queue a read up; returns the time at which the disk will have given its last byte."""
        with self._lock:
            self._free_at = max(self._free_at, self._clock()) + nbytes / self.bytes_per_second
            return self._free_at

    def wait(self, due: float) -> None:
        """Sleep until `due`; returns at once after `hurry`."""
        left = due - self._clock()
        if left > 0:
            self._hurried.wait(left)

    def hurry(self) -> None:
        """End all waiting, now and until `resume`."""
        self._hurried.set()

    def resume(self) -> None:
        """Reads wait again; the pipe is idle."""
        with self._lock:
            if self._hurried.is_set():
                self._free_at = 0.0
                self._hurried.clear()
