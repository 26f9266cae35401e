import _thread
import threading
import time

import pytest

from diskmoe.engine.kernels.workers import Workers


class Recorder:
    """A kernel that notes its parts."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, int]] = []
        self.threads: set[int] = set()

    def __call__(self, begin: int, end: int) -> None:
        self.parts.append((begin, end))
        self.threads.add(threading.get_ident())


@pytest.mark.parametrize("n_threads", [1, 2, 5])
@pytest.mark.parametrize("n_items", [0, 1, 2, 3, 7, 100])
def test_parts_cover_every_item_once(n_threads: int, n_items: int):
    recorder = Recorder()
    with Workers(n_threads) as workers:
        workers.run(recorder, n_items)
    items = sorted(item for begin, end in recorder.parts for item in range(begin, end))
    assert items == list(range(n_items))


def test_small_work_stays_in_the_callers_thread():
    recorder = Recorder()
    with Workers(3) as workers:
        workers.run(recorder, 10, grain=6)
    assert recorder.parts == [(0, 10)]
    assert recorder.threads == {threading.get_ident()}


def test_no_part_is_smaller_than_the_grain():
    recorder = Recorder()
    with Workers(8) as workers:
        workers.run(recorder, 20, grain=6)
    assert min(end - begin for begin, end in recorder.parts) >= 6
    assert len(recorder.parts) == 3


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_exception_of_any_part_reaches_the_caller(failing: int):
    def kernel(begin: int, end: int) -> None:
        if begin == failing:
            raise KeyError(begin)

    recorder = Recorder()
    with Workers(3) as workers:
        with pytest.raises(KeyError, match=str(failing)):
            workers.run(kernel, 3)
        workers.run(recorder, 3)  # still usable
    assert len(recorder.parts) == 3


def test_the_first_parts_exception_wins():
    def kernel(begin: int, end: int) -> None:
        time.sleep(0.02 * (3 - begin))
        if begin:
            raise KeyError(begin)

    with Workers(3) as workers, pytest.raises(KeyError, match="1"):
        workers.run(kernel, 3)


def test_an_interrupt_waits_until_the_other_threads_have_left_the_kernel():
    left = []

    def kernel(begin: int, end: int) -> None:
        if begin:
            time.sleep(0.1)
            left.append(begin)
        else:
            raise KeyboardInterrupt

    with Workers(2) as workers:
        with pytest.raises(KeyboardInterrupt):
            workers.run(kernel, 2)
        assert left == [1]


def test_an_interrupt_while_waiting_ends_the_wait_only_after_the_kernel():
    left = []

    def kernel(begin: int, end: int) -> None:
        if begin:
            time.sleep(0.05)
            _thread.interrupt_main()
            time.sleep(0.05)
            left.append(begin)

    with Workers(2) as workers:
        with pytest.raises(KeyboardInterrupt):
            workers.run(kernel, 2)
            time.sleep(1)  # where the interrupt is not noticed before the kernel has ended
        assert left == [1]


@pytest.mark.parametrize("times", [1, 5])
def test_an_interrupt_just_before_the_wait_does_not_cut_it_short(
    times: int, monkeypatch: pytest.MonkeyPatch
):
    left, interrupts = [], []
    real = Workers._wait_until_idle

    def interrupted(workers: Workers) -> None:
        if len(interrupts) < times:
            interrupts.append(1)
            raise KeyboardInterrupt("a later one")
        real(workers)

    def kernel(begin: int, end: int) -> None:
        if not begin:
            raise KeyboardInterrupt("the first")
        time.sleep(0.1)
        left.append(begin)

    monkeypatch.setattr(Workers, "_wait_until_idle", interrupted)
    with Workers(2) as workers:
        with pytest.raises(KeyboardInterrupt, match="the first"):
            workers.run(kernel, 2)
        assert left == [1]
        assert len(interrupts) == times


def test_many_real_interrupts_do_not_cut_the_wait_short():
    left = []

    def kernel(begin: int, end: int) -> None:
        if not begin:
            raise KeyboardInterrupt
        for _ in range(5):
            time.sleep(0.02)
            _thread.interrupt_main()
        time.sleep(0.05)
        left.append(begin)

    with Workers(2) as workers:
        with pytest.raises(KeyboardInterrupt):
            workers.run(kernel, 2)
        assert left == [1]


def test_close_ends_the_threads_and_a_second_close_does_nothing():
    before = threading.active_count()
    workers = Workers(4)
    assert threading.active_count() == before + 3
    workers.close()
    workers.close()
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="closed"):
        workers.run(Recorder(), 10)


def test_an_idle_thread_keeps_no_arguments_alive():
    import weakref

    class Thing:
        pass

    thing = Thing()
    gone = weakref.ref(thing)
    with Workers(2) as workers:
        workers.run(lambda thing, begin, end: None, 2, thing)
        del thing
        workers.run(Recorder(), 2)
        for _ in range(100):
            if gone() is None:
                break
            time.sleep(0.01)
        assert gone() is None


def test_calls_from_several_threads_take_turns():
    running = []
    overlaps = []

    def kernel(begin: int, end: int) -> None:
        if begin == 0:
            overlaps.append(len(running))
            running.append(1)
            time.sleep(0.005)
            running.pop()

    with Workers(2) as workers:
        threads = [
            threading.Thread(target=lambda: [workers.run(kernel, 2) for _ in range(5)])
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert overlaps == [0] * 15


def test_no_threads_are_refused():
    with pytest.raises(ValueError, match="at least 1 thread"):
        Workers(0)
