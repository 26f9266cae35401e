"""A small model as a source: what it says is what it would write, whatever was tried before."""

from collections.abc import Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskmoe.mtp.draft_model import DraftModelSource
from diskmoe.mtp.source import GRADES

VOCAB = 11


class Cache:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tokens: list[int] = []

    @property
    def room(self) -> int:
        return self.capacity - len(self.tokens)

    def trim(self, length: int) -> None:
        assert 0 <= length <= len(self.tokens)
        del self.tokens[length:]


class Toy:
    """Its logits are a function of all tokens in the cache; it counts the rows it was fed."""

    vocab_size = VOCAB

    def __init__(self, capacity: int = 400, sharp: float = 8.0) -> None:
        self.kv = Cache(capacity)
        self.sharp = sharp
        self.passes: list[int] = []

    def forward(self, ids: npt.ArrayLike, rows: str) -> npt.NDArray[np.float32]:
        tokens = np.asarray(ids).tolist()
        assert len(tokens) <= self.kv.room
        self.kv.tokens += tokens
        self.passes.append(len(tokens))
        return np.array([self.logits(self.kv.tokens)] if rows == "last" else [], np.float32)

    def logits(self, tokens: Sequence[int]) -> list[float]:
        random = np.random.default_rng([len(tokens), *tokens])
        return (random.random(VOCAB) * self.sharp).tolist()


def best(logits: npt.NDArray[np.float32], chain: Sequence[int]) -> tuple[int, float]:
    token = int(logits.argmax())
    return token, 1 / float(np.exp(logits - logits[token]).sum())


def said(source: DraftModelSource, chain: Sequence[int] = (), count: int = 4) -> list[int]:
    return [draft.token for draft in islice(source.drafts(chain), count)]


def written(text: Sequence[int], count: int) -> list[int]:
    """What the toy writes behind a text."""
    tokens, toy = list(text), Toy()
    for _ in range(count):
        tokens.append(int(np.argmax(toy.logits(tokens))))
    return tokens[len(text) :]


tokens = st.lists(st.integers(0, VOCAB - 1), max_size=6)


@settings(max_examples=80, deadline=None)
@given(
    tokens.filter(len), st.lists(st.tuples(st.integers(0, 3), tokens, tokens, st.integers(0, 5)))
)
def test_it_says_what_the_model_writes_whatever_was_accepted_or_tried_before(
    prompt: list[int], steps: list[tuple[int, list[int], list[int], int]]
) -> None:
    toy, text = Toy(), list(prompt)
    source = DraftModelSource(toy, prompt, best, p_min=0)
    for accepted, others, chain, count in steps[:12]:
        drafts = said(source, chain, count)
        assert drafts == written([*text, *chain], count)
        emitted = [*drafts[:accepted], *others] if not chain else others
        text += emitted
        source.observe(emitted)


def test_accepted_drafts_are_not_read_again_and_the_rest_in_one_pass() -> None:
    toy = Toy()
    source = DraftModelSource(toy, [1, 2, 3], best, p_min=0)
    drafts = said(source, count=4)
    assert toy.passes == [3, 1, 1, 1]  # the last draft was not fed
    source.observe([*drafts, 5])
    said(source, count=1)
    assert toy.passes[4:] == [2]
    source.observe([(written([1, 2, 3, *drafts, 5], 1)[0] + 1) % VOCAB, 7, 8])
    said(source, count=1)
    assert toy.passes[5:] == [3]


def test_nothing_is_read_before_it_is_asked_and_a_long_prompt_is_all_that_is_read_then() -> None:
    toy = Toy()
    prompt = [token % VOCAB for token in range(301)]
    source = DraftModelSource(toy, prompt, best, p_min=0)
    assert toy.passes == []
    assert said(source) == [] and toy.passes == [256, 44]
    assert said(source, count=2) == written(prompt, 2) and toy.passes[2:] == [1, 1]


def test_it_ends_where_it_is_not_sure_and_grades_by_how_sure_it_is() -> None:
    prompt = [1, 2, 3]
    probabilities, grades = [], []
    for sharp in (0.1, 20.0, 80.0, 2000.0):
        source = DraftModelSource(Toy(sharp=sharp), prompt, best, p_min=0)
        (draft,) = islice(source.drafts([]), 1)
        grades.append(draft.grade)
        logits = np.array(Toy(sharp=sharp).logits(prompt))
        probabilities.append(1 / np.exp(logits - logits.max()).sum())
    assert grades == sorted(grades) and grades[0] == 0 and grades[-1] == GRADES - 1
    for sharp, probability in zip((0.1, 20.0), probabilities, strict=False):
        for p_min, count in ((probability * 0.99, 1), (probability * 1.01, 0)):
            source = DraftModelSource(Toy(sharp=sharp), prompt, best, p_min=p_min)
            assert len(said(source, count=1)) == count


def test_the_large_models_way_to_choose_is_asked_with_what_comes_before_each_draft() -> None:
    asked: list[list[int]] = []

    def guess(logits: npt.NDArray[np.float32], chain: Sequence[int]) -> tuple[int, float]:
        asked.append(list(chain))
        return (len(chain) if len(chain) < 5 else -1), 1.0

    source = DraftModelSource(Toy(), [1, 2], guess, p_min=0)
    assert said(source, [9, 9], count=9) == [2, 3, 4]
    assert asked == [[9, 9], [9, 9, 2], [9, 9, 2, 3], [9, 9, 2, 3, 4]]


def test_it_gives_up_where_its_context_ends_or_a_token_is_not_its_own() -> None:
    source = DraftModelSource(Toy(capacity=4), [1, 2], best, p_min=0)
    assert len(said(source, count=9)) == 3 and not source.gave_up
    source.observe([3, 4, 5])
    assert said(source) == [] and source.gave_up == "the small model's context of 4 tokens is full"
    source = DraftModelSource(Toy(), [1, VOCAB], best, p_min=0)
    assert said(source) == [] and source.gave_up == f"the small model has no token {VOCAB}"


def test_drafts_of_others_that_it_cannot_read_do_not_end_it() -> None:
    source = DraftModelSource(Toy(capacity=4), [1, 2], best, p_min=0)
    assert said(source, [VOCAB]) == [] == said(source, [3, 4, 5])
    assert not source.gave_up and said(source, count=1) == written([1, 2], 1)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_end_it(number: float) -> None:
    class Broken(Toy):
        def logits(self, tokens: Sequence[int]) -> list[float]:
            return [0.0, number, *[0.0] * (VOCAB - 2)]

    def strict(logits: npt.NDArray[np.float32], chain: Sequence[int]) -> tuple[int, float]:
        raise AssertionError("what chooses tokens is asked about numbers alone")

    source = DraftModelSource(Broken(), [1], strict)
    assert said(source) == [] and source.gave_up == "the small model computed what is no number"


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_new_text_begins_with_an_empty_cache(count: int) -> None:
    toy = Toy()
    said(DraftModelSource(toy, [1, 2, 3], best, p_min=0), count=3)
    again = DraftModelSource(toy, [4], best, p_min=0)
    assert said(again, count=count) == written([4], count)
