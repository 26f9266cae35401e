"""A disk that fails, lies or is slow: each run ends as promised, in one line and without a thread."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_model import random_tensors, tiny_config, write_checkpoint

from diskmoe.engine.cli import main
from diskmoe.experts.container import Container
from diskmoe.experts.reader import FileReader
from diskmoe.experts.tiles import Bytes

RUN = ["--prompt-ids", "5,17,33,8", "--ngen", "6", "--ctx", "64", "--cap", "2", "--temp", "0"]
Read = Callable[[FileReader, int, Bytes, int], int]


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    config = tiny_config("qwen3_moe", eos_token_id=None)
    write_checkpoint(tmp_path / "hf", config, random_tensors(config, seed=11), dtype="bf16")
    assert main(["convert", str(tmp_path / "hf"), str(tmp_path / "q4")]) == 0
    return tmp_path / "q4"


def ended(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """(exit code, what stands behind ``error:``), after looking that nothing else was left."""
    capsys.readouterr()
    code = main(words)
    err = capsys.readouterr().err
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and err.splitlines()[-1] == errors[0] and "Traceback" not in err
    assert not any(t.name.startswith("diskmoe-read") for t in threading.enumerate())
    return code, errors[0]


def failing(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[int], None]) -> None:
    """Calls `spoil` with the number of each read of an expert's record before it is made."""
    real: Read = FileReader._read
    count, lock = [0], threading.Lock()

    def read(self: FileReader, fd: int, view: Bytes, offset: int) -> int:
        if threading.current_thread().name.startswith("diskmoe-read"):
            with lock:
                count[0] += 1
                number = count[0]
            spoil(number)
        return real(self, fd, view, offset)

    monkeypatch.setattr(FileReader, "_read", read)


@pytest.mark.parametrize("nth", [1, 7, 30])
def test_a_read_error_at_the_nth_read_is_one_line_and_code_1(
    converted: Path, nth: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in converted.iterdir()}

    def spoil(number: int) -> None:
        if number >= nth:
            raise OSError(errno.EIO, "Input/output error")

    failing(monkeypatch, spoil)
    code, said = ended(["--model", str(converted), *RUN], capsys)
    assert code == 1
    assert str(converted) in said and "bytes at" in said and "Input/output error" in said
    assert "layer " in said and "expert " in said and "check the disk" in said
    assert {path: path.stat().st_mtime_ns for path in converted.iterdir()} == before


def test_a_read_error_that_does_not_come_twice_changes_nothing(
    converted: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["--model", str(converted), *RUN]) == 0
    ids = capsys.readouterr().out

    def spoil(number: int) -> None:
        if number == 9:
            raise OSError(errno.EIO, "Input/output error")

    failing(monkeypatch, spoil)
    assert main(["--model", str(converted), *RUN]) == 0
    assert capsys.readouterr().out == ids


def test_a_file_cut_off_under_a_run_is_one_line_and_code_1(
    converted: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    last = max(converted.glob("experts-*"))

    def spoil(number: int) -> None:
        if number == 3:
            os.truncate(last, 5000)

    failing(monkeypatch, spoil)
    code, said = ended(["--model", str(converted), *RUN], capsys)
    assert code == 1 and str(last) in said and "bytes early" in said and "expert " in said


def test_a_file_that_is_cut_off_already_is_refused_before_anything_runs(
    converted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = max(converted.glob("experts-*"))
    os.truncate(last, last.stat().st_size - 1)
    code, said = ended(["--model", str(converted), *RUN], capsys)
    assert code == 2 and str(last) in said and "cut off" in said


@pytest.fixture
def flipped(converted: Path) -> Path:
    """The model with a byte of every record of its last layer turned."""
    container = Container.open(converted)
    layer = container.layers[-1]
    for expert in range(container.n_experts):
        path, offset, nbytes = container.record(layer, expert)
        with open(path, "rb+") as file:
            file.seek(offset + nbytes // 3)
            byte = file.read(1)[0]
            file.seek(offset + nbytes // 3)
            file.write(bytes([byte ^ 16]))
    return converted


def test_a_flipped_byte_is_found_when_verifying_and_code_2(
    flipped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = ended(["--model", str(flipped), *RUN, "--verify", "1"], capsys)
    assert code == 2
    last = max(flipped.glob("experts-*"))
    assert str(last) in said and "has checksum" in said and "it was written with" in said
    assert "expert " in said and "of layer " in said and "convert the model again" in said
    assert main(["--model", str(flipped), *RUN]) == 0  # nobody looked


def test_verifying_a_checkpoint_is_said_to_have_no_effect(
    converted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", str(converted.parent / "hf"), *RUN, "--verify", "1"]) == 0
    assert "VERIFY has no effect on a checkpoint" in capsys.readouterr().err


def test_neither_pacing_nor_verifying_changes_an_id(
    converted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for model in (converted, converted.parent / "hf"):
        outs = set()
        for knobs in ([], ["--disk-bps", "20M"], ["--verify", "1", "--direct", "1"]):
            capsys.readouterr()
            assert main(["--model", str(model), *RUN, *knobs]) == 0
            out, err = capsys.readouterr()
            outs.add(out)
            paced = [line for line in err.splitlines() if "disk paced at 20 MB/s" in line]
            assert len(paced) == (2 if "--disk-bps" in knobs else 0)  # at the start, in the report
        assert len(outs) == 1


def test_the_paced_disk_is_a_setting_like_any_other(
    converted: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISK_BPS", "1.5g")
    capsys.readouterr()
    assert main(["--model", str(converted), *RUN, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["settings"]["DISK_BPS"] == {
        "value": 1_500_000_000,
        "source": "env DISK_BPS",
    }
    assert "DISK_BPS=1500000000 (env DISK_BPS)" in err and "disk paced at 1500 MB/s" in err


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_is_answered_at_once_while_a_slow_disk_reads(converted: Path) -> None:
    words = ["--model", str(converted), *RUN, "--disk-bps", "1k"]  # seconds for each record
    with subprocess.Popen(
        [sys.executable, "-m", "diskmoe.engine", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if line.startswith("stops"):  # the last line before the first read
                break
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, said + err
    assert time.monotonic() - began < 15, "a read of 30 seconds was waited for"
    assert out.strip() == "" and "Traceback" not in err and "interrupted" in err
