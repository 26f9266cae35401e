"""Is a file in the system's page cache? Without knowing, a read speed says nothing about a disk."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np


def cached_share(paths: Iterable[Path]) -> float | None:
    """The share of the files' bytes that is in the page cache now, 0.0 to 1.0.

    None where the system cannot tell (anything but Linux and macOS) or a file cannot be opened.
    Nothing is read: ``mincore(2)`` answers from the page tables.
    """
    if sys.platform not in ("linux", "darwin"):
        return None
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    cached = pages = 0
    for path in paths:
        flags = _page_flags(path, mincore)
        if flags is None:
            return None
        cached += int(np.count_nonzero(flags & 1))
        pages += len(flags)
    return cached / pages if pages else None


def _page_flags(path: Path, mincore: Callable[..., int]) -> np.ndarray | None:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if not size:
                return np.zeros(0, dtype=np.uint8)
            with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as mapped:
                flags = np.zeros(-(-size // mmap.PAGESIZE), dtype=np.uint8)
                view = np.frombuffer(mapped, dtype=np.uint8)
                failed = mincore(view.ctypes.data, size, flags.ctypes.data)
                del view  # an exported buffer would keep the map from closing
    except (OSError, ValueError):
        return None
    return None if failed else flags
