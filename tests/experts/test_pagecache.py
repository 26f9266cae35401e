"""The page cache's state, where the system can tell it."""

import os
import sys
from pathlib import Path

import pytest

from diskmoe.experts.pagecache import cached_share

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs posix_fadvise and mincore")


@linux
def test_a_file_just_written_is_cached_and_one_dropped_is_not(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(os.urandom(1 << 20))
    assert cached_share([path]) == 1.0
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    share = cached_share([path])
    # a memory-backed file system keeps its pages whatever it is advised
    assert share is not None and (share < 0.5 or share == 1.0)


@linux
def test_a_missing_file_and_an_empty_list_have_no_share(tmp_path: Path) -> None:
    assert cached_share([tmp_path / "none"]) is None
    assert cached_share([]) is None


@linux
def test_a_large_file_is_sampled_over_its_whole_length(tmp_path: Path) -> None:
    path = tmp_path / "large"
    size = 32 << 20
    path.write_bytes(bytes(size))
    assert cached_share([path]) == 1.0
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, size // 2, os.POSIX_FADV_DONTNEED)
    share = cached_share([path])
    assert share is not None and (0.45 < share < 0.55 or share == 1.0)


@linux
def test_files_count_by_their_size(tmp_path: Path) -> None:
    sizes = {"small": 1 << 20, "large": 15 << 20}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(size))
    with (tmp_path / "large").open("rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    share = cached_share([tmp_path / name for name in sizes])
    assert share is not None and (share < 0.1 or share == 1.0)
