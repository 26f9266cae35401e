"""Recorded routing: what was asked for is what the file says, and nothing is written before."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskmoe.bench.trace import read_recording, read_trace
from diskmoe.experts import trace as module
from diskmoe.experts.errors import BadOutput, WriteFailed
from diskmoe.experts.trace import DECODE, PROMPT, TraceRecorder


def silent(line: str) -> None:
    """Says nothing."""


def rows(*ids: list[int]) -> np.ndarray:
    return np.array(ids, np.int32)


@settings(deadline=None)
@given(data=st.data())
def test_forwards_come_back_as_they_were_recorded(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("trace") / "t.csv"
    layers = sorted(data.draw(st.sets(st.integers(0, 99), min_size=1, max_size=3)))
    recorder = TraceRecorder(path, silent)
    expected: dict[int, list[tuple[int, list]]] = {layer: [] for layer in layers}
    for _ in range(data.draw(st.integers(1, 6))):
        phase, n = data.draw(st.sampled_from([PROMPT, DECODE])), data.draw(st.integers(1, 4))
        for layer in layers:
            row = st.lists(st.integers(0, 60_000), min_size=2, max_size=2, unique=True)
            chosen = [data.draw(row) for _ in range(n)]
            recorder.record(layer, rows(*chosen), phase)
            expected[layer].append((phase, [tuple(ids) for ids in chosen]))
    recorder.close()
    found = read_recording(path)
    assert found.top_k == 2 and found.by_forward
    assert {
        layer: [(forward.phase, forward.rows) for forward in forwards]
        for layer, forwards in found.layers.items()
    } == expected


def test_how_many_rows_were_right_is_a_comment_of_the_forward(tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path / "t.csv", silent)
    for n, right in ((1, None), (3, 2), (2, 2), (1, None)):
        for layer in (1, 4):
            recorder.record(layer, rows(*([layer, 7] for _ in range(n))), DECODE)
        if right is not None:
            recorder.accepted(right)
    recorder.close()
    comments = [line for line in (tmp_path / "t.csv").read_text().splitlines() if line[0] == "#"]
    forward = "# forward"
    assert comments == [forward, forward, "# accepted 2", forward, "# accepted 2", forward]
    for forwards in read_recording(tmp_path / "t.csv").layers.values():
        assert [(len(f.rows), f.accepted) for f in forwards] == [
            (1, None),
            (3, 2),
            (2, 2),
            (1, None),
        ]


def test_an_accepted_comment_of_others_is_a_comment(tmp_path: Path) -> None:
    text = "# accepted by all\nphase,step,layer,experts\n# forward\n# accepted -1\n1,0,0,4-5\n"
    (tmp_path / "t.csv").write_text(text)
    (forward,) = read_recording(tmp_path / "t.csv").layers[0]
    assert (forward.rows, forward.accepted) == ([(4, 5)], None)


def test_a_run_with_one_prompt_is_read_as_a_trace_for_bench_decode(tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path / "t.csv", silent)
    for phase, n in ((PROMPT, 3), (PROMPT, 2), (DECODE, 1), (DECODE, 1)):
        for layer in (1, 4):
            recorder.record(layer, rows(*([layer, 7] for _ in range(n))), phase)
    recorder.close()
    found = read_trace(tmp_path / "t.csv", (1, 4), 8)
    assert (found.prompt_steps, found.decode_steps) == (5, 2)
    assert found.decode[4].tolist() == [[4, 7], [4, 7]]


def test_what_was_recorded_is_a_copy(tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path / "t.csv", silent)
    ids = rows([1, 2])
    recorder.record(0, ids, DECODE)
    ids[:] = 9
    recorder.close()
    assert read_recording(tmp_path / "t.csv").layers[0][0].rows == [(1, 2)]


def test_nothing_is_written_before_the_end_and_nothing_beside_it_after(tmp_path: Path) -> None:
    said: list[str] = []
    recorder = TraceRecorder(tmp_path / "t.csv", said.append)
    recorder.record(0, rows([1, 2]), DECODE)
    assert not list(tmp_path.iterdir()) and not said
    recorder.close()
    recorder.close()
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]
    assert said == [f"trace     {tmp_path / 't.csv'}"]


def test_a_run_without_a_forward_leaves_the_file_of_an_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("kept")
    TraceRecorder(tmp_path / "t.csv", silent).close()
    assert (tmp_path / "t.csv").read_text() == "kept"


def test_a_full_trace_ends_with_a_whole_forward_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 400)
    said: list[str] = []
    recorder = TraceRecorder(tmp_path / "t.csv", said.append)
    for _ in range(20):
        for layer in range(3):
            recorder.record(layer, rows([1, 2]), DECODE)
        recorder.accepted(1)
    assert said == ["note      the trace is full at 400 bytes: nothing more is recorded"]
    recorder.close()
    lengths = {len(forwards) for forwards in read_recording(tmp_path / "t.csv").layers.values()}
    assert lengths == {3}
    assert (tmp_path / "t.csv").stat().st_size <= 400


def test_a_place_that_takes_no_file_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadOutput, match="is a directory"):
        TraceRecorder(tmp_path, silent)
    with pytest.raises(BadOutput, match="does not exist"):
        TraceRecorder(tmp_path / "no" / "t.csv", silent)
    with pytest.raises(BadOutput, match="no place for a file"):
        TraceRecorder(tmp_path / ("t" * 300), silent)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(BadOutput, match="read-only"):
        TraceRecorder(tmp_path / "t.csv", silent)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_or_a_device_is_not_replaced_by_a_trace(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadOutput, match="no ordinary file"):
        TraceRecorder(tmp_path / "pipe", silent)


def test_the_longest_name_that_a_file_can_have_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / ("t" * 255)
    recorder = TraceRecorder(path, silent)
    recorder.record(0, rows([1, 2]), DECODE)
    recorder.close()
    assert list(tmp_path.iterdir()) == [path]


def test_a_forward_that_was_interrupted_is_not_in_the_trace(tmp_path: Path) -> None:
    recorder = TraceRecorder(tmp_path / "t.csv", silent)
    for layers in ((0, 1, 2), (0,), (0, 1, 2), (0, 1)):
        for layer in layers:
            recorder.record(layer, rows([layer, 7]), DECODE)
    recorder.close()
    assert read_trace(tmp_path / "t.csv", (0, 1, 2), 8).decode_steps == 2


def test_a_disk_that_takes_no_more_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.csv").write_text("kept")
    recorder = TraceRecorder(tmp_path / "t.csv", silent)
    recorder.record(0, rows([1, 2]), DECODE)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(WriteFailed, match=r"t\.csv: the trace cannot be written \(No space left"):
        recorder.close()
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]
    assert (tmp_path / "t.csv").read_text() == "kept"
