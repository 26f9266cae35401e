"""Reading bytes of files into memory that is already there, from several threads.

The rule of this file: a read gives all its bytes or raises `ReadFailed` with the file, the offset,
the layer and the expert. It is one `preadv` where there is one, past the page cache where that is
wanted (see `direct`). Reads that somebody waits for go before those made on speculation.
"""

import contextlib
import errno
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from diskmoe.experts.direct import open_file
from diskmoe.experts.errors import ReadFailed
from diskmoe.experts.pacer import Pacer
from diskmoe.experts.tiles import PAGE, Bytes

_CHUNK = 1 << 30  # single reads of 2 GiB and more are refused or cut short by some systems


class FileReader:
    """Keeps files open and reads pieces of them; safe to use from several threads.

    With `direct`, reads go past the page cache where offset, length and memory are multiples of
    4096. A `pacer` makes them as slow as those of a slower disk.
    """

    def __init__(self, direct: bool = False, pacer: Pacer | None = None) -> None:
        self.direct = direct
        self._pacer = pacer
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
        self._fill(path, offset, view, len(view), direct, layer, expert)

    def read_through(
        self,
        path: Path,
        offset: int,
        nbytes: int,
        scratch: Bytes,
        layer: int | None = None,
        expert: int = 0,
    ) -> Bytes:
        """`nbytes` of the file from `offset` on, any numbers, as a view into `scratch`.

        scratch: page-aligned, u8 (`through_nbytes(nbytes)`,) or more: whole pages are read, so that
        bytes which lie anyhow in their file can go past the page cache too.
        """
        begin = offset // PAGE * PAGE
        end = -(-(offset + nbytes) // PAGE) * PAGE
        least = offset + nbytes - begin  # a file may end within its last page
        self._fill(path, begin, scratch[: end - begin], least, self.direct, layer, expert)
        return scratch[offset - begin : least]

    def _fill(
        self,
        path: Path,
        offset: int,
        view: Bytes,
        least: int,
        direct: bool,
        layer: int | None,
        expert: int,
    ) -> None:
        """Read `least` bytes at least, and `view` full if the file has so many."""
        due = self._pacer.ask(least) if self._pacer else 0.0
        done, retried = 0, False
        while done < least:
            try:
                # a direct read that stopped between pages cannot go on directly
                fd = self._fd(path, direct and done % PAGE == 0)
                # a signal in between is no error: Python goes on by itself (PEP 475)
                count = self._read(fd, view[done : done + _CHUNK], offset + done)
            except OSError as error:
                if error.errno == errno.EINVAL and direct:
                    direct = False
                elif error.errno == errno.EIO and not retried:
                    retried = True
                else:
                    reason = error.strerror or error
                    raise ReadFailed(
                        f"{_place(path, offset, least, layer, expert)}: {reason}; "
                        "check the disk, and the file"
                    ) from error
                continue
            if count == 0:
                raise ReadFailed(
                    f"{_place(path, offset, least, layer, expert)}: the file ends "
                    f"{least - done} bytes early; it has changed since it was opened"
                )
            done += count
        if self._pacer:
            self._pacer.wait(due)

    def _fd(self, path: Path, direct: bool) -> int:
        fd = self._fds.get((path, direct))
        if fd is not None:
            return fd
        with self._lock:
            if self._closed:
                raise OSError(errno.EBADF, "the reader is closed")
            if (path, direct) not in self._fds:
                self._fds[path, direct] = open_file(path, direct)
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


def through_nbytes(nbytes: int) -> int:
    """The scratch that `FileReader.read_through` needs for `nbytes`, wherever they begin."""
    return (nbytes + 2 * (PAGE - 1)) // PAGE * PAGE


def _place(path: Path, offset: int, nbytes: int, layer: int | None, expert: int) -> str:
    whose = "" if layer is None else f" (layer {layer}, expert {expert})"
    return f"{path}: reading {nbytes} bytes at {offset}{whose}"


class ReadPool:
    """Threads that run reads. Two to four hide a disk's latency behind two computing cores.

    What is submitted tells its outcome to whoever waits for it, by its own means, and raises
    nothing. `most_later` bounds the speculative work that waits.
    """

    def __init__(self, n_threads: int, most_later: int = 64) -> None:
        self.n_threads = max(1, n_threads)
        self._most_later = most_later
        self._urgent: deque[Callable[[], None]] = deque()
        self._later: deque[Callable[[], None]] = deque()
        # a token wakes a thread, which takes all there is: no work waits for one that Ctrl-C cut
        # off, and one too many does no harm; the queues are atomic, so that no lock is needed
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._closed = False
        # daemons: a process that ends without `close` does not wait for its disk
        self._threads = [
            threading.Thread(target=self._serve, name=f"diskmoe-read-{number}", daemon=True)
            for number in range(self.n_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], None], urgent: bool = True) -> bool:
        """Run `work` on a thread of the pool, in order; what is not urgent when nothing else waits.

        False when it was refused: speculative work of which enough waits already, a closed pool.
        """
        if self._closed or (not urgent and len(self._later) >= self._most_later):
            return False
        (self._urgent if urgent else self._later).append(work)
        self._tokens.put(None)
        return True

    def cancel(self, work: Callable[[], None]) -> bool:
        """Call off speculative `work`. True when it had not begun, and never will."""
        try:
            self._later.remove(work)
        except ValueError:
            return False
        return True

    def _serve(self) -> None:
        while True:
            self._tokens.get()
            while (work := self._next()) is not None and not self._closed:
                work()
            if self._closed:
                return

    def _next(self) -> Callable[[], None] | None:
        for waiting in (self._urgent, self._later):
            try:
                return waiting.popleft()
            except IndexError:
                continue
        return None

    def close(self) -> None:
        """Wait for reads under way, drop those not begun."""
        self._closed = True
        self._urgent.clear()
        self._later.clear()
        for _ in self._threads:
            self._tokens.put(None)
        for thread in self._threads:
            thread.join()
