"""diskmoe made slower on purpose, to see whether a benchmark notices: a share less tokens a second.

    python scripts/slowed_run.py 0.1 --model DIR "a prompt"     # behind the share: diskmoe's words

After each forward the process works at nothing for so long that time altogether is 1 / (1 - share)
of what it was.
"""

import sys
import time
from typing import Any

from diskmoe.engine.__main__ import main
from diskmoe.engine.model.forward import Transformer


def slow_down(share: float) -> None:
    """Every forward from now on, of every model in this process."""
    forward = Transformer.forward
    ended: float | None = None  # the last forward and what was added to it

    def slowed(self: Transformer, *args: Any, **kwargs: Any) -> Any:
        nonlocal ended
        began = time.perf_counter() if ended is None else ended
        logits = forward(self, *args, **kwargs)
        until = time.perf_counter()
        until += (until - began) * share / (1 - share)
        while time.perf_counter() < until:
            pass
        ended = time.perf_counter()
        return logits

    Transformer.forward = slowed  # pyright: ignore[reportAttributeAccessIssue]


if __name__ == "__main__":
    slow_down(float(sys.argv.pop(1)))
    sys.exit(main())
