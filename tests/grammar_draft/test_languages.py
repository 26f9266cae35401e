"""Choices and Python types as grammars."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import uuid
from random import Random
from typing import Annotated, Any, Literal, NewType, TypedDict, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schemas import fits, random_schema
from wild_schemas import walk, wild_schema

from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.languages import from_choices, from_gbnf, from_schema, from_type
from diskmoe.grammar_draft.rules import Chars, Grammar, Ref
from diskmoe.grammar_draft.rules import Literal as Bytes


def complete(grammar: Grammar, text: str) -> bool:
    automaton = Automaton(grammar)
    state = automaton.walk(automaton.start, text.encode())
    return state is not None and state.may_end


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Movie(TypedDict, total=False):
    title: str
    year: int


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


@dataclasses.dataclass
class Node:
    value: Annotated[int, "any"]
    place: Point | None
    below: list[Node] = dataclasses.field(default_factory=list)


Name = NewType("Name", str)


@pytest.mark.parametrize(
    ("kind", "accepted", "rejected"),
    [
        (int, ["3"], ["3.5", '"3"']),
        (list[int], ["[]", "[1, 2]"], ['["a"]']),
        (tuple[int, str], ['[1, "a"]'], ["[1]", '[1, "a", 2]']),
        (tuple[int, ...], ["[]", "[1, 2]"], ['["a"]']),
        (dict[str, bool], ["{}", '{"a": true}'], ['{"a": 1}']),
        (Union[int, None], ["1", "null"], ['"a"']),  # noqa: UP007
        (Literal["a", 1] | None, ['"a"', "1", "null"], ['"b"', "2"]),
        (set[Literal["a", "b"]], ['["b","a"]'], ['["a","a"]']),
        (Colour, ['"red"'], ['"RED"']),
        (dict[str, list[Colour]], ['{"a": ["red"]}'], ['{"a": "red"}']),
        (Movie, ["{}", '{"title": "x", "year": 1}', '{"year": 1}'], ['{"year": "1"}', '{"a": 1}']),
        (Point, ['{"x": 1.5}', '{"x": 1, "y": 2}'], ["{}", '{"y": 2}']),
        (Node, ['{"value": 1, "place": null, "below": [{"value": 2, "place": {"x": 0}}]}'], ['{"value": 1}']),
        (Name, ['"a"'], ["1"]),
        (datetime.date, ['"2024-02-29"'], ['"2023-02-29"']),
        (uuid.UUID, ['"01234567-89ab-cdef-0123-456789abcdef"'], ['"1"']),
        (Any, ["[1, {}]"], [""]),
        (None, ["null"], ["0"]),
    ],
)  # fmt: skip
def test_a_type_is_the_json_of_its_values(
    kind: Any, accepted: list[str], rejected: list[str]
) -> None:
    grammar = from_type(kind)
    for text in accepted:
        assert complete(grammar, text), text
    for text in rejected:
        assert not complete(grammar, text), text


@pytest.mark.parametrize("kind", [complex, dict[int, str], lambda: 0, list[bytes], "str"])
def test_a_type_whose_json_is_not_known_is_refused(kind: Any) -> None:
    with pytest.raises(BadGrammar, match="type: "):
        from_type(kind)


def test_a_model_that_makes_its_own_schema_is_asked_for_it() -> None:
    class Model:  # as pydantic's do
        @staticmethod
        def model_json_schema() -> dict[str, Any]:
            inner = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
            return {"$defs": {"I": inner}, "type": "array", "items": {"$ref": "#/$defs/I"}}

    assert complete(from_type(Model), '[{"n": 1}]')
    assert complete(from_type(dict[str, Model]), '{"a": [{"n": 1}]}')
    assert not complete(from_type(Model), '[{"n": "1"}]')


def test_a_pydantic_model_is_a_type() -> None:
    pydantic = pytest.importorskip("pydantic")
    person = pydantic.create_model("Person", name=(str, ...), point=(Point | None, None))
    grammar = from_type(list[person])
    assert complete(grammar, '[{"name": "a"}, {"name": "b", "point": {"x": 1}}]')
    assert not complete(grammar, '[{"point": null}]')


def test_choices_are_one_trie() -> None:
    grammar = from_choices(["yes", "yesterday", "no", "\u00e9", "no"])
    for text in ("yes", "yesterday", "no", "\u00e9"):
        assert complete(grammar, text)
    for text in ("ye", "nope", "", "yesyes"):
        assert not complete(grammar, text)
    assert complete(from_choices(["", "a"]), "")
    assert complete(from_choices(f"k{i}" for i in range(50_000)), "k49999")


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ([], "there is nothing to choose from"),
        (["a", 3], "choice 2 is 3, not a text"),
        (["\ud800"], "choice 1 holds half a character"),
        (["x" * 2_000_000], "more than"),
        ((str(i) for i in range(10**9)), "more than 100000 choices"),
    ],
)
def test_choices_that_are_none_are_refused(choices: Any, said: str) -> None:
    with pytest.raises(BadGrammar, match=said):
        from_choices(choices)


def test_gbnf_goes_through_the_same_door() -> None:
    assert complete(from_gbnf('x ::= "a"', root="x", name="f"), "a")
    with pytest.raises(BadGrammar, match="f:2:6: half of a surrogate pair, U[+]D800"):
        from_gbnf('root ::= a\na::="\ud800"', name="f")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 40))
def test_every_walk_through_a_schema_by_chance_is_a_document_of_it(seed: int) -> None:
    random = Random(seed)
    schema = random_schema(random)
    try:
        automaton = Automaton(from_schema(schema))
    except BadGrammar as error:
        assert "nothing can satisfy" in str(error)
        return
    for _ in range(5):
        text = walk(random, automaton)
        if text is not None:
            assert fits(schema, json.loads(text)), (schema, text)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 40), st.sampled_from(["json-schema", "llama.cpp", "drafts"]))
def test_any_schema_is_read_or_refused_in_one_line(seed: int, profile: str) -> None:
    try:
        grammar = from_schema(wild_schema(Random(seed)), profile=profile, lax=True)
    except BadGrammar as error:
        assert "\n" not in str(error) and "schema: at #" in str(error)
        return
    text = walk(Random(seed), Automaton(grammar))
    if text is not None:
        json.loads(text)


def test_alternatives_of_a_rule_begin_with_different_bytes() -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"pattern": "^[a-c]+(x|yz)$", "type": "string"}, "nation": {"enum": ["de", "dk", "d"]}},
        "required": ["name", "nation"],
        "additionalProperties": {"type": "integer", "minimum": 7, "maximum": 1234},
    }  # fmt: skip
    grammar = from_schema(schema, whitespace="compact")

    def firsts(number: int) -> list[int]:
        found: list[int] = []
        for alternative in grammar.rules[number].alternatives:
            symbol = alternative[0] if alternative else None
            if isinstance(symbol, Bytes):
                found.append(symbol.data[0])
            elif isinstance(symbol, Chars):
                found += [p for low, high in symbol.ranges for p in range(low, min(high, 127) + 1)]
            elif isinstance(symbol, Ref):
                found += firsts(symbol.rule)
        return found

    for number in grammar.used:
        assert len(firsts(number)) == len(set(firsts(number))), grammar.rules[number]
