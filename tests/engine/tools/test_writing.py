"""Whatever is written by a grammar of calls is read as calls of the tools, with arguments by their
schemas; where only strict tools are enforced, from what opens a call on."""

import json
import random
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest
from tool_answers import CASES, CLOCK, TOOLS, WEATHER
from wild_schemas import KEYS, wild_schema

from diskmoe.engine.tools.forms import Form
from diskmoe.engine.tools.parts import Gathered
from diskmoe.engine.tools.reading import Reader
from diskmoe.engine.tools.toolbox import Toolbox
from diskmoe.engine.tools.writing import Calls, Speller
from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.constraint import Constraint
from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.vocabulary import Vocabulary

NAMES = [name for name in CASES if name != "gpt-oss, as its template"]
ENDING = 0
CLOSING = ["</arg_value>", "\n</parameter>", "</parameter>", "</｜DSML｜parameter>"]
LEADING_OUT = [None, *(word.encode() for word in [*CLOSING, *'"}]'])]


def vocabulary_of(form: Form) -> tuple[Vocabulary, Speller]:
    """Bytes, words that end things soon, and the markers in angle brackets and bars as specials."""
    markers = sorted({part for text in form.texts for part in _markers(text)})
    words = [*CLOSING, '"}', "get_"]
    texts: list[bytes | None] = [
        None,
        *(bytes([b]) for b in b'\n "{}[]:,\\</>=_-0123456789abcdlnors'),
    ]
    texts += [word.encode() for word in words]
    special = {len(texts) + i: marker for i, marker in enumerate(markers)}
    texts += [None] * len(markers)
    texts += [bytes([b]) for b in range(256)]
    ends = {ENDING} | {token for token, name in special.items() if name == "<|call|>"}
    speller = Speller({name: token for token, name in special.items()}, ends)
    return Vocabulary(texts, {ENDING: "<end>", **special}, ends), speller


def _markers(text: str) -> list[str]:
    found, rest = [], text
    while "<|" in rest and "|>" in rest:
        rest = rest[rest.index("<|") :]
        end = rest.index("|>") + 2
        found.append(rest[:end])
        rest = rest[end:]
    return found


def walk(constraint: Constraint, chance: random.Random, most: int) -> list[int]:
    """Tokens by chance; after a while such as lead to the end."""
    state, found = constraint.start, []
    while not constraint.complete(state):
        mask = constraint.mask(state)
        allowed = [t for t in range(len(constraint.vocabulary)) if mask[t >> 6] >> (t & 63) & 1]
        ends = [token for token in allowed if token in constraint.vocabulary.ends]
        if ends and chance.random() < 0.5:
            break
        allowed = [token for token in allowed if token not in constraint.vocabulary.ends]
        assert allowed, constraint.wanted(state)
        leading = [t for t in allowed if constraint.vocabulary.texts[t] in LEADING_OUT]
        token = chance.choice(leading if leading and len(found) > most else allowed)
        found.append(token)
        state = constraint.accept(state, token)
        assert len(found) < 50 * most
    assert constraint.may_end(state)
    return found


def written(vocabulary: Vocabulary, tokens: Sequence[int]) -> str:
    names = vocabulary.special
    data = (names[t].encode() if t in names else vocabulary.texts[t] or b"" for t in tokens)
    return b"".join(data).decode()


def check(function: dict[str, Any]) -> None:
    found = json.loads(function["arguments"])
    if function["name"] == "clock":
        assert isinstance(found, dict)
        return
    assert function["name"] == "get_weather"
    assert set(found) <= {"city", "days", "units", "at", "note"}
    assert isinstance(found["city"], str)
    assert isinstance(found["days"], int) and 1 <= found["days"] <= 9
    assert found.get("units", "C") in ("C", "F")
    assert isinstance(found.get("at", {}), dict)
    assert isinstance(found.get("at", {}).get("lat", 0), int | float)
    assert isinstance(found.get("note"), str | None)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("several", [True, False])
def test_what_a_grammar_writes_is_read_as_calls(name: str, several: bool) -> None:
    form, chance = CASES[name].form, random.Random(name)
    box = Toolbox.of([WEATHER, CLOCK], "required", several)
    assert box is not None
    vocabulary, speller = vocabulary_of(form)
    constraint = Constraint(
        Calls(form, box, speller, "flexible", False).from_the_start(), vocabulary
    )
    for _ in range(4):
        text = written(vocabulary, walk(constraint, chance, 80))
        reader, message = Reader(form, box), Gathered()
        for part in [*reader.feed(text), *reader.end(cut=False)]:
            message.add(part)
        assert message.message["content"] is None and reader.notes == [], text
        calls = message.message["tool_calls"]
        assert len(calls) == 1 or several
        for call in calls:
            check(call["function"])


@pytest.mark.parametrize("name", NAMES)
def test_behind_what_opens_a_call_the_same_is_written(name: str) -> None:
    form, chance = CASES[name].form, random.Random(name)
    box = Toolbox.of(TOOLS)
    assert box is not None
    vocabulary, speller = vocabulary_of(form)
    constraint = Constraint(
        Calls(form, box, speller, "compact", False).behind_opening(), vocabulary
    )
    for _ in range(4):
        text = written(vocabulary, walk(constraint, chance, 60))
        reader, message = Reader(form, box), Gathered()
        for part in [*reader.feed(form.opening + text), *reader.end(cut=False)]:
            message.add(part)
        assert message.message["content"] is None and message.message["tool_calls"]
        for call in message.message["tool_calls"]:
            check(call["function"])


@pytest.mark.parametrize("name", ["hermes", "qwen3 coder", "glm 4.7", "minimax", "deepseek 3.2"])
def test_arguments_fit_schemas_of_all_keywords(name: str) -> None:
    """What jsonschema says of what is read from what a grammar of wild schemas lets pass."""
    form, chance, fitting = CASES[name].form, random.Random(name), 0
    while fitting < 15:
        schema = {
            "type": "object",
            "properties": {key: wild_schema(chance) for key in chance.sample(KEYS, 2)},
            "required": [],
        }
        schema["required"] = [key for key in schema["properties"] if chance.random() < 0.6]
        if any(word in json.dumps(schema) for word in ("multipleOf", "$ref")):
            continue  # jsonschema rounds, and follows circles without end
        tool = {"name": "f", "parameters": schema, "strict": True}
        box = Toolbox.of([{"type": "function", "function": tool}], "required", False)
        assert box is not None
        try:
            made = Calls(form, box, Speller({}, ()), "compact", False).from_the_start()
            automaton = Automaton(made)
        except BadGrammar:
            continue
        text = passed(automaton, chance, form)
        reader, message = Reader(form, box), Gathered()
        for part in [*reader.feed(text), *reader.end(cut=False)]:
            message.add(part)
        [call] = message.message["tool_calls"]
        found = json.loads(call["function"]["arguments"])
        assert jsonschema.Draft202012Validator(schema).is_valid(found), (schema, text)
        fitting += 1


def passed(automaton: Automaton, chance: random.Random, form: Form) -> str:
    """A text by chance in which what closes a value comes now and then."""
    closing = (
        []
        if form.parameters is None
        else [form.parameters.closing, form.parameters.closing.strip()]
    )
    state, text = automaton.start, bytearray()
    while not state.may_end:
        word = chance.choice(closing).encode() if closing and chance.random() < 0.3 else b""
        behind = state
        for byte in word:
            behind = None if behind is None else automaton.advance(behind, byte)
        if behind is None or not word:
            choices = [byte for byte in range(256) if state.allowed >> byte & 1]
            weights = [8 if byte in b'"}],:' else 1 if byte < 128 else 0.05 for byte in choices]
            word = bytes(chance.choices(choices, weights))
            behind = automaton.advance(state, word[0])
        assert behind is not None
        state = behind
        text += word
    return text.decode()


@pytest.mark.parametrize("name", ["hermes", "qwen3 coder"])
def test_a_schema_that_cannot_be_enforced_is_refused_where_the_tool_is_strict(name: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "uniqueItems": True, "items": {"type": "string"}}},
    }
    for strict in (True, False):
        tool = {"name": "f", "parameters": schema, "strict": strict}
        box = Toolbox.of([{"type": "function", "function": tool}], "required")
        assert box is not None
        if strict:
            with pytest.raises(BadGrammar, match="uniqueItems"):
                Calls(CASES[name].form, box, Speller({}, ()), "flexible", False)
        else:
            made = Calls(CASES[name].form, box, Speller({}, ()), "flexible", False)
            assert any("uniqueItems" in note for note in made.from_the_start().notes)
