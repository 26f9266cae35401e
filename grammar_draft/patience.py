"""Long work that lets others go on, and can be told to stop.

What takes long calls `breathe` now and then. It lets other threads run (they wait for Python's lock
five milliseconds otherwise, each time they need it), and asks whoever wants the work whether it is
still wanted:

    with patient(check):    # check raises to stop the work
        from_schema(schema)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

SLICE_SECONDS = 0.0002  # others wait no longer than about this


class _Breath:
    __slots__ = ("ask", "latest")

    def __init__(self, ask: Callable[[], None]) -> None:
        self.ask = ask
        self.latest = time.perf_counter()


_BREATH: ContextVar[_Breath] = ContextVar("breath")


def no_check() -> None:
    """Whoever wants the work wants it to its end."""


@contextmanager
def patient(check: Callable[[], None]) -> Iterator[None]:
    """Work within asks `check` now and then, which may raise. For this thread."""
    token = _BREATH.set(_Breath(check))
    try:
        yield
    finally:
        _BREATH.reset(token)


def breathe() -> None:
    """Gives others the chance to run, and asks whether to go on; most calls do nothing."""
    breath = _BREATH.get(None)
    if breath is None:
        breath = _Breath(no_check)
        _BREATH.set(breath)
    if time.perf_counter() - breath.latest > SLICE_SECONDS:
        time.sleep(0)
        breath.ask()
        breath.latest = time.perf_counter()
