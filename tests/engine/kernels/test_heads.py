"""Heads on their way to attention, and caches of fewer bits."""

from typing import Any

import naive
import numpy as np
import pytest

from diskmoe.engine.kernels.attention import AttendShape, add_attend
from diskmoe.engine.kernels.basic import rope_tables
from diskmoe.engine.kernels.heads import KV_KIND, CachePart, HeadShape, add_heads
from diskmoe.engine.kernels.program import Builder, rows_of
from diskmoe.engine.kernels.workers import Workers

BYTES = {"f32": 4, "f16": 2, "q8": 1}
ROW_COUNTS = (1, 2, 3, 5, 8, 17, 64)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Cache:
    """Keys or values (kv_heads, positions, dims) in one of the formats."""

    def __init__(self, kv: int, positions: int, dims: int, fmt: str) -> None:
        self.fmt, self.dims = fmt, dims
        self.numbers = np.zeros((kv, positions, dims * BYTES[fmt]), np.uint8)
        self.scales = np.zeros((kv, positions, -(-dims // 32)), np.float32)

    @property
    def part(self) -> CachePart:
        n, s = self.numbers, self.scales
        return CachePart(
            n.ctypes.data, n.strides[1], n.strides[0], s.ctypes.data, s.strides[1], s.strides[0]
        )

    def values(self) -> np.ndarray:
        """What the cache holds, f32 (kv_heads, positions, dims)."""
        if self.fmt == "q8":
            scales = np.repeat(self.scales, 32, axis=2)[:, :, : self.dims]
            return self.numbers.view(np.int8) * scales
        return self.numbers.view(np.float16 if self.fmt == "f16" else np.float32).astype(np.float32)


class Model:
    """Rows of heads that go through `add_heads` and `add_attend` together."""

    def __init__(
        self, fmt: str, dims: int, heads: int = 6, kv: int = 2, seed: int = 0, window: int = 0
    ) -> None:
        self.fmt, self.dims, self.heads, self.kv, self.window = fmt, dims, heads, kv, window
        self.n = 70
        self.q = normal(self.n, heads * dims, seed=seed)
        self.k = normal(self.n, kv * dims, seed=seed + 1)
        self.v = normal(self.n, kv * dims, seed=seed + 2)
        self.norms = normal(dims, seed=3), normal(dims, seed=4)
        self.frequencies = 10000.0 ** -(np.arange(0, dims, 2) / dims)
        self.rope = rope_tables(self.frequencies, self.n)
        self.keys, self.values = (Cache(kv, self.n, dims, fmt) for _ in range(2))

    def run(self, first: int, n: int, workers: Workers, **changes: Any) -> np.ndarray:
        """Rows first..first+n-1 into the caches and through attention -> (n, heads, dims)."""
        q, k, v = (x[first : first + n].copy() for x in (self.q, self.k, self.v))
        out = np.full((n, self.heads, self.dims), np.nan, np.float32)
        start = np.array([first], np.int64)
        options = {"norms": self.norms, "eps": 1e-6, "clip": None, "interleaved": False} | changes
        builder = Builder()
        add_heads(
            builder,
            n,
            HeadShape(self.heads, self.kv, self.dims),
            rows_of(q),
            rows_of(k),
            rows_of(v),
            rope=self.rope,
            start=start.ctypes.data,
            kv_kind=KV_KIND[self.fmt],
            keys=self.keys.part,
            values=self.values.part,
            **options,
        )
        add_attend(
            builder,
            n,
            AttendShape(self.heads, self.kv, self.dims, self.dims, self.window),
            rows_of(q),
            KV_KIND[self.fmt],
            self.keys.part,
            self.values.part,
            start.ctypes.data,
            self.dims**-0.5,
            rows_of(out),
            workers.n_threads,
        )
        workers.run(builder.program())
        self.turned = q.reshape(n, self.heads, self.dims)
        return out

    def twin_heads(self, x: np.ndarray, norm: np.ndarray | None, interleaved: bool) -> np.ndarray:
        heads = x.reshape(self.n, -1, self.dims)
        if norm is not None:
            heads = naive.rms_norm(heads, norm, 1e-6)
        return naive.rope(heads.astype(np.float32), self.frequencies, 0, interleaved)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dims", [20, 64, 128])
def test_heads_are_normed_turned_and_kept(dims: int, interleaved: bool, alone: Workers):
    model = Model("f32", dims)
    model.run(0, model.n, alone, interleaved=interleaved)
    queries = model.twin_heads(model.q, model.norms[0], interleaved)
    keys = model.twin_heads(model.k, model.norms[1], interleaved)
    np.testing.assert_allclose(model.turned, queries, atol=2e-5)
    np.testing.assert_allclose(model.keys.values(), keys.transpose(1, 0, 2), atol=2e-5)
    kept = model.values.values().transpose(1, 0, 2).reshape(model.n, -1)
    assert kept.tobytes() == model.v.tobytes()


def test_heads_are_clipped_after_the_norm_and_before_they_turn(alone: Workers):
    model = Model("f32", 32)
    model.run(0, model.n, alone, norms=None, clip=0.5)
    keys = model.twin_heads(np.clip(model.k, -0.5, 0.5), None, False)
    np.testing.assert_allclose(model.keys.values(), keys.transpose(1, 0, 2), atol=2e-6)
    assert np.abs(model.values.values()).max() == 0.5


@pytest.mark.parametrize(("fmt", "bound"), [("f32", 1e-6), ("f16", 1e-3), ("q8", 2e-2)])
@pytest.mark.parametrize("dims", [20, 64, 80, 128])
def test_attention_over_a_cache_equals_its_twin(fmt: str, bound: float, dims: int, alone: Workers):
    model = Model(fmt, dims)
    found = model.run(0, model.n, alone)
    keys, values = (cache.values().transpose(1, 0, 2) for cache in (model.keys, model.values))
    exact = naive.attend(model.turned, keys, values, 0, dims**-0.5)
    np.testing.assert_allclose(found, exact, atol=3e-6)  # of what the cache holds
    queries = model.twin_heads(model.q, model.norms[0], False)
    all_keys = model.twin_heads(model.k, model.norms[1], False)
    whole = naive.attend(
        queries.astype(np.float32),
        all_keys.astype(np.float32),
        model.v.reshape(model.n, model.kv, dims),
        0,
        dims**-0.5,
    )
    assert np.abs(found - whole).max() < 10 * bound  # of what was put in


@pytest.mark.usefixtures("split_everything")
@pytest.mark.parametrize("fmt", ["f16", "q8"])
@pytest.mark.parametrize("window", [1, 20, 40])
def test_a_window_begins_anywhere_in_a_widened_block(fmt: str, window: int, pair: Workers):
    """Heads this wide are widened a part of a block at a time."""
    model = Model(fmt, 256, window=window)
    found = model.run(0, model.n, pair)
    single = np.concatenate([model.run(i, 1, pair) for i in range(model.n)])
    assert found.tobytes() == single.tobytes()
    model.run(0, model.n, pair)
    keys, values = (cache.values().transpose(1, 0, 2) for cache in (model.keys, model.values))
    exact = naive.attend(model.turned, keys, values, 0, 256**-0.5, window)
    np.testing.assert_allclose(found, exact, atol=3e-6)


@pytest.mark.parametrize("fmt", ["f16", "q8"])
def test_kept_numbers_are_the_nearest(fmt: str, alone: Workers):
    model = Model(fmt, 64)
    model.v *= np.float32(10.0) ** np.random.default_rng(9).integers(-9, 6, model.v.shape)
    model.run(0, model.n, alone)
    kept = model.values.values().transpose(1, 0, 2).reshape(model.n, -1)
    if fmt == "f16":
        with np.errstate(over="ignore"):
            wanted = np.clip(model.v, -65504, 65504).astype(np.float16).astype(np.float32)
        assert kept.tobytes() == wanted.tobytes()
    else:
        values, scales = naive.quantise_activations(model.v)
        wanted = (values.astype(np.float32) * scales[:, :, None]).reshape(model.n, -1)
        np.testing.assert_array_equal(kept, wanted)


@pytest.mark.usefixtures("split_everything")
@pytest.mark.parametrize("fmt", ["f32", "f16", "q8"])
@pytest.mark.parametrize(("dims", "heads", "kv"), [(20, 6, 2), (64, 8, 1), (48, 3, 3)])
def test_a_row_does_not_depend_on_other_rows_or_threads(
    fmt: str, dims: int, heads: int, kv: int, alone: Workers, pair: Workers
):
    model = Model(fmt, dims, heads, kv)
    single = np.concatenate([model.run(i, 1, alone) for i in range(model.n)])
    for n in ROW_COUNTS:
        for workers in (alone, pair):
            for first in {0, model.n - n}:
                rows = model.run(first, n, workers)
                assert rows.tobytes() == single[first : first + n].tobytes()


@pytest.mark.parametrize("fmt", ["f32", "f16", "q8"])
def test_a_number_that_is_not_one_is_not_lost(fmt: str, alone: Workers):
    model = Model(fmt, 64)
    model.v[3, 5] = np.nan
    found = model.run(0, model.n, alone)
    assert np.isfinite(found[:3]).all()
    assert np.isnan(found[3:, :3, 5]).all()
