"""Ratios of pairs: right in simulations of machines that are as noisy as shared ones are."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from diskmoe.bench.ratios import median_interval, paired_ratio, student

Noise = Callable[[np.random.Generator, int], np.ndarray]
TIMES = 600


def steady(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.normal(0, 0.09, n)


def long_tails(rng: np.random.Generator, n: int) -> np.ndarray:
    """As measured on two shared cores: 8 % from pair to pair, and one in seven far off."""
    return np.where(rng.random(n) < 0.15, rng.normal(0, 0.4, n), rng.normal(0, 0.08, n))


def very_long_tails(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.standard_t(2, n) * 0.07


def second_is_faster(rng: np.random.Generator, n: int) -> np.ndarray:
    """Whichever arm runs second in a pair is 6 % faster; they take turns in that."""
    return steady(rng, n) + 0.06 * (-1.0) ** np.arange(n)


def one_prompt_is_noisy(rng: np.random.Generator, n: int) -> np.ndarray:
    return steady(rng, n) * np.where(np.arange(n) % 5 == 0, 5, 1)


MACHINES = (steady, long_tails, very_long_tails, second_is_faster, one_prompt_is_noisy)


def found(noise: Noise, n: int, truth: float) -> tuple[float, float]:
    """(share of experiments that found b faster, that found a faster)."""
    rng = np.random.default_rng(5)
    intervals = [paired_ratio(math.log(truth) + noise(rng, n)).interval for _ in range(TIMES)]
    lows, highs = np.array(intervals).T
    return float((lows > 1).mean()), float((highs < 1).mean())


@pytest.mark.parametrize("noise", MACHINES)
@pytest.mark.parametrize("n", [5, 10, 25])
def test_the_same_arm_twice_differs_in_a_hundredth_of_the_experiments(noise: Noise, n: int) -> None:
    # 19 of 20 without a difference need 2 in a hundred at most
    assert sum(found(noise, n, 1.0)) <= 0.02


@pytest.mark.parametrize("noise", MACHINES)
def test_a_tenth_less_speed_is_found_with_the_pairs_of_a_suite_and_never_turned_round(
    noise: Noise,
) -> None:
    faster, slower = found(noise, 30, 0.9)
    assert slower >= 0.9 and faster == 0


def test_a_bootstrap_of_means_would_be_too_narrow() -> None:
    """The reason for the interval that is used."""
    rng = np.random.default_rng(5)
    missed = 0
    for _ in range(TIMES):
        logs = steady(rng, 10)
        means = rng.choice(logs, (400, 10)).mean(axis=1)
        low, high = np.quantile(means, (0.005, 0.995))
        missed += not low <= 0 <= high
    assert missed / TIMES > 0.025


def test_a_few_pairs_that_are_far_off_move_the_ratio_little() -> None:
    logs = [0.01, -0.01, 0.02, -0.02, 0.0, 0.01, -0.01, 0.0, 3.0, 0.0]
    assert paired_ratio(logs).value == pytest.approx(1, abs=0.01)


def test_order_of_the_pairs_does_not_matter_and_turning_them_turns_the_interval() -> None:
    logs = np.random.default_rng(1).normal(0.1, 0.1, 12)
    ratio, turned = paired_ratio(logs), paired_ratio(-logs[::-1])
    assert turned.value == pytest.approx(1 / ratio.value)
    assert ratio.interval is not None and turned.interval is not None
    assert turned.interval == pytest.approx((1 / ratio.interval[1], 1 / ratio.interval[0]))
    assert ratio.interval[0] < ratio.value < ratio.interval[1]


def test_one_pair_has_no_interval_and_two_have_a_wide_one() -> None:
    assert paired_ratio([math.log(2)]).value == pytest.approx(2)
    assert paired_ratio([math.log(2)]).interval is None
    interval = paired_ratio([0.0, 0.1]).interval
    assert interval is not None and interval[0] < 0.1 and interval[1] > 10


def test_numbers_far_apart_stay_finite() -> None:
    interval = paired_ratio([-600.0, 600.0]).interval
    assert interval is not None and all(map(math.isfinite, interval))


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 63.657), (2, 9.925), (4, 4.604), (10, 3.169), (100, 2.626)]
)
def test_students_quantiles_are_those_of_tables(freedom: int, quantile: float) -> None:
    assert student(freedom) == pytest.approx(quantile, rel=1e-3)


def test_the_medians_interval_is_repeatable_and_around_it() -> None:
    values = list(np.random.default_rng(2).normal(50, 5, 20))
    interval = median_interval(values)
    assert interval == median_interval(values)
    assert interval is not None and interval[0] < np.median(values) < interval[1]
    assert median_interval([1.0]) is None
