"""``--help`` of the program and of each command: usage, examples, what concerns it, exit codes."""

import re
from pathlib import Path

import pytest

from diskmoe.bench.cli import COMMANDS as BENCHES
from diskmoe.engine import chat
from diskmoe.engine.cli import main
from diskmoe.engine.commands import COMMANDS, OF_REQUESTS
from diskmoe.engine.settings import BY_NAME


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words]) == 0
    caught = capsys.readouterr()
    assert not caught.err
    return caught.out


def flags_of(text: str) -> set[str]:
    return set(re.findall(r"^  (--[a-z-]+)", text, flags=re.MULTILINE))


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_tells_usage_examples_its_settings_and_exit_codes(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, name, "--help")
    command = COMMANDS[name]
    assert text.startswith("usage: diskmoe") and "\nexamples:\n" in text
    assert "exit codes: 0 done" in text and command.exits[:20] in text
    assert flags_of(text) == {*command.flags, *(BY_NAME[each].flag for each in command.settings)}
    assert max(map(len, text.splitlines())) <= 120
    assert printed(capsys, "help", name) == text


@pytest.mark.parametrize("name", ["bench", "grammar"])
def test_commands_of_other_packages_tell_theirs(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, name, "--help")
    assert text.startswith("usage: diskmoe") and "\nexamples:\n" in text and "exit codes: 0" in text
    assert printed(capsys, "help", name) == text


@pytest.mark.parametrize("name", BENCHES)
def test_each_benchmark_has_an_example_and_exit_codes(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "bench", name, "--help")
    assert f"\nexample:\n  diskmoe bench {name} " in text and "exit codes: 0 done" in text


def test_the_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--help")
    for name, command in COMMANDS.items():
        assert name == "run" or f"  {name:<11}{command.summary}" in text
    assert printed(capsys, "help") == text


def test_every_setting_concerns_a_command_and_every_name_is_a_setting() -> None:
    concerned = {name for command in COMMANDS.values() for name in command.settings}
    assert concerned == set(BY_NAME)
    assert set(OF_REQUESTS) < set(BY_NAME)


@pytest.mark.parametrize("command", ["inspect", "verify", "plan"])
def test_without_a_model_it_is_the_demo_model(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--cache-dir", str(tmp_path)]) == 2
    assert "run 'diskmoe demo-model' once" in capsys.readouterr().err


def test_help_of_what_is_no_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "serv"]) == 2
    caught = capsys.readouterr()
    assert not caught.out
    assert caught.err == (
        "error: there is no command 'serv'; did you mean serve?; see diskmoe help\n"
    )


def test_help_of_one_benchmark_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "help", "bench", "serve") == printed(capsys, "bench", "serve", "--help")


def test_the_length_of_a_chats_answer_is_told_beside_its_setting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = printed(capsys, "chat", "--help").partition("--ngen")[2].partition("--ignore-eos")[0]
    assert str(chat.ANSWER_TOKENS) in told
