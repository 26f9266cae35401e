"""How many drafts: the argmax of expected tokens per second, and what is tried to know them."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskmoe.mtp.acceptance import Acceptance
from diskmoe.mtp.costs import Costs
from diskmoe.mtp.planner import DEEPER_EVERY, MOST_WAIT, PLAIN_EVERY, Planner


def planner(base: float, row: float, wait: float = 0.0, misses: float = 0.0) -> Planner:
    """One that has seen forwards of 1 to 9 rows, each row with so many misses, often."""
    made = Planner()
    for rows in [*range(1, 10)] * 8:
        waited = wait * misses * rows
        made.costs.measured(base + row * rows + waited, waited, [misses] * rows)
    return made


def chosen(made: Planner, chances: list[float]) -> int:
    made.begin(8)
    made.probing = False
    return made.choose(chances, 0.0, False)


@given(
    base=st.floats(1e-4, 1),
    row=st.floats(1e-5, 1),
    chances=st.lists(st.floats(0, 1), max_size=8),
)
def test_the_choice_is_the_best_of_all_numbers_of_drafts(base, row, chances) -> None:
    made = planner(base, row)
    made.begin(8)
    seconds = made.costs.all_seconds(9)
    rates = []
    for k in range(len(chances) + 1):
        expected, reach = 1.0, 1.0
        for chance in chances[:k]:
            reach *= chance
            expected += reach
        rates.append(expected / seconds[k])
    k, rate = made.best(chances)
    assert rate == pytest.approx(max(rates)) and rates[k] == pytest.approx(max(rates))


def test_rows_that_cost_little_are_spent_on_doubtful_drafts_and_dear_ones_are_not() -> None:
    assert chosen(planner(1.0, 0.01), [0.5, 0.5, 0.5]) == 3
    assert chosen(planner(0.1, 1.0), [0.5, 0.5, 0.5]) == 0
    assert chosen(planner(0.1, 1.0), [0.999] * 8) == 8


def test_drafts_that_cannot_be_wrong_are_submitted_whatever_rows_seem_to_cost() -> None:
    dear = planner(0.001, 1.0, wait=1.0, misses=10)
    for seconds in (5.0, 50.0) * 8:  # a machine that others disturb
        dear.costs.measured(seconds, 0.0, [0.0] * (1 if seconds < 9 else 2))
    assert chosen(dear, [0.99, 0.9]) == 0
    assert chosen(dear, [1.0, 1.0, 0.9]) == 2
    dear.picked(1)
    for _ in range(PLAIN_EVERY):  # nor is a forward without drafts due
        assert chosen(dear, [1.0]) == 1


def test_a_row_is_priced_in_what_the_disk_takes_for_its_misses() -> None:
    """The published figure: at 85 % hits one draft at 0.75 loses, resident it wins."""
    assert chosen(planner(0.2, 0.05), [0.75]) == 1
    assert chosen(planner(0.2, 0.05, wait=0.1, misses=10), [0.75]) == 0


def run(made: Planner, chances: list[float], forwards: int) -> list[int]:
    picked = []
    for _ in range(forwards):
        made.begin(4)
        picked.append(made.choose(chances, 0.0, False))
    return picked


def test_now_and_then_a_forward_goes_without_drafts_so_that_its_price_stays_known() -> None:
    picked = run(planner(1.0, 0.01), [0.9], 3 * (PLAIN_EVERY + 1))
    assert picked.count(0) == 3
    assert 0 not in run(planner(1.0, 0.01), [0.99] * 4, 200)  # what is far better needs no proof


def test_one_draft_more_than_pays_is_tried_ever_more_rarely_while_none_pays() -> None:
    made = planner(0.1, 1.0)
    tried = [at for at, k in enumerate(run(made, [0.2], 2000)) if k]
    gaps = [b - a for a, b in itertools.pairwise(tried)]
    assert tried[0] == DEEPER_EVERY - 1
    assert gaps[:4] == [32, 64, 128, 256] and set(gaps[4:]) == {MOST_WAIT}
    assert made.declined == 2000 - len(tried)


def test_what_is_known_of_one_text_is_known_at_the_start_of_the_next() -> None:
    first = planner(0.1, 1.0)
    second = Planner(costs=first.costs)
    assert chosen(second, [0.5]) == 0 and chosen(Planner(), [0.6]) == 1


def test_a_fixed_number_of_drafts_asks_for_no_price() -> None:
    made = Planner(fixed=3)
    made.begin(8)
    assert made.choose([0.1, 0.1, 0.1], 9.0, False) == 3
    assert made.choose([1e-9] * 8, 0.0, False) == 8  # a sum that they do not change is none either
    assert made.summary()["depths"] == {"3": 1, "8": 1} and made.declined == 0


def test_costs_of_rows_never_seen_are_on_the_line_through_those_that_were() -> None:
    costs = Costs()
    for rows in (1, 2, 3) * 8:
        costs.measured(0.010 + 0.002 * rows, 0.0, [0] * rows)
    assert costs.seconds(8) == pytest.approx(0.026, rel=0.05)
    assert costs.seconds(2) == pytest.approx(0.014, rel=0.01)


def test_one_measured_forward_prices_the_others_with_half_of_it_for_a_row() -> None:
    costs = Costs()
    costs.measured(0.012, 0.0, [0])
    assert costs.seconds(2) == pytest.approx(0.018)
    assert costs.seconds(3) == pytest.approx(0.024)


def test_a_change_of_hit_rate_changes_the_price_of_all_numbers_of_rows() -> None:
    costs = Costs()
    for rows in (1, 2, 3, 4) * 8:
        costs.measured(0.01, 0.0, [0] * rows)
    before = costs.all_seconds(4)
    for _ in range(40):
        costs.measured(0.03, 0.02, [10])
    after = costs.all_seconds(4)
    assert all(b > 1.5 * a for a, b in zip(before, after, strict=True))


def test_one_forward_that_was_held_up_changes_little() -> None:
    costs = Costs()
    for _ in range(16):
        costs.measured(0.01, 0.0, [0])
    costs.measured(5.0, 0.0, [0])
    assert costs.seconds(1) < 0.013


@given(st.lists(st.tuples(st.integers(1, 6), st.floats(1e-5, 10)), min_size=1, max_size=40))
def test_no_row_is_ever_a_gift_whatever_was_measured(found: list[tuple[int, float]]) -> None:
    costs = Costs()
    for rows, seconds in found:
        costs.measured(seconds, 0.0, [0] * rows)
    prices = costs.all_seconds(12)
    assert all(0 < a <= b for a, b in itertools.pairwise(prices))


def test_chances_start_at_the_sources_own_guess_and_end_at_what_was_seen() -> None:
    chances = Acceptance((0.8, 0.6))
    assert [chances.chance(place) for place in (0, 1, 5)] == [0.8, 0.6, 0.6]
    for _ in range(200):
        chances.judged(0, 0, False)
    assert chances.chance(0) < 0.1 and chances.chance(1) == 0.6


def test_a_grade_has_a_chance_of_its_own() -> None:
    chances, draw = Acceptance((0.5,)), random.Random(1)
    for _ in range(400):
        chances.judged(0, 0, draw.random() < 0.1)
        chances.judged(0, 3, draw.random() < 0.95)
    assert chances.chance(0, 3) > 0.8 and chances.chance(0, 0) < 0.3
    assert chances.chance(0, 0) < chances.chance(0) < chances.chance(0, 3)


def test_a_grade_that_was_never_seen_is_worth_what_its_source_says() -> None:
    chances = Acceptance((0.5,), (0.2, 0.9))
    assert [chances.chance(0, grade) for grade in (0, 1, 2)] == [0.2, 0.9, 0.5]
    for _ in range(100):
        chances.judged(0, 1, False)
    assert chances.chance(0, 1) < 0.1 and chances.chance(0, 0) == 0.2
