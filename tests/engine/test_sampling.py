"""The next token: filters, ties, seeds, and logits that are not numbers."""

import math

import numpy as np
import pytest

from diskmoe.engine.errors import BadModel, BadRequest
from diskmoe.engine.sampling import Sampler, Sampling


def logits_of(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def plain_probabilities(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """The filters written with full sorts: {id: probability}."""
    scaled = logits.astype(np.float64) / temperature
    order = sorted(range(len(logits)), key=lambda i: (-scaled[i], i))
    if top_k:
        order = order[:top_k]

    def shares(ids):
        weights = np.exp(scaled[ids] - scaled[order[0]])
        return weights / weights.sum()

    if top_p < 1:
        held = np.cumsum(shares(order))
        order = order[: int(np.argmax(held >= top_p)) + 1]
    share = shares(order)
    order = [i for i, p in zip(order, share, strict=True) if p >= min_p * share[0]]
    return dict(zip(order, shares(order), strict=True))


def test_greedy_takes_the_largest_and_the_lowest_id_of_equals():
    assert Sampler(Sampling(), 5).pick(logits_of(1, 3, 2, 3, 0)) == 1


def test_greedy_is_one_id_with_probability_one():
    ids, probs = Sampler(Sampling(top_k=2, top_p=0.1), 3).probabilities(logits_of(1, 3, 2))

    assert (ids.tolist(), probs.tolist()) == ([1], [1.0])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("valid", [3, np.array([True, True, True, False, False])])
def test_rows_without_a_token_are_never_taken(temperature, valid):
    sampler = Sampler(Sampling(temperature, seed=1), valid)

    assert {sampler.pick(logits_of(1, 1, 2, 99, math.nan)) for _ in range(50)} <= {0, 1, 2}


@pytest.mark.parametrize("top_k", [0, 2, 4])
def test_gaps_inside_the_vocabulary_are_never_taken(top_k):
    valid = np.array([True, False, True, False, True])
    sampler = Sampler(Sampling(1.0, top_k=top_k, seed=1), valid)

    ids, probs = sampler.probabilities(logits_of(1, 99, 1, math.nan, 2))

    assert set(ids.tolist()) <= {0, 2, 4}
    assert probs.sum() == pytest.approx(1)
    assert Sampler(Sampling(), valid).pick(logits_of(1, 99, 1, math.nan, 2)) == 4


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"temperature": 0.3},
        {"temperature": 2.5},
        {"top_k": 1},
        {"top_k": 7},
        {"top_k": 5000},
        {"top_p": 0.5},
        {"top_p": 0.999},
        {"top_p": 1e-9},
        {"min_p": 0.1},
        {"min_p": 1.0},
        {"temperature": 1.7, "top_k": 40, "top_p": 0.8, "min_p": 0.02},
        {"temperature": 3.0, "top_p": 0.95},
        {"temperature": 50.0, "top_p": 0.95},  # nearly flat
        {"top_k": 500, "top_p": 0.6},
        {"top_p": 0.9, "min_p": 0.05},
    ],
)
def test_the_distribution_is_that_of_plain_sorting(filters):
    logits = np.random.default_rng(3).normal(0, 2, 3000).astype(np.float32)
    logits[100:200] = logits[50]  # many equals
    expected = plain_probabilities(logits, **filters)

    ids, probs = Sampler(Sampling(**{"temperature": 1.0, **filters}), 3000).probabilities(logits)

    assert ids.tolist() == sorted(expected)
    assert probs == pytest.approx([expected[i] for i in ids.tolist()], rel=1e-9)


def test_top_k_keeps_exactly_k_of_equals_the_lowest_ids():
    ids, _ = Sampler(Sampling(1.0, top_k=2), 4).probabilities(logits_of(0, 5, 5, 5))

    assert ids.tolist() == [1, 2]


def test_temperature_comes_before_top_p():
    logits = logits_of(*np.log([0.7, 0.2, 0.1]))  # at temperature 3: 0.44, 0.30, 0.25

    ids, _ = Sampler(Sampling(3.0, top_p=0.7), 3).probabilities(logits)

    assert ids.tolist() == [0, 1]


@pytest.mark.parametrize("temperature", [1e-300, 5e-324, 1e308])
def test_extreme_temperatures_are_finite(temperature):
    ids, probs = Sampler(Sampling(temperature), 3).probabilities(logits_of(1, 3, 2))

    assert probs.sum() == pytest.approx(1)
    assert (ids.tolist() == [1]) == (temperature < 1)


def test_a_seed_gives_the_same_tokens_and_another_seed_others():
    logits = np.random.default_rng(0).normal(0, 1, 50).astype(np.float32)

    def tokens(seed: int) -> list[int]:
        sampler = Sampler(Sampling(1.0, seed=seed), 50)
        return [sampler.pick(logits) for _ in range(40)]

    assert tokens(7) == tokens(7) != tokens(8)
    assert len(set(tokens(7))) > 5


FILTERS = [{}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 9, "top_p": 0.9}]


@pytest.mark.parametrize("filters", FILTERS)
def test_a_guess_is_what_the_pick_at_its_place_will_be_and_changes_nothing(filters):
    rows = np.random.default_rng(1).normal(0, 2, (12, 200)).astype(np.float32)
    sampler = Sampler(Sampling(0.9, seed=4, **filters), 200)
    guesses = [sampler.guess(row, [0] * ahead)[0] for ahead, row in enumerate(rows)]

    assert [sampler.pick(row) for row in rows] == guesses
    again = Sampler(Sampling(0.9, seed=4, **filters), 200)
    assert [again.pick(row) for row in rows] == guesses


def test_a_guess_takes_logits_of_another_length_and_only_ids_that_have_a_token():
    valid = np.array([True, False, True, False, True])
    sampler = Sampler(Sampling(1.0, seed=1), valid)

    for length in (1, 3, 5, 8, 100):
        logits = np.full(length, 9, np.float32)
        assert {sampler.guess(logits, [0] * ahead)[0] for ahead in range(60)} == {
            i for i in (0, 2, 4) if i < length
        }


@pytest.mark.parametrize("filters", FILTERS)
def test_guesses_on_disturbed_logits_are_right_nearly_as_often_as_can_be(filters):
    """No rule can be right more often than 1 - sum |p - q| / 2; greedy guesses are far below."""
    rng = np.random.default_rng(2)
    sampler = Sampler(Sampling(1.0, seed=3, **filters), 1000)
    right, most, greedy = 0, 0.0, 0
    for _ in range(400):
        logits = (2 * rng.gumbel(size=1000)).astype(np.float32)
        disturbed = logits + (0.5 * rng.normal(size=1000)).astype(np.float32)
        p, q = (np.zeros(1000), np.zeros(1000))
        for into, row in ((p, logits), (q, disturbed)):
            ids, probs = sampler.probabilities(row)
            into[ids] = probs
        most += float(np.minimum(p, q).sum())
        guess, likeliest = sampler.guess(disturbed)[0], int(disturbed.argmax())
        token = sampler.pick(logits)
        right += token == guess
        greedy += token == likeliest
    assert greedy < right
    assert 0.92 * most < right < 1.05 * most


def test_logits_of_another_kind_are_chosen_from_as_well():
    logits = np.array([[0.0, 3.0], [1.0, 2.0]], np.float32)
    logits.flags.writeable = False
    sampler = Sampler(Sampling(), 2)

    assert sampler.pick(logits[:, 0]) == 1
    assert sampler.pick(logits[0].astype(np.float64)) == 1  # pyright: ignore[reportArgumentType]


def test_a_seed_that_was_not_given_is_told_and_repeats_the_run():
    logits = np.zeros(1000, dtype=np.float32)
    sampler = Sampler(Sampling(1.0), 1000)
    tokens = [sampler.pick(logits) for _ in range(5)]

    again = Sampler(Sampling(1.0, seed=sampler.seed), 1000)

    assert [again.pick(logits) for _ in range(5)] == tokens
    assert Sampler(Sampling(1.0), 1000).seed != sampler.seed


@pytest.mark.parametrize("filters", FILTERS)
def test_tokens_come_as_often_as_their_probabilities_say(filters):
    """Chi-square of 20,000 tokens; 4 spreads are a chance of 1 in 10,000, and the seed is fixed."""
    sampler = Sampler(Sampling(1.3, seed=0, **filters), 30)
    logits = np.random.default_rng(6).normal(0, 1, 30).astype(np.float32)
    ids, probs = sampler.probabilities(logits)
    n = 20_000

    counts = np.bincount([sampler.pick(logits) for _ in range(n)], minlength=30)

    assert counts[ids].sum() == n
    statistic = ((counts[ids] - n * probs) ** 2 / (n * probs)).sum()
    assert abs(statistic - (len(ids) - 1)) < 4 * (2 * (len(ids) - 1)) ** 0.5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_an_error_with_the_token(temperature, bad):
    with pytest.raises(BadModel, match=r"as the logit of token 1 \(1 of 3 are not finite\)"):
        Sampler(Sampling(temperature), 3).pick(logits_of(0, bad, 1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", 1.0),
    ],
)
def test_a_setting_out_of_bounds_is_a_bad_request_with_its_name(name, value):
    with pytest.raises(BadRequest, match=f"^{name} is .*: it must be "):
        Sampling(**{name: value})


def test_a_vocabulary_without_tokens_cannot_be_sampled():
    with pytest.raises(BadModel, match="no token"):
        Sampler(Sampling(), np.zeros(4, dtype=np.bool_))
