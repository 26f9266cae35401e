import subprocess
import sys

# In a process of its own: other tests compile more than a model needs.
DECODE_AFTER_COMPILING = """
import numpy as np
from numba.core import event
from diskmoe.engine.kernels.attention import attend
from diskmoe.engine.kernels.basic import add, add_bias, rms_norm, rope, rope_tables, silu_mul
from diskmoe.engine.kernels.experts import combine, expert_ffn
from diskmoe.engine.kernels.matmul import Matrix, matmul, take_rows
from diskmoe.engine.kernels.route import route
from diskmoe.engine.kernels.warm import compile_kernels
from diskmoe.engine.kernels.workers import Workers
from diskmoe.experts.tiles import matrix_layout, record_layout

def zeros(*shape):
    return np.zeros(shape, np.float32)

compile_kernels(["q8", "q4"])
with event.install_recorder("numba:compile") as recorder, Workers(2) as workers:
    n, hidden, cache = 6, 64, zeros(20, 2, 16)
    ids = np.arange(n, dtype=np.int32)
    layout = matrix_layout("q8", 64, hidden)
    matrix = Matrix(layout, np.zeros(layout.nbytes, np.uint8))
    x = take_rows(matrix, ids, zeros(n, hidden))
    rms_norm(x, zeros(hidden), 1e-6, x)
    q = matmul(x, matrix, zeros(n, 64), workers).reshape(n, 4, 16)
    rms_norm(q, zeros(16), 1e-6, q)
    rope(q, *rope_tables(np.ones(4), 20), 3, True)
    attend(q, cache[:9], cache[:9], 3, 0.25, zeros(n, 4, 16), workers)
    add(x, q.reshape(n, 64))
    add_bias(x, zeros(hidden))
    chosen, weights = route(zeros(n, 8), "sigmoid", zeros(8), 2, 1, "top2", 2, True, 2.5)
    record = record_layout("q4", hidden, 48)
    arena = np.zeros(4 * record.nbytes, np.uint8)
    out, begins = zeros(2 * n, hidden), np.array([0, n], np.int32)
    expert_ffn(x, ids, ids, begins, ids[3:4], arena, record, out, workers)
    combine(out, np.zeros((n, 2), np.int32), weights, x)
    silu_mul(x, x, x)
assert not recorder.buffer, [str(record) for _, record in recorder.buffer]
"""


def test_nothing_is_compiled_in_the_middle_of_an_answer():
    run = subprocess.run(
        [sys.executable, "-c", DECODE_AFTER_COMPILING], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
