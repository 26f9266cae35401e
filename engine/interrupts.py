"""Ctrl-C answered at once, also while a compiler or a kernel is at work.

The rule of this file: an interrupt is never lost and never waits for long. Python runs a signal's
handler between two steps of its own only, so a long call into machine code delays it; and what a
handler raises inside a callback from a compiler is printed and forgotten.
"""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

GRACE_SECONDS = 1.5  # for leaving in good order, when Python notices at all


def answer_at_once() -> None:
    """For a program of its own: it ends with code 130 when Ctrl-C goes unnoticed for a while.

    Nothing happens outside the main thread, or where the interrupt is ignored or handled by others.
    """
    if not _is_ours():
        return
    noticed = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        noticed.set()
        raise KeyboardInterrupt

    here, there = socket.socketpair()
    there.setblocking(False)
    signal.signal(signal.SIGINT, interrupt)
    signal.set_wakeup_fd(there.fileno(), warn_on_full_buffer=False)
    watch = threading.Thread(
        target=_watch, args=(here, there, noticed), name="diskmoe-interrupts", daemon=True
    )
    watch.start()


@contextmanager
def interrupts_kept() -> Iterator[Callable[[], None]]:
    """Inside, an interrupt is remembered; calling what is yielded raises it, and so does the end.

    For work in which an exception may be raised at a place that loses it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield _nothing
        return
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN or before is None:
        yield _nothing
        return
    kept: list[int] = []

    def check() -> None:
        if kept:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, lambda number, frame: kept.append(number))
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
    check()


def _nothing() -> None:
    """No interrupt arrives here."""


def _is_ours() -> bool:
    if threading.current_thread() is not threading.main_thread():
        return False
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _watch(here: socket.socket, there: socket.socket, noticed: threading.Event) -> None:
    """`there` is an argument so that it stays open."""
    while True:
        if signal.SIGINT in here.recv(64) and not noticed.wait(GRACE_SECONDS):
            os.write(2, b"interrupted\n")
            os._exit(130)
