"""One process at a time in a directory: a file there names the process that works in it.

The rule of this file: a lock whose process is gone is taken over, by one process only; a lock that
is held is refused in one line that says by whom. A process is its number and the time it began:
numbers are given out again, in containers the same ones every time.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from diskmoe.experts.errors import BadOutput

LOCK_NAME = "convert.lock"
_CLOCK_SECONDS = 2.0  # what a process is said to have begun at may differ by rounding
_WRITE_SECONDS = 10.0  # a younger lock without a number is being written


@contextmanager
def locked(directory: Path, moved_to: Path, name: str = LOCK_NAME) -> Iterator[None]:
    """Hold the lock of `directory`; BadOutput when another process holds it.

    `moved_to`: where the directory, and the lock in it, may be when the lock is given back.
    `name`: of the file.
    OSError when the directory cannot be written.
    """
    lock = directory / name
    ours = f"{os.getpid()} {psutil.Process().create_time():.2f}"
    if not _create(lock, ours):
        _take_over(lock, ours)
    try:
        yield
    finally:
        for place in (lock, moved_to / name):
            with contextlib.suppress(OSError):
                if _read(place) == ours:
                    place.unlink()


def _take_over(lock: Path, ours: str) -> None:
    """Replace the lock of a process that is gone; BadOutput when it is not gone."""
    _refuse_held(lock)
    guard = lock.with_name(lock.name + ".tmp")  # whoever makes it may replace the lock
    if not _create(guard, ours):
        if _age_seconds(guard) > _WRITE_SECONDS:
            guard.unlink(missing_ok=True)  # its maker was killed
        raise BadOutput(
            f"{lock.parent}: another process is just beginning there; wait for it, "
            f"or try again in {_WRITE_SECONDS:g} seconds"
        )
    try:
        _refuse_held(lock)  # somebody was faster
        os.replace(guard, lock)
    finally:
        guard.unlink(missing_ok=True)


def _refuse_held(lock: Path) -> None:
    text = _read(lock)
    number, _, began = text.partition(" ")
    try:
        pid, began_seconds = int(number), float(began)
    except ValueError:
        if _age_seconds(lock) > _WRITE_SECONDS:
            return  # killed while it wrote its number
        pid, began_seconds = 0, None
    if began_seconds is None or _is_running(pid, began_seconds):
        raise BadOutput(
            f"{lock.parent}: {f'process {pid}' if pid else 'another process'} is at work "
            f"in it; wait until it is done, or name another directory"
        )


def _is_running(pid: int, began_seconds: float) -> bool:
    try:
        return abs(psutil.Process(pid).create_time() - began_seconds) <= _CLOCK_SECONDS
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        return False
    except psutil.Error:
        return True  # somebody else's: it is there, and more is not told


def _create(path: Path, text: str) -> bool:
    """Make the file if there is none."""
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    try:
        with open(fd, "wb") as file:
            file.write(text.encode())
    except OSError:  # a full disk
        path.unlink(missing_ok=True)
        raise
    return True


def _age_seconds(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _read(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(100).decode("ascii", "replace")
    except FileNotFoundError:
        return ""
