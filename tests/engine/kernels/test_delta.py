"""The gated delta rule against its twin, and rows that are taken back."""

import naive
import numpy as np
import pytest

from diskmoe.engine.kernels.delta import DeltaInputs, DeltaVectors, Grouped, add_delta
from diskmoe.engine.kernels.delta_shape import DeltaShape
from diskmoe.engine.kernels.program import Builder, Rows, address_of_array, rows_of
from diskmoe.engine.kernels.workers import Workers
from diskmoe.engine.model.deltastate import DeltaStates, delta_state_bytes

SHAPES = {
    "three values a key": DeltaShape(2, 6, 16, 32, 4),
    "a value a key": DeltaShape(3, 3, 32, 16, 2),
}
EPS = 1e-6
N = 40


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


class Layer:
    """A layer's vectors, and rows of its inputs: all parts of a row one after another."""

    def __init__(self, shape: DeltaShape, kept: int = 5) -> None:
        self.shape = shape
        heads, channels = shape.value_heads, shape.channels
        self.raw, self.z = normal(N, channels), normal(N, shape.value_width, seed=1)
        self.b, self.a = normal(N, heads, seed=2), normal(N, heads, seed=3)
        self.a[:3] *= 40  # beyond where e**a is all that counts
        self.vectors = DeltaVectors(
            normal(shape.taps, 1, channels, seed=4),
            normal(heads, seed=5) - 1,
            normal(heads, seed=6),
            normal(shape.value_dim, seed=7),
        )
        self.kept = kept
        self.start_again()

    def start_again(self) -> None:
        self.states = DeltaStates(self.shape, 2, self.kept)
        self.length = 0

    def run(self, n: int, workers: Workers) -> np.ndarray:
        """The next n rows -> (n, value_width)."""
        shape, rows = self.shape, slice(self.length, self.length + n)
        inputs = [np.ascontiguousarray(x[rows]) for x in (self.raw, self.z, self.b, self.a)]
        raw, z, b, a = (rows_of(x) for x in inputs)
        shared = shape.value_heads // shape.key_heads

        def part(of: Rows, begin: int, width: int) -> Grouped:
            return Grouped(Rows(of.address + 4 * begin, of.step), 4 * width)

        values = shape.value_dim * shared
        start = np.array([self.length], np.int64)
        room = self.kept + n
        mixed = np.full((room, shape.channels), np.nan, np.float32)
        gates = np.full((room, 2 * shape.value_heads), np.nan, np.float32)
        out = np.full((n, shape.value_width), np.nan, np.float32)
        builder = Builder()
        add_delta(
            builder,
            n,
            shape,
            DeltaInputs(
                q=part(raw, 0, shape.key_dim),
                k=part(raw, shape.key_width, shape.key_dim),
                v=part(raw, 2 * shape.key_width, values),
                z=part(z, 0, values),
                b=part(b, 0, shared),
                a=part(a, 0, shared),
            ),
            self.vectors,
            self.states.part(1),
            address_of_array(start),
            EPS,
            address_of_array(mixed),
            address_of_array(gates),
            rows_of(out),
        )
        workers.run(builder.program())
        self.length += n
        return out

    def expected(self) -> np.ndarray:
        conv = self.vectors.conv[:, 0].T
        log, bias = self.vectors.log, self.vectors.bias
        said = naive.gated_delta(self.raw, self.a, self.b, self.shape, conv, log, bias)
        normed = naive.rms_norm(said.astype(np.float32), self.vectors.norm, EPS)
        return naive.silu_mul(self.z, normed.reshape(N, -1))


@pytest.fixture(params=SHAPES)
def layer(request: pytest.FixtureRequest) -> Layer:
    return Layer(SHAPES[request.param])


def test_it_computes_what_its_twin_computes(layer: Layer, alone: Workers):
    np.testing.assert_allclose(layer.run(N, alone), layer.expected(), rtol=2e-4, atol=2e-5)


@pytest.mark.usefixtures("split_everything")
@pytest.mark.parametrize("split", [1, 2, 3, 5, 6, 17])
def test_rows_have_the_same_bits_whatever_goes_with_them(
    layer: Layer, split: int, alone: Workers, pair: Workers
):
    """Splits up to 5 are kept as rows that may be taken back, longer ones are not."""
    whole = layer.run(N, alone)
    layer.start_again()
    parts = [layer.run(min(split, N - i), pair) for i in range(0, N, split)]
    assert np.concatenate(parts).tobytes() == whole.tobytes()


def test_rows_that_are_taken_back_leave_no_trace(layer: Layer, alone: Workers):
    whole = layer.run(N, alone)
    layer.start_again()
    rng = np.random.default_rng(8)
    true = layer.raw.copy()
    while layer.length < N:
        n = int(rng.integers(1, min(5, N - layer.length) + 1))
        accepted = int(rng.integers(0, n + 1))
        begin = layer.length
        wrong = slice(begin + accepted, begin + n)
        layer.raw[wrong] = normal(n - accepted, layer.shape.channels, seed=9)
        found = layer.run(n, alone)
        assert found[:accepted].tobytes() == whole[begin : begin + accepted].tobytes()
        layer.raw[wrong] = true[wrong]
        layer.length = begin + accepted
        assert layer.states.can_be_at(layer.length)


def test_a_state_is_where_it_was_until_the_next_forward(layer: Layer, alone: Workers):
    layer.run(7, alone)
    layer.run(4, alone)
    assert layer.states.can_be_at(7) and not layer.states.can_be_at(6)
    layer.run(2, alone)
    assert layer.states.can_be_at(11) and not layer.states.can_be_at(10)
    layer.run(6, alone)
    assert not layer.states.can_be_at(18)


def test_what_begins_again_has_forgotten_everything(layer: Layer, alone: Workers):
    first = layer.run(9, alone)
    layer.run(3, alone)
    layer.states.begin_again()
    layer.length = 0
    assert layer.run(9, alone).tobytes() == first.tobytes()


def test_its_bytes_are_known_beforehand(layer: Layer):
    assert layer.states.nbytes == delta_state_bytes(layer.shape, 2, layer.kept)


def test_a_number_that_is_none_stays_one(layer: Layer, alone: Workers):
    """So that a broken model is seen."""
    layer.raw[2, -1] = np.nan
    found = layer.run(5, alone)
    assert np.isfinite(found[:2]).all() and np.isnan(found[2:]).any(axis=1).all()
