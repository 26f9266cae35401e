"""bench peer: another program in turns with ours, and what becomes of one that misbehaves."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_peer import BENCH_HELP, OLD_PRINT, TEXT_HELP, bench_json, calls, write_program

from diskmoe.bench import match
from diskmoe.bench.arms import laptop_of
from diskmoe.bench.launch import Launcher
from diskmoe.bench.model import Synthetic
from diskmoe.bench.results import Figures, Results, Run
from diskmoe.engine.cli import main

Written = tuple[Synthetic, Path, Path]
SPEEDS = bench_json(6, 5, 100.0, 8.0)


def words_of(written: Written, binary: Path, *more: str) -> list[str]:
    _, model, gguf = written
    words = ["bench", "peer", "llama.cpp", "--binary", str(binary), "--gguf", str(gguf)]
    return [*words, "--model", str(model), "--threads", "1", "--cache", "leave", *more]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our runs take no time: what they would measure does not matter here."""

    def ours(what: match.Match, launcher: Launcher, name: str) -> Run:
        run = match._theirs(what, launcher, name)
        figures = Figures(**{**vars(run.figures), "tok_per_s": 16.0})
        changed = {"arm": match.OURS, "program": match.OURS, "figures": figures, "token_ids": (1,)}
        return Run(**{**vars(run), **changed})

    monkeypatch.setattr(match, "_ours", ours)


def test_both_run_on_the_same_work_in_turns_and_all_is_kept(
    written: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = write_program(tmp_path / "b", help=BENCH_HELP, does=f"print({SPEEDS!r})")
    out = tmp_path / "out"
    more = ("--tokens", "5", "--prompt", "6", "--repeat", "2", "--cap", "4", "--ram-gb", "4")
    more = (*more, "--peer-args", "--repack 0")
    assert main([*words_of(written, binary, *more), "--out", str(out), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["verdict"] in ("no difference", "a faster", "b faster")
    assert "no limits" in said.err and "0.5.0-dev" in said.err
    results = Results.open(out)
    assert [run.arm for run in results.runs] == ["diskmoe", "llama.cpp", "llama.cpp", "diskmoe"]
    ours, theirs = results.runs[:2]
    assert ours.figures.tokens == theirs.figures.tokens == 5
    assert ours.token_ids == (7, 8, 9, 10, 11) and theirs.token_ids is None
    assert ours.settings["CAP"].value == 4 and ours.settings["THREADS"].value == 1
    assert ours.figures.hit_rate is not None and ours.report["model"]["experts"] > 4
    assert theirs.figures == Figures(
        **{name: None for name in vars(theirs.figures) if name != "acceptance"}
        | {
            "tok_per_s": 8.0,
            "tokens": 5,
            "decode_seconds": 0.625,
            "prompt_tokens": 6,
            "prefill_tok_per_s": 100.0,
        },
        acceptance={},
    )
    assert theirs.settings["version"].value.startswith("0.5.0-dev")
    for run in calls(binary):
        assert "'-n', '5', '-p', '6'" in run and run.endswith("'--repack', '0']")
    assert results.experiment.machine.versions["llama.cpp"].startswith("0.5.0-dev")
    assert results.experiment.limits is None and results.experiment.kind == "peer"


def test_a_text_goes_to_both_and_what_is_the_same_is_said(
    written: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str], at_once: None
) -> None:
    does = f"print('a lamp, they say\\n'); print({OLD_PRINT!r}, file=sys.stderr)"
    binary = write_program(tmp_path / "b", help=TEXT_HELP, does=does)
    words = words_of(written, binary, "--prompt", "Once", "--repeat", "1", "--json")
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    assert "the first 16 of 16 characters are the same" in capsys.readouterr().err
    (theirs,) = [run for run in Results.open(tmp_path / "out").runs if run.arm == "llama.cpp"]
    assert theirs.text == "a lamp, they say" and theirs.report["load_seconds"] > 0
    assert "'-p', 'Once'" in calls(binary)[0]


def test_our_text_run_is_greedy_raw_and_as_long(written: Written, tmp_path: Path) -> None:
    peer = match.Peer.of(str(write_program(tmp_path / "b", help=TEXT_HELP)))
    _, model, gguf = written
    task = match.Match(peer, gguf, model, 9, "Once", 2, 256, {"CAP": "4"}, (), 60)
    words = task.ours()
    for flag in ("--temp=0", "--chat=0", "--ngen=9", "--ctx=256", "--cap=4", "--threads=2"):
        assert flag in words
    assert "--ignore-eos" in words and "Once" not in words  # it goes to stdin


@pytest.mark.parametrize(
    ("does", "message", "seconds"),
    [
        (
            "sys.exit('cannot read it\\nout of luck')",
            "failed with code 1; it said: cannot read",
            60,
        ),
        ("import os; os.kill(os.getpid(), 9)", "was ended by signal 9, as by a lack of memory", 60),
        ("print('hello')", "printed no speed of decoding; the end of what it said: hello", 60),
        ("time.sleep(60)", "run 1 of llama.cpp did not end in 1 s", 1),
        (
            "import subprocess; subprocess.run(['sleep', '60'])",
            "run 1 of llama.cpp did not end in 1 s",
            1,
        ),
    ],
)
def test_a_peer_that_misbehaves_is_one_line(
    does: str,
    message: str,
    seconds: int,
    written: Written,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(match, "OURS", "llama.cpp")  # no run of ours before it
    binary = write_program(tmp_path / "b", help=BENCH_HELP, does=does)
    monkeypatch.setattr(match, "_ours", match._theirs)
    assert main(words_of(written, binary, "--timeout", str(seconds))) == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("error: ") and message in last


def test_a_match_that_was_ended_midway_goes_on(
    written: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str], at_once: None
) -> None:
    binary = write_program(tmp_path / "b", help=BENCH_HELP, does=f"print({SPEEDS!r})")
    out = tmp_path / "out"
    words = words_of(written, binary, "--repeat", "3", "--json", "--out", str(out))
    assert main(words) == 0
    for gone in ("run-llama.cpp-0-0-1.json", "run-diskmoe-0-0-2.json"):
        (out / gone).unlink()
    before = len(calls(binary))
    capsys.readouterr()
    assert main(words) == 0
    assert len(calls(binary)) == before + 2
    assert "run       2 of llama.cpp: 8.00 tok/s" in capsys.readouterr().err
    assert len({run.order for run in Results.open(out).runs}) == 6
    assert main([*words, "--tokens", "7"]) == 2
    assert "has runs with settings tokens=64, not tokens=7" in capsys.readouterr().err


def test_limits_that_nobody_keeps_are_said_and_ours_are_settings(
    written: Written,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    at_once: None,
) -> None:
    from diskmoe.bench import laptop

    monkeypatch.setattr(laptop, "_own_groups", lambda *_: None)
    monkeypatch.setattr(laptop, "_systemd", lambda *_: None)
    binary = write_program(tmp_path / "b", help=BENCH_HELP, does=f"print({SPEEDS!r})")
    words = words_of(written, binary, "--laptop", "2.5,500M", "--json", "--repeat", "1")
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    assert "memory and disk of llama.cpp NOT limited" in capsys.readouterr().err
    found = Results.open(tmp_path / "out").experiment
    assert found.limits is not None and found.limits.ram_bytes == round(2.5 * 2**30)
    assert "NOT limited" in found.limits.how
    asked, nothing = laptop_of("2.5,500M"), laptop.Box("none", ram=False, disk=False)
    ours = match._within({"CAP": "4"}, asked, nothing)
    assert ours == {"CAP": "4", "RAM_GB": "2.5", "DISK_BPS": "500000000"}
    both = laptop.Box("a group", ram=True, disk=True)
    assert match._within({"CAP": "4"}, asked, both) == {"CAP": "4"}


def test_rungs_are_of_memory_for_both(
    written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: None
) -> None:
    asked = []
    plain = match.limits

    def noted(ram_bytes, disk_bps, path):
        asked.append((ram_bytes, disk_bps))
        return plain(None, None, path)

    monkeypatch.setattr(match, "limits", noted)
    binary = write_program(tmp_path / "b", help=BENCH_HELP, does=f"print({SPEEDS!r})")
    words = words_of(written, binary, "--rungs", "RAM_GB=1,2", "--laptop", "0,1G", "--repeat", "1")
    assert main([*words, "--json", "--out", str(tmp_path / "out")]) == 0
    assert asked == [(1 << 30, 10**9), (2 << 30, 10**9)]
    found = Results.open(tmp_path / "out")
    assert found.experiment.rungs == ("RAM_GB=1", "RAM_GB=2")
    assert [(run.arm, run.rung) for run in found.runs] == [
        *(("diskmoe", 0), ("llama.cpp", 0), ("llama.cpp", 1), ("diskmoe", 1))
    ]


def test_other_weights_are_refused(
    written: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(written[1], other)
    config = json.loads((other / "config.json").read_text())
    config["num_experts"] = 4
    (other / "config.json").write_text(json.dumps(config))
    binary = write_program(tmp_path / "b", help=BENCH_HELP)
    words = words_of((written[0], other, written[2]), binary)
    assert main(words) == 2
    assert "experts, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda words: words[:2], "takes the word llama.cpp"),
        (lambda words: [*words[:2], "vllm"], "takes the word llama.cpp"),
        (lambda words: words[:3], "needs --binary"),
        (lambda words: words[:5], "needs --gguf"),
        (lambda words: words[:7], "needs --model"),
        (lambda words: [*words, "--temp", "1"], "decides TEMP for both"),
        (lambda words: [*words, "--ngen", "9"], "decides NGEN for both: use --tokens"),
        (lambda words: [*words, "--prompt", "Once"], "--prompt is 'Once'"),
        (lambda words: [*words, "--repeat", "0"], "--repeat"),
        (lambda words: [*words, "--laptop", "big"], "--laptop is 'big'"),
        (lambda words: [*words, "--rungs", "CAP=1,2"], "are of memory for both"),
        (lambda words: [*words, "--rungs", "RAM_GB=1", "--laptop", "1,0"], "say --laptop 0,DISK"),
        (lambda words: [*words, "--cache", "cold"], "one of drop, warm, leave"),
        (lambda words: [*words, "--peer-args", "'"], "--peer-args: No closing quotation"),
        (lambda words: [*words, "--timeout", "nan"], "--timeout"),
        (lambda words: [*words[:5], "--gguf", words[4], *words[7:]], "GGUF"),
    ],
)
def test_a_slip_is_answered_in_one_line(
    change: Callable[[list[str]], list[str]],
    message: str,
    written: Written,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    binary = write_program(tmp_path / "b", help=BENCH_HELP)
    assert main(change(words_of(written, binary))) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("error: ") and message in last
