"""Is a file in the system's page cache? Without knowing, a read speed says nothing about a disk."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

_WINDOWS, _WINDOW_PAGES = 128, 16  # looked at in a larger file, evenly spread: 8 MiB of it


def cached_share(paths: Iterable[Path]) -> float | None:
    """The share of the files' bytes that is in the page cache now, 0.0 to 1.0.

    None where the system cannot tell (anything but Linux and macOS) or a file cannot be opened.
    Nothing is read: ``mincore(2)`` answers from the page tables. Of files over 8 MiB it is asked
    for a sample: a million pages would take a quarter of a second.
    """
    if sys.platform not in ("linux", "darwin"):
        return None
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    cached = total = 0.0
    for path in paths:
        found = _cached_bytes(path, mincore)
        if found is None:
            return None
        cached += found[0]
        total += found[1]
    return cached / total if total else None


def _cached_bytes(path: Path, mincore: Callable[..., int]) -> tuple[float, int] | None:
    """(bytes in the page cache, bytes of the file); None where that cannot be told."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if not size:
                return 0.0, 0
            with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as mapped:
                view = np.frombuffer(mapped, dtype=np.uint8)
                flags = _page_flags(view.ctypes.data, size, mincore)
                del view  # an exported buffer would keep the map from closing
    except (OSError, ValueError):
        return None
    return None if flags is None else (size * float(np.mean(flags & 1)), size)


def _page_flags(
    address: int, size: int, mincore: Callable[..., int]
) -> npt.NDArray[np.uint8] | None:
    """What mincore says of the pages of a mapping, or of evenly spread windows of a large one."""
    pages = -(-size // mmap.PAGESIZE)
    starts, window = np.zeros(1, np.int64), pages
    if pages > _WINDOWS * _WINDOW_PAGES:
        window = _WINDOW_PAGES
        starts = np.linspace(0, pages - window, _WINDOWS).astype(np.int64)
    flags = np.zeros((len(starts), window), np.uint8)
    for row, start in zip(flags, starts.tolist(), strict=True):
        begin = start * mmap.PAGESIZE
        nbytes = min(window * mmap.PAGESIZE, size - begin)
        if mincore(address + begin, nbytes, row.ctypes.data):
            return None
    return flags.reshape(-1)
