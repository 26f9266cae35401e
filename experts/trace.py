"""The routing of a run, recorded: who asked for which experts, forward by forward.

A trace is a CSV file that any program can read: comment lines (#), the heading
``phase,step,layer,experts``, then one line for each row and layer: phase 0 for a prompt and 1 for
decoding, the number of the row in its layer, the layer, the experts in the router's order, joined by
``-``. The comment ``# forward`` stands before each forward: the lines that follow it, of one layer,
are one union. ``# accepted N`` behind that: it had drafts, and the first N of its rows were right.
``diskmoe bench replay`` and ``bench decode --routing`` read it (``bench.trace``).

The rule of this file: nothing is written while a run generates. Rows are kept in memory, two bytes
an expert, and the file is written whole by ``close``.
"""

import os
import sys
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diskmoe.experts.errors import BadOutput, WriteFailed
from diskmoe.experts.whole import write_whole

HEADING = "phase,step,layer,experts"
FORWARD = "# forward"
ACCEPTED = "# accepted "  # and the number of rows
MOST_BYTES = 32 << 20  # of a file; for 48 layers with 8 experts each that is 20,000 rows
PROMPT, DECODE = 0, 1
_ACCEPTED = 2  # in the place of a phase


class TraceRecorder:
    """Collects the routing of a process and writes it to `path` in the end.

    say: gets one line when there is no room for more rows, and one about the file.

    Raises:
        BadOutput: `path` is no place for a file.
    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        fault = _fault(path)
        if fault:
            raise BadOutput(f"TRACE={path} {fault}; name a file that can be written")
        self._path = path
        self._say = say
        # per layer and forward: phase, layer, rows, top_k, then experts; before a forward whose
        # drafts were verified: _ACCEPTED, rows, 0, 0
        self._words = array("H")
        self._forward = 0  # where the words of the latest forward begin
        self._n_layers = self._most_layers = 0  # of the latest forward, and of those before
        self._nbytes = 0  # of the file, at most
        self._layer = -1
        self._open = True

    def record(self, layer: int, ids: npt.NDArray[np.int32], phase: int) -> None:
        """Rows of a forward and what their routers chose: ids i32 (n, top_k); it is copied.

        A forward goes through its layers in ascending order. phase: `PROMPT` or `DECODE`.
        """
        if not self._open:
            return
        if layer <= self._layer:
            self._begin_forward()
        self._layer = layer
        n, top_k = ids.shape
        if not self._has_room(len(FORWARD) + 1 + n * (len("0,1234567,12345,") + 6 * top_k)):
            return
        head = np.array((phase, layer, n, top_k), np.uint16)
        # at once, whenever Ctrl-C falls
        self._words.frombytes(head.tobytes() + ids.astype(np.uint16).tobytes())
        self._n_layers += 1

    def accepted(self, rows: int) -> None:
        """Of the latest forward, which had drafts, the first `rows` were right."""
        if self._open and self._n_layers and self._has_room(len(ACCEPTED) + len("12345\n")):
            self._words[self._forward : self._forward] = array("H", (_ACCEPTED, rows, 0, 0))

    def _has_room(self, nbytes: int) -> bool:
        """For so many more bytes of the file; when not, recording ends."""
        self._nbytes += nbytes
        if self._nbytes <= MOST_BYTES:
            return True
        self._open = False
        del self._words[self._forward :]  # forwards are recorded whole or not at all
        self._say(f"note      the trace is full at {MOST_BYTES} bytes: nothing more is recorded")
        return False

    def _begin_forward(self) -> None:
        """What is recorded by now is whole forwards: one that Ctrl-C ended is forgotten."""
        if self._n_layers < self._most_layers:
            del self._words[self._forward :]
        self._most_layers = max(self._n_layers, self._most_layers)
        self._forward, self._n_layers = len(self._words), 0

    def close(self) -> None:
        """Write the file. A second call does nothing. Raises WriteFailed."""
        self._begin_forward()
        words, self._words = self._words, array("H")
        self._open = False
        if not words:
            return
        try:
            write_whole(self._path, _lines(words))
        except OSError as error:
            raise WriteFailed(
                f"{self._path}: the trace cannot be written ({error.strerror or error})"
            ) from None
        self._say(f"trace     {self._path}")


def _fault(path: Path) -> str:
    """Why no file can be put there, as far as can be told before; empty when one can."""
    try:
        if path.is_dir():
            return "is a directory"
        if not path.parent.is_dir():
            return "is in a directory that does not exist"
        if path.exists() and not path.is_file():  # a device or a pipe would be replaced by a file
            return "is no ordinary file"
    except OSError as error:
        return f"is no place for a file ({error.strerror or error})"
    return "" if os.access(path.parent, os.W_OK) else "is in a directory that is read-only"


def _lines(words: "array[int]") -> Iterator[bytes]:
    yield f"{HEADING}\n".encode()
    steps: dict[int, int] = {}  # by layer: rows so far
    before, at, accepted = sys.maxsize, 0, ""
    while at < len(words):
        phase, layer, n, top_k = words[at : at + 4]
        at += 4
        if phase == _ACCEPTED:
            before, accepted = sys.maxsize, f"{ACCEPTED}{layer}\n"
            continue
        if layer <= before:
            yield f"{FORWARD}\n{accepted}".encode()
            accepted = ""
        before = layer
        first = steps.get(layer, 0)
        steps[layer] = first + n
        rows = [words[at + row * top_k : at + (row + 1) * top_k] for row in range(n)]
        at += n * top_k
        yield "".join(
            f"{phase},{step},{layer},{'-'.join(map(str, row))}\n"
            for step, row in enumerate(rows, first)
        ).encode()
