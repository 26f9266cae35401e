"""A conversation: questions, commands, Ctrl-C, and what is kept of it."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_server import write_model

from diskmoe.engine import chat as chat_module
from diskmoe.engine.api import Model, Options, Sampling
from diskmoe.engine.chat import COMMANDS, Chat
from diskmoe.engine.chat_file import load_chat, save_chat
from diskmoe.engine.conversation import Conversation
from diskmoe.engine.errors import BadRequest


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("chat"))


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    with Model.load(path, Options(ctx=512)) as model:
        yield model


Talk = Callable[..., tuple[str, list[str], Conversation]]


@pytest.fixture
def held(model: Model, tmp_path: Path) -> Talk:
    """Holds a chat over these lines: (stdout, lines of stderr, the conversation)."""

    def hold(*lines: str, sampling: Sampling | None = None) -> tuple[str, list[str], Conversation]:
        written, said, talk = [], [], Conversation(model, "Be brief.")
        how = {"sampling": sampling or Sampling(), "limit": 8}
        waiting = iter(lines)
        chat = Chat(
            talk,
            how,
            lambda: tmp_path / "default.json",
            lambda: "a" * 32,
            lambda: next(waiting, None),
            written.append,
            said.append,
            dims=False,
        )
        chat.run()
        return "".join(written), said, talk

    return hold


def test_answers_go_to_stdout_and_measures_to_stderr(held: Talk) -> None:
    text, said, talk = held("Hello", "", "And then?")
    answers = [m["content"] for m in talk.messages if m["role"] == "assistant"]
    assert text == "".join(f"{answer}\n" for answer in answers) and len(answers) == 2
    form = (
        r"-- [\d.]+ tok/s, [\d.]+ tokens/forward, hit rate \d+ %, .+/token, 8 tokens after \d+ new "
        r"and (\d+) known ones; limit"
    )
    matches = [re.fullmatch(form, line) for line in said]
    assert all(matches) and int(matches[1][1]) > 20  # pyright: ignore[reportOptionalSubscript]


def test_a_turn_is_what_a_fresh_model_makes_of_the_messages(held: Talk, path: Path) -> None:
    _, _, talk = held("One", "Two", "Three")
    with Model.load(path, Options(ctx=512)) as fresh:
        for turn in range(3):
            prompt = fresh.text.encode_chat(
                [{"role": "system", "content": "Be brief."}, *talk.messages[: 2 * turn + 1]]
            )
            run = fresh.generate(prompt, limit=8, reuse=False)
            assert "".join(run) == talk.messages[2 * turn + 1]["content"]


def test_reset_forgets_and_regen_answers_again(held: Talk) -> None:
    _, said, talk = held("One", "/regen", "/reset", "/regen", "Two")
    assert [m["content"] for m in talk.messages if m["role"] == "user"] == ["Two"]
    assert "note      without chance, or with a SEED, the answer will be the same" in said
    assert "error: there is no answer to make again" in said
    _, _, talk = held("One", "/regen", sampling=Sampling(temperature=1.5))
    assert [m["role"] for m in talk.messages] == ["user", "assistant"]


def test_stats_system_help_and_unknown_commands(held: Talk) -> None:
    _, said, talk = held(
        "/stats", "One", "/stats", "/system Shout.", "/help", "/rest", "/quit", "x"
    )
    assert said[0] == "stats     nothing was answered yet"
    assert any(line.startswith("experts   hit rate") for line in said)
    assert talk.system == "Shout." and "system    Shout." in said
    assert sum(line.startswith("  /") for line in said) == len(COMMANDS)
    assert said[-1] == "error: unknown command /rest; did you mean /reset?; /help lists them"
    assert len(talk.messages) == 2  # nothing behind /quit was read


def test_nothing_is_written_unless_asked_for(held: Talk, tmp_path: Path) -> None:
    held("One")
    assert not list(tmp_path.iterdir())
    _, said, talk = held("One", "/save", "/reset", "/load", f"/save {tmp_path / 'sub' / 'b.json'}")
    assert f"saved     2 messages in {tmp_path / 'default.json'}" in said
    assert len(talk.messages) == 2 and talk.system == "Be brief."
    kept = json.loads((tmp_path / "sub" / "b.json").read_text())
    assert kept["messages"][0] == {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("nonsense", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "no saved chat of version 1"),
        ('{"version": 1, "model": "b"}', "was held with another model"),
        ('{"version": 1, "model": "M", "messages": 3}', "no list of objects"),
        ('{"version": 1, "model": "M", "messages": [{"role": "user"}]}', "message 0 is no user"),
        (
            '{"version": 1, "model": "M", "messages": [{"role": "user", "content": "a"}]}',
            "a question without an answer",
        ),
    ],
)
def test_a_file_that_is_no_saved_chat_is_refused_in_a_line(
    held: Talk, tmp_path: Path, content: str, said: str
) -> None:
    file = tmp_path / "x.json"
    file.write_text(content.replace('"M"', json.dumps("a" * 32)))
    _, lines, talk = held(f"/load {file}", "/load /no/such/file")
    assert said in lines[0] and lines[0].startswith("error: ") and "\n" not in lines[0]
    assert "cannot be read" in lines[1] and not talk.messages


def test_a_saved_chat_is_whole_or_not_there(tmp_path: Path) -> None:
    save_chat(tmp_path / "a.json", "f", [{"role": "user", "content": "ü"}])
    assert load_chat(tmp_path / "a.json", "f") == [{"role": "user", "content": "ü"}]
    (tmp_path / "file").write_text("")
    with pytest.raises(BadRequest, match="cannot be written"):
        save_chat(tmp_path / "file" / "a.json", "f", [])


def test_a_conversation_longer_than_the_context_is_said_and_goes_on(held: Talk) -> None:
    _, said, talk = held("x" * 600, "/reset", "One")
    assert said[0].startswith("error: the prompt is 6") and "CTX" in said[0]
    assert len(talk.messages) == 2


def test_interrupted_answers_are_kept_and_the_next_line_ends_it(path: Path) -> None:
    words = [sys.executable, "-m", "diskmoe.engine", "chat", str(path), "--ngen", "400"]
    words += ["--ctx", "512", "--disk-bps", "1M", "--cap", "1"]
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        try:
            process.stdin.write(b"Hello\n")
            process.stdin.flush()
            assert process.stdout.read(8)  # it has begun
            process.send_signal(signal.SIGINT)
            process.stdin.write(b"/stats\nAgain\n")
            process.stdin.flush()
            said = ""
            for line in process.stderr:
                said += line.decode()
                if line.startswith(b"report    "):  # the first answer's
                    break
            process.stdin.close()
            process.send_signal(signal.SIGINT)  # in the second answer, or at the end
            said += process.stderr.read().decode()
            assert process.wait(60) in (0, 130)
        finally:
            process.kill()
    assert "; interrupted" in said and "Traceback" not in said
    assert "report    " in said


def test_a_model_without_a_template_cannot_chat(tiny: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "diskmoe.engine", "chat", str(tiny)],
        input="Hi\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and not done.stdout
    assert "has no tokenizer.json: it cannot be chatted with" in done.stderr.splitlines()[-1]


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="a device without an end")
def test_a_chat_is_not_loaded_from_what_has_no_end(held: Talk) -> None:
    _, said, _ = held("/load /dev/zero", "/load /nowhere/at/all", "/load .")
    assert said[0] == "error: /dev/zero is no saved chat: it is no ordinary file"
    assert said[1].startswith("error: /nowhere/at/all cannot be read")
    assert said[2] == "error: . is no saved chat: it is no ordinary file"


def test_a_name_that_no_file_can_have_is_said_and_the_chat_goes_on(held: Talk) -> None:
    _, said, talk = held("/save a\0b", "Hello")
    assert said[0].startswith("error: a\0b cannot be written: embedded null")
    assert len(talk.messages) == 2


def test_a_line_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_module, "MOST_TEXT", 100)
    monkeypatch.setattr(sys, "stdin", io.StringIO("short\n" + "x\\\n" * 60))
    assert chat_module._line_of_stdin() == "short"
    with pytest.raises(BadRequest, match="a line of stdin is longer than 100 characters"):
        chat_module._line_of_stdin()


def test_without_a_stdin_there_is_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert chat_module._line_of_stdin() is None
