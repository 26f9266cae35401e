"""Runs teach: where the history goes, what it pins, and that neither changes an id."""

import json
from pathlib import Path

import pytest

from diskmoe.engine.cli import main
from diskmoe.engine.places import state_dir


def run(model: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict, str]:
    """(report, stderr)."""
    fixed = ["--prompt-ids", "5,17,33", "--ngen", "8", "--ctx", "64", "--temp", "0", "--json"]
    capsys.readouterr()
    assert main(["--model", str(model), *fixed, *words]) == 0
    captured = capsys.readouterr()
    return json.loads(captured.out), captured.err


def test_a_run_is_remembered_in_the_users_state_directory(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run(tiny, capsys)
    (path,) = (tmp_path / "diskmoe" / "usage").iterdir()
    learned = json.loads(path.read_text())
    assert learned["tokens"] == 8
    assert all(sum(counts) == 8 * 3 for counts in learned["layers"].values())  # top-3
    run(tiny, capsys)
    assert json.loads(path.read_text())["tokens"] == pytest.approx(16, abs=0.1)


def test_usage_can_be_turned_off_and_put_elsewhere(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    run(tiny, capsys, "--usage", "0")
    run(tiny, capsys, "--state-dir", str(tmp_path / "other"))
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    assert len(list((tmp_path / "other" / "usage").iterdir())) == 1


def test_a_benchmark_teaches_nothing(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("PIN_GB", "1")
    assert main(["bench", "decode", str(tiny), "--tokens", "4", "--prompt", "4"]) == 0
    assert not list(tmp_path.iterdir())
    assert "PIN_GB has no effect" in capsys.readouterr().err


def test_pins_are_what_was_used_most_and_change_no_id(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--state-dir", str(tmp_path), "--cap", "4"]
    first, said = run(tiny, capsys, *words, "--pin-gb", "1")
    assert "pins      0 experts, 0 B; nothing is learned of this model yet" in said
    again, said = run(tiny, capsys, *words, "--pin-gb", "1")
    assert "pins      6 experts, " in said and "50 % of the slots" in said  # 3 layers, 4 slots each
    assert "learned from 8 tokens" in said
    assert again["token_ids"] == first["token_ids"]
    record_gib = 3 * 48 * 64 * 2 / 2**30
    _, said = run(tiny, capsys, *words, "--pin-gb", str(2.5 * record_gib))
    assert "pins      2 experts, " in said


def test_a_damaged_history_is_one_line_and_the_run_goes_on(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tiny, capsys, "--state-dir", str(tmp_path))
    (path,) = (tmp_path / "usage").iterdir()
    path.write_text("{")
    got, said = run(tiny, capsys, "--state-dir", str(tmp_path))
    assert got["tokens"] == 8
    assert sum("the usage history is ignored" in line for line in said.splitlines()) == 1
    assert json.loads(path.read_text())["tokens"] == 8


@pytest.mark.parametrize(
    ("platform", "env", "expected"),
    [
        ("linux", {}, "home/.local/state/diskmoe"),
        ("linux", {"XDG_STATE_HOME": "/x"}, "/x/diskmoe"),
        ("darwin", {}, "home/Library/Application Support/diskmoe"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/diskmoe"),
        ("win32", {}, "home/AppData/Local/diskmoe"),
    ],
)
def test_the_state_directory_follows_the_platform(
    platform: str, env: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr(Path, "home", lambda: Path("home"))
    assert state_dir() == Path(expected)
    assert state_dir("given") == Path("given")


def test_pins_that_find_no_room_say_why(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run(tiny, capsys)
    _, said = run(tiny, capsys, "--pin-gb", "1", "--cap", "1")
    assert "pins      0 experts, 0 B; a layer's only slot is never pinned" in said
    _, said = run(tiny, capsys, "--pin-gb", "0.000001", "--cap", "4")
    assert "pins      0 experts, 0 B; 1.0 KiB do not hold one of" in said
