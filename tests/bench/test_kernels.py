"""bench kernels: no speed without a right result, and what the JSON has."""

import json
from typing import Any

import numpy as np
import pytest

from diskmoe.bench import products
from diskmoe.bench.memory import Crew, read_seconds, read_sum, read_sum_of_four
from diskmoe.bench.products import Matrices, WrongResult, exact_rows
from diskmoe.engine.cli import main
from diskmoe.engine.kernels.products import depth_of, scale_bytes
from diskmoe.experts import budget
from diskmoe.experts.tiles import PAGE, aligned_zeros

SMALL = ["--shape", "32x128", "--mib", "1", "--seconds", "0", "--batches", "1,4", "--threads", "2"]


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["bench", "kernels", *SMALL, *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_json_has_a_ceiling_and_rows(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["--formats", "q4,q8", "--json"], capsys)
    assert code == 0 and "error" not in err
    result = json.loads(out)
    assert set(result) == {"ceiling", "rows"} and set(result["ceiling"]) >= {"2"}
    keys = {
        "format", "bits", "rows", "cols", "batch", "threads", "path", "gb_s", "of_ceiling", "us",
    }  # fmt: skip
    assert all(set(row) == keys for row in result["rows"])
    ours = [row for row in result["rows"] if row["path"] != "numpy"]
    assert {(row["format"], row["batch"]) for row in ours} == {
        ("q4", 1), ("q4", 4), ("q8", 1), ("q8", 4),
    }  # fmt: skip
    assert {row["bits"] for row in ours} == {4, 8} and "portable" in {r["path"] for r in ours}
    assert [row["format"] for row in result["rows"] if row["path"] == "numpy"] == ["f32"]


def test_a_table_without_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["--formats", "f32", "--paths", "portable"], capsys)
    assert code == 0 and out.startswith("ceiling 2 thread(s): ")
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["f32"] * 3


def test_a_kernel_that_leaves_out_a_group_is_an_error_without_a_speed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: Any = lambda kind, cols: int(depth_of(kind, cols)) - 1
    monkeypatch.setattr(products, "depth_of", broken)
    code, out, err = run(["--formats", "q4", "--paths", "portable", "--json"], capsys)
    assert code == 1
    assert [row["path"] for row in json.loads(out)["rows"]] == ["numpy"]
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2 and "q4, path portable, 1 row(s), 2 thread(s)" in errors[0]
    assert "differ from NumPy" in errors[0]


@pytest.mark.parametrize("fmt", ["q4", "q8"])
def test_a_kernel_with_shifted_scales_is_an_error(
    fmt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrices = Matrices(fmt, 32, 128, 1 << 20)
    with Crew(2) as crew:  # the second thread begins at the second tile
        matrices.product(1, "portable", crew)  # right, as it is
        shifted: Any = lambda kind, depth: int(scale_bytes(kind, depth)) - 2
        monkeypatch.setattr(products, "scale_bytes", shifted)
        with pytest.raises(WrongResult, match="outputs differ"):
            matrices.product(1, "portable", crew)


@pytest.mark.parametrize("fmt", ["q4", "q8", "bf16", "f32"])
def test_one_wrong_weight_in_the_last_copy_is_an_error(fmt: str) -> None:
    matrices = Matrices(fmt, 32, 128, 1 << 20)
    matrices.arena.slot(matrices.slots - 1)[1] ^= 0x40
    with Crew(1) as crew, pytest.raises(WrongResult):
        matrices.product(2, "portable", crew)


def test_rows_are_such_that_int8_holds_them_exactly() -> None:
    x = exact_rows(3, 128, 0)
    groups = x.reshape(3, 4, 32)
    scale = np.abs(groups).max(axis=2, keepdims=True) / np.float32(127)
    assert (scale == 1 / 64).all() and np.array_equal(np.rint(groups / scale) * scale, groups)


@pytest.mark.parametrize("read", [read_sum, read_sum_of_four])
def test_the_read_loop_reads_everything_once(read: Any) -> None:
    memory = aligned_zeros(5 * PAGE, PAGE)
    words = memory.view(np.int64)
    words[:] = np.arange(len(words)) ** 4  # sums of other words than these are others
    at = memory.ctypes.data
    assert read(at, len(memory) // 64) == words.sum()
    assert read(at + PAGE, PAGE // 64) == words[512:1024].sum()
    with Crew(3) as crew:
        seen: list[int] = []
        keep: Any = lambda at, lines: seen.append(read(at, lines))
        assert read_seconds(crew, memory, 0, len(memory), keep) > 0
    assert sum(seen) == words.sum()


def test_an_error_in_a_thread_of_the_crew_is_raised_by_the_caller() -> None:
    def fail() -> None:
        raise ValueError("here")

    with Crew(2) as crew:
        with pytest.raises(ValueError, match="here"):
            crew.seconds([lambda: None, fail])
        assert crew.seconds([lambda: None, lambda: None]) >= 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shape", "768"], "--shape"),
        (["--shape", "0x0"], "--shape is '0x0'"),
        (["--shape", "17x33"], "rows a multiple of 16, columns of 64"),
        (["--shape", "16x" + "6" * 5000], "neither above 1048576"),
        (["--shape", "1048576x1048576"], "ask for a smaller --shape or --mib"),
        (["--mib", "--5"], "--mib"),
        (["--mib", "٣"], "--mib"),
        (["--mib", "9" * 5000], "whole number from 1 to 1048576"),
        (["--batches", ","], "whole numbers from 1 to 64, like 1,2,4,8"),
        (["--batches", "1,65"], "whole numbers from 1 to 64, like 1,2,4,8"),
        (["--json=perhaps"], "--json"),
        (["--shape", "30x128"], "rows a multiple of 16"),
        (["--formats", "q4,q5"], "'q5'"),
        (["--paths", "avx"], "--paths"),
        (["--batches", "0"], "--batches"),
        (["--mib", "0"], "--mib"),
        (["--seconds", "nan"], "--seconds"),
        (["more"], "takes no argument"),
    ],
)
def test_a_slip_is_answered_in_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "kernels", *words]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("error: ") and message in said and "\n" not in said
    assert len(said) < 300


def test_memory_that_is_not_there_is_told_with_both_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    available = budget.Available(100 << 20, "available in a test", 1 << 30)
    monkeypatch.setattr(budget, "available_memory", lambda: available)
    assert main(["bench", "kernels", "--mib", "200"]) == 2
    said = capsys.readouterr()
    assert "take 248 MiB, 100 MiB are available in a test" in said.err and said.out == ""
