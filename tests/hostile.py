"""Schemas, patterns and grammars that are hostile in size, depth, recursion or numbers, by name.

Each is either refused with one line, or made into a constraint that works; see `test_hostile`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def nested(schema: Any, depth: int, wrap: Callable[[Any], Any]) -> Any:
    for _ in range(depth):
        schema = wrap(schema)
    return schema


def schemas() -> dict[str, Any]:
    """Schemas, or their text where Python could not nest so deep."""
    many = {f"key{i}": {"type": "integer"} for i in range(3000)}
    deep = 10_000
    return {
        "nested 10,000 deep": '{"items":' * deep + "{}" + "}" * deep,
        "arrays of arrays, 200 deep": nested(
            {"type": "string"}, 200, lambda inner: {"type": "array", "items": inner}
        ),
        "objects in objects, 100 deep": nested(
            {"type": "string"},
            100,
            lambda inner: {"type": "object", "properties": {"a": inner}, "required": ["a"]},
        ),
        "brackets without end": "[" * 100_000,
        "a number of 5,000 digits": '{"minimum": ' + "9" * 5000 + "}",
        "bounds of 400 digits": {"type": "integer", "minimum": 10**399, "maximum": 10**400},
        "bounds far apart": {"type": "integer", "minimum": -(10**300), "maximum": 10**300},
        "a bound of 1e308": {"type": "number", "maximum": 1e308, "exclusiveMinimum": -1e308},
        "an endless number": '{"maximum": 1e999}',
        "multiples of next to nothing": {"type": "number", "multipleOf": 1e-300},
        "multiples of a large prime": {"type": "integer", "multipleOf": 1_000_003},
        "multiples of many": {
            "type": "integer",
            "allOf": [{"multipleOf": n} for n in (7, 11, 13, 17, 19, 23)],
        },
        "minItems of a billion": {"type": "array", "minItems": 10**9},
        "maxItems of a billion": {"type": "array", "maxItems": 10**9},
        "maxLength of a billion": {"type": "string", "maxLength": 10**9},
        "minLength of 10^30": {"type": "string", "minLength": 10**30},
        "lengths that count in one another": nested(
            {"type": "string", "maxLength": 4000},
            5,
            lambda inner: {"type": "array", "items": inner, "maxItems": 4000},
        ),
        "lengths that differ side by side": {
            "anyOf": [{"type": "string", "maxLength": 1000 + i} for i in range(12)]
        },
        "arrays of different lengths side by side": {
            "anyOf": [
                {
                    "type": "array",
                    "items": {"type": "string", "maxLength": 9 + i},
                    "maxItems": 900 + i,
                }
                for i in range(8)
            ]
        },
        "a choice of 100,000": {"enum": [f"value {i}" for i in range(100_000)]},
        "a choice of 20,000 objects": {"enum": [{"id": i, "n": str(i)} for i in range(20_000)]},
        "a constant of a megabyte": {"const": "x" * 1_000_000},
        "3,000 properties": {"type": "object", "properties": many},
        "3,000 properties that must be": {
            "type": "object",
            "properties": many,
            "required": list(many),
            "additionalProperties": False,
        },
        "400 optional properties and others": {
            "type": "object",
            "properties": dict(list(many.items())[:400]),
            "additionalProperties": {"type": "string"},
        },
        "at least 200 of 400 properties": {
            "type": "object",
            "properties": dict(list(many.items())[:400]),
            "minProperties": 200,
            "additionalProperties": False,
        },
        "allOf of 500": {"allOf": [{"minLength": i} for i in range(500)], "type": "string"},
        "allOf of 40 patterns": {
            "type": "string",
            "allOf": [{"pattern": f"{chr(97 + i % 26)}.*{i}"} for i in range(40)],
        },
        "allOf of 20 anyOf": {
            "allOf": [
                {"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(20)
            ],
            "type": "object",
        },
        "anyOf of 2,000": {"anyOf": [{"const": {"k": i}} for i in range(2000)]},
        "oneOf of 100 objects": {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {f"p{i}": {"type": "integer"}},
                    "required": [f"p{i}"],
                }
                for i in range(100)
            ]
        },
        "not in not, 500 deep": nested({"type": "string"}, 500, lambda inner: {"not": inner}),
        "if in then in else, 30 deep": nested(
            {"type": "string"},
            30,
            lambda inner: {"if": {"minLength": 1}, "then": inner, "else": inner},
        ),
        "a reference to itself": {"$ref": "#"},
        "references in a circle": {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        },
        "a chain of 5,000 references": {
            "$ref": "#/$defs/d0",
            "$defs": {
                **{f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(5000)},
                "d5000": {"type": "null"},
            },
        },
        "references that double": {
            "$ref": "#/$defs/d0",
            "$defs": {
                **{
                    f"d{i}": {
                        "type": "array",
                        "prefixItems": [{"$ref": f"#/$defs/d{i + 1}"}] * 2,
                        "items": False,
                    }
                    for i in range(60)
                },
                "d60": {"type": "null"},
            },
        },
        "allOf of itself": {
            "$ref": "#/$defs/f",
            "$defs": {
                "f": {
                    "type": "object",
                    "properties": {"c": {"allOf": [{"$ref": "#/$defs/f"}, {"minProperties": 1}]}},
                }
            },
        },
        "a tree of everything": {
            "$ref": "#/$defs/n",
            "$defs": {
                "n": {
                    "anyOf": [
                        {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 50},
                        {"type": "object", "additionalProperties": {"$ref": "#/$defs/n"}},
                        {"type": "string", "maxLength": 300},
                        {"type": "number"},
                    ]
                }
            },
        },
        "patterns for names that overlap": {
            "type": "object",
            "patternProperties": {f"^.*{chr(97 + i)}.*$": {"minimum": i} for i in range(14)},
        },
        "names of a pattern and a length": {
            "type": "object",
            "propertyNames": {"pattern": "^(ab|ba)*[a-z]{3,900}$", "maxLength": 1000},
        },
        "unique items": {"type": "array", "uniqueItems": True, "items": {"enum": list(range(30))}},
        "contains much": {
            "type": "array",
            "contains": {"const": 1},
            "minContains": 500,
            "maxContains": 900,
            "maxItems": 2000,
        },
        "a prefix of 5,000 items": {
            "type": "array",
            "prefixItems": [{"type": "integer"}] * 5000,
            "items": False,
        },
        "dependents of dependents": {
            "type": "object",
            "properties": {f"k{i}": {} for i in range(24)},
            "dependentRequired": {f"k{i}": [f"k{i + 1}"] for i in range(23)},
        },
        **{f"pattern: {name}": {"type": "string", "pattern": p} for name, p in patterns().items()},
        "a pattern beside a length": {
            "type": "string",
            "pattern": "^[a-z]+(-[a-z0-9]+)*$",
            "maxLength": 2000,
        },
        "a format beside a length": {"type": "string", "format": "uri", "maxLength": 2000},
    }


def patterns() -> dict[str, str]:
    """Regular expressions."""
    return {
        "counts in counts": "^(a{1,1000}){1,1000}$",
        "counts in counts in counts": "^((a{1,99}b){1,99}c){1,99}$",
        "stars in stars": "^((a*)*)*$",
        "choices that begin alike": "^(" + "|".join("a" * i + "b" for i in range(1, 400)) + ")$",
        "50,000 choices": "^(" + "|".join(f"w{i}" for i in range(50_000)) + ")$",
        "a million characters": "^" + "ab" * 500_000 + "$",
        "a class of 20,000 ranges": "^["
        + "".join(chr(0x4E00 + 2 * i) for i in range(10_000))
        + "]+$",
        "the nth from the end": "^(a|b)*a(a|b){25}$",
        "500 from the end": "^.*a.{500}$",
        "ten thousand brackets": "(" * 10_000 + "a" + ")" * 10_000,
        "brackets that are not closed": "(" * 5000,
        "a look ahead": "^(?=a)b$",
        "a look behind": "(?<!a)b",
        "what was matched before": r"^(a+)\1$",
        "classes of Unicode": r"^\p{L}{1,500}\P{Lu}*$",
        "not a class": r"^\p{Nonsense}$",
        "a count of a million": "^a{1000000}$",
        "a count of 10^40": "^a{" + "9" * 40 + "}$",
        "a count that is upside down": "^a{5,3}$",
        "anything around a count": "^.{0,500}x.{0,500}$",
        "anything around words": ".*".join(f"w{i}" for i in range(60)),
        "a byte that is none": "\ud800",
    }


def grammars() -> dict[str, str]:
    """GBNF."""
    return {
        "nothing": "",
        "a hole": "root ::= root2",
        "brackets 60,000 deep": "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000,
        "brackets that are not closed": "root ::= " + "(" * 60_000,
        "a chain of 50,000 rules": "root ::= r0\n"
        + "".join(f"r{i} ::= r{i + 1}\n" for i in range(50_000))
        + 'r50000 ::= "x"',
        "rules that double": "root ::= r0\n"
        + "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(60))
        + 'r60 ::= "x"',
        "everything ambiguous": 'root ::= root root | "a" | "ab" | "b" | ""',
        "sums without order": 'root ::= root "+" root | root "*" root | [0-9]+',
        "palindromes": 'root ::= "a" root "a" | "b" root "b" | [ab]*',
        "64 that may be": 'root ::= ("a"? ' + '"a"? ' * 63 + ")*",
        "counts in counts": "root ::= (([a-z]{0,99} [0-9]){0,99} [.]){0,99}",
        "counts in counts of the same": "root ::= ((([^x]*){0,99}){0,99}){0,99}",
        "a count upside down": 'root ::= "a"{5,3}',
        "a count of 10^30": 'root ::= "a"{1000000000000000000000000000000}',
        "a count of a million": 'root ::= "a"{0,1000000}',
        "counts that differ at one place": 'root ::= "x"{0,4708} | ("x" | "xy"){0,4708} "z"?',
        "the same count, many places": "root ::= "
        + " | ".join(f'[a-z]{{3,{500 + i}}} "{i}"' for i in range(40)),
        "a literal of a megabyte": 'root ::= "' + "ab" * 500_000 + '"',
        "a class of 20,000 ranges": "root ::= ["
        + "".join(chr(0x4E00 + 2 * i) for i in range(20_000))
        + "]+",
        "nothing, often": 'root ::= ((""*)*)* (("")?)* "b"',
        "no way out": 'root ::= "a" root',
        "nothing matches": "root ::= [z-a]",
        "left recursion of 300 rules": "root ::= r0\n"
        + "".join(f'r{i} ::= r{(i + 1) % 300} "{i}" | "x"\n' for i in range(300)),
        "20,000 choices in order": "root ::= " + " | ".join(f'"word{i}"' for i in range(20_000)),
        "choices of two in a row, 18 times": "root ::= " + '("ab" | "a" "b"? | "abb"*) ' * 18,
        "the nth from the end": "root ::= [ab]* [a] " + "[ab] " * 18,
        "names without end": "root ::= " + "r" * 1_000_000,
    }


def text_of(schema: Any) -> str:
    """A schema as a file has it."""
    return schema if isinstance(schema, str) else json.dumps(schema)
