"""The speed of a disk: of whole records, at random places, never of what memory holds."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diskmoe.experts import disk as module
from diskmoe.experts.disk import blocks_of, measure_disk, read_speed, write_speed
from diskmoe.experts.errors import ReadFailed

RECORD = 3 * 4096


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / name for name in ("a", "b")]
    for number, path in enumerate(paths):
        path.write_bytes(np.random.default_rng(number).bytes(10 * RECORD + 100))
    return paths


def uncached(monkeypatch: pytest.MonkeyPatch, share: float | None, direct: bool = False) -> None:
    monkeypatch.setattr(module, "probe_direct", lambda path, mode: (direct, "said in a test"))
    monkeypatch.setattr(module, "cached_share", lambda paths: share)


def test_files_are_cut_into_aligned_blocks(files: list[Path]) -> None:
    blocks = blocks_of(files, RECORD)
    assert blocks == [(path, n * RECORD) for path in files for n in range(10)]


def test_a_speed_comes_with_how_it_was_measured(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    uncached(monkeypatch, 0.0)
    speed, how = measure_disk(files, RECORD - 5, n_threads=2, seconds=0.01)
    assert speed is not None and speed > 0
    assert how == "random reads of 12288 bytes, 2 at a time, plain reads of what is not cached"


@pytest.mark.parametrize(
    ("share", "why"), [(0.41, "41 % of the files is cached"), (None, "does not tell")]
)
def test_what_may_be_in_memory_is_not_measured(
    files: list[Path], monkeypatch: pytest.MonkeyPatch, share: float | None, why: str
) -> None:
    uncached(monkeypatch, share)
    speed, reason = measure_disk(files, RECORD)
    assert speed is None and why in reason and "said in a test" in reason


def test_a_macs_direct_reads_take_what_is_cached_from_the_cache(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "direct_way", lambda: "F_NOCACHE")
    uncached(monkeypatch, 1.0, direct=True)
    assert measure_disk(files, RECORD)[0] is None


def test_files_shorter_than_a_record_have_no_speed(files: list[Path]) -> None:
    speed, reason = measure_disk(files, 1 << 20)
    assert speed is None and "1048576" in reason


@pytest.mark.parametrize("n_threads", [1, 4])
def test_every_block_is_read_once_within_the_time(files: list[Path], n_threads: int) -> None:
    blocks, seen, lock = blocks_of(files, RECORD), [], threading.Lock()

    def read(path: Path, offset: int, view: Any) -> None:
        assert view.shape == (RECORD,) and view.ctypes.data % 4096 == 0
        with lock:
            seen.append((path, offset))

    assert read_speed(read, iter(blocks), RECORD, n_threads, seconds=60) > 0
    assert sorted(seen) == blocks


def test_a_read_that_fails_is_raised_and_leaves_no_thread(files: list[Path]) -> None:
    def read(path: Path, offset: int, view: Any) -> None:
        raise ReadFailed("here")

    with pytest.raises(ReadFailed, match="here"):
        read_speed(read, iter(blocks_of(files, RECORD)), RECORD, 3, seconds=60)
    assert not any(t.name.startswith("diskmoe-read") for t in threading.enumerate())


def test_writing_is_timed_and_leaves_nothing(tmp_path: Path) -> None:
    speed = write_speed(tmp_path, 8 << 20)
    assert speed is not None and speed > 0
    assert not list(tmp_path.iterdir())


def test_where_nothing_can_be_written_nothing_is_said(
    tmp_path: Path,
) -> None:
    assert write_speed(tmp_path / "none") is None
    assert write_speed(tmp_path, 1 << 20) is None  # less than a block
