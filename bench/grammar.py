"""``diskmoe bench grammar``: masks and what belongs to them, beside XGrammar's and llguidance's."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from diskmoe.bench.grammar_texts import DOCUMENTS
from diskmoe.bench.matchers import Maker, Matcher, Say, our_maker, peers
from diskmoe.bench.vocabulary_file import greedy, read_vocabulary
from diskmoe.bench.words import understood
from diskmoe.engine.errors import BadRequest
from diskmoe.grammar_draft.vocabulary import Vocabulary

USAGE = """\
usage: diskmoe bench grammar [options]

Follows the same documents (JSON, a fixed schema, arithmetic) with diskmoe and, where they are
installed, XGrammar and llguidance, in turn and on one thread (pip install xgrammar llguidance; XGrammar
brings PyTorch along, some gigabytes). Of every token the mask before it, its acceptance and a copy of the
state are measured, in the first pass ("first": nothing is known of grammar or document) and as the least
of all passes ("warm"). A grammar is compiled anew ("new") and where each program may keep what it has compiled
("again"). Microseconds, milliseconds for compilation: median / 99 of 100 are below.

  --vocabulary FILE  a .tiktoken file; default: the 151,643 tokens of Qwen's that are in
                     the Python package dashscope
  --runs N           (default 7)
  --ours             diskmoe alone
  --json             one JSON object
"""
FLAGS = {"--vocabulary": True, "--runs": True, "--ours": False}
SETTINGS = ("JSON", "DEBUG", "VERBOSE")


@dataclass(frozen=True)
class Line:
    """What one program took for one kind of document: (median, 99 of 100 are below). first: in the
    first pass over documents; warm: the least of all passes."""

    kind: str
    program: str
    mask_first_us: tuple[float, float]
    mask_warm_us: tuple[float, float]
    accept_first_us: tuple[float, float]
    accept_warm_us: tuple[float, float]
    fork_first_us: tuple[float, float]
    fork_warm_us: tuple[float, float]
    compile_new_ms: tuple[float, float]
    compile_again_ms: tuple[float, float]
    how: str  # what the grammar was made into, where the program says so


def command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """Measures, prints. Raises BadRequest for words that are wrong."""
    line = understood("grammar", words, env, FLAGS, SETTINGS)
    if line.places:
        raise BadRequest(f"bench grammar takes no argument, and got {line.places[0]!r}")
    vocabulary = read_vocabulary(line.flags.get("--vocabulary"))
    runs = line.whole("--runs", 1, 1000, 7)
    makers: dict[str, Maker] = {"diskmoe": our_maker(vocabulary)}
    if "--ours" not in line.flags:
        makers |= peers(vocabulary, say)
    lines = [found for kind in DOCUMENTS for found in measured(kind, makers, vocabulary, runs)]
    if line.values["JSON"].value:
        lines_said = [asdict(found) for found in lines]
        print(json.dumps({"tokens": len(vocabulary), "runs": runs, "lines": lines_said}))
    else:
        print(table(lines, len(vocabulary)), end="")
    return 0


def measured(
    kind: str, makers: Mapping[str, Maker], vocabulary: Vocabulary, runs: int
) -> list[Line]:
    """All programs on the documents of one kind, in turn."""
    documents = [greedy(text.encode(), vocabulary) for text in DOCUMENTS[kind]]
    matchers: dict[str, Matcher] = {}
    compiled: dict[tuple[str, bool], list[float]] = {}
    for again in (True, False):  # passes are over the new ones
        for turn in range(runs + 1):
            for name, make in makers.items():
                began = time.perf_counter()
                matchers[name] = make(kind, again)
                took = 1e3 * (time.perf_counter() - began)
                if turn:  # the first may load code, or has nothing that was kept
                    compiled.setdefault((name, again), []).append(took)
    passes: dict[str, list[list[tuple[float, float, float]]]] = {name: [] for name in makers}
    gc.collect()
    gc.disable()
    try:
        for _ in range(runs):
            for name, matcher in matchers.items():
                steps: list[tuple[float, float, float]] = []
                for document in documents:
                    matcher.restart()
                    steps += _followed(matcher, document, name)
                passes[name].append(steps)
    finally:
        gc.enable()
    lines = []
    for name, matcher in matchers.items():
        every = np.array(passes[name])  # (runs, tokens, 3)
        first, warm = every[0].T, every.min(0).T
        spreads = [_spread(values) for pair in zip(first, warm, strict=True) for values in pair]
        spreads += [_spread(np.array(compiled[name, again])) for again in (False, True)]
        lines.append(Line(kind, name, *spreads, how=matcher.how))
    return lines


def _followed(
    matcher: Matcher, document: Sequence[int], name: str
) -> list[tuple[float, float, float]]:
    """(microseconds of the mask, of acceptance, of a copy) per token."""
    clock = time.perf_counter
    steps: list[tuple[float, float, float]] = []
    for place, token in enumerate(document):
        began = clock()
        mask = matcher.mask()
        masked = clock()
        accepted = matcher.accept(token)
        ended = clock()
        kept = matcher.fork()
        forked = clock()
        del kept
        bits = mask.view(np.uint32)
        if not accepted or not bits[token >> 5] >> (token & 31) & 1:
            raise BadRequest(f"{name} refuses token {place} of a document")
        steps.append((1e6 * (masked - began), 1e6 * (ended - masked), 1e6 * (forked - ended)))
    return steps


def _spread(values: Any) -> tuple[float, float]:
    return float(np.median(values)), float(np.percentile(values, 99))


def table(lines: Sequence[Line], tokens: int) -> str:
    """The result as text."""
    figures = [field.name for field in fields(Line) if field.name.endswith(("_us", "_ms"))]
    heads = [name.removesuffix("_us").replace("_", " ") for name in figures]
    rows = [
        f"{tokens} tokens; microseconds (ms: milliseconds), median / 99 of 100 are below",
        "first: the first pass over the documents; warm: the least of all passes; compile new:",
        "nothing of the grammar is known; compile again: the program may keep what it compiled",
        f"{'':29}" + "".join(f"{head:>18}" for head in heads),
    ]
    for line in lines:
        pairs = (getattr(line, name) for name in figures)
        cells = "".join(f"{f'{_short(a)} / {_short(b)}':>18}" for a, b in pairs)
        rows.append(f"{line.kind:11}{line.program:18}{cells}  {line.how}".rstrip())
    return "\n".join(rows) + "\n"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}" if value < 1 else f"{value:.1f}"
