"""Reads that give all their bytes, or say which bytes of whom they could not get."""

import errno
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from diskmoe.experts.arena import Arena
from diskmoe.experts.direct import probe_direct
from diskmoe.experts.errors import ReadFailed
from diskmoe.experts.pacer import Pacer
from diskmoe.experts.reader import FileReader, ReadPool, through_nbytes

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


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize(("offset", "nbytes"), [(0, 1), (5000, 777), (4095, 8194), (16384, 4096)])
def test_unaligned_bytes_are_read_by_whole_pages(
    file: Path, offset: int, nbytes: int, direct: bool
) -> None:
    reader, arena = FileReader(direct and probe_direct(file)[0]), Arena(1, through_nbytes(nbytes))
    got = reader.read_through(file, offset, nbytes, arena.slot(0))
    np.testing.assert_array_equal(got, expected(file, offset, nbytes))
    assert np.shares_memory(got, arena.bytes)
    reader.close()


@pytest.mark.parametrize("direct", [False, True])
def test_a_file_may_end_within_the_last_page_of_a_read(file: Path, direct: bool) -> None:
    with open(file, "ab") as more:
        more.write(b"x" * 100)
    reader, arena = FileReader(direct and probe_direct(file)[0]), Arena(1, 3 * 4096)
    got = reader.read_through(file, 5 * 4096 - 50, 150, arena.slot(0))
    np.testing.assert_array_equal(got, expected(file, 5 * 4096 - 50, 150))
    with pytest.raises(ReadFailed, match="ends 1 bytes early"):
        reader.read_through(file, 5 * 4096 - 50, 151, arena.slot(0))
    reader.close()


def test_a_paced_read_takes_its_turn_and_gives_its_bytes(file: Path) -> None:
    waits: list[float] = []

    class Counted(Pacer):
        def wait(self, due: float) -> None:
            waits.append(due)

    reader, view = FileReader(pacer=Counted(1000, clock=lambda: 100.0)), np.zeros(500, np.uint8)
    for _ in range(2):
        reader.read_into(file, 7, view)
    np.testing.assert_array_equal(view, expected(file, 7, 500))
    assert waits == [100.5, 101.0]
    reader.close()


class Held:
    """A pool of one thread that is busy until `release`, so that what follows has to queue."""

    def __init__(self, most_later: int = 64) -> None:
        self.pool, self.done = ReadPool(1, most_later), []
        self._begun, self._go = threading.Event(), threading.Event()
        self.pool.submit(self._hold)
        assert self._begun.wait(10)

    def _hold(self) -> None:
        self._begun.set()
        self._go.wait(10)

    def work(self, name: str) -> Callable[[], None]:
        return partial(self.done.append, name)

    def release(self) -> None:
        """Everything that is queued now has been done, or never will be, when it returns."""
        last = threading.Event()
        self.pool.submit(last.set, urgent=False)
        self._go.set()
        assert last.wait(10)


def test_what_is_waited_for_goes_before_speculation_and_each_in_order() -> None:
    held = Held()
    for name, urgent in (("s1", False), ("d1", True), ("s2", False), ("d2", True)):
        assert held.pool.submit(held.work(name), urgent)
    held.release()
    assert held.done == ["d1", "d2", "s1", "s2"]
    held.pool.close()


def test_speculation_is_called_off_unless_it_has_begun() -> None:
    held = Held()
    kept, dropped, demanded = held.work("kept"), held.work("dropped"), held.work("demanded")
    held.pool.submit(kept, urgent=False)
    held.pool.submit(dropped, urgent=False)
    held.pool.submit(demanded)
    assert held.pool.cancel(dropped)
    assert not held.pool.cancel(dropped)  # once
    assert not held.pool.cancel(demanded)  # somebody waits for it
    held.release()
    assert held.done == ["demanded", "kept"]
    assert not held.pool.cancel(kept)
    held.pool.close()


def test_speculation_that_waits_is_bounded_and_demand_is_not() -> None:
    held = Held(most_later=2)
    assert [held.pool.submit(held.work("s"), urgent=False) for _ in range(3)] == [True, True, False]
    assert all(held.pool.submit(held.work("d")) for _ in range(20))
    held._go.set()
    held.pool.close()


def test_a_closed_pool_has_no_thread_and_takes_nothing() -> None:
    held = Held()
    held.pool.submit(held.work("never"))
    closing = threading.Thread(target=held.pool.close)
    closing.start()
    time.sleep(0.05)
    assert closing.is_alive()  # it waits for the read under way
    held._go.set()
    closing.join(10)
    assert held.done == []
    assert not any(thread.is_alive() for thread in held.pool._threads)
    assert not held.pool.submit(held.work("late"))


def test_nothing_is_lost_or_done_twice_between_many_threads() -> None:
    pool, done = ReadPool(4, most_later=10**6), []
    works = [partial(done.append, number) for number in range(4000)]
    called_off = set()
    for number, work in enumerate(works):
        assert pool.submit(work, urgent=number % 3 == 0)
        if number % 7 == 0 and pool.cancel(works[number - 1]):
            called_off.add(number - 1)
    until = time.monotonic() + 20
    while len(done) < len(works) - len(called_off) and time.monotonic() < until:
        time.sleep(0.01)
    pool.close()
    assert sorted(done) == [n for n in range(len(works)) if n not in called_off]
