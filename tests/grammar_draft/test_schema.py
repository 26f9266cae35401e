"""JSON Schemas as draft sources."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.languages import from_schema
from diskmoe.grammar_draft.rules import Grammar

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0},
        "role": {"enum": ["user", "user admin", None]},
        "mail": {"type": ["string", "null"]},
    },
    "required": ["name", "role"],
}


def convert(schema: Any, name: str = "f.json", blanks: bool = True) -> Grammar:
    whitespace = "flexible" if blanks else "compact"
    return from_schema(schema, profile="drafts", whitespace=whitespace, name=name)


def complete(schema: Any, text: str, blanks: bool = True) -> bool:
    automaton = Automaton(convert(schema, "f.json", blanks))
    state = automaton.walk(automaton.start, text.encode())
    return state is not None and state.may_end


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        (PERSON, ['{"name":"a","role":null}', '{"name": "a", "age": 3, "role": "user", "mail": null}'],
         ['{"role":"user"}', '{"name":"a","role":"x"}', '{"role":"user","name":"a"}', "{}"]),
        ({"type": "object", "properties": {"a": {}, "b": {}}}, ["{}", '{"a":1}', '{"b":[]}', '{"a":1,"b":2}'],
         ['{"b":1,"a":2}', '{"a":1,}', '{,"b":1}']),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, ["{}", '{"x":1,"y":2}'], ['{"x":"1"}']),
        ({"properties": {"a": {}}, "required": ["a"], "additionalProperties": True},
         ['{"a":1,"z":{"y":[]}}'], ["{}"]),
        ({"type": "object"}, ["{}", '{"any": [1, {"b": null}]}'], ["[]"]),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
         ["[true]", "[ true, false ]"], ["[]", "[true,true,true]"]),
        ({"type": "array", "maxItems": 0}, ["[]", "[ ]"], ["[1]"]),
        ({"prefixItems": [{"type": "null"}, {"const": "x"}], "type": "array"}, ['[null,"x"]'], ["[null]"]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"a\\n\u00e9"'], ['"a"', '"abcd"']),
        ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"today"']),
        ({"type": "string", "format": "date-time"}, ['"2024-02-01T10:00:00.5Z"'], ['"2024-02-01"']),
        ({"type": "string", "format": "uuid"}, ['"01234567-89ab-cdef-0123-456789abcdef"'], ['"0123"']),
        ({"type": "number"}, ["0", "-1.5e+3", "12E4"], ["01", "1.", "+1", ".5"]),
        ({"type": "integer"}, ["0", "-17"], ["1.0"]),
        ({"const": {"a": [1, "x: y, {z}"], "b": {}}}, ['{"a":[1,"x: y, {z}"],"b":{}}',
         '{ "a" : [ 1 , "x: y, {z}" ] , "b" : { } }'], ['{"a":[1]}']),
        ({"enum": ["\u00e9\n", 1.5]}, ['"\u00e9\\n"', "1.5"], ['"e"']),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, ["3", '"x"'], ["null"]),
        ({"oneOf": [{"type": "integer"}, {"const": "x"}], "nullable": True}, ["3", "null"], ['"y"']),
        ({"allOf": [{"properties": {"a": {"type": "null"}}, "required": ["a"]}, {"$ref": "#/$defs/b"}],
          "$defs": {"b": {"properties": {"b": {"type": "null"}}}}}, ['{"a":null,"b":null}'], ["{}"]),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"next": {"anyOf": [
            {"$ref": "#/$defs/n"}, {"type": "null"}]}}, "required": ["next"]}}},
         ['{"next":{"next":null}}'], ['{"next":{}}']),
        ({"$ref": "#/definitions/a~1b%20c", "definitions": {"a/b c": {"type": "null"}}}, ["null"], ["0"]),
        ({"type": "array", "items": {"$ref": "#"}}, ["[]", "[[],[[]]]"], ["[1]"]),
        (True, ["null", "[1]"], [""]),
    ],
)  # fmt: skip
def test_a_schema_accepts_and_rejects(
    schema: Any, accepted: list[str], rejected: list[str]
) -> None:
    for text in accepted:
        assert complete(schema, text), text
    for text in rejected:
        assert not complete(schema, text), text


def test_blanks_can_be_left_out() -> None:
    assert complete(PERSON, '{"name":"a","role":null}', blanks=False)
    assert not complete(PERSON, '{"name": "a","role":null}', blanks=False)
    assert not complete(PERSON, ' {"name":"a","role":null}')


def test_keys_are_forced() -> None:
    automaton = Automaton(convert(PERSON, blanks=False))
    assert automaton.forced(automaton.start, 99) == b'{"name":"'


def test_what_is_ignored_is_said_in_one_line() -> None:
    schema = {"type": "string", "pattern": "^a$", "format": "email", "contentEncoding": "base64"}
    notes = convert({"type": "array", "items": schema, "uniqueItems": True}).notes
    kinds = "contentEncoding (1), format (1), pattern (1), uniqueItems (1)"
    assert notes == [f"schema keywords that drafts ignore: {kinds}"]
    assert convert(PERSON | {"title": "Person", "description": "one"}).notes == [
        "schema keywords that drafts ignore: minimum (1)"
    ]


def test_nesting_costs_linear_size() -> None:
    sizes = []
    for depth in (10, 20, 40):
        schema: dict[str, Any] = {"type": "string"}
        for _ in range(depth):
            schema = {"type": "array", "items": schema}
        sizes.append(len(convert(schema).rules))
    assert sizes[2] - sizes[1] == 2 * (sizes[1] - sizes[0])


def test_optional_members_cost_linear_size() -> None:
    def rules(count: int) -> int:
        return len(convert({"properties": {f"k{i}": {"type": "null"} for i in range(count)}}).rules)

    assert rules(200) - rules(100) == rules(300) - rules(200)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("3", "a schema is an object, this is 3"),
        ('{"type": "strin"}', "type is 'strin'"),
        ('{"enum": []}', "enum is []"),
        ('{"$ref": "#/$defs/x"}', "'#/$defs/x' leads nowhere"),
        ('{"$ref": "http://x/y"}', "only #/..."),
        ('{"$ref": "#"}', "no way out"),
        ('{"properties": []}', "properties is []"),
        ('{"items": 1, "type": "array"}', "at #/items: a schema is an object"),
        ('{"minItems": 5, "maxItems": 3}', "nothing fits"),
        ('{"minLength": "2"}', "minLength is '2'"),
        ('{"properties": {"a": false}, "required": ["a"]}', "no text can complete"),
        ('{"$defs": {"n": {"allOf": [{"$ref": "#/$defs/n"}]}}, "$ref": "#/$defs/n"}', ""),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(text: str, said: str) -> None:
    if not said:
        convert(text)  # a circle of allOf says nothing, so anything may come
        return
    with pytest.raises(BadGrammar) as caught:
        convert(text)
    assert str(caught.value).startswith("f.json: ") and said in str(caught.value)


def test_a_large_schema_is_read_or_refused_and_never_recursed_into() -> None:
    deep: Any = {"type": "null"}
    for _ in range(3000):
        deep = {"type": "array", "items": deep}
    assert Automaton(convert(deep)).start.allowed == 1 << ord("[")
    wide = {"properties": {f"k{i}": {"enum": [i]} for i in range(20_000)}}
    with pytest.raises(BadGrammar, match="more than 20000 rules"):
        convert(wide)
    with pytest.raises(BadGrammar, match="at most"):
        convert(json.dumps({"title": "x" * 2_000_000}), "f.json")
