"""Perplexity: which tokens are scored with what before them, and the sums that come of it.

Two rules. "sliding" scores every token once: a window begins `stride` tokens behind the one before
and scores what that one did not reach. "llama.cpp" is what llama-perplexity does: windows that do not
overlap, of which the second half is scored. Logits are had some rows at a time, and their log-sum-exp is
taken in f64: with V logits its rounding is below (V + 4) x 2^-53, 2e-11 for any vocabulary in use, so the
error of a mean is that of the engine's f32 logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

LOGIT_ROWS = (
    8  # at once; with the f64 copy of a row they fit into what a memory plan has for logits
)
RULES = ("sliding", "llama.cpp")

Floats = npt.NDArray[np.float32]
Scores = npt.NDArray[np.float64]


class _Cache(Protocol):
    def trim(self, length: int) -> None: ...


class Scorer(Protocol):
    """What this file asks of a model: see ``diskmoe.engine.model.forward.Transformer``."""

    @property
    def kv(self) -> _Cache: ...
    @property
    def hidden(self) -> Floats: ...
    def forward(
        self, ids: npt.ArrayLike, rows: Any, on_layer: Callable[[int, int], None] | None
    ) -> Floats: ...
    def head(self, hidden: Floats) -> Floats: ...


@dataclass(frozen=True)
class Window:
    """Text tokens [begin, end - 1) are fed, behind the prefix; [first, end) are scored."""

    begin: int
    first: int
    end: int


@dataclass(frozen=True)
class Sums:
    """What was scored so far; natural logarithms."""

    windows: int = 0
    tokens: int = 0
    nll: float = 0.0  # the sum of -log p
    squares: float = 0.0  # of their squares

    def plus(self, scores: Scores) -> Sums:
        """With one more window. Windows come in order, so the sums are the same however often
        a run was interrupted."""
        return Sums(
            self.windows + 1,
            self.tokens + len(scores),
            self.nll + math.fsum(scores),
            self.squares + math.fsum(scores * scores),
        )

    @property
    def mean(self) -> float:
        """Of -log p, in nats a token."""
        return self.nll / self.tokens

    @property
    def perplexity(self) -> float:
        return _exp(self.mean)

    @property
    def spread(self) -> float:
        """The standard error of the perplexity, tokens taken as independent; 0 of one token."""
        if self.tokens < 2:
            return 0.0
        variance = max(0.0, self.squares / self.tokens - self.mean**2)
        return self.perplexity * math.sqrt(variance / (self.tokens - 1))

    def bits_per_byte(self, scored_bytes: int) -> float:
        """scored_bytes: of the text, what the tokens that were scored spell."""
        return self.nll / math.log(2) / scored_bytes


def _exp(value: float) -> float:
    return math.exp(value) if value < 709 else math.inf


def windows(tokens: int, prefix: int, context: int, stride: int, rule: str) -> list[Window]:
    """The windows of a text of so many tokens, each fed at most `context` of them and the prefix.

    prefix: tokens (BOS) before each window; where there are none the text's first token is fed and
    not scored. stride: at most context - prefix; "llama.cpp" takes none.
    """
    found: list[Window] = []
    if rule == "llama.cpp":
        for begin in range(0, tokens + prefix - context + 1, context):
            end = begin + context - prefix
            found.append(Window(begin, end - (context - context // 2 - 1), end))
        return found
    begin, scored = 0, 0 if prefix else 1
    while scored < tokens:
        end = min(tokens, begin + context - prefix + 1)
        found.append(Window(begin, scored, end))
        begin, scored = begin + stride, end
    return found


def negative_log_likelihoods(logits: Floats, targets: npt.NDArray[np.int64]) -> Scores:
    """-log softmax of each row's target: f32 (n, vocab), (n,) -> f64 (n,), nats."""
    scores = np.empty(len(logits))
    for index, (row, target) in enumerate(zip(logits, targets, strict=True)):
        wide = row.astype(np.float64)
        wide -= wide.max()
        wanted = wide[target]
        np.exp(wide, out=wide)
        scores[index] = math.log(wide.sum()) - wanted
    return scores


def score(
    model: Scorer,
    ids: npt.NDArray[np.int32],  # of the text
    prefix: Sequence[int],
    window: Window,
    chunk: int,  # rows of a forward
    on_share: Callable[[float], None] = lambda share: None,  # of this window that is done
) -> Scores:
    """-log p of the window's tokens, f64 (end - first,). The cache is emptied first."""
    fed = np.concatenate([np.asarray(prefix, np.int32), ids[window.begin : window.end - 1]])
    skipped = len(fed) - (window.end - window.first)  # rows that predict what is not scored
    model.kv.trim(0)
    found = []
    for begin in range(0, len(fed), chunk):
        part = fed[begin : begin + chunk]
        model.forward(part, "none", _shares(on_share, begin, len(part), len(fed)))
        for row in range(max(skipped - begin, 0), len(part), LOGIT_ROWS):
            logits = model.head(model.hidden[row : row + LOGIT_ROWS])
            place = window.first + begin + row - skipped
            targets = ids[place : place + len(logits)].astype(np.int64)
            found.append(negative_log_likelihoods(logits, targets))
    return np.concatenate(found)


def unscored(found: Sequence[Window], tokens: int) -> list[tuple[int, int]]:
    """Ranges [begin, end) of a text's tokens that no window scores."""
    ends = [0, *(window.end for window in found)]
    begins = [*(window.first for window in found), tokens]
    return [(end, begin) for end, begin in zip(ends, begins, strict=True) if end < begin]


def _shares(
    on_share: Callable[[float], None], done: int, rows: int, of: int
) -> Callable[[int, int], None]:
    return lambda layer, layers: on_share((done + rows * layer / layers) / of)
