"""Opening files for reading, past the page cache where the system has a way and it works.

Linux has O_DIRECT: offset, length and memory are multiples of 4096 then, and some file systems
refuse it. macOS has F_NOCACHE, which keeps pages out of the cache and asks for nothing.
"""

import mmap
import os
import sys
from pathlib import Path
from typing import Literal

from diskmoe.experts.errors import BadModel
from diskmoe.experts.tiles import PAGE

DirectMode = Literal["auto", "on", "off"]
_F_NOCACHE = 48  # of macOS's fcntl.h; Python knows the name only there


def direct_way() -> str | None:
    """What this system calls reading past its page cache: "O_DIRECT", "F_NOCACHE" or None."""
    if hasattr(os, "O_DIRECT") and hasattr(os, "preadv"):
        return "O_DIRECT"
    return "F_NOCACHE" if sys.platform == "darwin" else None


def open_file(path: Path, direct: bool = False) -> int:
    """A file descriptor for reading; with `direct`, past the page cache. Raises OSError."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    if not direct or direct_way() is None:
        return os.open(path, flags)
    if direct_way() == "O_DIRECT":
        return os.open(path, flags | os.O_DIRECT)
    import fcntl  # not there on Windows

    fd = os.open(path, flags)
    try:
        fcntl.fcntl(fd, _F_NOCACHE, 1)
    except OSError:
        os.close(fd)
        raise
    return fd


def probe_direct(path: Path, mode: DirectMode = "auto") -> tuple[bool, str]:
    """(read past the page cache?, reason) for the files that lie where `path` does, by one read.

    BadModel when `mode` is "on" and it cannot be: an option that is not honoured is an error.
    """
    if mode == "off":
        return False, "switched off"
    reason = _why_not_direct(path)
    if reason is None:
        return True, f"a trial read of {path.name} works"
    if mode == "on":
        raise BadModel(
            f"{path}: cannot be read past the page cache: {reason}; use DIRECT=auto or 0"
        )
    return False, reason


def _why_not_direct(path: Path) -> str | None:
    way = direct_way()
    if way is None:
        return "this system has no O_DIRECT"
    try:
        fd = open_file(path, direct=True)
    except OSError as error:
        return f"opening with {way}: {error.strerror or error}"
    try:
        with mmap.mmap(-1, PAGE) as page:  # page-aligned memory
            wanted = min(PAGE, os.fstat(fd).st_size)
            got = os.readv(fd, [page])
            return None if got == wanted else f"a trial read gave {got} of {wanted} bytes"
    except OSError as error:
        return f"a trial read: {error.strerror or error}"
    finally:
        os.close(fd)
