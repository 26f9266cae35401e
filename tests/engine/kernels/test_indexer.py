"""Choosing keys, and attention over those chosen: as their twins, and a row by itself."""

import naive
import numpy as np
import pytest
from as_functions import attend

from diskmoe.engine.kernels.attention import AttendShape
from diskmoe.engine.kernels.attention_chosen import add_attend_chosen
from diskmoe.engine.kernels.basic import rope_tables
from diskmoe.engine.kernels.heads import KV_F32, CachePart
from diskmoe.engine.kernels.indexer import IndexHeads, add_choose, add_index_heads
from diskmoe.engine.kernels.latent import Turning
from diskmoe.engine.kernels.program import Builder, address_of_array, rows_of
from diskmoe.engine.kernels.workers import Workers

CONTEXT = 300


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def part_of(cache: np.ndarray) -> CachePart:
    return CachePart(address_of_array(cache), cache.strides[0], 0)


def chosen(
    q: np.ndarray, keys: np.ndarray, shares: np.ndarray, start: int, top: int, workers: Workers
) -> np.ndarray:
    """i32 (n, top); -1 where nothing was written."""
    n, heads, dims = q.shape
    scores = np.full((n, -(-len(keys) // 64) * 64), np.nan, np.float32)
    lists, begin, builder = np.full((n, top), -1, np.int32), np.array([start]), Builder()
    add_choose(
        builder,
        n,
        IndexHeads(heads, dims, top),
        rows_of(q),
        rows_of(shares),
        KV_F32,
        part_of(keys),
        address_of_array(begin),
        rows_of(scores),
        rows_of(lists),
    )
    workers.run(builder.program())
    return lists


def attended(
    q: np.ndarray, keys: np.ndarray, v_dims: int, start: int, lists: np.ndarray, workers: Workers
) -> np.ndarray:
    n, heads, dims = q.shape
    out, begin = np.full((n, heads, v_dims), np.nan, np.float32), np.array([start])
    builder = Builder()
    add_attend_chosen(
        builder,
        n,
        AttendShape(heads, 1, dims, v_dims),
        rows_of(q),
        KV_F32,
        part_of(keys),
        address_of_array(begin),
        0.2,
        lists.shape[1],
        rows_of(lists),
        rows_of(out),
        workers.n_threads,
    )
    workers.run(builder.program())
    return out


@pytest.mark.parametrize(("heads", "dims"), [(4, 32), (5, 24), (1, 16)])
@pytest.mark.parametrize("top", [1, 63, 64, 200])
@pytest.mark.parametrize("start", [0, 190, 280])
def test_the_keys_that_are_chosen_are_those_of_the_twin(heads, dims, top, start, alone: Workers):
    q, keys = normal(20, heads, dims), normal(CONTEXT, dims, seed=1)
    shares = normal(20, heads, seed=2)
    found = chosen(q, keys, shares, start, top, alone)
    for i, wanted in enumerate(naive.choose(q, keys, shares, start, top)):
        if start + i + 1 > top:
            assert found[i].tolist() == wanted.tolist()
        else:
            assert (found[i] == -1).all()


def test_the_earlier_one_of_equal_keys_is_chosen(alone: Workers):
    keys = np.repeat(normal(10, 16), 10, axis=0)
    q, shares = normal(1, 2, 16, seed=1), np.ones((1, 2), np.float32)
    wanted = naive.choose(q, keys, shares, 99, 25)[0]
    assert chosen(q, keys, shares, 99, 25, alone)[0].tolist() == wanted.tolist()
    nothing = np.zeros((1, 2), np.float32)
    assert chosen(q, keys, nothing, 99, 25, alone)[0].tolist() == list(range(25))


def test_negative_scores_are_chosen_from_in_their_order(alone: Workers):
    keys, q = np.abs(normal(80, 16)), np.abs(normal(1, 2, 16, seed=1))
    shares = -np.ones((1, 2), np.float32)
    wanted = naive.choose(q, keys, shares, 79, 30)[0]
    assert chosen(q, keys, shares, 79, 30, alone)[0].tolist() == wanted.tolist()


@pytest.mark.usefixtures("split_everything")
def test_a_choice_does_not_depend_on_other_rows_or_threads(alone: Workers, pair: Workers):
    q, keys, shares = normal(40, 3, 20), normal(CONTEXT, 20, seed=1), normal(40, 3, seed=2)
    single = [
        chosen(q[i : i + 1], keys, shares[i : i + 1], 100 + i, 70, alone)[0] for i in range(40)
    ]
    for n in (2, 15, 16, 40):
        for workers in (alone, pair):
            found = chosen(q[:n], keys, shares[:n], 100, 70, workers)
            assert found.tobytes() == np.stack(single[:n]).tobytes()


@pytest.mark.parametrize("heads", [1, 4, 5])
@pytest.mark.parametrize(("dims", "v_dims"), [(64, 48), (45, 39), (20, 20)])
def test_attention_over_chosen_keys_equals_its_twin(heads, dims, v_dims, alone: Workers):
    q, keys = normal(6, heads, dims), normal(CONTEXT, dims, seed=1)
    rng = np.random.default_rng(3)
    lists = [np.sort(rng.choice(200 + i + 1, 100, replace=False)) for i in range(6)]
    found = attended(q, keys, v_dims, 200, np.stack(lists).astype(np.int32), alone)
    wanted = naive.attend(q, keys[:, None], keys[:, None, :v_dims], 200, 0.2, chosen=lists)
    np.testing.assert_allclose(found, wanted, atol=3e-6)


@pytest.mark.usefixtures("split_everything")
@pytest.mark.parametrize("heads", [4, 5])
def test_a_row_that_sees_all_keys_has_the_bits_of_ordinary_attention(
    heads, alone: Workers, pair: Workers
):
    q, keys = normal(40, heads, 45), normal(CONTEXT, 45, seed=1)
    kv = np.ascontiguousarray(keys[:, None])
    values = np.ascontiguousarray(kv[..., :39])
    wanted = attend(q, kv, values, 100, 0.2, np.empty((40, heads, 39), np.float32), alone)
    lists = np.full((40, 140), -1, np.int32)
    for workers in (alone, pair):
        for n in (1, 2, 40):
            found = attended(q[:n], keys, 39, 100, lists[:n], workers)
            assert found.tobytes() == wanted[:n].tobytes()


@pytest.mark.parametrize("interleaved", [False, True])
def test_index_heads_are_turned_and_keys_normed_into_the_cache(interleaved, pair: Workers):
    q, x, start = normal(7, 3, 20), normal(7, 20, seed=1), np.array([5])
    weight, bias = normal(20, seed=2), normal(20, seed=3)
    frequencies = 10.0 ** -(np.arange(0, 8, 2) / 8)
    cos, sin = rope_tables(frequencies, 20)
    turned, changed, cache = q.copy(), x.copy(), np.zeros((14, 20), np.float32)
    builder = Builder()
    add_index_heads(
        builder,
        7,
        IndexHeads(3, 20, 4),
        rows_of(turned),
        rows_of(changed),
        (weight, bias),
        1e-6,
        Turning(cos, sin, interleaved, address_of_array(start)),
        KV_F32,
        part_of(cache),
    )
    pair.run(builder.program())
    np.testing.assert_allclose(turned, naive.rope(q, frequencies, 5, interleaved), atol=1e-6)
    normed = naive.layer_norm(x, weight, bias, 1e-6).astype(np.float32)
    wanted = naive.rope(normed[:, None], frequencies, 5, interleaved)[:, 0]
    np.testing.assert_allclose(cache[5:12], wanted, atol=1e-5)
    assert not cache[:5].any() and not cache[12:].any()
