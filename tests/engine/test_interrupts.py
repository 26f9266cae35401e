"""Ctrl-C is answered, whatever is at work."""

import signal
import subprocess
import sys
import threading

import pytest

from diskmoe.engine.interrupts import interrupts_kept

BUSY = """
import threading
from diskmoe.engine.interrupts import answer_at_once
answer_at_once()
from diskmoe.engine.kernels.workers import _pause_often
_pause_often(1)
# by the time that it prints, the machine code has long been entered
threading.Timer(0.5, print, ["ready"], {"flush": True}).start()
_pause_often(10**12)
"""


def test_an_interrupt_is_kept_for_the_next_check_and_for_the_end() -> None:
    with pytest.raises(KeyboardInterrupt), interrupts_kept() as check:
        check()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            check()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_outside_the_main_thread_no_handler_is_touched() -> None:
    seen = []

    def look() -> None:
        with interrupts_kept() as check:
            check()
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_long_call_into_machine_code_does_not_hold_ctrl_c_up() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(60) == 130
            assert process.stderr.read() == "interrupted\n"
        finally:
            process.kill()
