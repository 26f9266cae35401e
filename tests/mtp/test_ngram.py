"""Prompt lookup: what it says, by a twin that looks at every place, and what it leaves behind."""

from collections.abc import Sequence
from itertools import islice

import naive
from hypothesis import given, settings
from hypothesis import strategies as st

from diskmoe.mtp.ngram import NgramSource
from diskmoe.mtp.source import GRADES

few_words = st.lists(st.integers(0, 2), max_size=120)
pasted = st.lists(  # texts that repeat themselves at length
    st.sampled_from([[1, 2, 3, 4, 5, 6, 7], [3, 4, 5, 9], [8], [1, 2, 3, 8, 5]]), max_size=16
).map(lambda parts: [token for part in parts for token in part])
texts = st.one_of(few_words, pasted, st.lists(st.integers(0, 2**31 - 1), max_size=12))


def said(source: NgramSource, chain: Sequence[int] = (), count: int = 12) -> list[tuple[int, int]]:
    return [(draft.token, draft.grade) for draft in islice(source.drafts(chain), count)]


@settings(max_examples=200, deadline=None)
@given(texts, few_words.map(lambda tokens: tokens[:6]))
def test_it_says_what_a_look_at_every_place_says(text: list[int], chain: list[int]) -> None:
    source = NgramSource(text)
    assert said(source, chain) == naive.lookup(text, chain, 12)
    assert said(source) == naive.lookup(text, [], 12)


@settings(max_examples=100, deadline=None)
@given(texts, st.lists(st.integers(0, 120), max_size=5), few_words)
def test_how_a_text_is_told_and_what_was_tried_between_make_no_difference(
    text: list[int], cuts: list[int], chain: list[int]
) -> None:
    source, begin = NgramSource(), 0
    for cut in [*sorted(cuts), len(text)]:
        source.observe(text[begin:cut])
        begin = max(begin, cut)
        said(source, chain)
    assert said(source, chain) == said(NgramSource(text), chain)


def test_a_text_of_thousands_of_tokens_is_looked_up_as_a_short_one() -> None:
    text = [(i * i) % 1009 for i in range(5000)]  # tables grow five times
    for end in (4997, 4998, 5000):
        assert said(NgramSource(text[:end])) == naive.lookup(text[:end], [], 12) != []


def test_two_tokens_seen_once_are_no_evidence_and_twice_the_same_way_they_are() -> None:
    assert said(NgramSource([1, 2, 3, 9, 1, 2])) == []
    assert said(NgramSource([1, 2, 3, 8, 1, 2, 3, 9, 1, 2]))[0] == (3, 1)


def test_a_long_match_is_copied_on_and_the_surest_grade_is_for_it() -> None:
    line = list(range(100, 140))
    drafts = said(NgramSource([*line, 7, *line[:20]]), count=20)
    assert drafts == [(token, GRADES - 1) for token in line[20:]]


def test_the_place_with_most_in_common_wins_and_of_equal_ones_the_latest() -> None:
    line = list(range(100, 112))
    more, less = [5, *line, 10], [6, *line, 20]
    assert said(NgramSource([*more, *less, 5, *line]), count=1) == [(10, 0)]
    assert said(NgramSource([*less, *more, 5, *line]), count=1) == [(10, 0)]
    assert said(NgramSource([*more, *less, 7, *line]), count=1) == [(20, 0)]


def test_drafts_go_on_behind_what_others_propose() -> None:
    source = NgramSource([*range(20), 99])
    assert said(source) == []
    assert [token for token, _ in said(source, [3, 4, 5], count=3)] == [6, 7, 8]
