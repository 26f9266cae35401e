"""What is multiplied by sigmoids of other numbers."""

import naive
import numpy as np
import pytest

from diskmoe.engine.kernels.gates import add_open, add_split, add_switch
from diskmoe.engine.kernels.program import Builder, address_of_array, rows_of
from diskmoe.engine.kernels.workers import Workers

N, HEADS = 3, 2


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dims", [16, 20])
def test_queries_are_taken_from_between_the_gates_that_open_the_result(dims: int, alone: Workers):
    wide, y = normal(N, HEADS, 2, dims), normal(N, HEADS * dims, seed=1)
    before, q = y.copy(), np.zeros((N, HEADS, dims), np.float32)
    builder = Builder()
    add_split(builder, N, HEADS, dims, rows_of(wide), rows_of(q))
    add_open(builder, N, HEADS, dims, rows_of(wide), rows_of(y))
    alone.run(builder.program())
    np.testing.assert_array_equal(q, wide[:, :, 0])
    gates = naive.sigmoid(wide[:, :, 1]).reshape(N, -1)
    np.testing.assert_allclose(y, before * gates, rtol=1e-6)


@pytest.mark.parametrize(("dims", "width"), [(32, 48), (40, 20)])
def test_a_row_is_switched_by_one_number_of_its_own(dims: int, width: int, alone: Workers):
    x, weight, y = normal(N, dims), normal(dims, seed=1), normal(N, width, seed=2)
    before = y.copy()
    builder = Builder()
    add_switch(builder, N, rows_of(x), address_of_array(weight), dims, rows_of(y), width)
    alone.run(builder.program())
    shares = naive.sigmoid(naive.matmul(x, weight[None]))
    np.testing.assert_allclose(y, before * shares, rtol=1e-5)
