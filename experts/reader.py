"""Reading bytes of files into memory that is already there, from several threads.

The rule of this file: a read gives all its bytes or raises `ReadFailed` with the file, the offset,
the layer and the expert. `preadv` is used where there is one; O_DIRECT, which keeps the page cache
out of the way, where it is wanted and a trial read shows that it works.
"""

import contextlib
import errno
import mmap
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from diskmoe.experts.errors import BadModel, ReadFailed
from diskmoe.experts.tiles import PAGE, Bytes

DirectMode = Literal["auto", "on", "off"]
_CHUNK = 1 << 30  # single reads of 2 GiB and more are refused or cut short by some systems


def probe_direct(path: Path, mode: DirectMode = "auto") -> tuple[bool, str]:
    """(use O_DIRECT?, reason) for the files that lie where `path` does, by one aligned read.

    BadModel when `mode` is "on" and it cannot be: an option that is not honoured is an error.
    """
    if mode == "off":
        return False, "switched off"
    reason = _why_not_direct(path)
    if reason is None:
        return True, f"a trial read of {path.name} works"
    if mode == "on":
        raise BadModel(f"{path}: O_DIRECT cannot be used: {reason}; use DIRECT=auto or 0")
    return False, reason


def _why_not_direct(path: Path) -> str | None:
    flag = getattr(os, "O_DIRECT", 0)
    if not flag or not hasattr(os, "preadv"):
        return "this system has no O_DIRECT"
    try:
        fd = os.open(path, os.O_RDONLY | flag)
    except OSError as error:
        return f"opening with O_DIRECT: {error.strerror or error}"
    try:
        with mmap.mmap(-1, PAGE) as page:  # page-aligned memory
            wanted = min(PAGE, os.fstat(fd).st_size)
            got = os.preadv(fd, [page], 0)
            return None if got == wanted else f"a trial read gave {got} of {wanted} bytes"
    except OSError as error:
        return f"a trial read: {error.strerror or error}"
    finally:
        os.close(fd)


class FileReader:
    """Keeps files open and reads pieces of them; safe to use from several threads.

    With `direct`, reads whose offset and length are multiples of 4096 bypass the page cache.
    """

    def __init__(self, direct: bool = False) -> None:
        self.direct = direct
        self._fds: dict[tuple[Path, bool], int] = {}
        self._lock = threading.Lock()
        self._closed = False

    def read_into(
        self, path: Path, offset: int, view: Bytes, layer: int | None = None, expert: int = 0
    ) -> None:
        """Fill `view` with the bytes of the file from `offset` on. An I/O error is tried once more.

        `layer` and `expert` are for the message only.
        """
        direct = self.direct and offset % PAGE == 0 and len(view) % PAGE == 0
        where = f"{path}: reading {len(view)} bytes at {offset}"
        if layer is not None:
            where += f" (layer {layer}, expert {expert})"
        done, retried = 0, False
        while done < len(view):
            # a direct read that stopped between pages cannot go on directly
            try:
                fd = self._fd(path, direct and done % PAGE == 0)
                count = self._read(fd, view[done : done + _CHUNK], offset + done)
            except OSError as error:
                if error.errno == errno.EINVAL and direct:
                    direct = False
                elif error.errno == errno.EIO and not retried:
                    retried = True
                else:
                    reason = error.strerror or error
                    raise ReadFailed(f"{where}: {reason}; check the disk, and the file") from error
                continue
            if count == 0:
                raise ReadFailed(
                    f"{where}: the file ends {len(view) - done} bytes early; "
                    "it has changed since it was opened"
                )
            done += count

    def _fd(self, path: Path, direct: bool) -> int:
        fd = self._fds.get((path, direct))
        if fd is not None:
            return fd
        with self._lock:
            if self._closed:
                raise OSError(errno.EBADF, "the reader is closed")
            if (path, direct) not in self._fds:
                flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
                flags |= getattr(os, "O_DIRECT", 0) if direct else 0
                self._fds[path, direct] = os.open(path, flags)
            return self._fds[path, direct]

    def _read(self, fd: int, view: Bytes, offset: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(fd, [view.data], offset)
        with self._lock:  # one file position for all threads
            os.lseek(fd, offset, os.SEEK_SET)
            with open(fd, "rb", buffering=0, closefd=False) as file:
                return file.readinto(view.data) or 0

    def close(self) -> None:
        """Close all files. No read may be under way."""
        with self._lock:
            self._closed = True
            for fd in self._fds.values():
                with contextlib.suppress(OSError):
                    os.close(fd)
            self._fds.clear()


class ReadPool:
    """Threads that run reads. Two to four hide a disk's latency behind two computing cores."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = max(1, n_threads)
        self._executor = ThreadPoolExecutor(self.n_threads, thread_name_prefix="diskmoe-read")

    def submit(self, work: Callable[[], None]) -> "Future[None]":
        """Run `work` on a thread of the pool; its exception comes out of the future."""
        return self._executor.submit(work)

    def close(self) -> None:
        """Wait for reads under way, drop those not begun."""
        self._executor.shutdown(wait=True, cancel_futures=True)
