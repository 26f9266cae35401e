"""The decode loop on a model that is a table: what it feeds, counts, and when it stops."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from diskmoe.engine.decode import decode
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.stats import RunStats


@dataclass
class Cache:
    capacity: int = 64
    length: int = 0

    def trim(self, length: int) -> None:
        self.length = length


@dataclass
class Counters:
    hits: int = 0
    misses: int = 0
    miss_bytes: int = 0
    read_wait_seconds: float = 0.0
    read_seconds: float = 0.0
    hideable_seconds: float = 0.0
    ahead_hits: int = 0
    ahead_bytes: int = 0


@dataclass
class CountingUp:
    """A model whose likeliest next token is the last one plus one."""

    vocab_size: int = 50
    kv: Cache = field(default_factory=Cache)
    counters: Counters = field(default_factory=Counters)
    selections: int = 0
    fed: list[list[int]] = field(default_factory=list)

    def forward(
        self, ids: np.ndarray, rows: str, on_layer: Callable[[int, int], None] | None = None
    ) -> np.ndarray:
        self.fed.append([int(i) for i in ids])
        self.kv.length += len(ids)
        self.selections += 2 * len(ids)
        self.counters.misses += 1
        self.counters.miss_bytes += 100
        logits = np.zeros((1, self.vocab_size), dtype=np.float32)
        logits[0, (ids[-1] + 1) % self.vocab_size] = 1
        return logits


class Greedy:
    def pick(self, logits: np.ndarray) -> int:
        return int(logits.argmax())


def run(target: CountingUp, prompt: list[int], **more) -> tuple[list[int], RunStats]:
    stats = RunStats()
    options = {"limit": 5, **more}
    return list(decode(target, prompt, Greedy(), stats=stats, **options)), stats


def test_every_row_is_fed_once_and_the_last_token_never() -> None:
    target = CountingUp()
    tokens, _ = run(target, [3, 4, 5], prefill_chunk=2)
    assert tokens == [6, 7, 8, 9, 10]
    assert target.fed == [[3, 4], [5], [6], [7], [8], [9]]


def test_plain_decoding_has_exactly_one_token_per_forward() -> None:
    _, stats = run(CountingUp(), [1, 2, 3])
    assert (stats.tokens, stats.decode.forwards, stats.tokens_per_forward) == (5, 5, 1.0)


def test_prefill_is_counted_apart_from_decode() -> None:
    _, stats = run(CountingUp(), list(range(10)), prefill_chunk=4)
    assert (stats.prefill.rows, stats.prefill.forwards, stats.prefill.misses) == (9, 3, 3)
    assert (stats.decode.rows, stats.decode.misses, stats.decode.miss_bytes) == (5, 5, 500)
    assert stats.bytes_per_token == 100
    assert stats.decode.selections == 10


def test_stop_token_is_emitted_and_ends_the_run() -> None:
    tokens, stats = run(CountingUp(), [1], stop_ids={4})
    assert tokens == [2, 3, 4] and stats.stop_reason == "stop token"


def test_limit_and_context_end_the_run_with_their_names() -> None:
    assert run(CountingUp(), [1])[1].stop_reason == "limit"
    target = CountingUp(kv=Cache(capacity=4))
    tokens, stats = run(target, [1, 2])
    assert stats.stop_reason == "context full" and target.kv.length == 4 and len(tokens) == 3


def test_a_caller_that_leaves_early_is_a_stopped_run() -> None:
    stats = RunStats()
    tokens = decode(CountingUp(), [1], Greedy(), limit=9, stats=stats)
    next(tokens)
    tokens.close()
    assert stats.stop_reason == "stopped" and stats.tokens == 1


def test_reused_prefix_is_not_fed_again() -> None:
    target = CountingUp(kv=Cache(length=3))
    run(target, [0, 1, 2, 3, 4], limit=1, reused=3)
    assert target.fed == [[3], [4]]


def test_what_another_run_left_in_the_cache_is_forgotten() -> None:
    target = CountingUp(kv=Cache(length=3))
    run(target, [0, 1, 2], limit=1)
    assert target.fed == [[0, 1], [2]]


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "empty"),
        ([50], "50 is outside the model's vocabulary of 50"),
        (list(range(40)) * 2, "80 tokens and CTX is 64"),
    ],
)
def test_prompt_that_cannot_be_fed_is_refused_before_any_forward(prompt, words) -> None:
    target = CountingUp()
    with pytest.raises(BadRequest, match=words):
        run(target, prompt)
    assert not target.fed
