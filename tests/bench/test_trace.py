"""Traces: what is read, what is refused, and that a run follows one."""

import json
from pathlib import Path

import numpy as np
import pytest

from diskmoe.bench.decode import measure
from diskmoe.bench.model import Synthetic
from diskmoe.bench.trace import HEADING, MOST_BYTES, Replay, read_trace
from diskmoe.engine.api import Model, Options
from diskmoe.engine.cli import main
from diskmoe.engine.errors import BadModel


def written_trace(path: Path, prompt: int, decode: int, layers: int = 2, top_k: int = 3) -> Path:
    lines = ["# a trace", HEADING]
    for step in range(prompt + decode):
        for layer in range(layers):
            ids = [(step * top_k + i + layer) % 32 for i in range(top_k)]
            if layer == layers - 1 and step < prompt - 1:
                continue  # as llama.cpp's last layer
            lines.append(f"{int(step >= prompt)},{step},{layer},{'-'.join(map(str, ids))}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_trace_is_read_with_its_gaps(tmp_path: Path) -> None:
    trace = read_trace(written_trace(tmp_path / "t.csv", 4, 6), (0, 1), 32)
    assert (trace.top_k, trace.prompt_steps, trace.decode_steps) == (3, 4, 6)
    assert trace.prompt[1][:3].tolist() == [[-1, -1, -1]] * 3
    assert trace.prompt[1][3].tolist() == [10, 11, 12] and trace.decode[0][0].tolist() == [
        12,
        13,
        14,
    ]


def test_rows_follow_the_trace_and_gaps_stay_the_routers(tmp_path: Path) -> None:
    trace = read_trace(written_trace(tmp_path / "t.csv", 4, 6), (0, 1), 32)
    replay = Replay(trace, 4)
    ids, shares = np.zeros((3, 3), np.int32), np.ones((3, 3), np.float32)
    replay(1, ids, shares)
    assert not ids.any()
    replay(0, ids, shares)
    assert ids.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    replay(1, ids[:2], shares[:2])
    assert ids[:2].tolist() == [[10, 11, 12], [13, 14, 15]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,9,2,1-2-3", "line 23: layer 2, the model has 2 layers with experts, 0 to 1"),
        ("1,9,1,1-2-32", "line 23: expert 32, a layer of the model has 32"),
        ("1,9,1,1-2", "line 23: 2 experts, the lines before have 3"),
        ("1,9,1,1-2-2", "line 23: an expert is chosen twice"),
        ("1,9,1,1-2-x", "line 23: '1,9,1,1-2-x' is not like"),
        ("2,9,1,1-2-3", "line 23"),
        ("1,9,1", "line 23"),
        ("1,9,0,1-2-3", "line 23: step 9 of layer 0 is in line 21 already"),
        ("1,10,0,1-2-3", "step 10 has no line for layer 1"),
        ("1,11,0,1-2-3", "step 11 of phase 1 follows step 9, not 10"),
        ("0,10,0,1-2-3", "step 0 of phase 1 follows step 10"),
        ("1,9,1,nan-2-3", "line 23: '1,9,1,nan-2-3' is not like"),
        ("1,9,1,99999999999999999999-2-3", "line 23"),
        ("1,9,1,1-2-\0", "line 23"),
        ("1,-1,0,1-2-3", "line 23"),
    ],
)
def test_a_line_that_does_not_fit_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = written_trace(tmp_path / "t.csv", 0, 10)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(BadModel) as caught:
        read_trace(path, (0, 1), 32)
    assert message in str(caught.value) and str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "# nothing\n", HEADING + "\n", "step,layer\n1,2\n"])
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(BadModel, match="trace"):
        read_trace(tmp_path / "t.csv", (0,), 8)


@pytest.mark.parametrize("start", ["", "# a comment ", HEADING + "\n0,0,0,"])
def test_a_line_without_an_end_is_refused_before_it_fills_memory(
    tmp_path: Path, start: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(start + "1-" * (MOST_BYTES // 4))
    with pytest.raises(BadModel, match=f"line {2 if HEADING in start else 1}: is longer than"):
        read_trace(path, (0,), 8)


def test_a_file_that_is_too_long_for_a_trace_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(BadModel, match=f"{MOST_BYTES + 1} bytes; a trace has at most {MOST_BYTES}"):
        read_trace(path, (0,), 8)


@pytest.mark.parametrize("path", [Path("/"), Path("/dev/zero"), Path("/dev/null")])
def test_what_is_no_file_is_no_trace(path: Path) -> None:
    with pytest.raises(BadModel, match="is no file"):
        read_trace(path, (0,), 8)


def test_a_byte_order_mark_is_no_part_of_the_heading(tmp_path: Path) -> None:
    path = written_trace(tmp_path / "t.csv", 1, 2)
    plain = read_trace(path, (0, 1), 32)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert np.array_equal(read_trace(path, (0, 1), 32).decode[1], plain.decode[1])


def test_a_trace_that_is_longer_than_the_default_is_run_to_its_end(
    written: tuple[Synthetic, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written_trace(tmp_path / "t.csv", 0, 270, top_k=4)
    words = ["bench", "decode", str(written[1]), "--routing", str(path), "--json"]
    assert main([*words, "--threads", "1", "--ram-gb", "4"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["tokens"] == 270 and report["settings"]["CTX"]["value"] == 271
    assert main([*words, "--ctx", "200"]) == 2
    assert "need CTX=271, not 200" in capsys.readouterr().err


def test_a_run_follows_the_trace_and_its_hits_are_those_of_the_trace(
    written: tuple[Synthetic, Path, Path], tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    lines = [
        f"1,{step},{layer},{step % 2}-{10 + step % 2}-20-30"
        for step in range(20)
        for layer in (0, 1)
    ]
    path.write_text("\n".join([HEADING, *lines]))
    trace = read_trace(path, (0, 1), 32)
    with Model.load(written[1], Options(cap=8, threads=1, ctx=64, ram_gb=4)) as model:
        stats, _ = measure(model, 0, 20, trace)
        again, _ = measure(model, 0, 20)
    assert (stats.decode.misses, stats.decode.hits) == (12, 2 * 20 * 4 - 12)
    assert again.decode.misses > 12  # the router chooses again


def test_a_trace_sets_how_many_experts_a_token_goes_to(
    written: tuple[Synthetic, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written_trace(tmp_path / "t.csv", 3, 5)
    words = ["bench", "decode", str(written[1]), "--routing", str(path), "--ram-gb", "4"]
    assert main([*words, "--threads", "1", "--json"]) == 0
    captured = capsys.readouterr()
    assert '"selections": 30' in captured.out and "it runs with 3" in captured.err
    assert main([*words, "--tokens", "6"]) == 2
    assert "has 5 such steps" in capsys.readouterr().err


def test_a_trace_of_another_model_is_refused_by_the_command(
    written: tuple[Synthetic, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written_trace(tmp_path / "t.csv", 3, 5, layers=4)
    assert main(["bench", "decode", str(written[1]), "--routing", str(path)]) == 2
    assert "line 5: layer 2" in capsys.readouterr().err.splitlines()[-1]
