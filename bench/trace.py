"""Recorded routings, and how a run is made to follow one: for benchmarks only.

The files are those of ``experts.trace``, and those of other programs that have the same lines
without ``# forward`` comments: their tokens went through the model one by one. Other recorders may
leave out prompt tokens in a layer (llama.cpp computes the last layer for the last token only); there
the model's own router chooses. A file is foreign: every number is checked, and a line that is wrong
is named.
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
from diskmoe.experts.trace import ACCEPTED, FORWARD, HEADING, MOST_BYTES

MOST_LINE = 1 << 14
_MOST = 1 << 20  # of any number in it
_NO_LINE = f"holds no line of {HEADING}; it is no trace"
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
class Forward:
    """The rows of one forward in one layer: what each chose, in the router's order."""

    phase: int
    rows: list[tuple[int, ...]]
    accepted: int | None = None  # how many of the rows were right; None: all, for all we know


@dataclass(frozen=True)
class Recording:
    """Everything that a file has of each layer, in turn."""

    path: Path
    top_k: int
    layers: Mapping[int, Sequence[Forward]]
    by_forward: bool  # False: the file does not say which rows went together, so each stands alone


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    forward: int  # which one, from 1 on; 0 in a file that does not say
    accepted: int | None  # rows of it
    phase: int
    step: int
    layer: int
    experts: tuple[int, ...]


def read_recording(path: Path) -> Recording:
    """The trace in `path`, whatever the model. Raises BadModel for what is no trace."""
    layers: dict[int, list[Forward]] = {}
    latest: dict[int, int] = {}  # forward of each layer's last line
    top_k = forward = 0
    for line in _lines(path):
        top_k, forward = top_k or len(line.experts), line.forward
        _refuse_other_top_k(path, line, top_k)
        found = layers.setdefault(line.layer, [])
        if line.forward and latest.get(line.layer) == line.forward:
            if found[-1].phase != line.phase:
                raise BadModel(
                    f"{path}: line {line.number}: phase {line.phase} in a forward whose lines of "
                    f"layer {line.layer} before have {found[-1].phase}"
                )
            found[-1].rows.append(line.experts)
        else:
            found.append(Forward(line.phase, [line.experts], line.accepted))
        latest[line.layer] = line.forward
    if not layers:
        raise BadModel(f"{path}: {_NO_LINE}")
    return Recording(path, top_k, dict(sorted(layers.items())), forward > 0)


def _refuse_other_top_k(path: Path, line: _Line, top_k: int) -> None:
    if len(line.experts) != top_k:
        raise BadModel(
            f"{path}: line {line.number}: {len(line.experts)} experts, the lines before have {top_k}"
        )


def read_trace(path: Path, layers: Sequence[int], experts: int) -> Trace:
    """The trace in `path`, for a model whose `layers` have so many experts each.

    Raises:
        BadModel: not a trace, or not of such a model; the message names file, line and numbers.
    """
    lines = list(_lines(path))
    if not lines:
        raise BadModel(f"{path}: {_NO_LINE}")
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
        _refuse_other_top_k(path, line, top_k)
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
            headed, forward, accepted = False, 0, None
            for number, text in enumerate(iter(partial(file.readline, MOST_LINE + 1), ""), 1):
                if len(text) > MOST_LINE:
                    raise BadModel(
                        f"{path}: line {number}: is longer than {MOST_LINE} characters, and begins "
                        f"with {text[:40]!r}: it is no line of a trace"
                    )
                text = text.strip()
                if not text or text.startswith("#"):
                    if text == FORWARD:
                        forward, accepted = forward + 1, None
                    elif text.startswith(ACCEPTED):
                        accepted = _number(text.removeprefix(ACCEPTED))
                    continue
                if not headed:
                    if text != HEADING:
                        raise BadModel(
                            f"{path}: line {number}: {text[:40]!r}, a trace has {HEADING!r} there"
                        )
                    headed = True
                    continue
                yield _parsed(path, number, forward, accepted, text)
    except OSError as error:
        raise BadModel(f"{path}: cannot be read ({error.strerror or error})") from None


def _number(word: str) -> int | None:
    """None for what is none: a comment of others."""
    return int(word) if word.isascii() and word.isdecimal() and len(word) < 8 else None


def _parsed(path: Path, number: int, forward: int, accepted: int | None, text: str) -> _Line:
    parts = text.split(",")
    words = [*parts[:3], *parts[3].split("-")] if len(parts) == 4 else []
    numbers = [n for n in map(_number, words) if n is not None]
    if not words or len(numbers) < len(words):
        raise BadModel(f"{path}: line {number}: {text[:60]!r} is not like 1,28,0,49-19-58")
    phase, step, layer, *experts = numbers
    if phase > 1 or max(step, layer, *experts) > _MOST:
        raise BadModel(f"{path}: line {number}: {text[:60]!r} has a number out of bounds")
    if len(set(experts)) != len(experts):
        raise BadModel(f"{path}: line {number}: an expert is chosen twice in {parts[3][:60]!r}")
    return _Line(number, forward, accepted, phase, step, layer, tuple(experts))


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
