import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskmoe.engine.kernels.matmul import matmul, matmul_scratch_bytes, prepared_room, take_rows
from diskmoe.engine.kernels.matrix import Matrix
from diskmoe.engine.kernels.paths import HOST, PORTABLE, Path
from diskmoe.engine.kernels.products import KIND
from diskmoe.engine.kernels.workers import Workers
from diskmoe.experts.formats import quantise
from diskmoe.experts.packing import pack, unpack
from diskmoe.experts.tiles import matrix_layout

FORMATS = ("f32", "bf16", "q8", "q4")
ROW_COUNTS = (1, 2, 3, 5, 8, 17, 64)
SHAPES = ((16, 32), (48, 576), (37, 50), (1, 1), (17, 33), (5, 100))


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def packed(weights: np.ndarray, fmt: str) -> Matrix:
    layout = matrix_layout(fmt, *weights.shape)
    return Matrix(layout, pack(weights, layout))


def product(x: np.ndarray, matrix: Matrix, workers: Workers, path: Path | None = HOST):
    return matmul(x, matrix, np.full((len(x), matrix.rows), np.nan, np.float32), workers, path)


def relative_error(got: np.ndarray, wanted: np.ndarray) -> float:
    return np.abs(got - wanted).max() / max(np.abs(wanted).max(), 1e-300)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fmt", ["q8", "q4"])
def test_quantised_product_equals_its_twin(fmt: str, shape: tuple[int, int], alone: Workers):
    weights, x = normal(*shape), normal(6, shape[1], seed=1)
    wanted = naive.matmul_quantised(x, *quantise(weights, fmt))
    assert relative_error(product(x, packed(weights, fmt), alone), wanted) < 1e-6


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fmt", ["f32", "bf16"])
def test_float_product_equals_its_twin(fmt: str, shape: tuple[int, int], alone: Workers):
    x = normal(6, shape[1], seed=1)
    matrix = packed(normal(*shape), fmt)
    wanted = naive.matmul(x, unpack(matrix.packed, matrix.layout))
    assert relative_error(product(x, matrix, alone), wanted) < 1e-6


@pytest.mark.parametrize("fmt", KIND)
def test_the_halves_of_a_matrix_give_the_bits_of_the_whole(fmt: str, alone: Workers):
    matrix, x = packed(normal(96, 160), fmt), normal(5, 160, seed=1)
    first, second = (product(x, half, alone) for half in matrix.halves())
    assert np.hstack([first, second]).tobytes() == product(x, matrix, alone).tobytes()
    with pytest.raises(ValueError, match="48 rows"):
        packed(normal(48, 160), fmt).halves()


@pytest.mark.parametrize(("fmt", "bound"), [("q8", 0.015), ("q4", 0.08)])
def test_quantised_product_is_near_the_exact_one(fmt: str, bound: float, alone: Workers):
    weights, x = normal(64, 512), normal(4, 512, seed=1)
    wanted = naive.matmul(x, weights)
    error = product(x, packed(weights, fmt), alone) - wanted
    assert np.sqrt((error**2).mean() / (wanted**2).mean()) < bound


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fmt", ["q8", "q4"])
def test_portable_code_gives_the_bits_of_the_host_code(
    fmt: str, shape: tuple[int, int], alone: Workers
):
    x, matrix = normal(7, shape[1], seed=1), packed(normal(*shape), fmt)
    host, portable = (product(x, matrix, alone, path) for path in (HOST, PORTABLE))
    assert host.tobytes() == portable.tobytes()


@pytest.mark.parametrize("path", [HOST, PORTABLE])
def test_the_largest_bytes_do_not_saturate(path: Path | None, alone: Workers):
    """Largest weights of q4 are those of a group from 0 to 15 steps: 255 * 16 * 15 of a row's."""
    weights = np.full((16, 64), 127.0, np.float32)
    fifteen = np.full((16, 64), 255.0 * 16 * 15, np.float32)
    for fmt, extreme in (("q8", weights), ("q4", fifteen), ("q4", -fifteen)):
        for sign in (1, -1):
            x = np.full((5, 64), 127.0 * sign, np.float32)
            wanted = naive.matmul(x, extreme)
            got = product(x, packed(extreme, fmt), alone, path)
            assert relative_error(got, wanted) < 1e-6


@pytest.mark.parametrize("path", [HOST, PORTABLE])
def test_any_packed_bytes_are_multiplied_exactly(path: Path | None, alone: Workers):
    """A hostile q8 file may hold -128, which our packer never writes."""
    layout = matrix_layout("q8", 16, 32)
    data = np.full(layout.nbytes, 0x80, np.uint8)
    data[layout.scales_offset :].view(np.float16)[:] = 1.0
    x = np.full((1, 32), 127.0, np.float32)
    assert (product(x, Matrix(layout, data), alone, path) == -128.0 * 127 * 32).all()


@pytest.mark.usefixtures("split_everything")
@pytest.mark.parametrize("fmt", FORMATS)
def test_a_row_does_not_depend_on_other_rows_or_threads(fmt: str, alone: Workers, pair: Workers):
    x, matrix = normal(64, 96, seed=1), packed(normal(85, 96), fmt)
    single = np.concatenate([product(x[i : i + 1], matrix, alone) for i in range(64)])
    for n in ROW_COUNTS:
        for workers in (alone, pair):
            for first in {0, 64 - n}:
                rows = product(x[first : first + n], matrix, workers)
                assert rows.tobytes() == single[first : first + n].tobytes(), (n, first)


@pytest.mark.parametrize("fmt", FORMATS)
def test_no_rows_give_no_results(fmt: str, alone: Workers):
    assert product(normal(0, 32), packed(normal(16, 32), fmt), alone).shape == (0, 16)


@pytest.mark.parametrize("fmt", FORMATS)
def test_zeros_and_tiny_and_huge_activations(fmt: str, alone: Workers):
    matrix = packed(normal(16, 64), fmt)
    assert (product(np.zeros((1, 64), np.float32), matrix, alone) == 0).all()
    for size in (1e-44, 1e-38, 1e-30, 1e30):
        x = normal(1, 64, seed=2) * np.float32(size)
        wanted = naive.matmul(x, unpack(matrix.packed, matrix.layout))
        bound = 0.03 * np.abs(wanted).max() + 64 * 2.0**-149 * 100
        assert np.abs(product(x, matrix, alone) - wanted).max() < bound


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("fmt", FORMATS)
def test_a_number_that_is_not_finite_is_not_lost(fmt: str, bad: float, alone: Workers):
    x = normal(5, 64, seed=1)
    x[2, 40] = bad
    got = product(x, packed(normal(16, 64), fmt), alone)
    assert not np.isfinite(got[2]).any()
    assert np.isfinite(np.delete(got, 2, axis=0)).all()


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 40), cols=st.integers(1, 70), fmt=st.sampled_from(FORMATS))
def test_taken_rows_are_the_unpacked_rows(rows: int, cols: int, fmt: str):
    matrix = packed(normal(rows, cols), fmt)
    ids = np.random.default_rng(rows).integers(0, rows, 9).astype(np.int32)
    taken = take_rows(matrix, ids, np.empty((9, cols), np.float32))
    assert taken.tobytes() == unpack(matrix.packed, matrix.layout)[ids].tobytes()


@pytest.mark.parametrize("bad", [-1, 16])
def test_a_row_that_is_not_there_is_refused(bad: int):
    matrix = packed(normal(16, 32), "q8")
    with pytest.raises(IndexError, match=f"row {bad} of a matrix with 16 rows"):
        take_rows(matrix, np.array([0, bad], np.int32), np.empty((2, 32), np.float32))


def test_wrong_shapes_and_orders_are_refused(alone: Workers):
    matrix = packed(normal(16, 32), "q8")
    out = np.empty((2, 16), np.float32)
    with pytest.raises(ValueError, match="x must be C-contiguous float32"):
        matmul(normal(2, 31), matrix, out, alone)
    with pytest.raises(ValueError, match="not C-contiguous"):
        matmul(normal(32, 2).T, matrix, out, alone)
    with pytest.raises(ValueError, match="out must be"):
        matmul(normal(3, 32), matrix, out, alone)
    with pytest.raises(ValueError, match="packed q8 matrix of 16 x 32"):
        Matrix(matrix.layout, matrix.packed[:-1])


@pytest.mark.parametrize("fmt", FORMATS)
def test_scratch_is_what_the_plan_is_told(fmt: str):
    kind = KIND[fmt]
    assert prepared_room(3, 50, kind).nbytes + 64 == matmul_scratch_bytes(3, 50, kind)
