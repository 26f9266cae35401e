"""A slow disk: the sum of all reads passes at the set speed, and waiting costs nothing."""

import threading
import time

import pytest

from diskmoe.experts.pacer import Pacer


def test_a_read_takes_its_bytes_over_the_speed() -> None:
    assert Pacer(500e6, clock=lambda: 10.0).ask(5_000_000) == pytest.approx(10.01)


def test_reads_queue_up_behind_each_other() -> None:
    pacer = Pacer(1000, clock=lambda: 10.0)
    assert [pacer.ask(100), pacer.ask(300), pacer.ask(100)] == pytest.approx([10.1, 10.4, 10.5])


def test_an_idle_disk_saves_nothing_up() -> None:
    now = [10.0]
    pacer = Pacer(1000, clock=lambda: now[0])
    pacer.ask(100)
    now[0] = 60.0
    assert [pacer.ask(100), pacer.ask(100)] == pytest.approx([60.1, 60.2])


def test_all_threads_share_one_pipe() -> None:
    pacer, began = Pacer(1e6), time.monotonic()

    def read() -> None:
        for _ in range(5):
            pacer.wait(pacer.ask(10_000))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began >= 0.2  # 20 reads of 10 ms, one after another


def test_waiting_takes_no_processor_time() -> None:
    pacer = Pacer(1e6)
    began = time.thread_time()
    pacer.wait(pacer.ask(200_000))
    assert time.thread_time() - began < 0.1


def test_hurry_ends_all_waiting_until_reads_are_paced_again() -> None:
    pacer = Pacer(1)
    waiting = threading.Thread(target=pacer.wait, args=(pacer.ask(10**6),))
    waiting.start()
    pacer.hurry()
    waiting.join(10)
    assert not waiting.is_alive()
    pacer.wait(pacer.ask(10**6))
    pacer.resume()
    waiting = threading.Thread(target=pacer.wait, args=(pacer.ask(10**6),))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    pacer.hurry()
    waiting.join(10)


def test_a_disk_without_speed_is_refused() -> None:
    for speed in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="bytes per second"):
            Pacer(speed)


def test_it_is_named_with_its_speed() -> None:
    assert str(Pacer(500e6)) == "disk paced at 500 MB/s"
