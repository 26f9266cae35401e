"""The loop: token ids in, token ids out.

The prompt but for its last token is prefilled in chunks; the last prompt token is the first row of
decoding, so each emitted token comes from a decode forward. With drafts a forward has a row for each
of them too, and emits as many tokens as the model would have picked by itself. Text, templates and
stop strings live one layer above (``engine.text``); this file never sees a character.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.stats import Counters, Phase, RunStats, snapshot
from diskmoe.mtp.source import Draft
from diskmoe.mtp.verify import Picker, verify


class _Cache(Protocol):
    """What the loop asks of a KV cache."""

    @property
    def length(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    def trim(self, length: int) -> None: ...


class Target(Protocol):
    """What the loop asks of a model: see ``diskmoe.engine.model.forward.Transformer``."""

    @property
    def kv(self) -> _Cache: ...
    @property
    def counters(self) -> Counters: ...
    @property
    def selections(self) -> int: ...
    @property
    def programs_made(self) -> int: ...
    @property
    def copied(self) -> int: ...
    @property
    def row_misses(self) -> Sequence[int]: ...
    @property
    def vocab_size(self) -> int: ...
    def forward(
        self, ids: np.ndarray, rows: Any, on_layer: Callable[[int, int], None] | None
    ) -> np.ndarray: ...


class Drafts(Protocol):
    """What the loop asks of drafting: see ``diskmoe.mtp.compose.Composer``."""

    def propose(self, room: int) -> list[Draft]: ...
    def forwarded(self, seconds: float, waited: float, misses: Sequence[float]) -> None: ...
    def emitted(self, token: int) -> bool: ...


def check_prompt(ids: Sequence[int], vocab_size: int, context: int) -> None:
    """Raises BadRequest when a prompt cannot be fed, before anything is read."""
    if not len(ids):
        raise BadRequest("the prompt is empty: give PROMPT, an argument, or text on stdin")
    worst = max(ids)
    if worst >= vocab_size or min(ids) < 0:
        bad = worst if worst >= vocab_size else min(ids)
        raise BadRequest(f"token id {bad} is outside the model's vocabulary of {vocab_size}")
    if len(ids) >= context:
        raise BadRequest(
            f"the prompt is {len(ids)} tokens and CTX is {context}: "
            f"shorten it or set CTX={_next_context(len(ids))} or more"
        )


def _next_context(tokens: int) -> int:
    return -(-(tokens + 256) // 1024) * 1024


def decode(
    target: Target,
    prompt_ids: Sequence[int],
    picker: Picker,
    *,
    limit: int,
    stop_ids: Collection[int] = (),
    prefill_chunk: int = 256,
    reused: int = 0,
    stats: RunStats | None = None,
    on_prefill: Callable[[int, int], None] | None = None,
    on_forward: Callable[[], None] = lambda: None,
    drafts: Drafts | None = None,
    on_verified: Callable[[int], None] = lambda rows: None,
    on_rows: Callable[[Sequence[int]], None] = lambda following: None,
) -> Generator[int, None, None]:
    """Yields the tokens that follow a prompt, the stop token among them.

    Args:
        target: the model; its KV cache is trimmed to ``reused`` when the first token is asked for.
        prompt_ids: at least one id, fewer than the cache's capacity.
        limit: most tokens to yield.
        reused: positions at the start of the prompt whose keys and values the cache holds already.
        stop_ids: ids that end the run.
        stats: filled while running; ``stop_reason`` is ``"stop token"``, ``"grammar complete"``,
            ``"limit"``, ``"context full"`` or, when the caller stops early, ``"stopped"``.
        on_prefill: called with (rows done, rows in all) after each layer of a chunk; a layer counts
            as its share of the chunk's rows.
        on_forward: called after each forward, a prompt's chunks among them.
        drafts: what may follow, asked before each decode forward; it changes how many forwards the
            tokens take and nothing else.
        on_verified: called after a forward with drafts, with how many of its rows were of use.
        on_rows: called after each forward, a prompt's chunks among them, with the tokens that
            follow its rows, one for each row that was of use: for what learns from hidden states.

    The cache holds every token that was emitted but the last, and the rest of a forward's tokens
    where a caller stops within them.

    Raises:
        BadRequest: see ``check_prompt``.
        DeadEnd: a grammar that no token can follow.
    """
    check_prompt(prompt_ids, target.vocab_size, target.kv.capacity)
    stats = stats if stats is not None else RunStats()
    stats.prompt_tokens = len(prompt_ids)
    stats.stop_reason = "stopped"
    started = time.perf_counter()
    target.kv.trim(reused)
    _prefill(target, prompt_ids, reused, prefill_chunk, stats, on_prefill, on_forward, on_rows)
    decode_started = time.perf_counter()
    stops = frozenset(stop_ids)
    pending = int(prompt_ids[-1])
    if picker.done:
        stats.stop_reason = "grammar complete"
        return
    while True:
        turn, before = _Turn(target), target.kv.length
        room = min(limit - stats.tokens, target.kv.capacity - before) - 1
        guesses = drafts.propose(room) if drafts is not None and room > 0 else []
        wanted = "all" if guesses else "last"
        ids = [pending, *(guess.token for guess in guesses)]
        alone = _Turn(target)
        logits = target.forward(np.asarray(ids, np.int32), wanted, None)
        tokens = verify(picker, logits, guesses, stops)
        del logits  # or two forwards' would live at once
        if drafts is not None and alone.is_typical:
            drafts.forwarded(alone.seconds, alone.waited, target.row_misses)
        on_forward()
        on_rows(tokens)
        if guesses:
            target.kv.trim(before + len(tokens))
            on_verified(len(tokens))
        turn.book(stats.decode, len(ids))
        for place, pending in enumerate(tokens):
            now = time.perf_counter()
            if stats.tokens == 0:
                stats.ttft_seconds = now - started
            stats.tokens += 1
            if drafts is None or not drafts.emitted(pending):
                stats.sampled += 1
            stats.decode.seconds = now - decode_started
            full = before + place + 1 >= target.kv.capacity
            done = picker.done and place + 1 == len(tokens)
            reason = _reason_to_stop(pending, stats.tokens, limit, stops, full, done)
            if reason:
                stats.stop_reason = reason
            yield pending
            if reason:
                return


def _reason_to_stop(
    token: int, tokens: int, limit: int, stops: frozenset[int], full: bool, done: bool
) -> str | None:
    if token in stops:
        return "stop token"
    if done:
        return "grammar complete"
    if tokens >= limit:
        return "limit"
    return "context full" if full else None


def _prefill(
    target: Target,
    prompt_ids: Sequence[int],
    reused: int,
    chunk: int,
    stats: RunStats,
    on_prefill: Callable[[int, int], None] | None,
    on_forward: Callable[[], None],
    on_rows: Callable[[Sequence[int]], None],
) -> None:
    started = time.perf_counter()
    rows = len(prompt_ids) - 1
    for begin in range(reused, rows, chunk):
        end = min(begin + chunk, rows)
        tell = None
        if on_prefill:
            tell = partial(_tell_layer, on_prefill, begin, end, rows)
        turn, copied = _Turn(target), target.copied
        target.forward(np.asarray(prompt_ids[begin:end], np.int32), "none", tell)
        on_forward()
        copied = target.copied - copied
        stats.reused_tokens += copied
        on_rows(prompt_ids[begin + copied + 1 : end + 1])
        if copied < end - begin:
            turn.book(stats.prefill, end - begin - copied)
        stats.prefill.seconds = time.perf_counter() - started


def _tell_layer(
    on_prefill: Callable[[int, int], None], begin: int, end: int, rows: int, done: int, layers: int
) -> None:
    on_prefill(begin + (end - begin) * done // layers, rows)


class _Turn:
    """What is done from here on: its time and what it asks of the hot store. What a draft head
    reads is part of the turn that it drafts for."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._before = snapshot(target.counters, target.selections)
        self._made = target.programs_made
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    @property
    def waited(self) -> float:
        """Of these, seconds in which only the disk worked."""
        return self._target.counters.read_wait_seconds - self._before["read_wait_seconds"]

    @property
    def is_typical(self) -> bool:
        """Whether the next of its kind will take as long: nothing was prepared for later ones."""
        return self._target.programs_made == self._made

    def book(self, phase: Phase, rows: int) -> None:
        after = snapshot(self._target.counters, self._target.selections)
        phase.add(self._before, after, rows, self.seconds)
