"""bench ab: the order of runs, what each of them is given, and how an experiment goes on."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_model import random_tensors, tiny_config, write_checkpoint
from tiny_results import example, report
from tiny_text import VOCAB, write_tokenizer

from diskmoe.bench import session
from diskmoe.bench.launch import Ended, Launcher
from diskmoe.bench.results import Machine, Results, Setting
from diskmoe.engine.cli import main
from diskmoe.experts.lockfile import locked


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    config = tiny_config("qwen3_moe", vocab_size=VOCAB, eos_token_id=None)
    write_checkpoint(folder, config, random_tensors(config, 3))
    return write_tokenizer(folder)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("in the\n\non the thin\n", encoding="utf-8")
    return path


class Engine:
    """Takes the place of processes: answers at the speed of the arm, and keeps what it was given."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.prompts: list[str] = []
        self.speed: Callable[[Mapping[str, str]], float] = lambda flags: 10.0
        self.ids: Callable[[Mapping[str, str]], Sequence[int]] = lambda flags: (1, 2, 3)
        self.ends_after = 10**9  # runs, by Ctrl-C

    def run(
        self,
        launcher: Launcher,
        program: Sequence[str],
        flags: Sequence[str],
        prompt: str,
        what: str,
    ) -> Ended:
        if len(self.asked) >= self.ends_after:
            raise KeyboardInterrupt
        self.asked.append([*flags])
        self.prompts.append(prompt)
        given = {flag[2:].upper().replace("-", "_"): text for flag, text in map(_split, flags)}
        said = report(self.speed(given), self.ids(given), {"CAP": 8, **given})
        memory = given.get("RAM_GB")
        said["settings"]["RAM_GB"] = {
            "value": memory or 1.5,
            "source": "flag" if memory else "auto",
        }
        return Ended(
            command=tuple(program),
            started="2026-01-31T12:00:00Z",
            seconds=1.0,
            cpu_seconds=1.0,
            others_cpu=None,
            load=None,
            cached_share=None,
            code=0,
            out=b"",
            err=b"",
            report=said,
        )

    def arms(self, flag: str) -> list[str]:
        """What of each run tells arms apart, in the order of the runs."""
        return [
            next((text for name, text in map(_split, flags) if name == flag), "-")
            for flags in self.asked
        ]


def _split(flag: str) -> tuple[str, str]:
    name, _, text = flag.partition("=")
    return name, text


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    made = Engine()
    monkeypatch.setattr(
        Launcher,
        "run",
        lambda self, program, flags, prompt, what: made.run(self, program, flags, prompt, what),
    )
    machine = example(Machine, full=False)
    monkeypatch.setattr(session, "machine_of", lambda path: machine)
    return made


def words(model: Path, prompts: Path, *more: str) -> list[str]:
    given = ["bench", "ab", "--model", str(model), "--prompts", str(prompts)]
    return [*given, "--a", "", "--b", "CAP=4", "--repeat", "2", *more]


def test_arms_take_turns_behind_a_run_of_each_that_is_not_counted(
    model: Path, prompts: Path, engine: Engine
) -> None:
    assert main(words(model, prompts)) == 0
    assert engine.arms("--cap") == ["-", "4"] + ["-", "4", "4", "-"] + ["4", "-", "-", "4"]
    assert (
        engine.prompts[2:]
        == ["in the"] * 2 + ["on the thin"] * 2 + ["in the"] * 2 + ["on the thin"] * 2
    )


def test_further_arms_and_rungs_are_tried_at_each_prompt(
    model: Path, prompts: Path, engine: Engine
) -> None:
    more = ["--rungs", "THREADS=1,2", "--b2", "CAP=2", "--repeat", "1"]
    assert main(words(model, prompts, *more)) == 0
    counted = [*zip(engine.arms("--threads"), engine.arms("--cap"), strict=True)][3:]
    there, back = ["-", "4", "2"], ["2", "4", "-"]
    first, second = [("1", cap) for cap in there + back], [("2", cap) for cap in back + there]
    assert counted == first + second


def test_the_first_run_decides_on_memory_for_all_and_is_traced(
    model: Path, prompts: Path, engine: Engine, tmp_path: Path
) -> None:
    assert main(words(model, prompts, "--out", str(tmp_path / "out"))) == 0
    assert engine.arms("--ram-gb") == ["-"] + ["1.5"] * 9
    assert engine.arms("--trace") == [str(tmp_path / "out" / "trace.csv")] + ["-"] * 9
    assert Results.open(tmp_path / "out").experiment.decided == {"RAM_GB": "1.5"}


def test_common_settings_come_from_the_line_and_the_environment_and_arms_win(
    model: Path, prompts: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NGEN", "7")
    monkeypatch.setenv("DISKMOE_IO_THREADS", "3")
    assert main(words(model, prompts, "--cap", "6", "--seed", "9")) == 0
    assert set(engine.arms("--ngen")) == {"7"} and set(engine.arms("--io-threads")) == {"3"}
    assert set(engine.arms("--cap")) == {"6", "4"} and set(engine.arms("--seed")) == {"9"}


def test_a_smaller_machine_is_given_to_all_arms_and_told(
    model: Path,
    prompts: Path,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("diskmoe.bench.laptop.control_groups", lambda controller: [])
    monkeypatch.setattr("diskmoe.bench.laptop.shutil.which", lambda name: None)
    assert main(words(model, prompts, "--laptop", "2,500M", "--out", str(tmp_path))) == 0
    assert set(engine.arms("--ram-gb")) == {"2"} and set(engine.arms("--disk-bps")) == {"500000000"}
    limits = Results.open(tmp_path).experiment.limits
    assert limits is not None and limits.ram_bytes == 2 << 30 and limits.disk_bps == 500_000_000
    assert "no control group" in limits.how
    assert f"limits {limits.how}" in capsys.readouterr().out


def test_a_slower_arm_and_other_outputs_are_told(
    model: Path, prompts: Path, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = iter(range(100))
    engine.speed = lambda flags: (8.0 if flags.get("CAP") else 10.0) + next(noise) % 3 / 100
    assert main(words(model, prompts, "--repeat", "4", "--json")) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "a faster" and told["same_ids"] and told["ratio"] < 0.85
    engine.ids = lambda flags: (1, 2, 4) if flags.get("CAP") else (1, 2, 3)
    assert main(words(model, prompts, "--repeat", "4", "--json")) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "outputs differ" and told["differing_prompts"] == ["1", "2"]


def test_what_has_ended_is_kept_and_the_same_command_goes_on(
    model: Path, prompts: Path, engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = words(model, prompts, "--out", str(tmp_path / "out"))
    engine.ends_after = 2 + 5
    assert main(line) == 130
    said = capsys.readouterr()
    assert f"5 of 8 runs are kept in {tmp_path / 'out'}" in said.err
    assert "2 pairs" in said.out
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("run-*.json")}
    engine.asked.clear()
    engine.ends_after = 10**9
    assert main(line) == 0
    assert len(kept) == 5 and all(path.stat().st_mtime_ns == at for path, at in kept.items())
    assert len(engine.asked) == 2 + 3  # each arm warms up again
    assert set(engine.arms("--ram-gb")) == {"1.5"}
    runs = Results.open(tmp_path / "out").runs
    assert [run.order for run in runs] == list(range(8))
    engine.asked.clear()
    assert main(line) == 0 and engine.asked == []


def test_more_repeats_can_be_asked_for_later(
    model: Path, prompts: Path, engine: Engine, tmp_path: Path
) -> None:
    line = words(model, prompts, "--out", str(tmp_path))
    assert main(line) == 0
    engine.asked.clear()
    assert main([*line, "--repeat", "3"]) == 0
    assert len(engine.asked) == 2 + 4
    assert Results.open(tmp_path).experiment.repeat == 3


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--cap", "7"], "settings that are fewer, not CAP=7"),
        (["--b", "CAP=5"], 'arms --a "" --b "CAP=4", not --a "" --b "CAP=5"'),
        (["--ngen", "7"], "settings NGEN=64, not NGEN=7"),
        (["--rungs", "THREADS=1,2"], "rungs of none, not THREADS=1 THREADS=2"),
        (["--cache", "warm"], "page cache dropped, not warm"),
        (["--repeat", "1"], "has runs for --repeat 2, not 1"),
    ],
)
def test_other_settings_in_the_same_directory_are_refused_in_one_line(
    model: Path,
    prompts: Path,
    engine: Engine,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    why: str,
) -> None:
    line = words(model, prompts, "--out", str(tmp_path))
    assert main(line) == 0
    capsys.readouterr()
    assert main([*line, *more]) == 2
    (said,) = [text for text in capsys.readouterr().err.splitlines() if "error" in text]
    assert said.startswith(f"error: --out {tmp_path} has runs ") and why in said


def test_runs_start_from_a_copy_of_the_usage_history_as_it_was(
    model: Path, prompts: Path, engine: Engine, tmp_path: Path
) -> None:
    usage = tmp_path / "state" / "usage"
    usage.mkdir(parents=True)
    (usage / "history.json").write_text("then")
    line = words(model, prompts, "--out", str(tmp_path / "out"))
    assert main([*line, "--state-dir", str(tmp_path / "state")]) == 0
    (usage / "history.json").write_text("now")
    assert main([*line, "--state-dir", str(tmp_path / "state")]) == 0
    assert (tmp_path / "out" / "usage" / "history.json").read_text() == "then"


def test_a_busy_machine_is_said_and_refused_where_that_is_asked_for(
    model: Path,
    prompts: Path,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    busy = Machine(**{**vars(example(Machine, full=False)), "busy": 0.5})
    monkeypatch.setattr(session, "machine_of", lambda path: busy)
    assert main(words(model, prompts)) == 0
    assert "note      busy machine: others keep 50 %" in capsys.readouterr().err
    assert main(words(model, prompts, "--strict")) == 2
    assert "error: busy machine: others keep 50 %" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ([], "bench ab needs --suite (ndjson, chat, code, prose) or --prompts FILE"),
        (["--suite", "prose", "--prompts", "x"], "bench ab needs --suite (ndjson, chat"),
        (
            ["--suite", "pros"],
            "--suite is 'pros'; it must be one of ndjson, chat, code, prose; did",
        ),
        (["--suite", "prose"], 'bench ab needs --a: settings, or "" for none'),
        (["--suite", "prose", "--a", ""], 'bench ab needs --b: settings, or "" for none'),
        (["--a", "", "--b", "", "--prompts", "no/file"], "--prompts no/file: No such file"),
        (["--suite", "prose", "--a", "", "--b", "GRAMAR=x"], "--b: 'GRAMAR=x' is no setting; did"),
        (["--suite", "prose", "--a", "CAP=x", "--b", ""], "CAP (--a) is 'x'; it must be a whole"),
        (["--suite", "prose", "--a", "CAP", "--b", ""], "--a: CAP has no value"),
        (["--suite", "prose", "--a", "CAP=1 CAP=2", "--b", ""], "--a has CAP twice: 1 and 2"),
        (["--suite", "prose", "--a", "'", "--b", ""], '--a is "\'": No closing quotation'),
        (["--suite", "prose", "--a", "JSON=1", "--b", ""], "--a: JSON is the benchmark's own"),
        (["--suite", "prose", "--a", "", "--b", "", "--rungs", "CAP"], "--rungs is 'CAP'; it must"),
        (["--suite", "prose", "--a", "", "--b", "", "--rungs", "CAP=4 X=1"], "--rungs is 'CAP=4 X"),
        (["--suite", "prose", "--a", "", "--b", "", "--rungs", "CUP=4"], "--rungs: 'CUP=4' is no"),
        (
            ["--suite", "prose", "--a", "", "--b", "CAP=1", "--rungs", "CAP=4"],
            "CAP is in --rungs and in --b: leave one of them out",
        ),
        (
            ["--suite", "prose", "--a", "", "--b", "", "--rungs", "CAP=4", "--cap", "2"],
            "CAP is in --rungs and in the command line or the environment",
        ),
        (
            ["--suite", "prose", "--a", "", "--b", "", "--laptop", "8"],
            "--laptop is '8'; it must be",
        ),
        (
            ["--suite", "prose", "--a", "", "--b", "", "--laptop", "-1,1G"],
            "--laptop is '-1,1G'; it",
        ),
        (
            ["--suite", "prose", "--a", "", "--b", "", "--laptop", "8,fast"],
            "--laptop is '8,fast'; D",
        ),
        (
            ["--suite", "prose", "--a", "DISK_BPS=1G", "--b", "", "--laptop", "8,500M"],
            "DISK_BPS is in --laptop and in --a",
        ),
        (["--suite", "prose", "--a", "", "--b", "", "--cache", "drp"], "--cache is 'drp'; it must"),
        (
            ["--suite", "prose", "--a", "", "--b", "", "--repeat", "0"],
            "--repeat is '0'; it must be",
        ),
        (["here", "--suite", "prose"], "bench ab takes no argument, and got 'here'"),
        (["--suite", "prose", "--b10", "", "--a", ""], "unknown option --b10; did you mean"),
        (["--suite", "prose", "--a", "", "--b", "", "--prompt", "x"], "--prompt has no effect on"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line_before_anything_runs(
    model: Path, capsys: pytest.CaptureFixture[str], line: list[str], why: str
) -> None:
    assert main(["bench", "ab", "--model", str(model), *line]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"error: {why}")


def test_a_directory_that_cannot_be_one_is_refused(
    model: Path, prompts: Path, engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(words(model, prompts, "--out", str(tmp_path / "file"))) == 2
    assert f"error: {tmp_path / 'file'}: cannot be written" in capsys.readouterr().err
    (tmp_path / "bench.json").write_text("{}")
    assert main(words(model, prompts, "--out", str(tmp_path))) == 2
    assert f"error: {tmp_path / 'bench.json'}: version is missing" in capsys.readouterr().err


def test_a_page_cache_that_cannot_be_emptied_is_not_said_to_be(
    model: Path,
    prompts: Path,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(session, "can_drop", lambda: False)
    assert main(words(model, prompts, "--out", str(tmp_path))) == 0
    assert Results.open(tmp_path).experiment.cache == "as found"
    assert "no way to empty the page cache" in capsys.readouterr().err


def test_two_processes_do_not_work_in_one_directory(
    model: Path, prompts: Path, engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with locked(tmp_path, tmp_path, session.LOCK_NAME):
        assert main(words(model, prompts, "--out", str(tmp_path))) == 2
    assert f"{tmp_path}: process {os.getpid()} is at work in it" in capsys.readouterr().err
    assert main(words(model, prompts, "--out", str(tmp_path))) == 0
    assert not (tmp_path / session.LOCK_NAME).exists()


def test_processes_are_run_compared_and_kept(
    model: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole way on a real model, without drafts in one of the arms."""
    prompts.write_text("in the\n", encoding="utf-8")
    more = ["--ngen", "6", "--repeat", "1", "--b", "NGRAM=0", "--threads", "1", "--json"]
    assert main(words(model, prompts, *more, "--out", str(tmp_path / "out"))) == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert told["same_ids"] is True and told["pairs"] == 1
    assert told["arms"]["a"]["settings"]["NGRAM"] is True
    assert told["arms"]["b"]["settings"]["NGRAM"] is False
    assert 0 <= told["arms"]["b"]["medians"]["hit_rate"] <= 1
    assert "more than what was asked for" not in " ".join(told["warnings"])
    assert "about 0:" in said.err and "run       2 of 2: " in said.err
    runs = Results.open(tmp_path / "out").runs
    assert [run.arm for run in runs] == ["a", "b"]
    assert runs[0].settings["NGEN"] == Setting(6, "flag --ngen")
    assert runs[0].report["model"]["family"] == "qwen3_moe" and "text" not in runs[0].report
    assert "phase,step,layer,experts" in (tmp_path / "out" / "trace.csv").read_text()


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_ends_everything_at_once(model: Path, prompts: Path, tmp_path: Path) -> None:
    line = words(model, prompts, "--out", str(tmp_path), "--repeat", "500", "--ngen", "4")
    process: Any = subprocess.Popen(
        [sys.executable, "-m", "diskmoe.engine", *line],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for said in process.stderr:
        if said.startswith("run       1 of"):
            break
    begin = time.perf_counter()
    process.send_signal(2)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and time.perf_counter() - begin < 20
    assert "interrupted: " in err and "runs are kept" in err
    assert len(Results.open(tmp_path).runs) >= 1
