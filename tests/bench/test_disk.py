"""bench disk: our reader beside blocking reads, and what is said when it cannot measure."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from diskmoe.bench.model import Synthetic
from diskmoe.engine.cli import main
from diskmoe.experts.container import Container
from diskmoe.experts.direct import probe_direct

QUICK = ["--seconds", "0", "--rounds", "1", "--threads", "1,2"]


def bench(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["bench", "disk", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def no_fio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)


@pytest.mark.usefixtures("no_fio")
def test_a_models_records_are_read_in_every_way(
    written: tuple[Synthetic, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model = written[1]
    code, out, err = bench([str(model), *QUICK, "--json"], capsys)
    assert code == 0 and "error" not in err and "fio is not installed" in err
    result = json.loads(out)
    assert set(result) == {"block", "files", "bytes", "way", "rows"}
    assert result["block"] == Container.open(model).record_layout.nbytes
    files = list(model.glob("experts-*"))
    assert result["files"] == len(files)
    assert result["bytes"] == sum(path.stat().st_size for path in files)
    direct = probe_direct(files[0])[0]
    kinds = [(row["how"], row["direct"], row["threads"]) for row in result["rows"]]
    ways = (True, False) if direct else (False,)
    assert kinds == [("psync", direct, 1), *(("ours", way, n) for way in ways for n in (1, 2))]
    assert all(row["gb_s"] >= 0 and row["of_psync"] > 0 for row in result["rows"])
    assert result["rows"][0]["of_psync"] == 1


@pytest.mark.usefixtures("no_fio")
def test_a_directory_gets_a_file_that_is_gone_afterwards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(tmp_path), *QUICK, "--mib", "16", "--block", "1048576"]
    code, out, err = bench(words, capsys)
    assert code == 0 and "writing 16 MiB" in err
    assert [line.split()[0] for line in out.splitlines()[:2]] == ["reader", "psync"]
    assert list(tmp_path.iterdir()) == []


def fake_fio(tmp_path: Path, prints: str, code: int) -> str:
    script = tmp_path / "fio"
    script.write_text(f"#!{sys.executable}\nimport sys\nprint({prints!r})\nsys.exit({code})\n")
    script.chmod(0o755)
    return str(script)


@pytest.mark.skipif(sys.platform == "win32", reason="a script with a shebang")
def test_fio_has_a_line_of_its_own_where_it_is_installed(
    written: tuple[Synthetic, Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not probe_direct(next(written[1].glob("experts-*")))[0]:
        pytest.skip("no direct reads here")
    answer = json.dumps({"jobs": [{"read": {"bw_bytes": 2.5e9}}]})
    for prints, code in ((answer, 0), ("bad", 3)):
        fio = fake_fio(tmp_path, prints, code)
        monkeypatch.setattr(shutil, "which", lambda name, fio=fio: fio)
        status, out, err = bench([str(written[1]), *QUICK, "--json"], capsys)
        if code:
            assert status == 1 and "fio ended with code 3: bad" in err
        else:
            (row,) = [row for row in json.loads(out)["rows"] if row["how"] == "fio"]
            assert status == 0 and row["gb_s"] == 2.5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "one model or directory, and got 0"),
        (["DIR", "DIR"], "and got 2"),
        (["DIR/nowhere"], "no directory"),
        (["DIR", "--block", "5000"], "multiple of 4096"),
        (["DIR", "--threads", "0"], "--threads"),
        (["DIR", "--mib", "16"], "too few to measure"),
        (["DIR", "--temp", "1"], "--temp has no effect"),
    ],
)
def test_a_slip_is_answered_in_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = bench([word.replace("DIR", str(tmp_path)) for word in words], capsys)
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2 and out == "" and len(errors) == 1 and message in errors[0]
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_told_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    code, _, err = bench([str(tmp_path), "--mib", "32"], capsys)
    assert code == 2 and "33554432 bytes are to be written, 1048576 are free" in err
