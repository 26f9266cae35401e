import _thread
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from diskmoe.engine.kernels import workers as module
from diskmoe.engine.kernels.atomics import add_word, load_word, pause, store_word
from diskmoe.engine.kernels.program import MAX_ITEMS, Builder, Phase, Program
from diskmoe.engine.kernels.workers import Workers

MANY = 1e9  # multiply-adds of an item: every item is worth a claim of its own


def _count(args, begin, end):
    """Add 1 to the word of each item."""
    for item in range(begin, end):
        add_word(load_word(args) + item * 8, 1)


def _double_the_one_before(args, begin, end):
    """word[item + n] = 2 * word[n - 1 - item]: of use only when the phase before is over."""
    n = load_word(args + 8)
    for item in range(begin, end):
        store_word(
            load_word(args) + (n + item) * 8, 2 * load_word(load_word(args) + (n - 1 - item) * 8)
        )


def _wait_for_word(args, begin, end):
    """Count in word 2, wait until word 0 is 1, then count in word 1."""
    for _ in range(begin, end):
        add_word(load_word(args) + 16, 1)
        while load_word(load_word(args)) != 1:
            pause()
        add_word(load_word(args) + 8, 1)


COUNT, DOUBLE, WAIT = Phase(_count), Phase(_double_the_one_before), Phase(_wait_for_word)


def counting(words: np.ndarray, n_items: int, macs: float = MANY, phases: int = 1) -> Program:
    builder = Builder()
    for _ in range(phases):
        builder.add(COUNT, [words.ctypes.data], n_items, macs)
    builder.keep(words)
    return builder.program()


def words_for(n: int) -> np.ndarray:
    return np.zeros(n, np.int64)


def until_begun(words: np.ndarray, items: int = 1) -> None:
    """Waits until so many items of WAIT are under way."""
    while words[2] < items:
        time.sleep(0.001)


@pytest.mark.parametrize("n_threads", [1, 2, 3, 4])
@pytest.mark.parametrize("n_items", [0, 1, 2, 3, 7, 1000])
def test_every_item_is_done_once(n_threads: int, n_items: int):
    words = words_for(n_items + 1)
    program = counting(words, n_items)
    with Workers(n_threads) as workers:
        for _ in range(20):
            workers.run(program)
    assert words.tolist() == [20] * n_items + [0]


@pytest.mark.parametrize("n_threads", [1, 2, 4])
def test_a_phase_begins_when_the_one_before_is_done(n_threads: int):
    words = words_for(200)
    builder = Builder()
    for _ in range(30):
        builder.add(COUNT, [words.ctypes.data], 100, MANY)
        builder.add(DOUBLE, [words.ctypes.data, 100], 100, MANY)
    program = builder.program()
    with Workers(n_threads) as workers:
        for done in range(1, 20):
            workers.run(program)
            assert words.tolist() == [30 * done] * 100 + [60 * done] * 100


def test_many_tiny_programs_with_threads_that_fall_asleep_between():
    words = words_for(5)
    program = counting(words, 5, phases=3)
    with Workers(4) as workers:
        for i in range(400):
            workers.run(program)
            if i % 20 == 0:
                time.sleep(0.001)  # ten times as long as a thread spins
    assert words.tolist() == [1200] * 5


def test_a_pool_whose_threads_sleep_is_not_waited_for():
    words = words_for(50)
    program = counting(words, 50)
    program.worth_waking = False
    with Workers(3) as workers:
        time.sleep(0.05)
        workers.run(program)
    assert words.tolist() == [1] * 50


def test_threads_help_with_work_that_is_long_enough():
    """One item of two waits for what another thread does after the other item was taken."""
    words = words_for(3)
    builder = Builder()
    builder.add(WAIT, [words.ctypes.data], 2, MANY)
    program = builder.program()
    with Workers(2) as workers:
        caller = threading.Thread(target=workers.run, args=(program,))
        caller.start()
        until_begun(words, 2)
        assert caller.is_alive() and words[1] == 0
        words[0] = 1
        caller.join()
    assert words[1] == 2


@pytest.mark.parametrize("n_threads", [1, 2])
def test_an_interrupt_is_noticed_after_the_last_item(n_threads: int):
    """Ctrl-C while a program runs: no thread works on its arrays when the exception arrives."""
    words = words_for(3)
    builder = Builder()
    builder.add(WAIT, [words.ctypes.data], 4, MANY)
    program = builder.program()

    def later() -> None:
        until_begun(words)
        for _ in range(3):
            time.sleep(0.01)
            _thread.interrupt_main()
        time.sleep(0.02)
        words[0] = 1

    with Workers(n_threads) as workers:
        helper = threading.Thread(target=later)
        with pytest.raises(KeyboardInterrupt):
            helper.start()
            workers.run(program)
            time.sleep(1)  # where the interrupt is not noticed at once
        assert words[1] == 4
        helper.join()
        after = words_for(3)
        workers.run(counting(after, 3))  # still usable
        assert after.tolist() == [1, 1, 1]


def test_work_after_an_exception_between_programs_is_whole():
    words = words_for(9)
    program = counting(words, 9)
    with Workers(3) as workers:
        for i in range(50):
            try:
                workers.run(program)
                if i % 3 == 0:
                    raise KeyboardInterrupt
            except KeyboardInterrupt:
                pass
    assert words.tolist() == [50] * 9


def test_close_ends_the_threads_and_a_second_close_does_nothing():
    before = threading.active_count()
    workers = Workers(4)
    assert threading.active_count() == before + 3
    workers.close()
    workers.close()
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="closed"):
        workers.run(counting(words_for(3), 3))


def test_close_waits_for_the_program_that_runs():
    words = words_for(3)
    builder = Builder()
    builder.add(WAIT, [words.ctypes.data], 6, MANY)
    program = builder.program()
    workers = Workers(2)
    caller = threading.Thread(target=workers.run, args=(program,))
    caller.start()
    until_begun(words)
    closer = threading.Thread(target=workers.close)
    closer.start()
    time.sleep(0.02)
    assert closer.is_alive() and caller.is_alive()
    words[0] = 1
    closer.join()
    caller.join()
    assert words[1] == 6


def test_calls_from_several_threads_take_turns():
    words = words_for(40)
    program = counting(words, 40, phases=4)
    with Workers(2) as workers:
        callers = [
            threading.Thread(target=lambda: [workers.run(program) for _ in range(50)])
            for _ in range(4)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert words.tolist() == [4 * 4 * 50] * 40


def test_more_threads_than_cores_stay_right():
    """Threads that are taken off their core in the middle of a claim, as on a busy machine."""
    words = words_for(64)
    program = counting(words, 64, phases=20)
    with Workers(8) as workers:
        for _ in range(30):
            workers.run(program)
    assert words.tolist() == [600] * 64


def test_a_closed_pools_memory_can_go_with_it():
    import gc
    import weakref

    workers = Workers(2)
    gone = weakref.ref(workers)
    workers.close()
    del workers
    gc.collect()
    assert gone() is None


def test_a_program_keeps_what_it_was_told_to_and_no_longer():
    import gc
    import weakref

    words = words_for(4)
    gone = weakref.ref(words)
    program = counting(words, 4)
    del words
    with Workers(2) as workers:
        workers.run(program)
        assert gone() is not None
        del program
        gc.collect()
        assert gone() is None


@pytest.mark.parametrize("make", [lambda: Workers(0), lambda: Workers(-1)])
def test_no_threads_are_refused(make: Callable[[], Workers]):
    with pytest.raises(ValueError, match="at least 1 thread"):
        make()


def test_more_items_than_can_be_counted_are_refused():
    with pytest.raises(ValueError, match="items of _count"):
        Builder().add(COUNT, [0], MAX_ITEMS, 1)


def test_a_pause_is_measured_and_not_guessed():
    assert 200 <= module._spins(1e-4) <= 100_000
