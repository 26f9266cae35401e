"""The word ``bench`` on the command line, and how packages add words to it."""

import subprocess
import sys
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from diskmoe.bench import cli as bench_cli
from diskmoe.bench.words import understood
from diskmoe.engine import arguments
from diskmoe.engine import cli as engine_cli
from diskmoe.engine import help as engine_help
from diskmoe.engine.arguments import COMMAND_GROUP, other_commands, run_settings
from diskmoe.engine.cli import main
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.help import overview


def test_the_command_is_found_through_its_entry_point() -> None:
    assert other_commands()["bench"].load() is bench_cli.main


def test_the_help_lists_it() -> None:
    assert "\n  bench " in overview()


def point_at(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes ``diskmoe extra`` the command at `value`."""
    point = EntryPoint("extra", value, COMMAND_GROUP)
    for module in (arguments, engine_cli, engine_help):
        monkeypatch.setattr(module, "other_commands", lambda: {"extra": point})


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("main = (", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError"),
        ("main = 3", "it is no function"),
        ("", "AttributeError"),
    ],
)
def test_a_command_that_cannot_be_loaded_is_one_line_and_spares_the_help(
    source: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "broken_extra.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    point_at("broken_extra:main", monkeypatch)
    assert main(["extra"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: the command extra (broken_extra:main) cannot be loaded (" + why)
    assert said.count("\n") == 1 and "Traceback" not in said
    assert main(["--help"]) == 0
    assert "  extra      the command extra (broken_extra:main)" in capsys.readouterr().out
    sys.modules.pop("broken_extra", None)


def test_damaged_metadata_of_another_package_hides_no_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Damaged:
        @property
        def entry_points(self) -> object:
            raise ValueError("not enough values to unpack")

    real = list(arguments.distributions())
    monkeypatch.setattr(arguments, "distributions", lambda: [Damaged(), *real])
    assert "bench" in other_commands()


def test_our_own_commands_ask_no_other_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> None:
        raise AssertionError

    monkeypatch.setattr(engine_cli, "other_commands", asked)
    assert main(["warmup", "more"]) == 2


@pytest.mark.parametrize(
    ("word", "json"), [("--json", True), ("--json=1", True), ("--json=0", False)]
)
@pytest.mark.parametrize("command", ["kernels", "disk", "synth", "decode"])
def test_json_is_a_switch_everywhere(command: str, word: str, json: bool) -> None:
    module = import_module(f"diskmoe.bench.{command}")
    line = understood(command, [word], {}, module.FLAGS, module.SETTINGS)
    assert line.values["JSON"].value is json


def test_a_slip_of_the_word_is_answered_with_it() -> None:
    with pytest.raises(BadRequest, match="did you mean bench?"):
        run_settings(["bnch"], {})


@pytest.mark.parametrize("word", ["kernels", "disk", "synth", "decode"])
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
