from typing import Any

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskmoe.engine.kernels.route import route

# The routers of the families: score, n_group, topk_group, group_score, top_k, renorm, scale.
FAMILIES: dict[str, tuple[Any, ...]] = {
    "qwen3_moe": ("softmax", 1, 1, "max", 8, True, 1.0),
    "olmoe": ("softmax", 1, 1, "max", 8, False, 1.0),
    "glm4_moe": ("sigmoid", 1, 1, "top2", 8, True, 2.5),
    "deepseek_v3": ("sigmoid", 8, 4, "top2", 8, True, 2.5),
    "deepseek_v2": ("softmax", 8, 3, "max", 6, False, 16.0),
}


def routed(logits: np.ndarray, bias: np.ndarray, settings: tuple[Any, ...], twin: bool = False):
    score, *rest = settings
    function = naive.route if twin else route
    return function(logits, score, bias, *rest)


@pytest.mark.parametrize("family", FAMILIES)
def test_routing_equals_its_twin(family: str):
    rng = np.random.default_rng(7)
    logits = rng.standard_normal((40, 64), dtype=np.float32) * 3
    biased = family in ("glm4_moe", "deepseek_v3")
    bias = (rng.standard_normal(64) * 0.2 * biased).astype(np.float32)
    ids, weights = routed(logits, bias, FAMILIES[family])
    wanted_ids, wanted_weights = routed(logits, bias, FAMILIES[family], twin=True)
    assert ids.dtype == np.int32 and weights.dtype == np.float32
    np.testing.assert_array_equal(ids, wanted_ids)
    np.testing.assert_allclose(weights, wanted_weights, rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    logits=st.lists(st.sampled_from([-2.0, 0.0, 0.5, 3.0]), min_size=8, max_size=8),
    family=st.sampled_from(
        [("sigmoid", 4, 2, "top2", 3, True, 1.0), ("sigmoid", 2, 1, "max", 4, False, 1.0)]
    ),
)
def test_ties_go_to_the_lower_id_and_group(logits: list[float], family: tuple[Any, ...]):
    x, bias = np.array([logits], np.float32), np.zeros(8, np.float32)
    ids, _ = routed(x, bias, family)
    np.testing.assert_array_equal(ids, routed(x, bias, family, twin=True)[0])


def test_a_row_does_not_depend_on_other_rows():
    logits = np.random.default_rng(2).standard_normal((17, 32), dtype=np.float32)
    bias = np.zeros(32, np.float32)
    ids, weights = routed(logits, bias, FAMILIES["qwen3_moe"])
    for i in range(17):
        one_ids, one_weights = routed(logits[i : i + 1], bias, FAMILIES["qwen3_moe"])
        assert one_ids.tobytes() == ids[i : i + 1].tobytes()
        assert one_weights.tobytes() == weights[i : i + 1].tobytes()


def test_the_bias_changes_the_choice_and_not_the_weight():
    logits = np.array([[1.0, 0.0, -1.0]], np.float32)
    bias = np.array([0, 0, 5], np.float32)
    ids, weights = route(logits, "sigmoid", bias, 1, 1, "top2", 1, False, 1.0)
    assert ids.tolist() == [[2]]
    assert weights[0, 0] == pytest.approx(1 / (1 + np.e), rel=1e-6)


def test_all_experts_can_be_chosen_in_falling_order():
    logits = np.array([[0.0, 2.0, 1.0]], np.float32)
    ids, weights = route(logits, "softmax", np.zeros(3, np.float32), 1, 1, "max", 3, True, 1.0)
    assert ids.tolist() == [[1, 2, 0]]
    assert weights.sum() == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_still_give_distinct_experts(bad: float):
    logits = np.full((1, 8), bad, np.float32)
    for family in (FAMILIES["qwen3_moe"], ("sigmoid", 4, 2, "top2", 4, True, 1.0)):
        ids, _ = routed(logits, np.zeros(8, np.float32), family)
        assert len(set(ids[0].tolist())) == ids.shape[1]
        assert ids.min() >= 0 and ids.max() < 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tanh", 1, 1, "max", 1, True, 1.0), "router score 'tanh'"),
        (("softmax", 3, 1, "max", 1, True, 1.0), "1 of 3 groups of 8 experts"),
        (("softmax", 4, 1, "max", 3, True, 1.0), "top 3 of 2 eligible experts"),
    ],
)
def test_routers_that_cannot_be_are_refused(arguments: tuple[Any, ...], message: str):
    with pytest.raises(ValueError, match=message):
        routed(np.zeros((1, 8), np.float32), np.zeros(8, np.float32), arguments)
