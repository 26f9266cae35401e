"""Passes over the logits: against their twins, with masks, ties and what is not a number."""

import math

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskmoe.engine.kernels.select import (
    ALL,
    at_least,
    heaviest,
    largest_of_blocks,
    share_of,
    total_weight,
    weigh,
)


class Rows:
    """Logits and a mask: `logits` f32 (n,), `allowed` u64 (blocks,), with many equals."""

    def __init__(self, seed: int, n: int, share: float = 1.0, spread: float = 3.0) -> None:
        rng = np.random.default_rng(seed)
        self.logits = rng.normal(0, spread, n).astype(np.float32)
        halves = rng.random(n) < 0.3
        self.logits[halves] = np.round(2 * self.logits[halves]) / 2
        mask = np.zeros(-(-n // 64) * 64, np.bool_)
        mask[:n] = rng.random(n) < share
        self.allowed = np.packbits(mask, bitorder="little").view("<u8").astype(np.uint64)
        self.allowed[rng.random(len(self.allowed)) < 0.2] *= np.uint64(share == 1.0)
        self.maxima = np.empty(len(self.allowed), np.float32)
        self.best = largest_of_blocks(self.logits, self.allowed, self.maxima)
        self.ids = np.flatnonzero(naive.mask_of(self.allowed, n)).astype(np.int32)


rows = st.builds(
    Rows,
    st.integers(0, 1000),
    st.integers(1, 400),
    st.sampled_from([1.0, 0.9, 0.1]),
    st.sampled_from([0.0, 1e-30, 0.1, 3.0, 1e6]),
)


@settings(max_examples=60, deadline=None)
@given(rows)
def test_the_largest_and_each_blocks_largest_are_those_of_the_twin(given: Rows) -> None:
    best, maxima = naive.largest_of_blocks(given.logits, given.allowed, len(given.maxima))
    assert given.best == best
    np.testing.assert_array_equal(given.maxima, maxima)


def test_of_equals_the_lowest_id_is_the_largest_zeros_of_both_signs_among_them() -> None:
    for first, second in ((0.0, -0.0), (-0.0, 0.0)):
        logits = np.full(200, -1, np.float32)
        logits[[70, 130]] = first, second
        allowed = np.full(4, ALL)
        allowed[3] = np.uint64(255)
        assert largest_of_blocks(logits, allowed, np.empty(4, np.float32)) == 70


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 63, 64, 100, 129])
def test_a_number_that_is_not_finite_is_seen_wherever_it_stands(bad: float, place: int) -> None:
    logits = np.zeros(130, np.float32)
    logits[place] = bad
    allowed = np.array([ALL, ALL, 3], np.uint64)
    maxima = np.empty(3, np.float32)
    assert largest_of_blocks(logits, allowed, maxima) == -2
    allowed[place // 64] &= ~(np.uint64(1) << np.uint64(place % 64))  # and not, where forbidden
    assert largest_of_blocks(logits, allowed, maxima) == (0 if place else 1)


def test_a_word_of_ones_reads_nothing_behind_the_logits() -> None:
    logits = np.array([*[0.0] * 70, math.nan], np.float32)[:70]
    maxima = np.empty(2, np.float32)
    assert largest_of_blocks(logits, np.full(2, ALL), maxima) == 0
    assert total_weight(logits, np.full(2, ALL), maxima, np.float32(0), 1.0) == 70


@settings(max_examples=60, deadline=None)
@given(rows, st.sampled_from([0.3, 1.0, 2.5, 1e-300, 1e308]))
def test_weights_and_their_total_are_those_of_the_twin(given: Rows, temperature: float) -> None:
    if given.best < 0:
        return
    largest = given.logits[given.best]
    wanted = naive.weights(given.logits[given.ids], float(largest), temperature)
    wanted[wanted < math.exp(-700)] = 0  # nothing, beside the likeliest, which weighs 1
    weights = np.empty(len(given.ids))
    weigh(given.logits, given.ids, largest, temperature, weights)
    np.testing.assert_allclose(weights, wanted, rtol=1e-13, atol=1e-300)
    total = total_weight(given.logits, given.allowed, given.maxima, largest, temperature)
    assert total == pytest.approx(wanted.sum(), rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(rows, st.integers(0, 10_000))
def test_a_tokens_share_is_that_of_the_twin(given: Rows, number: int) -> None:
    if given.best < 0:
        return
    token = given.ids[number % len(given.ids)]
    share = share_of(given.logits, given.allowed, given.maxima, token)
    with np.errstate(over="ignore"):
        wanted = naive.share_of(given.logits, given.allowed, token)
    assert share == pytest.approx(wanted, rel=1e-5, abs=1e-30)


@settings(max_examples=60, deadline=None)
@given(rows, st.sampled_from([-math.inf, -1.0, 0.0, 2.5, 1e9]))
def test_ids_at_a_border_or_above_it_are_all_found(given: Rows, border: float) -> None:
    found = np.empty(len(given.logits), np.int32)
    count = at_least(given.logits, given.allowed, given.maxima, border, found)
    assert found[:count].tolist() == [i for i in given.ids.tolist() if given.logits[i] >= border]


@settings(max_examples=100, deadline=None)
@given(rows, st.integers(1, 500), st.sampled_from(["count", "weight"]))
def test_the_heaviest_are_those_of_a_full_sort(given: Rows, part: int, kind: str) -> None:
    if given.best < 0:
        return
    weights = np.ones(len(given.ids))
    if kind == "weight":
        weights = np.random.default_rng(part).integers(1, 1000, len(given.ids)) / 64  # exact sums
    target = min(float(part), weights.sum())
    wanted = naive.heaviest(given.logits, given.ids.tolist(), weights, target)
    by_id = dict(zip(given.ids.tolist(), weights.tolist(), strict=True))
    ids = given.ids.copy()
    kept = heaviest(given.logits, ids, weights, target, np.empty_like(ids))
    assert ids[:kept].tolist() == wanted
    assert weights[:kept].tolist() == [by_id[i] for i in wanted]


def test_a_target_that_rounding_puts_out_of_reach_keeps_all() -> None:
    logits, ids = np.array([1.0, -2.0, 0.5], np.float32), np.arange(3, dtype=np.int32)
    weights = np.array([0.5, 0.1, 0.2])
    assert heaviest(logits, ids, weights, 0.8 + 1e-9, np.empty_like(ids)) == 3
    assert ids.tolist() == [0, 1, 2]
