"""The word ``bench`` on the command line, and how packages add words to it."""

import subprocess
import sys
from pathlib import Path

import pytest

from diskmoe.bench import cli as bench_cli
from diskmoe.engine.arguments import other_commands, run_settings
from diskmoe.engine.cli import help_text, main
from diskmoe.engine.errors import BadRequest


def test_the_command_is_found_through_its_entry_point() -> None:
    assert other_commands()["bench"].load() is bench_cli.main


def test_the_help_lists_it() -> None:
    assert "diskmoe bench" in help_text()


def test_a_slip_of_the_word_is_answered_with_it() -> None:
    with pytest.raises(BadRequest, match="did you mean bench?"):
        run_settings(["bnch"], {})


@pytest.mark.parametrize("word", ["kernels", "synth", "decode"])
def test_each_command_has_a_help_of_its_own(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", word, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: diskmoe bench {word}")


def test_help_without_a_command_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"diskmoe bench {word}" in out for word in bench_cli.COMMANDS)


@pytest.mark.parametrize(
    ("words", "message"),
    [([], "needs a command"), (["kernals"], "did you mean kernels?"), (["xyz"], "there are")],
)
def test_an_unknown_command_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and message in said and said.count("\n") == 1


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from diskmoe.bench import kernels

    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(kernels, "command", interrupted)
    assert main(["bench", "kernels"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_the_folder_is_not_imported_under_its_bare_name(repo_root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import bench"],
        cwd=repo_root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0 and "import diskmoe.bench, not bench" in done.stderr
