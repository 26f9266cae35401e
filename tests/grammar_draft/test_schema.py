"""JSON Schema, keyword by keyword: what its rules accept and what they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.cases import judge
from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.languages import from_schema

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
CLOSED = {"additionalProperties": False}


def automaton(schema: Any, **options: Any) -> Automaton:
    return Automaton(from_schema(schema, name="f.json", **options))


def complete(machine: Automaton, text: str) -> bool:
    state = machine.walk(machine.start, text.encode())
    return state is not None and state.may_end


def judged(schema: Any, accepted: list[str], rejected: list[str], **options: Any) -> None:
    machine = automaton(schema, **options)
    for text in accepted:
        assert complete(machine, text), text
    for text in rejected:
        assert not complete(machine, text), text


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        # types
        ({"type": "number"}, ["0", "-1.5e+3", "12E4", "-0"], ["01", "1.", "+1", ".5", '"1"']),
        ({"type": "integer"}, ["0", "-17"], ["1.5", "1e2"]),
        ({"type": ["integer", "null"]}, ["3", "null"], ["true", "1.5"]),
        ({"type": ["integer", "number"]}, ["1.5"], ["null"]),
        ({"type": "object"}, ["{}", '{"any": [1, {"b": null}]}'], ["[]"]),
        ({}, ["null", "[1]"], [""]),
        (True, ["null", "[1]"], [""]),
        # strings: lengths are code points, and a pair of escapes is one
        ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"a\\n\u00e9"', '"\\ud83d\\ude00x"', '"\U0001f600\U0001f600"'],
         ['"a"', '"abcd"', '"\\ud83d\\ude00"', '"\U0001f600"']),
        ({"type": "string"}, ['"\\ud83d\\ude00"', '"\\u0000\\/"'], ['"\\ud83d"', '"\\ude00"', '"\\ud83dx"', '"\n"', '"\\x"']),
        ({"type": "string", "maxLength": 0}, ['""'], ['"a"']),
        ({"maxLength": 1}, ["12", "[]", '"a"'], ['"ab"']),
        # numbers
        ({"type": "integer", "minimum": -3, "exclusiveMaximum": 12}, ["-3", "0", "9", "11"], ["-4", "12", "-0", "011", "3.0"]),
        ({"type": "number", "minimum": -1.5, "maximum": 2.25}, ["-1.5", "-1.500", "2.25", "0.0", "2"], ["-1.51", "2.2501", "3", "-0.0", "1e0"]),
        ({"type": "number", "exclusiveMinimum": 0}, ["0.001", "1", "900"], ["0", "0.00", "-1"]),
        ({"type": "number", "exclusiveMinimum": True, "minimum": 3}, ["3.1"], ["3", "3.0"]),
        ({"type": "integer", "multipleOf": 7}, ["0", "7", "-14", "7007"], ["1", "15"]),
        ({"type": "number", "multipleOf": 0.25}, ["1", "0.5", "3.75", "2.000"], ["0.3", "0.125"]),
        ({"type": "integer", "multipleOf": 3, "minimum": 10, "maximum": 16}, ["12", "15"], ["9", "10", "18"]),
        ({"type": "number", "not": {"type": "integer"}}, ["1.5", "-0.25"], ["1", "2.0"]),
        ({"type": "integer", "minimum": 900719925474091, "maximum": 900719925474093}, ["900719925474092"], ["900719925474094"]),
        # const and enum
        ({"const": {"a": [1, "x: y, {z}"], "b": {}}}, ['{"a":[1,"x: y, {z}"],"b":{}}',
         '{ "a" : [ 1 , "x: y, {z}" ] , "b" : { } }'], ['{"a":[1]}']),
        ({"enum": ["\u00e9\n", 1.5, "ab", "a", None]}, ['"\u00e9\\n"', "1.5", '"a"', '"ab"', "null"], ['"e"', '"abc"', "nul"]),
        ({"enum": [1, "a", [2]], "type": ["string", "array"]}, ['"a"', "[2]"], ["1"]),
        ({"enum": [1, 2, 3], "minimum": 2}, ["2", "3"], ["1"]),
        ({"allOf": [{"enum": [1, 2, True]}, {"enum": [2.0, 1]}]}, ["1", "2"], ["true"]),
        ({"enum": ["\ud800"]}, ['"\\ud800"'], ['"?"']),
        # arrays
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}, ["[true]", "[ true, false ]"], ["[]", "[true,true,true]"]),
        ({"type": "array", "maxItems": 0}, ["[]", "[ ]"], ["[1]"]),
        ({"prefixItems": [{"type": "null"}, {"const": "x"}], "items": False, "type": "array"}, ["[]", "[null]", '[null,"x"]'], ['["x"]', '[null,"x",1]']),
        ({"prefixItems": [{"type": "null"}], "items": {"type": "integer"}, "type": "array", "minItems": 2, "maxItems": 3}, ["[null,1]", "[null,1,2]"],
         ["[null]", "[1,1]", "[null,1,2,3]"]),
        ({"type": "array", "prefixItems": [{}, False]}, ["[]", "[1]"], ["[1,2]"]),
        ({"type": "array", "items": [{"type": "null"}], "additionalItems": {"type": "integer"}}, ["[null,1]"], ["[1]", "[null,null]"]),
        ({"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 5}}, ["[1,7,2]", "[5]"], ["[]", "[1,2]"]),
        ({"type": "array", "contains": {"type": "null"}, "minContains": 2, "maxContains": 2, "items": {"type": ["null", "integer"]}},
         ["[null,1,null]"], ["[null]", "[null,null,null]"]),
        ({"type": "array", "contains": {"type": "null"}, "minContains": 0, "maxContains": 1}, ["[]", "[null,1]"], ["[null,null]"]),
        ({"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 2}, ['["b","a"]', '["c","a","b"]'], ['["a","a"]', '["a"]']),
        ({"type": "array", "uniqueItems": True, "maxItems": 1}, ["[]", "[1]"], ["[1,2]"]),
        ({"type": "array", "prefixItems": [{"type": "null"}], "unevaluatedItems": False}, ["[null]"], ["[null,1]"]),
        # objects
        (PERSON, ['{"name":"a","role":null}', '{"name": "a", "age": 3, "role": "user", "mail": null, "more": []}'],
         ['{"role":"user"}', '{"name":"a","role":"x"}', '{"role":"user","name":"a"}', "{}", '{"name":"a","age":-1,"role":null}']),
        ({"type": "object", "properties": {"a": {}, "b": {}}, **CLOSED}, ["{}", '{"a":1}', '{"b":[]}', '{"a":1,"b":2}'],
         ['{"b":1,"a":2}', '{"a":1,}', '{,"b":1}', '{"c":1}']),
        ({"type": "object", "properties": {"a": {"type": "null"}}}, ['{"x":1}', '{"a":null,"x":1}', '{"aa":1}', '{"":1}'], ['{"a":1}', '{"x":1,"a":1}', '{"\\u0061":1}']),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, ["{}", '{"x":1,"y":2}'], ['{"x":"1"}']),
        ({"type": "object", "required": ["b", "a"]}, ['{"b":1,"a":2,"c":3}'], ["{}", '{"b":1}']),
        ({"type": "object", "properties": {"a": False, "b": {}}, **CLOSED}, ['{"b":1}'], ['{"a":1}']),
        ({"type": "object", "patternProperties": {"^x": {"type": "integer"}, "z$": {"minimum": 3}}, **CLOSED}, ['{"x":1}', '{"xz":3}', '{"z":"a"}'],
         ['{"xz":2}', '{"y":1}', '{"xz":"a"}']),
        ({"type": "object", "properties": {"xa": {"minimum": 2}}, "patternProperties": {"^x": {"type": "integer"}}}, ['{"xa":2}', '{"y":"a"}'], ['{"xa":1}', '{"xa":2.5}', '{"xb":"a"}']),
        ({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}, ["{}", '{"abc":1}'], ['{"A":1}', '{"":1}']),
        ({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "properties": {"b": {}, "c": {}}}, ['{"b":1,"a":2}'], ['{"c":1}', '{"d":1}']),
        ({"type": "object", "minProperties": 1, "properties": {"a": {}, "b": {}}, **CLOSED}, ['{"b":1}', '{"a":1,"b":2}'], ["{}"]),
        ({"type": "object", "minProperties": 1}, ['{"b":1}'], ["{}"]),
        ({"type": "object", "maxProperties": 1, "properties": {"a": {}, "b": {}}}, ["{}", '{"b":1}', '{"c":1}'], ['{"a":1,"b":2}', '{"a":1,"c":2}']),
        ({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2, "maxProperties": 2, **CLOSED}, ['{"a":1,"c":1}'], ['{"a":1}', '{"a":1,"b":1,"c":1}']),
        ({"type": "object", "dependentRequired": {"a": ["b"]}, "properties": {"a": {}, "b": {}}, **CLOSED}, ["{}", '{"b":1}', '{"a":1,"b":1}'], ['{"a":1}']),
        ({"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}, "properties": {"a": {}, "b": {}}, **CLOSED}, ['{"b":1}', '{"a":1,"b":1}'], ['{"a":1}']),
        ({"type": "object", "dependencies": {"a": ["b"]}, "properties": {"a": {}, "b": {}}, **CLOSED}, ['{"a":1,"b":1}'], ['{"a":1}']),
        ({"type": "object", "properties": {"\u00e9\n\"": {}}, **CLOSED}, ['{"\u00e9\\n\\"":1}'], ['{"\\u00e9\\n\\"":1}']),
        # several schemas for one value
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, ["3", '"x"'], ["null"]),
        ({"anyOf": [{"const": "ab"}, {"const": "ac"}, {"enum": ["a"]}]}, ['"ab"', '"ac"', '"a"'], ['"ad"']),
        ({"oneOf": [{"type": "integer"}, {"minimum": 3}], "type": "number"}, ["2", "3.5"], ["3", "2.5"]),
        ({"oneOf": [{"type": "object", "properties": {"t": {"const": "a"}, "v": {"type": "integer"}}, "required": ["t", "v"], **CLOSED},
                    {"type": "object", "properties": {"t": {"const": "b"}}, "required": ["t"], **CLOSED}]}, ['{"t":"a","v":1}', '{"t":"b"}'], ['{"t":"a"}']),
        ({"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"$ref": "#/$defs/b"}], "type": "object",
          "$defs": {"b": {"properties": {"b": {"type": "null"}, "a": {"minimum": 5}}}}}, ['{"a":5,"b":null}'], ["{}", '{"a":4}', '{"a":5,"b":1}']),
        ({"properties": {"a": {"type": "integer"}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object", "additionalProperties": {"type": "null"}},
         ['{"a":1}', '{"b":null}', '{"a":1,"b":null}'], ["{}", '{"c":null}']),
        ({"not": {"type": ["object", "array", "string", "number"]}}, ["null", "true"], ["1", "{}"]),
        ({"type": "string", "not": {"enum": ["a", "ab"]}}, ['""', '"b"', '"abc"'], ['"a"', '"ab"', '"\\u0061"']),
        ({"type": "integer", "not": {"enum": [3, 5.0]}}, ["4", "33", "-3"], ["3", "5"]),
        ({"type": "string", "not": {"pattern": "a"}}, ['"b"'], ['"ba"']),
        ({"type": "string", "not": {"minLength": 3}}, ['"ab"'], ['"abc"']),
        ({"type": "object", "not": {"required": ["a", "b"]}}, ["{}", '{"a":1}', '{"c":1,"b":1}'], ['{"a":1,"b":1}', '{"b":1,"a":1}']),
        ({"type": "array", "not": {"items": {"type": "integer"}}}, ['[1,"a"]'], ["[]", "[1]"]),
        ({"type": "object", "not": {"additionalProperties": {"type": "integer"}}}, ['{"a":1,"b":"x"}'], ["{}", '{"a":1}', '{"b":"x","b":1}']),
        ({"type": "object", "properties": {"c": {}}, "not": {"additionalProperties": False, "properties": {"a": {}}}},
         ['{"c":1,"d":1}', '{"c":1}', '{"c":1,"a":1,"b":2}'], ["{}", '{"a":1}']),
        ({"type": "object", "properties": {"k": {"enum": ["x", "y"]}, "v": {}}, "required": ["k"], **CLOSED,
          "if": {"properties": {"k": {"const": "x"}}}, "then": {"required": ["v"]}, "else": {"properties": {"v": False}}},
         ['{"k":"x","v":1}', '{"k":"y"}'], ['{"k":"x"}', '{"k":"y","v":1}']),
        ({"type": "object", "properties": {"a": {}}, "anyOf": [{"properties": {"b": {"type": "null"}}, "required": ["b"]}, {"properties": {"c": {}}}],
          "unevaluatedProperties": False}, ["{}", '{"a":1,"b":null}', '{"a":1,"c":1}', '{"a":1,"b":null,"c":1}'], ['{"b":1}', '{"d":1}']),
        # references
        ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}, "required": ["next"]}}},
         ['{"next":{"next":null}}'], ['{"next":{}}']),
        ({"$ref": "#/definitions/a~1b%20c", "definitions": {"a/b c": {"type": "null"}}}, ["null"], ["0"]),
        ({"type": "array", "items": {"$ref": "#"}}, ["[]", "[[],[[]]]"], ["[1]"]),
        ({"$ref": "#x", "minimum": 3, "$defs": {"a": {"$anchor": "x", "type": "integer"}}}, ["3"], ["2", '"a"']),
        ({"$id": "http://a/b/", "$ref": "c#/$defs/d", "$defs": {"e": {"$id": "c", "$defs": {"d": {"$ref": "#/$defs/f"}, "f": {"type": "null"}}}}}, ["null"], ["1"]),
        ({"$ref": "#/properties/a", "properties": {"a": {"type": "null"}}}, ["null"], ["1"]),
        ({"$dynamicRef": "#n", "$defs": {"a": {"$dynamicAnchor": "n", "type": "null"}}}, ["null"], ["1"]),
    ],
)  # fmt: skip
def test_a_schema_accepts_and_rejects(
    schema: Any, accepted: list[str], rejected: list[str]
) -> None:
    judged(schema, accepted, rejected)


@pytest.mark.parametrize(
    ("name", "accepted", "rejected"),
    [
        ("date", ["2024-02-29", "2000-02-29", "1999-12-31"], ["2023-02-29", "1900-02-29", "2024-04-31", "2024-13-01", "24-01-01"]),
        ("time", ["23:59:59Z", "00:00:00.123+01:30"], ["24:00:00Z", "12:00Z", "12:00:00"]),
        ("date-time", ["2024-02-01T10:00:00.5Z", "2024-02-01t10:00:00-08:00"], ["2024-02-01", "2024-02-01 10:00:00Z"]),
        ("duration", ["P1Y2M3DT4H5M6S", "PT1S", "P3W"], ["P", "PT", "P1S", "P1Y3D"]),
        ("uuid", ["01234567-89ab-CDEF-0123-456789abcdef"], ["0123", "01234567-89ab-cdef-0123-456789abcdeg"]),
        ("email", ["a.b+c@x-y.org", "a@b"], ["a", "a@[127.0.0.1]", "@x", "a@", ".a@x", "a..b@x", "a@-x"]),
        ("hostname", ["a", "a-b.example"], ["", "-a", "a-", "a_b", "a" * 64]),
        ("ipv4", ["0.0.0.0", "255.1.20.3"], ["256.1.1.1", "1.1.1", "01.1.1.1"]),
        ("ipv6", ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "fe80::1:2", "::ffff:1.2.3.4", "1:2:3:4:5:6:7::"],
         [":::", "1:2:3:4:5:6:7", "1::2::3", "12345::", "1:2:3:4:5:6:7:8:9", "1:2:3:4:5:6:7:8::"]),
        ("uri", ["http://a.b:80/c?d#e", "urn:x:y", "mailto:a@b", "http://[::1]/"], ["a", "//x", "http://[::1", "1a:b", "http://a b"]),
        ("uri-reference", ["//x/y", "a/b#c", "", "../x"], ["a b", "http://[x]"]),
        ("json-pointer", ["", "/a~0b/~1"], ["a", "/~2"]),
    ],
)  # fmt: skip
def test_a_format_is_kept(name: str, accepted: list[str], rejected: list[str]) -> None:
    schema = {"type": "string", "format": name}
    judged(schema, [json.dumps(t) for t in accepted], [json.dumps(t) for t in rejected])


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        ({"pattern": "^[a-z]{2,3}$"}, ['"ab"', '"abc"', "3"], ['"a"', '"abcd"', '"aB"']),
        ({"pattern": "cat|dog", "type": "string"}, ['"a cat"', '"dogs"'], ['"cow"']),
        ({"pattern": '^"\\\\\n$'}, ['"\\"\\\\\\n"'], ['"""']),
        ({"pattern": "^[^a]$", "type": "string"}, ['"b"', '"\\""', '"\\u001F"', '"\\u0000"', '"\\n"', '"\U0001f600"'], ['"a"', '""', '"""', '"\\u0062"']),
        ({"pattern": "^\\u00e9\\/\\x41$"}, ['"\u00e9/A"'], ['"\\u00e9/A"']),
        ({"pattern": "^(ab)*$", "minLength": 3, "maxLength": 5}, ['"abab"'], ['"ab"', '"ababab"']),
        ({"pattern": "^[a-f]+$", "maxLength": 2}, ['"ab"'], ['""', '"abc"']),
        ({"pattern": "^.{1,3000}$", "maxLength": 2}, ['"ab"'], ['""', '"abc"']),
        ({"allOf": [{"pattern": "a"}, {"pattern": "b$"}], "type": "string"}, ['"ab"', '"cacb"'], ['"ba"', '"b"']),
        ({"pattern": "^(a|b){0,5000}$", "type": "string"}, ['""', '"' + "ab" * 2500 + '"'], ['"' + "a" * 5001 + '"']),
        ({"format": "date", "pattern": "^2", "type": "string"}, ['"2024-01-01"'], ['"1999-01-01"']),
        ({"format": "date", "maxLength": 9, "type": ["string", "null"]}, ["null"], ['"2024-01-01"']),
    ],
)  # fmt: skip
def test_a_pattern_is_held_against_legal_json(
    schema: Any, accepted: list[str], rejected: list[str]
) -> None:
    judged(schema, accepted, rejected)


def test_llama_cpps_schemas_and_documents_agree(repo_root: Path) -> None:
    lines = (repo_root / "tests/golden/schema_cases.jsonl").read_text(encoding="utf-8")
    tally = judge(lines.strip().split("\n"), "cases", strict=False)
    assert tally.failures == []
    assert tally.passed == 484


def test_what_llama_cpp_assumes_is_assumed_in_its_profile_only() -> None:
    tool = {"properties": {"b": {}, "a": {"type": "integer"}}, "required": ["a"]}
    first = '{"a": 1, "b": 2}'
    judged(tool, [first], ['{"b": 2, "a": 1}', "3", '{"a":1,"c":2}'], profile="llama.cpp")
    judged(tool, ['{"b": 2, "a": 1}', "3", '{"a":1,"c":2}'], [first])
    judged(tool, ['{"b": 2, "a": 1}'], [first, "3", '{"a":1,"c":2}'], profile="drafts")
    judged({"type": "integer"}, ["9" * 16], ["9" * 17], profile="llama.cpp")
    judged({"type": "integer"}, ["9" * 17], [])
    with pytest.raises(BadGrammar, match="no schema profile 'llama'; there are json-schema, "):
        from_schema({}, profile="llama")


def test_blanks_are_bounded_or_left_out() -> None:
    list_of = {"type": "array", "items": {"type": "integer"}}
    pretty = json.dumps([1, 2], indent=4)
    judged(list_of, ["[1,2]", "[1, 2]", pretty], ["[1,  2]", "[\n\n\n1]", " [1]", "[1] "])
    judged(list_of, ["[1,2]"], ["[1, 2]", pretty], whitespace="compact")
    judged(list_of, ["[1,2]", "[\n\n\n\t1  ]"], [" [1]"], profile="drafts")
    with pytest.raises(BadGrammar, match="whitespace is 'none'"):
        from_schema({}, whitespace="none")


def test_keys_are_forced() -> None:
    machine = automaton(PERSON, whitespace="compact")
    assert machine.forced(machine.start, 99) == b'{"name":"'


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"items": {"uniqueItems": True}}, "at #/items: uniqueItems: only items"),
        ({"properties": {"a/b": {"minlength": 3}}}, "at #/properties/a~1b: minlength: this keyword is not known"),
        ({"format": "colour"}, "at #: format: 'colour' is not known"),
        ({"pattern": "(?=a)"}, "at #: pattern: character 1 of the pattern: lookahead (?= is not supported"),
        ({"patternProperties": {"(": {}}}, "patternProperties: character 1 of the pattern: a group that is not closed"),
        ({"not": {"uniqueItems": True}}, "at #/not: uniqueItems: its contrary"),
        ({"minProperties": 3}, "others could repeat a key"),
        ({"type": "string", "maxLength": 10**9}, "at #: minLength and maxLength: more than"),
        ({"type": "array", "maxItems": 10**9}, "at #: minItems and maxItems: more than"),
        ({"multipleOf": 99991}, "at #: multipleOf: it needs more than"),
        ({"pattern": "^(ab)*$", "maxLength": 60_000}, "minLength and maxLength: beside the pattern"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_an_error_or_with_lax_a_note(schema: Any, said: str) -> None:
    with pytest.raises(BadGrammar) as caught:
        from_schema(schema, name="f.json")
    assert said in str(caught.value) and str(caught.value).startswith("f.json: at #")
    assert "SCHEMA_LAX=1" in str(caught.value)
    (note,) = from_schema(schema, lax=True).notes
    assert note.startswith("ignored in the schema: ") and " at #" in note
    assert from_schema(schema, profile="drafts").notes


def test_remarks_and_extensions_are_no_keywords() -> None:
    remarks = {"title": "t", "description": "d", "default": 1, "x-order": 3, "$comment": "c"}
    assert from_schema(PERSON | remarks).notes == []


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"enum": []}, "enum is []"),
        ({"minItems": 5, "maxItems": 3, "type": "array"}, "at #: minItems is 5 and maxItems 3: nothing fits"),
        ({"minimum": 5, "exclusiveMaximum": 5, "type": "number"}, "no number is between 5 and 5"),
        ({"properties": {"a": False}, "required": ["a"], "type": "object"}, "member 'a' cannot be there"),
        ({"type": "string", "const": 1}, "no value of const or enum fits the rest"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "at #/allOf/1: no type is left"),
        (False, "at #: nothing can satisfy this schema"),
        ({"not": {}}, "nothing can satisfy this schema"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "it needs itself without end"),
        ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "it needs itself without end"),
        ({"type": "string", "pattern": "a^b"}, "nothing can satisfy this schema"),
        ({"$ref": "#"}, "refers to itself for the same value"),
        ({"allOf": [{"$ref": "#/$defs/n"}], "$defs": {"n": {"anyOf": [{"$ref": "#/$defs/n"}, {}]}}}, "at #/$defs/n: the schema refers to itself"),
        ({"$ref": "#/$defs/x"}, "'#/$defs/x' leads nowhere"),
        ({"$ref": "#nowhere"}, "no such anchor"),
        ({"$ref": "http://x/y"}, "leads out of the document"),
        ({"type": "strin"}, "type is 'strin'; types are null"),
        ({"properties": []}, "properties is []"),
        ({"items": 1}, "at #/items: a schema is an object, this is 1"),
        ({"minLength": "2"}, "minLength is '2'"),
        ({"maximum": float("nan")}, "holds nan, which is no JSON"),
        ({"const": [float("inf")]}, "holds inf, which is no JSON"),
        ({"required": "a"}, "required is 'a'"),
        ({"const": b"x"}, "holds b'x', which is no JSON"),
        ({"multipleOf": 0}, "multipleOf is 0"),
        ({"uniqueItems": 1}, "uniqueItems is 1, not true or false"),
        ({"type": "string", "pattern": "^[]$"}, "nothing can satisfy this schema"),
        ({"const": 10**5000}, "a number of over 10000 bits"),
        ({"$id": "http://a/", "$ref": "http://["}, "$ref 'http://['"),
        (3, "a schema is an object, this is 3"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_used_names_its_place(schema: Any, said: str) -> None:
    with pytest.raises(BadGrammar) as caught:
        from_schema(schema, name="f.json")
    assert str(caught.value).startswith("f.json: ") and said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"), [("{", "no JSON"), ("[" * 100_000, "nested too deeply"), ('{"const": NaN}', "NaN is no JSON")]
)  # fmt: skip
def test_a_text_that_is_no_json_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadGrammar, match=said):
        from_schema(text)


def nested(depth: int, around: str, within: Any) -> Any:
    for _ in range(depth):
        within = {around: [within] if around == "allOf" else within}
    return within


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (nested(30_000, "items", {}), "more than 20000 rules"),
        (nested(30_000, "allOf", {}), "more than 400 schemas for one value"),
        (nested(30_000, "not", {}), "more than 400 schemas for one value"),
        ({"allOf": [{"anyOf": [{"minimum": i}, {"maximum": -i}]} for i in range(40)]}, "too many: there are more than 2000 ways"),
        ({"enum": list(range(400_001))}, "more than 400000 values"),
        ({"title": "x" * 5_000_000}, "at most 4194304 are read"),
        ({"const": nested(60, "a", 1)}, "const is nested more than 50 deep"),
        ({"properties": {f"k{i}": {} for i in range(20_000)}}, "too large"),
        ({"patternProperties": {f"a{i}": {"minimum": i} for i in range(14)}}, "too large"),
        ({"type": "string", "pattern": "^a{1000000}$"}, "repeats something 1000000 times"),
        ({"enum": ["a"], "pattern": "(a|b)*a(a|b){20}"}, "too large"),
        ({"propertyNames": {"pattern": "(a|b)*a(a|b){20}"}}, "too large"),
    ],
)  # fmt: skip
def test_a_hostile_schema_ends_in_one_line(schema: Any, said: str) -> None:
    text = json.dumps(schema) if "title" in schema else schema
    with pytest.raises(BadGrammar, match=said):
        from_schema(text)


def test_deep_and_wide_schemas_are_read() -> None:
    assert automaton(nested(3000, "items", {"type": "null"}) | {"type": "array"}).start.allowed
    assert complete(automaton({"enum": [f"k{i}" for i in range(20_000)]}), '"k19999"')
    assert complete(automaton({"oneOf": [{"const": i} for i in range(1000)]}), "999")
    assert complete(automaton(nested(300, "allOf", {"type": "null"})), "null")
    wide = {"type": "object", "properties": {f"k{i}": {"type": "null"} for i in range(2000)}}
    assert complete(automaton(wide), '{"k0":null, "k1999":null, "k2000":1}')
    assert not complete(automaton(wide), '{"k0":null, "k1999":1}')


def test_nesting_and_optional_members_cost_linear_size() -> None:
    def rules(schema: Any) -> int:
        return len(from_schema(schema).rules)

    deep = [rules(nested(n, "items", {"type": "string"})) for n in (100, 200, 300)]
    assert deep[1] - deep[0] == deep[2] - deep[1]
    wide = [
        rules({"type": "object", "properties": {f"k{i}": {"type": "null"} for i in range(n)}, **CLOSED})
        for n in (100, 200, 300)
    ]  # fmt: skip
    assert wide[2] - wide[1] < 1.2 * (wide[1] - wide[0])
