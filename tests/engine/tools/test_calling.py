"""What a template writes says how its model calls tools, and calls go back through it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_text import write_tokenizer
from tool_answers import ARGUMENTS, TOOLS
from tool_models import FAMILIES, VOCAB, text_side

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.text.side import TextSide
from diskmoe.engine.tools.calling import Calling
from diskmoe.engine.tools.parts import Gathered
from diskmoe.engine.tools.toolbox import Toolbox
from diskmoe.engine.tools.writing import Calls, Speller
from diskmoe.grammar_draft.constraint import Constraint
from diskmoe.grammar_draft.vocabulary import Vocabulary

BOX = Toolbox.of(TOOLS)
QUESTION = {"role": "user", "content": "How is the weather?"}
CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "get_weather", "arguments": ARGUMENTS},
}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "abcdefghi", "content": "Rain"}
NATIVE = [name for name, (form, _) in FAMILIES.items() if form != "bare JSON"]


def shown(text: TextSide, ids: Any) -> str:
    """Token ids as text, special ones as they are written."""
    tokenizer = text.tokenizer
    assert tokenizer is not None
    names = tokenizer.special_text
    data = (names[i].encode() if i in names else tokenizer.token_bytes[i] or b"" for i in ids)
    return b"".join(data).decode()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_form_is_told_by_the_template(name: str, tmp_path: Path) -> None:
    text = text_side(tmp_path, name)
    calling = Calling.of(text)
    assert calling.form is not None and calling.form.name == FAMILIES[name][0]
    assert calling.worded == (name not in NATIVE)
    assert calling.told == (name not in NATIVE or name == "deepseek_v3")
    assert "\n" not in calling.line and calling.form.name in calling.line


@pytest.mark.parametrize("name", FAMILIES)
def test_tools_calls_and_results_are_in_the_prompt(name: str, tmp_path: Path) -> None:
    text = text_side(tmp_path, name)
    prompt = Calling.of(text).encode(text, [QUESTION, CALLED, RESULT], BOX)
    written = shown(text, prompt.ids)
    assert written.count("get_weather") >= 2 and "lat" in written and "Rain" in written
    assert "None" not in written and "strict" not in written
    as_text = {**CALL, "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    again = Calling.of(text).encode(text, [QUESTION, {**CALLED, "tool_calls": [as_text]}], BOX)
    assert "Rome" in shown(text, again.ids) and '\\"Rome' not in shown(text, again.ids)


def written_call(text: TextSide, calling: Calling) -> str:
    """A call as the template writes it, from what opens it to what closes it."""
    prompt = calling.encode(text, [QUESTION, CALLED], BOX, add_generation_prompt=False)
    written, form = shown(text, prompt.ids), calling.form
    assert form is not None
    at = written.rindex(form.opening)
    closing = (form.section[1] or form.closing).split()[-1]
    if form.name == "Granite 3":  # this template writes no list
        return written[at : written.index("<|end_of_text|>", at)]
    return written[at : written.index(closing, at) + len(closing)]


@pytest.mark.parametrize("name", [name for name in NATIVE if name != "minimax_m2"])
def test_what_a_template_writes_of_a_call_is_read_and_is_a_word_of_its_grammar(
    name: str, tmp_path: Path
) -> None:
    text = text_side(tmp_path, name)
    calling, tokenizer = Calling.of(text), text.tokenizer
    assert calling.form is not None and BOX is not None and tokenizer is not None
    written = written_call(text, calling)
    reader = calling.reader(BOX)
    assert reader is not None
    message = Gathered()
    for part in [*reader.feed(written), *reader.end(False)]:
        message.add(part)
    [call] = message.message["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == ARGUMENTS
    if name == "granitemoe":
        return
    ends = text.stops(True)
    grammar = Calls(calling.form, BOX, Speller.of(text), "flexible", False).from_the_start()
    vocabulary = Vocabulary(tokenizer.token_bytes, tokenizer.special_text, ends)
    constraint = Constraint(grammar, vocabulary)
    state = constraint.start
    ids = tokenizer.encode(" " * calling.form.channels + written)
    for place, token in enumerate(ids):
        if token not in ends:
            state = constraint.accept(state, token)
            assert state is not None, shown(text, ids[: place + 1])
    assert constraint.may_end(state)


def test_a_template_that_shows_tools_and_writes_no_calls_gets_them_in_words(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        '{% if tools %}{{ tools | tojson }} Write <tool_call>{"name": N, "arguments": A}</tool_call>'
        "{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    text = TextSide.load(tmp_path, {}, VOCAB)
    calling = Calling.of(text)
    assert calling.form is not None and calling.form.name == "Hermes"
    assert calling.worded and not calling.told and not calling.as_text
    rome = {**CALL, "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    talk = [QUESTION, {**CALLED, "content": "So:", "tool_calls": [rome]}, RESULT]
    written = shown(text, calling.encode(text, talk, BOX).ids)
    assert written.endswith(
        '[assistant]So:\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n'
        "</tool_call>[user]The function's result: Rain"
    )


@pytest.mark.parametrize("arguments", ["[1]", "{", "3", [1], "null"])
def test_arguments_of_earlier_calls_are_an_object(tmp_path: Path, arguments: Any) -> None:
    text = text_side(tmp_path, "qwen3_moe")
    call = {**CALL, "function": {"name": "get_weather", "arguments": arguments}}
    with pytest.raises(BadRequest, match="an earlier call of 'get_weather' are no JSON object"):
        Calling.of(text).encode(text, [QUESTION, {**CALLED, "tool_calls": [call]}], BOX)


def test_without_a_template_tools_are_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    text = TextSide.load(tmp_path, {}, VOCAB)
    assert "none can be called" in Calling.of(text).line
    with pytest.raises(BadRequest, match="no chat template: leave them out"):
        Calling.of(text).encode(text, [QUESTION], BOX)
