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


def give_back() -> None:
    """Gives the system what the allocator keeps of freed memory, and the compiler's code pages.

    LLVM's code is 50 MB as soon as a kernel has been read; a page of it that is wanted again
    comes from the page cache. No thread may be compiling.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    trim = getattr(libc, "malloc_trim", None)  # not in musl
    if trim is not None:
        trim(0)
    for begin, end in _code_of(_COMPILER):
        libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_DONTNEED)


def _code_of(library: str) -> list[tuple[int, int]]:
    """Addresses (begin, end) of a library's code; code is never written, so it can be dropped."""
    found = []
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                addresses, flags, *_, name = line.split(maxsplit=5)
                if flags == "r-xp" and library in os.path.basename(name):
                    begin, end = addresses.split("-")
                    found.append((int(begin, 16), int(end, 16)))
    except (OSError, ValueError):
        pass
    return found
