"""Recorded routings, and how a run is made to follow one: for benchmarks only.

A trace is a CSV file: comment lines (#), the heading ``phase,step,layer,experts``, then one line for
each token and layer, phase 0 for the prompt and 1 for decoding, steps counting on from one to the
other, experts in the router's order joined by ``-``. The recorder may leave out prompt tokens in a
layer (llama.cpp computes the last layer for the last token only); there the model's own router
chooses. The file is foreign: every number is checked, and a line that is wrong is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diskmoe.engine.errors import BadModel

HEADING = "phase,step,layer,experts"
MOST_BYTES = 32 << 20  # of a model with 48 layers 20,000 tokens; a line takes 400 bytes of memory
MOST_LINE = 1 << 14
_MOST = 1 << 20  # of any number in it
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Trace:
    """A recorded routing, by layer: ids (steps, top_k), -1 in rows that were not recorded."""

    path: Path
    top_k: int
    prompt: Mapping[int, Ints]
    decode: Mapping[int, Ints]

    @property
    def prompt_steps(self) -> int:
        return len(next(iter(self.prompt.values())))

    @property
    def decode_steps(self) -> int:
        return len(next(iter(self.decode.values())))


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    phase: int
    step: int
    layer: int
    experts: tuple[int, ...]


def read_trace(path: Path, layers: Sequence[int], experts: int) -> Trace:
    """The trace in `path`, for a model whose `layers` have so many experts each.

    Raises:
        BadModel: not a trace, or not of such a model; the message names file, line and numbers.
    """
    lines = list(_lines(path))
    if not lines:
        raise BadModel(f"{path}: holds no line of {HEADING}; it is no trace")
    top_k = len(lines[0].experts)
    known = set(layers)
    seen: dict[tuple[int, int], int] = {}
    for line in lines:
        where = f"{path}: line {line.number}"
        if line.layer not in known:
            raise BadModel(
                f"{where}: layer {line.layer}, the model has {len(layers)} layers with experts, "
                f"{min(layers)} to {max(layers)}: the trace is of another model"
            )
        worst = max(line.experts)
        if worst >= experts:
            raise BadModel(
                f"{where}: expert {worst}, a layer of the model has {experts}, 0 to {experts - 1}: "
                "the trace is of another model"
            )
        if len(line.experts) != top_k:
            raise BadModel(f"{where}: {len(line.experts)} experts, the lines before have {top_k}")
        first = seen.setdefault((line.step, line.layer), line.number)
        if first != line.number:
            raise BadModel(
                f"{where}: step {line.step} of layer {line.layer} is in line {first} already"
            )
    _refuse_gaps(path, lines)
    prompt = _by_layer(path, [line for line in lines if line.phase == 0], layers, top_k, False)
    decode = _by_layer(path, [line for line in lines if line.phase == 1], layers, top_k, True)
    return Trace(path, top_k, prompt, decode)


def _refuse_gaps(path: Path, lines: Sequence[_Line]) -> None:
    """Steps count on without a gap, those of the prompt before those of decoding."""
    steps = sorted({(line.phase, line.step) for line in lines})
    for (_, before), (phase, step) in pairwise(steps):
        if step != before + 1:
            raise BadModel(
                f"{path}: step {step} of phase {phase} follows step {before}, not {before + 1}: "
                "steps are missing, or of more than one run"
            )


def _by_layer(
    path: Path, lines: list[_Line], layers: Sequence[int], top_k: int, complete: bool
) -> dict[int, Ints]:
    steps = sorted({line.step for line in lines})
    if not steps and complete:
        raise BadModel(f"{path}: holds no line of phase 1: there is nothing to decode by")
    place = {step: i for i, step in enumerate(steps)}
    found = {layer: np.full((len(steps), top_k), -1, np.int32) for layer in layers}
    for line in lines:
        found[line.layer][place[line.step]] = line.experts
    for layer, ids in found.items():
        missing = np.flatnonzero(ids[:, 0] < 0)
        if complete and len(missing):
            raise BadModel(
                f"{path}: step {steps[missing[0]]} has no line for layer {layer}, the model has "
                f"{len(layers)} layers with experts: the trace is of another model, or was cut"
            )
    return found


def _lines(path: Path) -> Iterator[_Line]:
    try:
        if not path.is_file():  # a pipe or a device has no end that could be relied on
            raise BadModel(f"{path}: is no file, so no trace")
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise BadModel(
                f"{path}: {size} bytes; a trace has at most {MOST_BYTES}: cut it shorter"
            )
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            headed = False
            for number, text in enumerate(iter(partial(file.readline, MOST_LINE + 1), ""), 1):
                if len(text) > MOST_LINE:
                    raise BadModel(
                        f"{path}: line {number}: is longer than {MOST_LINE} characters, and begins "
                        f"with {text[:40]!r}: it is no line of a trace"
                    )
                text = text.strip()
                if not text or text.startswith("#"):
                    continue
                if not headed:
                    if text != HEADING:
                        raise BadModel(
                            f"{path}: line {number}: {text[:40]!r}, a trace has {HEADING!r} there"
                        )
                    headed = True
                    continue
                yield _parsed(path, number, text)
    except OSError as error:
        raise BadModel(f"{path}: cannot be read ({error.strerror or error})") from None


def _parsed(path: Path, number: int, text: str) -> _Line:
    parts = text.split(",")
    words = [*parts[:3], *parts[3].split("-")] if len(parts) == 4 else []
    if not words or not all(w.isascii() and w.isdecimal() and len(w) < 8 for w in words):
        raise BadModel(f"{path}: line {number}: {text[:60]!r} is not like 1,28,0,49-19-58")
    phase, step, layer, *experts = map(int, words)
    if phase > 1 or max(step, layer, *experts) > _MOST:
        raise BadModel(f"{path}: line {number}: {text[:60]!r} has a number out of bounds")
    if len(set(experts)) != len(experts):
        raise BadModel(f"{path}: line {number}: an expert is chosen twice in {parts[3][:60]!r}")
    return _Line(number, phase, step, layer, tuple(experts))


class Replay:
    """Puts a trace in place of the router's choice, row by row; shares stay the router's own."""

    def __init__(self, trace: Trace, prompt_rows: int) -> None:
        """`prompt_rows`: how many rows come before the first decode step, at most those recorded;
        the last recorded ones are taken."""
        self._rows = {
            layer: np.concatenate([ids[len(ids) - prompt_rows :], trace.decode[layer]])
            for layer, ids in trace.prompt.items()
        }
        self._next = dict.fromkeys(self._rows, 0)

    def __call__(self, layer: int, ids: Ints, shares: npt.NDArray[np.float32]) -> None:
        """ids i32 (n, top_k) of the next n rows, written in place."""
        begin = self._next[layer]
        self._next[layer] = begin + len(ids)
        recorded = self._rows[layer][begin : begin + len(ids)]
        there = recorded[:, 0] >= 0
        ids[: len(recorded)][there] = recorded[there]
