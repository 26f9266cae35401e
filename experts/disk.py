"""How fast does a disk give expert records, and take files? Asked before a run or a conversion, and
by ``bench disk``.

The rule of this file: what is timed are reads as a run makes them, of whole records at random
places, by the same reader; and never of what memory holds already.
"""

import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue

from diskmoe.experts.arena import Arena
from diskmoe.experts.direct import DirectMode, direct_way, probe_direct
from diskmoe.experts.pagecache import cached_share
from diskmoe.experts.reader import FileReader, ReadPool
from diskmoe.experts.tiles import PAGE, Bytes

MOST_CACHED = 0.1  # of the files, for reads through the page cache to say something of the disk
SLOTS_PER_THREAD = 2  # a single one would stay in the processor's cache
Block = tuple[Path, int]  # a file and an offset, a multiple of 4096


def measure_disk(
    files: Sequence[Path],
    record_bytes: int,
    n_threads: int = 4,
    direct: DirectMode = "auto",
    seconds: float = 0.4,
) -> tuple[float | None, str]:
    """(bytes per second of random reads of `record_bytes`, how it was measured) or (None, why not).

    Takes `seconds`, and the memory of two records per thread. Raises ReadFailed.
    """
    nbytes = pages(record_bytes)
    blocks = blocks_of(files, nbytes)
    if not blocks:
        return None, f"no file is as long as a record of {record_bytes} bytes"
    used, reason = probe_direct(files[0], direct)
    if not (used and direct_way() == "O_DIRECT"):  # F_NOCACHE reads what is cached from the cache
        share = cached_share(files)
        if share is None:
            return None, f"no O_DIRECT ({reason}), and this system does not tell what is cached"
        if share > MOST_CACHED:
            return None, f"no O_DIRECT ({reason}), and {100 * share:.0f} % of the files is cached"
    random.shuffle(blocks)
    reader = FileReader(used)
    try:
        speed = read_speed(reader.read_into, iter(blocks), nbytes, n_threads, seconds)
    finally:
        reader.close()
    way = direct_way() if used else "plain reads of what is not cached"
    return speed, f"random reads of {nbytes} bytes, {n_threads} at a time, {way}"


def write_speed(folder: Path, most_bytes: int = 64 << 20, seconds: float = 0.5) -> float | None:
    """Bytes per second of writing one file and of waiting until the disk has it.

    The file has no name that could stay behind. None where there is no room to try, or writing
    fails: whoever means it will hear why.
    """
    block = os.urandom(4 << 20)  # nothing that a file system could press together
    try:
        most_bytes = min(most_bytes, shutil.disk_usage(folder).free // 4)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            begin, written = time.perf_counter(), 0
            while written + len(block) <= most_bytes and time.perf_counter() - begin < seconds:
                written += file.write(block)
            os.fsync(file.fileno())
            return written / (time.perf_counter() - begin) if written else None
    except OSError:
        return None


def pages(nbytes: int) -> int:
    """So many bytes, rounded up to whole pages."""
    return -(-nbytes // PAGE) * PAGE


def blocks_of(files: Sequence[Path], nbytes: int) -> list[Block]:
    """The files cut into blocks of `nbytes`, a multiple of 4096, in order; the rests are left out."""
    return [
        (path, offset)
        for path in files
        for offset in range(0, path.stat().st_size - nbytes + 1, nbytes)
    ]


def read_speed(
    read: Callable[[Path, int, Bytes], None],
    blocks: Iterator[Block],
    nbytes: int,
    n_threads: int,
    seconds: float,
) -> float:
    """Bytes per second of `n_threads` threads that `read` blocks until the time or they are over.

    A block at least each, if there are so many. Raises what a read raised.
    """
    arena = Arena(SLOTS_PER_THREAD * n_threads, nbytes)
    arena.bytes[:] = 0  # pages are made before the clock starts, as those of a hot store are
    pool = ReadPool(n_threads)
    outcomes: SimpleQueue[int | BaseException] = SimpleQueue()
    begin = time.perf_counter()

    def work(first: int) -> None:
        count = 0
        try:
            for path, offset in blocks:
                read(path, offset, arena.slot(first + count % SLOTS_PER_THREAD))
                count += 1
                if time.perf_counter() - begin >= seconds:
                    break
        except BaseException as error:  # noqa: BLE001 - raised below, where it is waited for
            outcomes.put(error)
        else:
            outcomes.put(count)

    try:
        for thread in range(n_threads):
            pool.submit(lambda first=thread * SLOTS_PER_THREAD: work(first))
        counts = [outcomes.get() for _ in range(n_threads)]
        took = time.perf_counter() - begin
    finally:
        pool.close()
        arena.close()
    total = 0
    for count in counts:
        if isinstance(count, BaseException):
            raise count
        total += count
    return total * nbytes / took
