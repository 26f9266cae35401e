"""What this process holds in memory, and what it holds for nothing.

The rule of this file: what is given back is used again at no cost but a page fault; nothing is
asked of the system that not every Linux has, and elsewhere nothing is done.
"""

import ctypes
import os
import sys

import psutil

_COMPILER = "libllvmlite"  # needed until the kernels are ready
_MADV_DONTNEED = 4


def resident_bytes() -> int:
    """Memory that is resident now, in bytes; file-backed pages, code among them, count."""
    return int(psutil.Process(os.getpid()).memory_info().rss)


def trim() -> None:
    """Gives the system what the allocator keeps of freed memory."""
    if sys.platform != "linux":
        return
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)  # not in musl
    if release is not None:
        release(0)


def give_back() -> None:
    """`trim`, and the compiler's own pages.

    LLVM has 65 MB resident as soon as a kernel has been read; a page that is wanted again comes
    from the page cache. No thread may be compiling.
    """
    if sys.platform != "linux":
        return
    trim()
    libc = ctypes.CDLL(None)
    for begin, end in _unwritten_parts(_COMPILER):
        libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_DONTNEED)


def _unwritten_parts(library: str) -> list[tuple[int, int]]:
    """Addresses (begin, end) where a library lies as in its file: code and constants.

    A read-only part that has a page of its own was written by the loader, and is left alone.
    """
    found: list[tuple[int, int]] = []
    part: tuple[int, int] | None = None
    try:
        with open("/proc/self/smaps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                words = line.split(maxsplit=5)
                if not words[0].endswith(":"):  # the first line of a mapping
                    part = None
                    if words[1] in ("r-xp", "r--p") and library in os.path.basename(words[-1]):
                        begin, end = words[0].split("-")
                        part = int(begin, 16), int(end, 16)
                elif words[0] == "Anonymous:" and part and int(words[1]) == 0:
                    found.append(part)
    except (OSError, ValueError, IndexError):
        pass
    return found
