"""The command line's words: what is understood, what is refused, and in which line."""

import pytest

from diskmoe.engine import run as run_module
from diskmoe.engine.arguments import run_settings, split_words
from diskmoe.engine.cli import main
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.help import overview
from diskmoe.engine.settings import SETTINGS


def settings(*words: str, env: dict[str, str] | None = None, **more):
    values, _, notes = run_settings(list(words), env or {}, **more)
    return {name: value.value for name, value in values.items()}, notes


def test_three_numbers_and_a_prompt() -> None:
    got, _ = settings("64", "4", "8", "Hello there")
    assert (got["CAP"], got["EXPERT_BITS"], got["DENSE_BITS"]) == (64, 4, 8)
    assert got["PROMPT"] == "Hello there"


def test_prompt_alone_and_numbers_alone() -> None:
    assert settings("Hello")[0]["PROMPT"] == "Hello"
    got, _ = settings("8")
    assert got["CAP"] == 8 and got["PROMPT"] is None


def test_flags_with_and_without_equals_sign() -> None:
    got, _ = settings("--temp=0.5", "--ngen", "7", "--json", "Hi")
    assert (got["TEMP"], got["NGEN"], got["JSON"], got["PROMPT"]) == (0.5, 7, True, "Hi")


def test_chat_and_raw() -> None:
    assert settings("--raw", "Hi")[0]["CHAT"] == "0"
    assert settings("--chat", "Hi")[0]["CHAT"] == "1"
    assert settings("--chat", "0", "Hi")[0]["CHAT"] == "0"


def test_everything_after_two_dashes_is_the_prompt() -> None:
    assert settings("8", "--", "--temp")[0]["PROMPT"] == "--temp"


def test_plan_takes_the_model_first() -> None:
    got, _ = settings("some/dir", "8", "4", text_positional="MODEL")
    assert (got["MODEL"], got["CAP"], got["EXPERT_BITS"]) == ("some/dir", 8, 4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tmep", "0"], "--temp"),
        (["--ngen"], "needs a value"),
        (["convrt", "a", "b"], "did you mean convert"),
        (["pla"], "did you mean plan"),
        (["warmpu"], "did you mean warmup"),
        (["8", "4", "8", "9"], "fourth number"),
        (["Hello", "world"], "quote a prompt"),
        (["-x"], "unknown option -x"),
        (["8", "5"], "4, 8, 16 or 32"),
        (["0"], "CAP"),
        (["8", "--cap", "4"], "given twice"),
        (["Hi", "--prompt", "Ho"], "given twice"),
    ],
)
def test_a_slip_is_answered_in_one_line(words: list[str], message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        settings(*words)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_flag_of_one_command_is_unknown_to_another() -> None:
    assert split_words(["--form", "dense"], {"--form": True})[1] == {"--form": "dense"}
    with pytest.raises(BadRequest):
        split_words(["--form", "dense"])


def test_a_switch_of_a_command_can_be_switched_off_and_takes_no_other_word() -> None:
    extra = {"--force": False}
    assert split_words(["--force"], extra)[1] == {"--force": "1"}
    assert split_words(["--force=yes"], extra)[1] == {"--force": "1"}
    assert split_words(["--force", "--force=0"], extra)[1] == {}
    with pytest.raises(BadRequest, match="--force is 'never'; it must be 1 or 0"):
        split_words(["--force=never"], extra)


def test_help_names_every_setting() -> None:
    text = overview()
    for setting in SETTINGS:
        assert setting.flag in text and setting.name in text


def test_errors_are_one_line_on_stderr_with_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tmep", "0"]) == 2
    caught = capsys.readouterr()
    assert caught.out == ""
    assert caught.err == "error: unknown option --tmep; did you mean --temp?\n"


def test_version_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("diskmoe ")


def test_a_model_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "no/such/dir", "Hi"]) == 2
    caught = capsys.readouterr()
    assert caught.out == "" and "no/such/dir" in caught.err.splitlines()[-1]
    assert "Traceback" not in caught.err


def test_no_demo_model_says_which_command_fetches_it(tmp_path, capsys) -> None:
    assert main(["--cache-dir", str(tmp_path), "Hi"]) == 2
    assert "diskmoe demo-model" in capsys.readouterr().err


def test_help_after_two_dashes_is_a_prompt(tmp_path, capsys) -> None:
    assert main(["--cache-dir", str(tmp_path), "--", "-h"]) == 2
    assert "demo model" in capsys.readouterr().err


@pytest.mark.parametrize("debug", ["", "--debug"])
def test_a_bug_of_ours_is_one_line_and_a_traceback_only_on_demand(
    debug, monkeypatch, capsys
) -> None:
    def broken(*_: object) -> int:
        raise RuntimeError("the\nwheels came off")

    monkeypatch.setattr(run_module, "run", broken)
    assert main(["Hi", *([debug] if debug else [])]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: internal: RuntimeError: the wheels came off")
    assert ("Traceback" in err) == bool(debug)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["convert", "a"], "two directories"),
        (["convert", "a", "b", "--experts", "kep"], "did you mean keep"),
        (["convert", "a", "b", "--ngen", "5"], "--ngen has no effect"),
        (["demo-model", "--form", "sprase"], "did you mean sparse"),
        (["demo-model", "here"], "takes no argument"),
        (["convert", "no/such", "b"], "no/such"),
        (["export", "no/such", "b"], "not a converted model"),
        (["export", "a"], "two directories"),
    ],
)
def test_slips_of_the_making_commands_are_one_line(words, message, capsys) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert message in err.splitlines()[-1] and "Traceback" not in err


def test_an_empty_prompt_is_refused(capsys) -> None:
    assert main(["--prompt", " ", "--model", "x"]) == 2
    assert "empty" in capsys.readouterr().err
