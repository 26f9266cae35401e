from typing import Any

import naive
import numpy as np
import pytest
from as_functions import silu_mul
from packed import pack_record

from diskmoe.engine.kernels import experts
from diskmoe.engine.kernels.experts import batch_bytes, combine, expert_ffn
from diskmoe.engine.kernels.ffn_shape import SILU, Swiglu
from diskmoe.engine.kernels.matmul import matmul
from diskmoe.engine.kernels.matrix import Matrix
from diskmoe.engine.kernels.paths import HOST, PORTABLE
from diskmoe.engine.kernels.workers import Workers
from diskmoe.experts.packing import unpack_record
from diskmoe.experts.tiles import RecordLayout, record_layout

FORMATS = ("f32", "bf16", "q8", "q4")
CLAMPED = Swiglu(limit=1.5, alpha=1.702)
ROW_COUNTS = (1, 2, 3, 5, 8, 17, 64)
N_EXPERTS = 4


class Case:
    """Four experts in an arena of six slots, and rows that each select two of them."""

    def __init__(
        self, fmt: str, hidden: int = 80, ffn: int = 50, n: int = 64, biased: bool = False
    ) -> None:
        rng = np.random.default_rng(5)
        self.layout: RecordLayout = record_layout(fmt, hidden, ffn, biased)
        self.swiglu = CLAMPED if biased else SILU
        self.arena = np.zeros(6 * self.layout.nbytes, np.uint8)
        self.slots = np.array([4, 0, 5, 2], np.int32)  # of expert 0..3
        for slot in self.slots:
            gate, up, down = (
                rng.standard_normal(shape, dtype=np.float32) * np.float32(0.3)
                for shape in ((ffn, hidden), (ffn, hidden), (hidden, ffn))
            )
            begin = slot * self.layout.nbytes
            record = self.arena[begin : begin + self.layout.nbytes]
            biases = [rng.standard_normal(rows, dtype=np.float32) for rows in (ffn, ffn, hidden)]
            pack_record(gate, up, down, self.layout, record, biases if biased else ())
        self.x = rng.standard_normal((n, hidden), dtype=np.float32)
        self.choices = np.stack([rng.permutation(N_EXPERTS)[:2] for _ in range(n)])

    def weights(self, expert: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        begin = self.slots[expert] * self.layout.nbytes
        return unpack_record(self.arena[begin : begin + self.layout.nbytes], self.layout)

    def biases(self, expert: int) -> tuple[np.ndarray, ...]:
        begin = self.slots[expert] * self.layout.nbytes
        return self.layout.biases(self.arena[begin : begin + self.layout.nbytes])

    def run(
        self, workers: Workers, first: int, n: int, wanted: tuple[int, ...] = (0, 1, 2, 3), **kw
    ) -> np.ndarray:
        """Rows first..first+n-1 through the wanted experts -> out (n * 2, hidden)."""
        choices = self.choices[first : first + n].reshape(-1)
        entries = [np.flatnonzero(choices == expert) for expert in wanted]
        selections = np.concatenate(entries).astype(np.int32)
        row_begin = np.cumsum([0] + [len(entry) for entry in entries]).astype(np.int32)
        out = kw.pop("out", None)
        if out is None:
            out = np.full((2 * n, self.layout.gate.cols), np.nan, np.float32)
        x = self.x[first : first + n]
        slots = self.slots[list(wanted)]
        rows = selections // 2
        kw.setdefault("swiglu", self.swiglu)
        expert_ffn(
            x, rows, selections, row_begin, slots, self.arena, self.layout, out, workers, **kw
        )
        return out


@pytest.mark.parametrize("fmt", ["f32", "bf16"])
def test_float_experts_equal_their_twin(fmt: str, alone: Workers):
    case = Case(fmt)
    out = case.run(alone, 0, 64).reshape(64, 2, -1)
    for expert in range(N_EXPERTS):
        wanted = naive.expert_ffn(case.x, *case.weights(expert))
        where = case.choices == expert
        error = out[where] - wanted[np.nonzero(where)[0]]
        assert np.abs(error).max() < 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("fmt", ["f32", "bf16"])
@pytest.mark.parametrize("ffn", [50, 64])
def test_experts_with_biases_and_a_limit_equal_their_twin(fmt: str, ffn: int, alone: Workers):
    case = Case(fmt, ffn=ffn, biased=True)
    out = case.run(alone, 0, 64).reshape(64, 2, -1)
    for expert in range(N_EXPERTS):
        wanted = naive.expert_ffn(case.x, *case.weights(expert), case.biases(expert), CLAMPED)
        where = case.choices == expert
        error = out[where] - wanted[np.nonzero(where)[0]]
        assert np.abs(error).max() < 1e-5 * np.abs(wanted).max()


def test_a_limit_keeps_what_is_no_number(alone: Workers):
    case = Case("f32", biased=True)
    case.biases(0)[0][3] = np.nan
    out = case.run(alone, 0, 64).reshape(64, 2, -1)
    assert (np.isnan(out).all(axis=2) == (case.choices == 0)).all()


@pytest.mark.parametrize("fmt", [*FORMATS, "q4_0+q4_1", "int4+q8", "f32+int4"])
def test_an_expert_has_the_bits_of_its_matrices_multiplied_apart(fmt: str, alone: Workers):
    """gate and up, the activation, down: as `matmul` and `silu_mul` would do them."""
    case = Case(fmt)
    layout = case.layout
    out = case.run(alone, 0, 64).reshape(64, 2, -1)
    for expert in range(N_EXPERTS):
        record = case.arena[case.slots[expert] * layout.nbytes :][: layout.nbytes]
        gate, up, down = (
            Matrix(part, record[offset : offset + part.nbytes])
            for part, offset in (
                (layout.gate, layout.gate_offset),
                (layout.up, layout.up_offset),
                (layout.down, layout.down_offset),
            )
        )
        inner = matmul(case.x, gate, np.empty((64, gate.rows), np.float32), alone)
        other = matmul(case.x, up, np.empty((64, up.rows), np.float32), alone)
        inner = silu_mul(inner, other)
        wanted = matmul(inner, down, np.empty((64, down.rows), np.float32), alone)
        where = case.choices == expert
        assert out[where].tobytes() == wanted[np.nonzero(where)[0]].tobytes()


@pytest.mark.usefixtures("split_everything")
@pytest.mark.parametrize("fmt", [*FORMATS, "mxfp4", "q4_1", "q4_0+q8"])
@pytest.mark.parametrize("biased", [False, True])
def test_a_selection_does_not_depend_on_the_others_or_threads(
    fmt: str, biased: bool, alone: Workers, pair: Workers
):
    case = Case(fmt, biased=biased)
    single = np.concatenate([case.run(alone, i, 1) for i in range(64)])
    for n in ROW_COUNTS:
        for workers in (alone, pair):
            for first in {0, 64 - n}:
                together = case.run(workers, first, n)
                assert together.tobytes() == single[2 * first : 2 * (first + n)].tobytes()


@pytest.mark.usefixtures("split_everything")
def test_blocks_of_selections_change_nothing(pair: Workers):
    case = Case("q4")
    whole = case.run(pair, 0, 64)
    for block in (1, 7, 33):
        assert case.run(pair, 0, 64, block=block).tobytes() == whole.tobytes()


@pytest.mark.parametrize("fmt", ["q8", "q4", "q4_0+q4_1"])
@pytest.mark.parametrize("biased", [False, True])
def test_portable_code_gives_the_bits_of_the_host_code(fmt: str, biased: bool, alone: Workers):
    case = Case(fmt, biased=biased)
    host, portable = (case.run(alone, 0, 17, path=path) for path in (HOST, PORTABLE))
    assert host.tobytes() == portable.tobytes()


def test_experts_that_arrive_later_leave_earlier_results_alone(alone: Workers):
    case = Case("q8")
    whole = case.run(alone, 0, 64)
    out = case.run(alone, 0, 64, wanted=(2,))
    case.run(alone, 0, 64, wanted=(3, 0), out=out)
    case.run(alone, 0, 64, wanted=(1,), out=out)
    assert out.tobytes() == whole.tobytes()


def test_no_experts_and_experts_without_rows_are_fine(alone: Workers):
    case = Case("q8")
    none = np.zeros(0, np.int32)
    out = np.full((2, 80), 7, np.float32)
    begins = np.zeros(1, np.int32)
    expert_ffn(case.x, none, none, begins, none, case.arena, case.layout, out, alone)
    assert (out == 7).all()
    one = np.array([1], np.int32)
    begins = np.array([0, 0, 1, 1], np.int32)
    expert_ffn(case.x, one, one, begins, case.slots[:3], case.arena, case.layout, out, alone)
    assert (out[0] == 7).all() and (out[1] != 7).any()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("rows", [0, 64]),
        ("selections", [-1, 0]),
        ("row_begin", [0, 1, 3]),
        ("row_begin", [0, 3, 2]),
        ("slots", [0, 6]),
    ],
)
def test_an_index_outside_its_array_is_refused(name: str, values: list[int], alone: Workers):
    case = Case("q8")
    arguments: dict[str, Any] = {
        "rows": np.array([0, 1], np.int32),
        "selections": np.array([0, 1], np.int32),
        "row_begin": np.array([0, 1, 2], np.int32),
        "slots": np.array([0, 1], np.int32),
    }
    arguments[name] = np.array(values, np.int32)
    out = np.empty((2, 80), np.float32)
    with pytest.raises(ValueError, match="outside its array"):
        expert_ffn(
            case.x, **arguments, arena=case.arena, layout=case.layout, out=out, workers=alone
        )


def test_scratch_hardly_grows_with_selections():
    layout = record_layout("q4", 64, 32)
    whole = batch_bytes(layout, experts.BLOCK)
    assert batch_bytes(layout, experts.BLOCK + 100) == whole + 100 * 8
    assert batch_bytes(layout, 1) < whole / 100


def test_combine_equals_its_twin():
    rng = np.random.default_rng(3)
    for hidden in (64, 37):
        selected = rng.standard_normal((12, hidden), dtype=np.float32)
        index = rng.permutation(12).reshape(4, 3).astype(np.int32)
        weights = rng.random((4, 3), dtype=np.float32)
        y = rng.standard_normal((4, hidden), dtype=np.float32)
        wanted = naive.combine(selected, index, weights, y)
        combine(selected, index, weights, y)
        np.testing.assert_allclose(y, wanted, atol=1e-6)


def test_combine_keeps_the_rows_own_order_wherever_results_lie():
    rng = np.random.default_rng(3)
    selected = rng.standard_normal((8, 40), dtype=np.float32) * np.float32(1e3)
    weights = rng.random((1, 8), dtype=np.float32)
    plain, mixed = np.zeros((1, 40), np.float32), np.zeros((1, 40), np.float32)
    order = rng.permutation(8).astype(np.int32)
    combine(selected, np.arange(8, dtype=np.int32)[None], weights, plain)
    scattered = np.empty_like(selected)
    scattered[order] = selected
    combine(scattered, order[None], weights, mixed)
    assert plain.tobytes() == mixed.tobytes()


def test_combine_refuses_an_index_outside_and_changes_nothing():
    y = np.ones((1, 16), np.float32)
    selected, weights = np.ones((2, 16), np.float32), np.ones((1, 2), np.float32)
    with pytest.raises(ValueError, match=r"outside 0\.\.1"):
        combine(selected, np.array([[0, 2]], np.int32), weights, y)
    assert (y == 1).all()
