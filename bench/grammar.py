"""``diskmoe bench grammar``: masks and what belongs to them, beside XGrammar's and llguidance's."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from diskmoe.bench.grammar_texts import DOCUMENTS
from diskmoe.bench.matchers import Matcher, Ours, Say, peers
from diskmoe.bench.vocabulary_file import greedy, read_vocabulary
from diskmoe.bench.words import understood
from diskmoe.engine.errors import BadRequest
from diskmoe.grammar_draft.vocabulary import Vocabulary

USAGE = """\
usage: diskmoe bench grammar [options]

Follows the same documents (JSON, a fixed schema, arithmetic) with diskmoe and, where they are
installed, XGrammar and llguidance (pip install xgrammar llguidance), in turn and on one thread. Of
every token the mask before it and its acceptance are measured, once from the start ("first": nothing
is known of grammar or document) and as the least of several runs ("warm"); then copies of the state,
and compilation. Microseconds, milliseconds for compilation: median / 99 of 100 are below.

  --vocabulary FILE  a .tiktoken file; default: the 151,643 tokens of Qwen's that are in
                     the Python package dashscope (pip install --no-deps dashscope)
  --runs N           (default 7)
  --ours             diskmoe alone
  --json             one JSON object
"""
FLAGS = {"--vocabulary": True, "--runs": True, "--ours": False}
SETTINGS = ("JSON", "DEBUG", "VERBOSE")


@dataclass(frozen=True)
class Line:
    """What one program took for one kind of document. [median, 99 of 100 below], microseconds;
    compile_ms: milliseconds."""

    kind: str
    program: str
    mask_first: tuple[float, float]
    mask: tuple[float, float]
    accept_first: tuple[float, float]
    accept: tuple[float, float]
    fork: tuple[float, float]
    compile_ms: tuple[float, float]
    how: str  # what the grammar was made into, where the program says so


def command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """Measures, prints. Raises BadRequest for words that are wrong."""
    line = understood("grammar", words, env, FLAGS, SETTINGS)
    if line.places:
        raise BadRequest(f"bench grammar takes no argument, and got {line.places[0]!r}")
    vocabulary = read_vocabulary(line.flags.get("--vocabulary"))
    runs = line.whole("--runs", 1, 1000, 7)
    makers: dict[str, Callable[[str], Matcher]] = {"diskmoe": lambda k: Ours(k, vocabulary)}
    if "--ours" not in line.flags:
        makers |= peers(vocabulary, say)
    lines = [found for kind in DOCUMENTS for found in measured(kind, makers, vocabulary, runs)]
    if line.values["JSON"].value:
        print(json.dumps({"tokens": len(vocabulary), "lines": [asdict(found) for found in lines]}))
    else:
        print(table(lines, len(vocabulary)), end="")
    return 0


def measured(
    kind: str, makers: Mapping[str, Callable[[str], Matcher]], vocabulary: Vocabulary, runs: int
) -> list[Line]:
    """All programs on the documents of one kind, in turn."""
    documents = [greedy(text.encode(), vocabulary) for text in DOCUMENTS[kind]]
    matchers: dict[str, Matcher] = {}
    compiled: dict[str, list[float]] = {name: [] for name in makers}
    for turn in range(runs + 1):
        for name, make in makers.items():
            began = time.perf_counter()
            matchers[name] = make(kind)
            if turn:  # the first may load code
                compiled[name].append(1e3 * (time.perf_counter() - began))
    passes: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in makers}
    forks: dict[str, list[float]] = {name: [] for name in makers}
    gc.collect()
    gc.disable()
    try:
        for _ in range(runs):
            for name, matcher in matchers.items():
                steps: list[tuple[float, float]] = []
                for document in documents:
                    matcher.restart()
                    steps += _followed(matcher, document, name, forks[name])
                passes[name].append(steps)
    finally:
        gc.enable()
    lines = []
    for name, matcher in matchers.items():
        every = np.array(passes[name])  # (runs, tokens, 2)
        first, warm = every[0], every.min(0)
        lines.append(
            Line(
                kind,
                name,
                _spread(first[:, 0]),
                _spread(warm[:, 0]),
                _spread(first[:, 1]),
                _spread(warm[:, 1]),
                _spread(np.array(forks[name])),
                _spread(np.array(compiled[name])),
                matcher.how,
            )
        )
    return lines


def _followed(
    matcher: Matcher, document: Sequence[int], name: str, forks: list[float]
) -> list[tuple[float, float]]:
    """(microseconds of the mask, of acceptance) per token."""
    clock = time.perf_counter
    steps: list[tuple[float, float]] = []
    for place, token in enumerate(document):
        began = clock()
        mask = matcher.mask()
        masked = clock()
        accepted = matcher.accept(token)
        ended = clock()
        kept = matcher.fork()
        forks.append(1e6 * (clock() - ended))
        del kept
        bits = mask.view(np.uint32)
        if not accepted or not bits[token >> 5] >> (token & 31) & 1:
            raise BadRequest(f"{name} refuses token {place} of a document")
        steps.append((1e6 * (masked - began), 1e6 * (ended - masked)))
    return steps


def _spread(values: Any) -> tuple[float, float]:
    return float(np.median(values)), float(np.percentile(values, 99))


def table(lines: Sequence[Line], tokens: int) -> str:
    """The result as text."""
    heads = ("mask first", "mask warm", "accept first", "accept warm", "fork", "compile ms")
    rows = [f"{tokens} tokens; microseconds, median / p99"]
    rows.append(f"{'':11}{'':18}" + "".join(f"{head:>16}" for head in heads))
    for line in lines:
        values = (line.mask_first, line.mask, line.accept_first, line.accept, line.fork)
        cells = [f"{_short(a)} / {_short(b)}" for a, b in (*values, line.compile_ms)]
        rows.append(
            f"{line.kind:11}{line.program:18}"
            + "".join(f"{c:>16}" for c in cells)
            + f"  {line.how}"
        )
    return "\n".join(rows) + "\n"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}" if value < 1 else f"{value:.1f}"
