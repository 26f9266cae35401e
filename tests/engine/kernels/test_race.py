"""Choosing by a race: the noise, who wins, and how often two who are alike agree."""

import naive
import numpy as np
import pytest

from diskmoe.engine.kernels.race import race, race_all, stream_of, uniform
from diskmoe.engine.kernels.select import largest_of_blocks


def stream(seed: int, place: int) -> np.uint64:
    return np.uint64(stream_of(np.uint64(seed), np.uint64(place)))


def test_the_noise_is_that_of_its_twin() -> None:
    for seed in (0, 1, 2**64 - 1):
        for place in (0, 1, 77):
            own = naive.stream_of(seed, place)
            assert int(stream(seed, place)) == own
            for number in (0, 5, 201_087):
                assert uniform(np.uint64(own), np.uint64(number)) == naive.uniform(own, number)


def test_the_noise_is_even_and_neither_places_nor_ids_nor_seeds_are_alike() -> None:
    """Lag-0 correlations of neighbours, and 64 bins, of 20,000 numbers each: 5 spreads."""
    n = 20_000

    def numbers(seed: int, place: int) -> np.ndarray:
        at = stream(seed, place)
        return np.array([uniform(at, np.uint64(i)) for i in range(n)])

    drawn = [numbers(s, p) for s, p in ((0, 0), (0, 1), (1, 0), (1, 1), (2**63, 0))]
    drawn.append(np.array([uniform(stream(3, p), np.uint64(9)) for p in range(n)]))
    for numbers_of_one in drawn:
        counts = np.histogram(numbers_of_one, 64, (0, 1))[0]
        assert abs(((counts - n / 64) ** 2 / (n / 64)).sum() - 63) < 5 * (2 * 63) ** 0.5
        assert abs(np.corrcoef(numbers_of_one[1:], numbers_of_one[:-1])[0, 1]) < 5 / n**0.5
    correlations = np.corrcoef(drawn) - np.eye(len(drawn))
    assert np.abs(correlations).max() < 5 / n**0.5


@pytest.mark.parametrize("spread", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("temperature", [0.1, 1.0, 10.0])
def test_the_winner_is_the_twins_with_a_list_and_with_all(
    spread: float, temperature: float
) -> None:
    rng = np.random.default_rng(4)
    n = 300
    mask = np.zeros(320, np.bool_)
    mask[:n] = rng.random(n) < 0.9
    mask[64:128] = True
    allowed = np.packbits(mask, bitorder="little").view("<u8").astype(np.uint64)
    ids = np.flatnonzero(mask).astype(np.int32)
    for place in range(40):
        logits = (spread * rng.standard_normal(n)).astype(np.float32)
        maxima = np.empty(5, np.float32)
        best = largest_of_blocks(logits, allowed, maxima)
        weights = naive.weights(logits[ids], float(logits[best]), temperature)
        at = stream(7, place)
        wanted = naive.race(ids.tolist(), weights, int(at))
        assert race(ids, weights, at) == wanted
        assert race_all(logits, allowed, maxima, best, temperature, at) == wanted


def test_what_weighs_nothing_never_wins() -> None:
    ids, weights = np.array([3, 5, 9], np.int32), np.array([0.0, 1e-9, 0.0])
    assert {race(ids, weights, stream(1, place)) for place in range(100)} == {5}


def test_ids_win_as_often_as_they_weigh() -> None:
    ids, weights = np.array([2, 7, 64, 1000], np.int32), np.array([1.0, 0.5, 0.3, 0.2])
    n = 20_000
    won = np.bincount([race(ids, weights, stream(5, place)) for place in range(n)], minlength=1001)
    expected = n * weights / weights.sum()
    assert ((won[ids] - expected) ** 2 / expected).sum() < 16.3  # 3 degrees: a chance of 0.001


def test_two_that_are_alike_have_the_same_winner_as_often_as_is_promised() -> None:
    rng = np.random.default_rng(8)
    ids = np.arange(50, dtype=np.int32)
    for disturbed in (0.2, 1.0):
        logits = 2 * rng.standard_normal(50)
        p, q = (np.exp(x) for x in (logits, logits + disturbed * rng.standard_normal(50)))
        p, q = p / p.sum(), q / q.sum()
        apart = np.abs(p - q).sum() / 2
        n = 4000
        same = sum(race(ids, p, stream(2, i)) == race(ids, q, stream(2, i)) for i in range(n)) / n
        assert (1 - apart) / (1 + apart) - 0.03 < same < 1 - apart + 0.03
