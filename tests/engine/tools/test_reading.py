"""Answers of all families are read into calls, whole and in whatever pieces they come."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tool_answers import ARGUMENTS, CASES, TOOLS, Case

from diskmoe.engine.tools.parts import Gathered, Part, Said
from diskmoe.engine.tools.reading import Reader
from diskmoe.engine.tools.toolbox import Toolbox

BOX = Toolbox.of(TOOLS)


def read(case: Case, pieces: Sequence[str], cut: bool = False) -> list[Part]:
    reader = Reader(case.form, BOX)
    parts = [part for piece in pieces for part in reader.feed(piece)]
    return [*parts, *reader.end(cut)]


def gathered(parts: Sequence[Part]) -> dict[str, Any]:
    found = Gathered()
    for part in parts:
        found.add(part)
    return found.message


def calls(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls", [])
    ]


def shape(message: dict[str, Any], case: Case) -> Any:
    """A message without what is made by chance."""
    for call in message.get("tool_calls", []):
        assert call["id"]
        call["id"] = call["id"] if case.form.ids == "own" else len(call["id"])
    return message


@pytest.mark.parametrize("name", CASES)
def test_a_familys_answer_is_words_and_calls(name: str) -> None:
    case = CASES[name]
    message = gathered(read(case, [case.text]))
    assert message["content"] == (case.said or None)
    assert message.get("reasoning_content", "") == case.reasoning
    assert calls(message) == [("get_weather", ARGUMENTS), ("clock", {})][: 1 + case.both]


@given(st.sampled_from(sorted(CASES)), st.data())
def test_any_pieces_give_the_same(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    whole = shape(gathered(read(case, [case.text])), case)
    cuts = data.draw(st.lists(st.integers(0, len(case.text)), max_size=30))
    ends = [0, *sorted(cuts), len(case.text)]
    pieces = [case.text[a:b] for a, b in pairwise(ends)]
    parts = read(case, pieces)
    assert shape(gathered(parts), case) == whole
    said = "".join(part.text for part in parts if isinstance(part, Said) and not part.reasoning)
    assert said == case.said  # and nothing of a marker, ever


@given(st.sampled_from(sorted(CASES)), st.data())
def test_a_text_that_is_cut_anywhere_gives_what_came_and_no_marker(
    name: str, data: st.DataObject
) -> None:
    case = CASES[name]
    end = data.draw(st.integers(0, len(case.text)))
    piecewise = gathered(read(case, list(case.text[:end]), cut=True))
    assert shape(piecewise, case) == shape(gathered(read(case, [case.text[:end]], True)), case)
    for call in piecewise.get("tool_calls", []):
        assert call["function"]["name"] in ("get_weather", "clock")


@given(st.sampled_from(sorted(CASES)), st.data())
def test_a_damaged_answer_is_read_the_same_in_pieces_and_loses_nothing(
    name: str, data: st.DataObject
) -> None:
    case = CASES[name]
    bits = ["", "x", "{", "}", '"', "<", "\\", "\\x", "\n", "]", "é", "NaN", *case.form.texts]
    text = case.text
    for new in data.draw(st.lists(st.sampled_from(bits), min_size=1, max_size=4)):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + new + text[at + data.draw(st.sampled_from([0, 1, 9])) :]
    whole = shape(gathered(read(case, [text])), case)
    assert shape(gathered(read(case, list(text))), case) == whole
    if "tool_calls" not in whole and not case.form.channels:
        assert "".join((whole["content"] or "").split()) == "".join(text.split())


@pytest.mark.parametrize("name", CASES)
def test_what_ends_within_a_call_is_text_with_a_note(name: str) -> None:
    case = CASES[name]
    end = case.text.index("lat") + 3
    reader = Reader(case.form, BOX)
    parts = [*reader.feed(case.text[:end]), *reader.end(cut=False)]
    message = gathered(parts)
    assert "tool_calls" not in message
    assert "lat" in message["content"] and len(reader.notes) == 1
    cut = gathered(read(case, [case.text[:end]], cut=True))  # by a limit: as far as it came
    assert cut["tool_calls"][0]["function"]["arguments"].endswith('{"lat')


def test_types_are_those_of_the_tools_schema() -> None:
    form = CASES["qwen3 coder"].form
    schema = {
        "$defs": {"n": {"type": "integer"}},
        "properties": {
            "text": {"type": "string"},
            "count": {"$ref": "#/$defs/n"},
            "flag": {"type": "boolean"},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "list": {"type": "array"},
        },
    }
    box = Toolbox.of([{"type": "function", "function": {"name": "f", "parameters": schema}}])
    given_values = {
        "text": ("12", "12"),
        "count": ("12", 12),
        "flag": ("True", True),
        "maybe": ("null", None),
        "list": ('["a</b>"]', ["a</b>"]),
        "other": ("1.5", 1.5),
        "word": ("Oslo", "Oslo"),
    }
    text = "<tool_call><function=f>" + "".join(
        f"<parameter={key}>\n{raw}\n</parameter>" for key, (raw, _) in given_values.items()
    )
    reader = Reader(form, box)
    [(name, found)] = calls(gathered([*reader.feed(text + "</function>"), *reader.end(False)]))
    assert name == "f" and found == {key: value for key, (_, value) in given_values.items()}


def test_a_model_that_is_not_quite_right_is_understood() -> None:
    form = CASES["hermes"].form
    for text in (
        '<tool_call>{"arguments": {"a": 1}, "name": "clock"}</tool_call>',
        '<tool_call>{"name": "clock", "arguments": "{\\"a\\": 1}"}</tool_call>',
        '<tool_call>{"name": "clock", "arguments": {"a": 1}</tool_call>',
        '<tool_call>{"name": "clock", "arguments": {"a": 1}}',
        '<tool_call>[{"name": "clock", "parameters": {"a": 1}}]</tool_call>',
        '<tool_call>{"type": "function", "function": {"name": "clock", "arguments": {"a": 1}}}',
    ):
        reader = Reader(form, BOX)
        assert calls(gathered([*reader.feed(text), *reader.end(False)])) == [("clock", {"a": 1})]
        assert reader.notes == []


def test_a_name_that_is_no_tools_is_given_with_a_note_but_not_where_only_json_says_so() -> None:
    text = '{"name": "other", "arguments": {}}'
    reader = Reader(CASES["hermes"].form, BOX)
    message = gathered([*reader.feed(f"<tool_call>{text}</tool_call>"), *reader.end(False)])
    assert calls(message) == [("other", {})] and "'other'" in reader.notes[0]
    assert gathered(read(CASES["bare"], [text])) == {"content": text}


def test_answers_of_channels_without_calls_are_reasoning_and_words() -> None:
    form = CASES["gpt-oss"].form
    for text, expected in (
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
            {"content": "Yes.", "reasoning_content": "Hm."},
        ),
        ("Just words, to= and <|x.", {"content": "Just words, to= and <|x."}),
        ("assistants are people", {"content": "assistants are people"}),
        ('{"a": 1}', {"content": '{"a": 1}'}),
        ("<|channel|>fin", {"content": ""}),
    ):
        for pieces in ([text], list(text)):
            reader = Reader(form, None)
            parts = [part for piece in pieces for part in reader.feed(piece)]
            assert gathered([*parts, *reader.end(True)]) == expected
