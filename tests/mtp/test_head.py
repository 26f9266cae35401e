"""The MTP head's bookkeeping, on a layer that only counts."""

from collections.abc import Sequence
from itertools import islice

import numpy as np
import pytest

from diskmoe.mtp.head import MOST_DEPTH, WAITING_ROWS, Floats, MtpSource
from diskmoe.mtp.source import GRADES

HIDDEN, VOCAB = 2, 64


class Cache:
    """Rows as (token, what the state before it held)."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.rows: list[tuple[int, float]] = []
        self.length = 0

    def advance(self, n: int) -> None:
        self.length += n
        assert self.length == len(self.rows) <= self.capacity

    def trim(self, length: int) -> None:
        assert length <= self.length
        self.length = length
        del self.rows[length:]


class Layer:
    """Drafts one more than the token that it was given; its state is the token's number."""

    def __init__(self, capacity: int = 1000) -> None:
        self.kv = Cache(capacity)
        self.runs: list[tuple[int, bool]] = []  # rows, whether of a prompt
        self.asked = 0
        self.sure = 1.0

    def project(self, tokens: Sequence[int], states: Floats) -> Floats:
        assert states.shape == (len(tokens), HIDDEN)
        return np.array([[token, state[0]] for token, state in zip(tokens, states, strict=True)])

    def run(self, z: Floats, prompt: bool) -> None:
        self.runs.append((len(z), prompt))
        self.kv.rows += [(int(token), float(before)) for token, before in z]

    def normed(self, row: Floats) -> Floats:
        return np.array([row[0], 0.5], np.float32)

    def logits(self, state: Floats) -> Floats:
        self.asked += 1
        logits = np.full(VOCAB, -30.0, np.float32)
        logits[int(state[0]) + 1] = self.sure
        return logits


def states(tokens: Sequence[int]) -> Floats:
    """As if the state before a token held a tenth of it."""
    return np.array([[token / 10, 0] for token in tokens], np.float32)


def absorb(source: MtpSource, tokens: Sequence[int]) -> None:
    source.absorb(tokens, states(tokens))


def tokens_of(source: MtpSource, chain: Sequence[int] = (), count: int = 9) -> list[int]:
    drafts = source.drafts(chain)
    found = [draft.token for draft in islice(drafts, count)]
    drafts.close()
    return found


def test_rows_wait_until_drafts_are_wanted_or_many_wait() -> None:
    layer = Layer()
    source = MtpSource(layer, HIDDEN)
    for token in range(WAITING_ROWS - 1):
        absorb(source, [token])
    assert layer.runs == []
    absorb(source, [7, 8])
    assert layer.runs == [(WAITING_ROWS, False)]
    assert tokens_of(source, count=1) == [9]
    assert layer.runs == [(WAITING_ROWS, False), (1, False)]
    assert [round(10 * before) for _, before in layer.kv.rows] == [
        token for token, _ in layer.kv.rows
    ]


def test_a_chunk_of_a_prompt_is_worked_off_at_once_behind_what_waits() -> None:
    layer = Layer()
    source = MtpSource(layer, HIDDEN)
    absorb(source, [1, 2, 3])
    absorb(source, [5] * WAITING_ROWS)
    assert layer.runs == [(3, False), (WAITING_ROWS, True)]
    assert tokens_of(source, count=1) == [6] and len(layer.runs) == 2


def test_drafts_are_worked_out_one_by_one_and_taken_back() -> None:
    layer = Layer()
    source = MtpSource(layer, HIDDEN)
    absorb(source, [1, 2, 3])
    for count in (0, 1, 2, MOST_DEPTH):
        layer.asked = 0
        assert tokens_of(source, count=count) == [4, 5, 6, 7][:count]
        assert layer.asked == count and layer.kv.length == (3 if count else 0)
    assert tokens_of(source) == [4, 5, 6, 7]  # no deeper


def test_drafts_go_on_from_the_state_that_the_head_made() -> None:
    layer = Layer()
    source = MtpSource(layer, HIDDEN)
    absorb(source, [3])
    drafts = source.drafts([])
    assert [next(drafts).token for _ in range(3)] == [4, 5, 6]
    assert layer.kv.rows == [(3, pytest.approx(0.3)), (4, 3.0), (5, 4.0)]
    drafts.close()
    assert len(layer.kv.rows) == 1


def test_a_chain_of_others_is_fed_and_counts_as_depth() -> None:
    layer = Layer()
    source = MtpSource(layer, HIDDEN)
    absorb(source, [1])
    assert tokens_of(source, [20]) == [21, 22, 23]
    assert tokens_of(source, [20, 30, 40]) == [41]
    runs = len(layer.runs)
    assert tokens_of(source, [20, 30, 40, 50]) == [] and len(layer.runs) == runs
    assert layer.kv.length == 1


def test_guesses_are_told_what_comes_before_them_and_end_where_none_fits() -> None:
    told: list[list[int]] = []

    def guess(logits: Floats, chain: Sequence[int]) -> tuple[int, float]:
        told.append(list(chain))
        return (len(chain) if len(chain) < 3 else -1), 0.5

    source = MtpSource(Layer(), HIDDEN, guess)
    absorb(source, [1])
    assert tokens_of(source) == [0, 1, 2]
    assert tokens_of(source, [5, 6]) == [2]
    assert told == [[], [0], [0, 1], [0, 1, 2], [5, 6], [5, 6, 2]]


def test_grades_follow_what_the_head_thinks_of_its_draft() -> None:
    layer = Layer()
    source = MtpSource(layer, HIDDEN)
    absorb(source, [1])
    found = []
    for sure in (-29.0, -26.0, -25.0, 0.0):  # against 63 others at -30
        layer.sure = sure
        drafts = source.drafts([])
        found.append(next(drafts).grade)
        drafts.close()
    assert found == [0, 1, 2, 3] and len(source.grades) == GRADES


def test_nothing_is_said_before_anything_was_read_or_when_the_cache_is_full() -> None:
    layer = Layer(capacity=6)
    source = MtpSource(layer, HIDDEN)
    assert tokens_of(source) == []
    absorb(source, [1, 2, 3, 4])
    assert tokens_of(source) == [5, 6, 7]
    assert tokens_of(source, [9, 9, 9]) == []
    absorb(source, [5, 6])
    assert tokens_of(source) == [7]


def test_a_new_text_begins_anew_or_behind_what_it_has_in_common() -> None:
    layer = Layer()
    source = MtpSource(layer, HIDDEN)
    absorb(source, [1, 2, 3, 4])
    tokens_of(source)
    absorb(source, [5])  # it never comes to this one
    for reused, expected in ((9, 4), (2, 2), (0, 0)):
        source = MtpSource(layer, HIDDEN, reused=reused)
        assert tokens_of(source) == []
        absorb(source, [6])
        assert tokens_of(source) and layer.kv.length == expected + 1


def test_what_another_text_leaves_behind_before_the_first_row_is_no_part_of_this_one() -> None:
    layer = Layer()
    older, newer = MtpSource(layer, HIDDEN), MtpSource(layer, HIDDEN)
    absorb(older, [1, 2, 3])
    tokens_of(older)
    absorb(newer, [5])
    assert tokens_of(newer) == [6, 7, 8, 9] and layer.kv.length == 1


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_end_it(number: float) -> None:
    class Broken(Layer):
        def logits(self, state: Floats) -> Floats:
            logits = super().logits(state)
            logits[7] = number
            return logits

    def strict(logits: Floats, chain: Sequence[int]) -> tuple[int, float]:
        raise AssertionError("what chooses tokens is asked about numbers alone")

    layer = Broken()
    source = MtpSource(layer, HIDDEN, strict)
    absorb(source, [1])
    assert tokens_of(source) == [] and source.gave_up == "it computed what is no number"
    assert tokens_of(source) == [] and layer.asked == 1
