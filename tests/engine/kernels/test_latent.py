"""Latent attention's kernels against their twins, and a row's bits whatever stands beside it."""

import naive
import numpy as np
import pytest

from diskmoe.engine.kernels.basic import rope_tables
from diskmoe.engine.kernels.heads import KV_F32, CachePart
from diskmoe.engine.kernels.latent import (
    PIECE,
    LatentHeads,
    Turning,
    add_fold,
    add_keep_latents,
    add_unfold,
)
from diskmoe.engine.kernels.matmul import add_prepared
from diskmoe.engine.kernels.matrix import Matrix
from diskmoe.engine.kernels.program import Builder, address_of_array, rows_of
from diskmoe.engine.kernels.workers import Workers
from diskmoe.experts.formats import FORMATS
from diskmoe.experts.packing import pack, unpack
from diskmoe.experts.tiles import matrix_layout

SHAPE = LatentHeads(heads=3, plain=32, turning=8, rank=40, value=16)
ODD_RANK = LatentHeads(heads=2, plain=16, turning=6, rank=45, value=48)
START = 5


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def expander(shape: LatentHeads, fmt: str) -> Matrix:
    rows = shape.heads * (shape.plain + shape.value)
    layout = matrix_layout(fmt, rows, shape.rank)
    return Matrix(layout, pack(normal(rows, shape.rank, seed=7), layout))


def parts(shape: LatentHeads, matrix: Matrix) -> tuple[np.ndarray, np.ndarray]:
    """What the matrix stands for: (heads, plain, rank) and (heads, value, rank)."""
    wide = unpack(matrix.packed, matrix.layout).reshape(shape.heads, -1, shape.rank)
    return wide[:, : shape.plain], wide[:, shape.plain :]


def turning_of(shape: LatentHeads, start: np.ndarray, interleaved: bool) -> Turning:
    tables = rope_tables(frequencies(shape), 200)
    return Turning(*tables, interleaved, address_of_array(start))


def frequencies(shape: LatentHeads) -> np.ndarray:
    return 10.0 ** -(np.arange(0, shape.turning, 2) / shape.turning)


def folded(
    shape: LatentHeads,
    matrix: Matrix,
    q: np.ndarray,
    workers: Workers,
    start: int = START,
    interleaved: bool = True,
) -> np.ndarray:
    out = np.full((len(q), shape.heads, shape.width), np.nan, np.float32)
    begin, builder = np.array([start], np.int64), Builder()
    turning = turning_of(shape, begin, interleaved)
    add_fold(builder, len(q), shape, rows_of(q), matrix, turning, rows_of(out))
    workers.run(builder.program())
    return out


def unfolded(shape: LatentHeads, matrix: Matrix, mixed: np.ndarray, workers: Workers) -> np.ndarray:
    """mixed (n, heads, rank) -> (n, heads, value)."""
    out = np.full((len(mixed), shape.heads, shape.value), np.nan, np.float32)
    builder = Builder()
    x = add_prepared(builder, mixed.reshape(-1, shape.rank), matrix.kind)
    add_unfold(builder, len(mixed), shape, matrix, x, rows_of(out))
    workers.run(builder.program())
    return out


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("shape", [SHAPE, ODD_RANK])
@pytest.mark.parametrize("interleaved", [False, True])
def test_folding_equals_its_twin_in_every_format(fmt, shape, interleaved, alone: Workers):
    matrix, q = expander(shape, fmt), normal(3, shape.heads, shape.plain + shape.turning)
    found = folded(shape, matrix, q, alone, interleaved=interleaved)
    keys, _ = parts(shape, matrix)
    wanted = np.einsum("nhp,hpr->nhr", q[..., : shape.plain].astype(np.float64), keys)
    np.testing.assert_allclose(found[..., : shape.rank], wanted, atol=1e-5)
    turned = naive.rope(q[..., shape.plain :], frequencies(shape), START, interleaved)
    np.testing.assert_allclose(found[..., shape.rank :], turned, atol=1e-6)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("shape", [SHAPE, ODD_RANK])
def test_unfolding_is_a_product_with_the_rows_of_values(fmt, shape, alone: Workers):
    matrix, mixed = expander(shape, fmt), normal(11, shape.heads, shape.rank)
    found = unfolded(shape, matrix, mixed, alone)
    _, values = parts(shape, matrix)
    group, wide = FORMATS[fmt].group, mixed.astype(np.float64)
    if group and fmt != "fp8":  # the format's kernels quantise the rows that it multiplies
        numbers, scales = naive.quantise_activations(mixed.reshape(-1, shape.rank), group)
        wide = (numbers * scales[:, :, None].astype(np.float64)).reshape(*mixed.shape[:2], -1)
    wanted = np.einsum("nhr,hvr->nhv", wide[..., : shape.rank], values)
    np.testing.assert_allclose(found, wanted, atol=2e-5)


@pytest.mark.usefixtures("split_everything")
@pytest.mark.parametrize("fmt", ["f32", "q8", "q4"])
def test_a_row_does_not_depend_on_other_rows_or_threads(fmt, alone: Workers, pair: Workers):
    matrix, q = expander(SHAPE, fmt), normal(PIECE, SHAPE.heads, SHAPE.plain + SHAPE.turning)
    mixed = normal(PIECE, SHAPE.heads, SHAPE.rank, seed=2)
    single = np.concatenate(
        [folded(SHAPE, matrix, q[i : i + 1], alone, START + i) for i in range(PIECE)]
    )
    values = np.concatenate([unfolded(SHAPE, matrix, row[None], alone) for row in mixed])
    for n in (2, 3, 8, 9, PIECE):
        for workers in (alone, pair):
            assert folded(SHAPE, matrix, q[:n], workers).tobytes() == single[:n].tobytes()
            assert unfolded(SHAPE, matrix, mixed[:n], workers).tobytes() == values[:n].tobytes()


@pytest.mark.parametrize("interleaved", [False, True])
def test_latents_are_normed_and_their_keys_turned_into_the_cache(interleaved, pair: Workers):
    n = PIECE + 3
    x, norm = normal(n, SHAPE.width), normal(SHAPE.rank, seed=1)
    changed = x.copy()
    cache = np.zeros((START + n + 1, SHAPE.width), np.float32)
    start, starts = np.array([START], np.int64), np.zeros(2, np.int64)
    turning, builder = turning_of(SHAPE, start, interleaved), Builder()
    add_keep_latents(
        builder,
        n,
        SHAPE,
        rows_of(changed),
        norm,
        1e-6,
        turning,
        KV_F32,
        CachePart(address_of_array(cache), cache.strides[0], 0),
        address_of_array(starts),
    )
    pair.run(builder.program())
    kept = cache[START:-1]
    wanted = naive.rms_norm(x[:, : SHAPE.rank], norm, 1e-6)
    np.testing.assert_allclose(kept[:, : SHAPE.rank], wanted, atol=1e-5)
    turned = naive.rope(x[:, None, SHAPE.rank :], frequencies(SHAPE), START, interleaved)
    np.testing.assert_allclose(kept[:, SHAPE.rank :], turned[:, 0], atol=1e-5)
    assert not cache[:START].any() and not cache[-1].any()
    assert starts.tolist() == [START, START + PIECE]
