"""``diskmoe verify``: one line when all is well, a line for each damage when it is not."""

import os
import signal
import threading
from pathlib import Path

import pytest
from tiny_model import random_tensors, tiny_config, write_checkpoint

from diskmoe.engine.cli import main
from diskmoe.experts import verify as module
from diskmoe.experts.container import Container
from diskmoe.experts.verify import pieces_of


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    config = tiny_config("olmoe", eos_token_id=None)
    write_checkpoint(tmp_path / "hf", config, random_tensors(config, seed=2), dtype="bf16")
    assert main(["convert", str(tmp_path / "hf"), str(tmp_path / "q4")]) == 0
    return tmp_path / "q4"


def verified(model: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, list[str]]:
    capsys.readouterr()
    code = main(["verify", str(model)])
    out, err = capsys.readouterr()
    return code, out, err.splitlines()


def turn(path: Path, offset: int) -> None:
    with open(path, "rb+") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 255]))


def test_a_whole_model_is_one_line_and_code_0(
    converted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = verified(converted, capsys)
    assert code == 0 and out.count("\n") == 1
    count = len(pieces_of(Container.open(converted)))
    assert out.startswith(f"{converted}: {count} records and tensors, ")


def test_each_damage_is_a_line_and_the_code_is_2(
    converted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces = pieces_of(Container.open(converted))
    for piece in (pieces[0], pieces[-1]):
        turn(piece.path, piece.offset)
    code, out, err = verified(converted, capsys)
    assert code == 2 and out == ""
    assert [line.split()[0] for line in err] == ["damaged", "damaged", "error:"]
    assert pieces[0].what in "".join(err[:2]) and pieces[-1].what in "".join(err[:2])
    assert f"2 of {len(pieces)} records and tensors are damaged" in err[2]


def test_the_lines_of_a_lost_disk_are_counted_and_not_all_said(
    converted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces = pieces_of(Container.open(converted))
    assert len(pieces) > 20
    for piece in pieces:
        turn(piece.path, piece.offset)
    code, _, err = verified(converted, capsys)
    assert code == 2 and len(err) == 21 and f"{len(pieces)} of {len(pieces)}" in err[-1]


def test_ctrl_c_is_130_and_leaves_no_thread(
    converted: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupting(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(module, "_damage", interrupting)
    code, out, err = verified(converted, capsys)
    assert (code, out, err) == (130, "", ["interrupted"])
    assert not any(t.name.startswith("diskmoe-read") for t in threading.enumerate())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hf"], "is not a converted model"),
        (["q4", "q4"], "and got 2"),
        (["nowhere"], "nowhere"),
        (["q4", "--temp", "1"], "--temp has no effect on diskmoe verify"),
    ],
)
def test_a_slip_is_one_line(
    converted: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    places = [str(converted.parent / w) if w in ("hf", "q4", "nowhere") else w for w in words]
    assert main(["verify", *places]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and message in err and err.count("\n") == 1
