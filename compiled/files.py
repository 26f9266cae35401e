"""Where compiled kernels are kept between starts, and how one is read and written.

The rule of this file: whatever is wrong with the disk, a start goes on. A file is whole or it counts
as missing (it begins with the checksum of the rest, and is put in place by one rename, so any number
of processes may write the same kernel at once); where no folder can be written, none is.
"""

import hashlib
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SUFFIX = ".kernel"
KEPT_SECONDS = 30 * 86400  # since the last start that used it
KEPT_BYTES = 256 << 20
_TOUCHED_SECONDS = 86400  # a file's time is renewed at most once a day
_UNFINISHED_SECONDS = 3600
_CHECKSUM_BYTES = 16
_ROOM_BYTES = 1 << 18  # more than any one kernel takes


def cache_home() -> Path:
    """The user's cache directory for diskmoe, by the platform's custom; nothing is created."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
        return Path(base) / "diskmoe"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "diskmoe"
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "diskmoe"


def kernel_folders() -> list[Path]:
    """Folders for compiled kernels, best first: NUMBA_CACHE_DIR, else the user's cache, our own."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given:
        return [Path(given) / "diskmoe"]
    ours = Path(__file__).resolve().parent / "__pycache__" / "kernels"
    try:
        return [cache_home() / "kernels", ours]
    except RuntimeError:  # a user without a home directory
        return [ours]


def read_kernel(name: str) -> tuple[bytes | None, list[Path]]:
    """The bytes that were written under this name, and damaged files that were passed over.

    Folders that cannot be written are read all the same: an image with kernels built in is one.
    """
    damaged: list[Path] = []
    for folder in kernel_folders():
        path = folder / (name + SUFFIX)
        try:
            content = path.read_bytes()
        except OSError:
            continue
        body = content[_CHECKSUM_BYTES:]
        if content[:_CHECKSUM_BYTES] != _checksum(body):
            damaged.append(path)
            continue
        _touch(path)
        return body, damaged
    return None, damaged


def write_kernel(name: str, body: bytes) -> Path | None:
    """Keeps the bytes in the first folder that takes them; None where there is no such folder."""
    for folder in kernel_folders():
        path = folder / (name + SUFFIX)
        unfinished = folder / f".{name}.{secrets.token_hex(4)}.tmp"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with unfinished.open("xb") as file:
                file.write(_checksum(body) + body)
            unfinished.replace(path)
        except OSError:  # read-only, full, or of somebody else
            _remove(unfinished)
            continue
        except BaseException:  # Ctrl-C
            _remove(unfinished)
            raise
        return path
    return None


def kernels_can_be_kept() -> bool:
    """Whether there is a folder that takes files, and has room for a kernel."""
    for folder in kernel_folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
                # what a write that did not fit tells is its length, not an error
                if file.write(bytes(_ROOM_BYTES)) == _ROOM_BYTES:
                    return True
        except OSError:
            continue
    return False


def kept_kernels() -> dict[Path, int]:
    """Bytes of each kernel in the first folder that holds any."""
    for folder in kernel_folders():
        found = {path: size for _, size, path in _ages(folder, 0.0) if path.suffix == SUFFIX}
        if found:
            return found
    return {}


def prune_kernels() -> int:
    """Removes kernels that no start has used for a month, the oldest of too many, and leftovers.

    Returns how many. A process that is about to read one of them compiles it again: no harm done.
    """
    now, removed, total = time.time(), 0, 0
    for folder in kernel_folders():
        for age, size, path in sorted(_ages(folder, now)):
            finished = path.name.endswith(SUFFIX)
            total += size
            limit = KEPT_SECONDS if finished else _UNFINISHED_SECONDS
            # what was used this hour is never one of too many: its process may still be starting
            if age > limit or (total > KEPT_BYTES and age > _UNFINISHED_SECONDS):
                removed += _remove(path)
    return removed


def _ages(folder: Path, now: float) -> Iterator[tuple[float, int, Path]]:
    """(seconds since the last use, bytes, path) of each file of ours in a folder."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if not entry.name.endswith((SUFFIX, ".tmp")):
            continue
        try:
            stat = entry.stat()
        except OSError:  # gone meanwhile
            continue
        yield now - stat.st_mtime, stat.st_size, Path(entry.path)


def _touch(path: Path) -> None:
    try:
        if time.time() - path.stat().st_mtime > _TOUCHED_SECONDS:
            os.utime(path)
    except OSError:
        pass


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES).digest()
