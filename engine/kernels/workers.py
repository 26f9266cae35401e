"""Threads that stay, and share a kernel's items among them.

The rule of this file: when `run` is left, by return or by any exception, no thread works for that
call any more, so the arrays it was given can be reused or freed. Kernels release the GIL.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType
from typing import Any


class Workers:
    """`n_threads` threads in all; the caller's own thread is one of them.

        with Workers(2) as workers:
            workers.run(kernel, n_items, a, b, grain=16)

    Calls from several threads take turns.
    """

    def __init__(self, n_threads: int) -> None:
        if n_threads < 1:
            raise ValueError(f"workers need at least 1 thread, not {n_threads}")
        self.n_threads = n_threads
        self._turn = threading.Lock()
        self._inboxes: list[SimpleQueue[Callable[[], None] | None]] = []
        self._threads: list[threading.Thread] = []
        for number in range(1, n_threads):
            inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
            thread = threading.Thread(
                target=_serve, args=(inbox,), name=f"diskmoe-{number}", daemon=True
            )
            thread.start()
            self._inboxes.append(inbox)
            self._threads.append(thread)

    def run(self, kernel: Callable[..., Any], n_items: int, *args: Any, grain: int = 1) -> None:
        """Call ``kernel(*args, begin, end)`` over contiguous parts of ``range(n_items)``.

        No part is smaller than `grain` items, so little work stays in the caller's thread.
        Returns when all parts are done; the first part's exception is raised again here.
        KeyboardInterrupt, however often it comes, is raised only after the other threads have
        left the kernel: their arrays are not in use any more. RuntimeError after `close`, unless
        n_threads is 1.
        """
        if n_items <= 0:
            return
        parts = max(1, min(self.n_threads, n_items // max(1, grain)))
        if parts == 1:
            kernel(*args, 0, n_items)
            return
        with self._turn:
            if not self._threads:
                raise RuntimeError("these workers are closed")
            bounds = [n_items * part // parts for part in range(parts + 1)]
            done: SimpleQueue[tuple[int, BaseException | None]] = SimpleQueue()
            errors: list[tuple[int, BaseException]] = []
            try:
                for part in range(1, parts):
                    job = _Part(kernel, args, bounds[part], bounds[part + 1], part, done)
                    self._inboxes[part - 1].put(job)
                kernel(*args, 0, bounds[1])
                for _ in range(1, parts):
                    part, error = done.get()
                    if error is not None:
                        errors.append((part, error))
            except BaseException:
                # Python notices Ctrl-C at calls and where loops turn: nothing is called outside the
                # inner try, so that another one leads to another turn and not out of here
                while True:
                    try:
                        self._wait_until_idle()
                        break
                    except KeyboardInterrupt:
                        pass  # the first exception is the one to raise
                raise
        if errors:
            raise min(errors, key=lambda entry: entry[0])[1]

    def _wait_until_idle(self) -> None:
        """Wait for whatever was handed out."""
        for inbox in self._inboxes:
            idle = threading.Event()
            inbox.put(idle.set)
            idle.wait()

    def close(self) -> None:
        """End and join the threads; a second close does nothing."""
        with self._turn:
            for inbox in self._inboxes:
                inbox.put(None)
            for thread in self._threads:
                thread.join()
            self._inboxes.clear()
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


class _Part:
    """One thread's share of a `run`; reports (part, error) to `done`."""

    def __init__(
        self,
        kernel: Callable[..., Any],
        args: tuple[Any, ...],
        begin: int,
        end: int,
        part: int,
        done: "SimpleQueue[tuple[int, BaseException | None]]",
    ) -> None:
        self.call = (kernel, args, begin, end)
        self.part = part
        self.done = done

    def __call__(self) -> None:
        kernel, args, begin, end = self.call
        try:
            kernel(*args, begin, end)
        except BaseException as error:  # noqa: BLE001 - raised again in the caller
            self.done.put((self.part, error))
        else:
            self.done.put((self.part, None))


def _serve(inbox: "SimpleQueue[Callable[[], None] | None]") -> None:
    while (job := inbox.get()) is not None:
        job()
        del job  # an idle thread keeps no arrays alive
