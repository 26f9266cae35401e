from typing import Any

import naive
import numpy as np
import pytest
from as_functions import attend

from diskmoe.engine.kernels.workers import Workers

ROW_COUNTS = (1, 2, 3, 5, 8, 17, 64)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def result(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, start: int, workers: Workers, **more: Any
) -> np.ndarray:
    out = np.full((*q.shape[:2], v.shape[2]), np.nan, np.float32)
    return attend(q, k, v, start, q.shape[2] ** -0.5, out, workers, **more)


@pytest.mark.parametrize("head_dim", [8, 24, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("start", [0, 61, 130])
def test_attention_equals_its_twin(head_dim: int, start: int, alone: Workers):
    q = normal(5, 6, head_dim)
    k, v = normal(start + 5, 2, head_dim, seed=1), normal(start + 5, 2, head_dim, seed=2)
    wanted = naive.attend(q, k, v, start, head_dim**-0.5)
    np.testing.assert_allclose(result(q, k, v, start, alone), wanted, atol=2e-6)


def test_values_may_be_narrower_than_keys(alone: Workers):
    q, k, v = normal(3, 4, 48), normal(9, 4, 48, seed=1), normal(9, 4, 20, seed=2)
    wanted = naive.attend(q, k, v, 6, 48**-0.5)
    np.testing.assert_allclose(result(q, k, v, 6, alone), wanted, atol=2e-6)


@pytest.mark.parametrize("window", [1, 5, 64, 70, 128, 1000])
@pytest.mark.parametrize("start", [0, 61, 200])
@pytest.mark.parametrize("rows", [1, 40])
def test_a_window_and_sinks_equal_their_twin(window: int, start: int, rows: int, alone: Workers):
    q = normal(rows, 6, 64)
    k, v = normal(start + rows, 2, 64, seed=1), normal(start + rows, 2, 64, seed=2)
    for sinks in (None, normal(6, seed=3) * np.float32(3)):
        wanted = naive.attend(q, k, v, start, 64**-0.5, window, sinks)
        found = result(q, k, v, start, alone, window=window, sinks=sinks)
        np.testing.assert_allclose(found, wanted, atol=2e-6)


def test_keys_before_the_window_are_not_seen(alone: Workers):
    q, k, v = normal(20, 2, 16), normal(220, 1, 16, seed=1), normal(220, 1, 16, seed=2)
    before = result(q, k, v, 200, alone, window=70)
    k[:131], v[:131] = np.nan, np.nan
    assert result(q, k, v, 200, alone, window=70).tobytes() == before.tobytes()


def test_a_sink_far_above_all_scores_leaves_nothing(alone: Workers):
    q, k, v = normal(1, 2, 16), normal(9, 1, 16, seed=1), normal(9, 1, 16, seed=2)
    sinks = np.array([500, -500], np.float32)
    found = result(q, k, v, 8, alone, sinks=sinks)
    assert (found[0, 0] == 0).all()
    np.testing.assert_allclose(found[0, 1], result(q, k, v, 8, alone)[0, 1], rtol=1e-6)


@pytest.mark.usefixtures("split_everything")
@pytest.mark.parametrize("head_dim", [64, 20])
@pytest.mark.parametrize("window", [0, 7, 90])
def test_a_row_does_not_depend_on_other_rows_or_threads(
    head_dim: int, window: int, alone: Workers, pair: Workers
):
    q, k, v = (normal(n, 3 if n == 64 else 1, head_dim, seed=n) for n in (64, 170, 171))
    v = v[:170]
    more = {"window": window, "sinks": normal(3, seed=5) if window else None}
    single = np.concatenate([result(q[i : i + 1], k, v, 100 + i, alone, **more) for i in range(64)])
    for n in ROW_COUNTS:
        for workers in (alone, pair):
            for first in {0, 64 - n}:
                rows = result(q[first : first + n], k, v, 100 + first, workers, **more)
                assert rows.tobytes() == single[first : first + n].tobytes()


def test_later_keys_are_not_seen(alone: Workers):
    q, k, v = normal(2, 2, 16), normal(80, 1, 16, seed=1), normal(80, 1, 16, seed=2)
    before = result(q, k, v, 62, alone)
    k[64:], v[64:] = np.nan, np.nan
    assert result(q, k, v, 62, alone).tobytes() == before.tobytes()


def test_the_first_row_returns_its_own_value(alone: Workers):
    q, k, v = normal(1, 2, 16), normal(1, 2, 16, seed=1), normal(1, 2, 16, seed=2)
    assert (result(q, k, v, 0, alone) == v).all()


def test_scores_far_apart_do_not_overflow(alone: Workers):
    q = np.full((1, 1, 16), 100, np.float32)
    k = np.concatenate([normal(100, 1, 16, seed=1), np.full((1, 1, 16), 100, np.float32)])
    v = normal(101, 1, 16, seed=2)
    np.testing.assert_allclose(result(q, k, v, 100, alone), v[100:], rtol=1e-6)


def test_a_context_of_many_blocks_stays_accurate(alone: Workers):
    q, k, v = normal(1, 2, 16), normal(5000, 1, 16, seed=1), normal(5000, 1, 16, seed=2)
    wanted = naive.attend(q, k, v, 4999, 0.25)
    np.testing.assert_allclose(result(q, k, v, 4999, alone), wanted, atol=2e-6)


def test_positions_and_heads_that_do_not_fit_are_refused(alone: Workers):
    q, kv = normal(2, 4, 16), normal(5, 2, 16)
    with pytest.raises(ValueError, match=r"rows at positions 4\.\.5 with 5 keys"):
        result(q, kv, kv, 4, alone)
    with pytest.raises(ValueError, match="do not share"):
        result(normal(2, 3, 16), kv, kv, 0, alone)
