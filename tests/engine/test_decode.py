"""The decode loop on a model that is a table: what it feeds, counts, and when it stops."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from diskmoe.engine.decode import decode
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.sampling import Sampler, Sampling
from diskmoe.engine.stats import RunStats
from diskmoe.mtp.compose import Composer
from diskmoe.mtp.planner import Planner
from diskmoe.mtp.source import Draft


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
    programs_made: int = 0
    copied: int = 0
    row_misses: Sequence[int] = ()
    fed: list[list[int]] = field(default_factory=list)

    def forward(
        self, ids: np.ndarray, rows: str, on_layer: Callable[[int, int], None] | None = None
    ) -> np.ndarray:
        self.fed.append([int(i) for i in ids])
        self.kv.length += len(ids)
        self.row_misses = [0] * len(ids)
        self.selections += 2 * len(ids)
        self.counters.misses += 1
        self.counters.miss_bytes += 100
        wanted = ids if rows == "all" else ids[-1:]
        logits = np.zeros((len(wanted), self.vocab_size), dtype=np.float32)
        logits[np.arange(len(wanted)), (wanted + 1) % self.vocab_size] = 1
        return logits


def greedy() -> Sampler:
    return Sampler(Sampling(), CountingUp.vocab_size)


def run(target: CountingUp, prompt: list[int], **more) -> tuple[list[int], RunStats]:
    stats = RunStats()
    options = {"limit": 5, **more}
    return list(decode(target, prompt, greedy(), stats=stats, **options)), stats


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
    tokens = decode(CountingUp(), [1], greedy(), limit=9, stats=stats)
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


@dataclass
class Guesses:
    """A source that counts on, and errs at every token that `wrong` divides."""

    length: int = 3
    wrong: int = 1000
    name: str = "guesses"
    gave_up: str = ""
    prior: tuple[float, ...] = (1.0,)
    cheap: bool = True
    grades: tuple[float, ...] = ()
    last: int = 0

    def drafts(self, chain: Sequence[int]) -> Generator[Draft, None, None]:
        for token in range(self.last + 1, self.last + 1 + self.length):
            yield Draft(0 if token % self.wrong == 0 else token % 50)

    def observe(self, tokens: Sequence[int]) -> None:
        self.last = tokens[-1]


def drafted(target: CountingUp, prompt: list[int], source: Guesses, **more):
    """The tokens, the stats, and the accounts' sums, which are checked."""
    source.observe(prompt)
    composer = Composer([], [source], target.vocab_size, most=24, planner=Planner(fixed=24))
    tokens, stats = run(target, prompt, drafts=composer, **more)
    account = composer.accounts["guesses"]
    assert stats.tokens == len(tokens) == stats.sampled + account.accepted
    assert account.accepted <= account.judged <= account.proposed
    assert stats.decode.rows == stats.decode.forwards + account.proposed
    return tokens, stats, account


def test_drafts_are_rows_behind_the_token_at_hand_and_right_ones_save_forwards() -> None:
    target = CountingUp()
    tokens, stats, account = drafted(target, [1], Guesses(3), limit=8)
    assert tokens == [2, 3, 4, 5, 6, 7, 8, 9]
    assert target.fed == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert stats.tokens_per_forward == 4.0 and account.acceptance == 1.0 and stats.sampled == 2


def test_rejected_rows_are_taken_back_out_of_the_cache() -> None:
    target = CountingUp()
    tokens, _, account = drafted(target, [1], Guesses(3, wrong=4), limit=9)
    assert tokens == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert target.fed == [[1, 2, 3, 0], [4, 5, 6, 7], [8, 9]]
    assert target.kv.length == 9 and account.judged == 7 and account.accepted == 6


def test_the_limit_is_never_overrun_and_its_last_token_takes_no_drafts() -> None:
    for limit in range(1, 12):
        target = CountingUp()
        tokens, stats, _ = drafted(target, [1], Guesses(4, wrong=3), limit=limit)
        assert tokens == list(range(2, 2 + limit)) and stats.stop_reason == "limit"
        assert target.kv.length == limit
    assert drafted(CountingUp(), [1], Guesses(4), limit=1)[2].proposed == 0


def test_the_end_of_the_context_is_where_it_is_without_drafts() -> None:
    for capacity in range(3, 14):
        plain, stats = run(CountingUp(kv=Cache(capacity)), [1, 2], limit=50)
        target = CountingUp(kv=Cache(capacity))
        tokens, with_drafts, _ = drafted(target, [1, 2], Guesses(5), limit=50)
        assert tokens == plain and target.kv.length == capacity
        assert with_drafts.stop_reason == stats.stop_reason == "context full"


def test_a_stop_token_inside_drafts_ends_the_run() -> None:
    target = CountingUp()
    tokens, stats, account = drafted(target, [1], Guesses(5), stop_ids={4}, limit=20)
    assert tokens == [2, 3, 4] and stats.stop_reason == "stop token"
    assert (account.judged, account.accepted, stats.sampled) == (3, 3, 0)
    assert target.kv.length == 3  # as without drafts: a stop token is not fed


def test_a_caller_that_leaves_within_a_forward_leaves_accounts_that_add_up() -> None:
    stats, composer = (
        RunStats(),
        Composer([], [Guesses(5, last=1)], 50, most=24, planner=Planner(fixed=24)),
    )
    tokens = decode(CountingUp(), [1], greedy(), limit=9, stats=stats, drafts=composer)
    assert [next(tokens), next(tokens)] == [2, 3]
    tokens.close()
    account = composer.accounts["guesses"]
    assert (stats.tokens, stats.sampled, account.judged, account.accepted) == (2, 0, 2, 2)


def test_it_is_told_how_many_rows_of_a_forward_with_drafts_were_of_use() -> None:
    used: list[int] = []
    drafted(CountingUp(), [1], Guesses(3, wrong=4), limit=9, on_verified=used.append)
    assert used == [3, 4, 2]


def test_without_drafts_only_the_last_row_has_logits() -> None:
    class Strict(CountingUp):
        def forward(self, ids, rows, on_layer=None):
            assert rows in ("last", "none")
            return super().forward(ids, rows, on_layer)

    assert run(Strict(), [1, 2, 3])[0] == [4, 5, 6, 7, 8]
    assert drafted(Strict(), [1, 2, 3], Guesses(0))[0] == [4, 5, 6, 7, 8]
