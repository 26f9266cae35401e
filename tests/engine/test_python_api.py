"""What Python programs call: names that cost nothing to import, options in words, conversations."""

import subprocess
import sys
import typing
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tiny_server import write_model

import diskmoe.engine
from diskmoe.engine import BadRequest, Model, Options, RunStats, Sampling, Turn
from diskmoe.engine.answer import Answer
from diskmoe.engine.options import OptionWords, options_with
from diskmoe.engine.text.thinking import Thinking
from diskmoe.engine.tools.forms import FORMS
from diskmoe.engine.tools.reading import Reader


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("api") / "tiny")


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    with Model.load(path, ctx=512) as model:
        yield model


def test_the_package_is_imported_without_numpy_and_numba() -> None:
    code = "import sys, diskmoe.engine; print('numpy' in sys.modules, 'numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_every_name_of_the_package_is_there_and_listed() -> None:
    for name in diskmoe.engine._HOMES:
        assert getattr(diskmoe.engine, name).__name__ == name
        assert name in dir(diskmoe.engine)
    source = Path(diskmoe.engine.__file__ or "").read_text("utf-8")
    for name in diskmoe.engine._HOMES:
        assert f" as {name}\n" in source  # what type checkers see
    with pytest.raises(AttributeError, match="no attribute 'Modle'"):
        diskmoe.engine.Modle  # pyright: ignore[reportAttributeAccessIssue]  # noqa: B018


def test_every_option_is_a_keyword_and_no_other_is() -> None:
    assert list(typing.get_type_hints(OptionWords)) == [field.name for field in fields(Options)]
    with pytest.raises(BadRequest, match="no option ram_g; did you mean ram_gb"):
        options_with(ram_g=4)  # pyright: ignore[reportCallIssue]


def test_words_win_over_options_and_paths_may_be_text() -> None:
    found = options_with(Options(cap=4, ctx=99), cap=8, corpus="texts")
    assert (found.cap, found.ctx, found.corpus) == (8, 99, Path("texts"))
    assert options_with() == Options()


def test_a_model_loads_with_options_in_words(model: Model) -> None:
    assert model.options.ctx == 512


def test_a_turn_that_has_come_is_part_of_the_conversation_and_is_not_computed_again(
    model: Model,
) -> None:
    talk = model.chat("Be brief.", limit=6, sampling=Sampling())
    first = talk.ask("Why?")
    pieces = "".join(text for _, text in first)
    assert pieces == first.content == talk.messages[1]["content"]
    second = talk.ask("And then?", limit=3)
    assert second.answer() == talk.messages[3]["content"]
    assert second.stats.tokens == 3
    assert second.stats.reused_tokens >= first.stats.prompt_tokens
    assert talk.all_messages[0] == {"role": "system", "content": "Be brief."}


def test_a_turn_is_kept_once_and_only_when_it_ended(model: Model) -> None:
    talk = model.chat(limit=4)
    left = talk.ask("Left?")
    assert isinstance(left, Turn)
    next(iter(left), None)
    assert talk.messages == []
    left.stop("interrupted")
    left.answer()
    assert [each["role"] for each in talk.messages] == ["user", "assistant"]
    assert left.stats.stop_reason == "interrupted"


def test_a_conversation_goes_on_from_messages_as_if_it_had_been_held(model: Model) -> None:
    talk = model.chat("Be brief.", limit=5)
    talk.ask("One?").answer()
    told = talk.ask("Two?").answer()
    other = model.chat("Be brief.", talk.messages[:2], limit=5)
    assert other.ask("Two?").answer() == told
    assert other.all_messages == talk.all_messages


def test_messages_that_are_no_conversation_are_refused(model: Model) -> None:
    with pytest.raises(BadRequest, match="question without an answer"):
        model.chat(messages=[{"role": "user", "content": "One?"}])
    with pytest.raises(BadRequest, match="message 0 is 'One.'; it must be a dict"):
        model.chat(messages=["One?"])  # pyright: ignore[reportArgumentType]
    twice = [{"role": "system", "content": "Be long."}]
    with pytest.raises(BadRequest, match="message 1 is no user's"):
        model.chat("Be brief.", twice)


class Spoken:
    """A run whose text is known."""

    def __init__(self, *pieces: str) -> None:
        self._pieces = pieces
        self.token_ids: list[int] = []
        self.stats = RunStats(stop_reason="stop token")

    def __iter__(self) -> Iterator[str]:
        yield from self._pieces


def test_reasoning_that_stands_in_a_channel_is_no_part_of_the_answer() -> None:
    (form,) = (form for form in FORMS if form.channels)
    run: Any = Spoken(
        "<|channel|>analysis<|mess",
        "age|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Ye",
        "s.",
    )
    turn = Turn(Answer(run, Thinking.none(), Reader(form, None)))
    assert "".join(text for reasoning, text in turn if reasoning) == "Hm."
    assert (turn.content, turn.reasoning) == ("Yes.", "Hm.")
    assert turn.message == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}


def test_a_call_that_nobody_asked_for_is_said() -> None:
    (form,) = (form for form in FORMS if form.channels)
    call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
    run: Any = Spoken(call)
    turn = Turn(Answer(run, Thinking.none(), Reader(form, None)))
    assert turn.answer() == "{}"
    assert set(turn.message) == {"role", "content"}


@pytest.mark.parametrize("name", ["stop", "triggers"])
def test_a_text_where_a_list_of_them_is_wanted_is_not_taken_letter_by_letter(
    model: Model, name: str
) -> None:
    words: dict[str, Any] = {name: "END"}
    with pytest.raises(BadRequest, match=f"{name} is 'END'; it must be a list of such texts"):
        model.generate("Hello", **words)


def test_bytes_are_not_taken_for_token_ids(model: Model) -> None:
    with pytest.raises(BadRequest, match="the prompt is bytes"):
        model.generate(b"Hello")
