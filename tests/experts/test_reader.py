"""Reads that give all their bytes, or say which bytes of whom they could not get."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from diskmoe.experts import reader as module
from diskmoe.experts.arena import Arena
from diskmoe.experts.errors import BadModel, ReadFailed
from diskmoe.experts.reader import FileReader, ReadPool, probe_direct

needs_preadv = pytest.mark.skipif(not hasattr(os, "preadv"), reason="no preadv here")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(np.random.default_rng(0).bytes(5 * 4096))
    return path


def expected(file: Path, offset: int, nbytes: int) -> np.ndarray:
    return np.frombuffer(file.read_bytes()[offset : offset + nbytes], np.uint8)


def test_unaligned_pieces_are_read(file: Path) -> None:
    reader, view = FileReader(), np.zeros(777, np.uint8)
    reader.read_into(file, 1234, view)
    np.testing.assert_array_equal(view, expected(file, 1234, 777))
    reader.close()


def test_aligned_pieces_are_read_directly_where_it_works(file: Path) -> None:
    used, reason = probe_direct(file)
    assert reason
    reader, arena = FileReader(used), Arena(1, 8192)
    reader.read_into(file, 4096, arena.slot(0))
    np.testing.assert_array_equal(arena.slot(0), expected(file, 4096, 8192))
    reader.close()


@needs_preadv
def test_a_direct_read_that_is_refused_goes_on_plainly(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.preadv, []

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        calls.append(offset)
        if len(calls) == 1:
            raise OSError(errno.EINVAL, "no")
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    reader, view = FileReader(direct=True), np.zeros(4096, np.uint8)
    reader.read_into(file, 4096, view)
    np.testing.assert_array_equal(view, expected(file, 4096, 4096))
    reader.close()


@needs_preadv
def test_short_reads_are_continued(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.preadv

    def short(fd: int, buffers: list[memoryview], offset: int) -> int:
        return real(fd, [buffers[0][:100]], offset)

    monkeypatch.setattr(os, "preadv", short)
    reader, view = FileReader(), np.zeros(1000, np.uint8)
    reader.read_into(file, 50, view)
    np.testing.assert_array_equal(view, expected(file, 50, 1000))
    reader.close()


def test_systems_without_preadv_read_the_same(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "preadv", raising=False)
    reader, view = FileReader(), np.zeros(1000, np.uint8)
    reader.read_into(file, 50, view)
    np.testing.assert_array_equal(view, expected(file, 50, 1000))
    reader.close()
    assert probe_direct(file)[0] is False


@needs_preadv
@pytest.mark.parametrize("failures", [1, 2])
def test_an_io_error_is_tried_once_more_and_then_named(
    file: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    real, left = os.preadv, [failures]

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EIO, "Input/output error")
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    reader, view = FileReader(), np.zeros(10, np.uint8)
    if failures == 1:
        reader.read_into(file, 3, view, layer=5, expert=6)
        np.testing.assert_array_equal(view, expected(file, 3, 10))
    else:
        with pytest.raises(ReadFailed, match=r"10 bytes at 3 \(layer 5, expert 6\)") as caught:
            reader.read_into(file, 3, view, layer=5, expert=6)
        assert str(file) in str(caught.value)
        assert "Input/output error" in str(caught.value)
    reader.close()


def test_a_file_that_ends_early_is_said_with_the_bytes_missing(file: Path) -> None:
    reader = FileReader()
    with pytest.raises(ReadFailed, match="ends 80 bytes early"):
        reader.read_into(file, 5 * 4096 - 20, np.zeros(100, np.uint8), layer=0, expert=1)
    reader.close()


def test_a_file_that_is_gone_is_said(file: Path) -> None:
    file.unlink()
    reader = FileReader()
    with pytest.raises(ReadFailed, match=r"layer 2, expert 3"):
        reader.read_into(file, 0, np.zeros(8, np.uint8), layer=2, expert=3)
    reader.close()


def test_direct_reads_can_be_switched_off(file: Path) -> None:
    assert probe_direct(file, "off") == (False, "switched off")


def test_direct_reads_that_are_demanded_but_impossible_are_an_error(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_why_not_direct", lambda path: "no such thing")
    assert probe_direct(file, "auto") == (False, "no such thing")
    with pytest.raises(BadModel, match="no such thing; use DIRECT=auto"):
        probe_direct(file, "on")


def test_the_pool_hands_exceptions_to_the_one_who_waits() -> None:
    pool = ReadPool(2)

    def fail() -> None:
        raise ReadFailed("x")

    assert isinstance(pool.submit(fail).exception(), ReadFailed)
    assert pool.submit(lambda: None).result() is None
    pool.close()
