"""The console script's first step, and ``python -m diskmoe.engine``.

It imports next to nothing, so that Ctrl-C is answered from the first moment on, and leaves at once:
after an interrupt nobody wants to wait for compilers and threads to be taken down in good order.
"""

import gc
import os
import signal
import sys


def main() -> int:
    """Runs the command line; returns the exit code, or ends the process when it was interrupted."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: print would pick another stream
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    try:
        from diskmoe.engine.interrupts import answer_at_once

        answer_at_once()
        from diskmoe.engine.cli import main as command_line

        code = command_line()
    except KeyboardInterrupt:
        code = 130
    if code == 130:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one changes nothing any more
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                pass
        os._exit(code)
    gc.freeze()  # or the interpreter looks through every object again while it ends: 0.4 s
    return code


if __name__ == "__main__":
    sys.exit(main())
