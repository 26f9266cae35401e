"""JSON Schemas by chance, and what fits them: by a reading of its own, with nothing of ours in it.

>>> schema = random_schema(Random(1))
>>> fits(schema, json.loads(text))
"""

import json
from random import Random
from typing import Any

WORDS = ("id", "name", "tags", "größe", "a b", 'say "hi"', "x")
VALUES = (None, True, False, 0, -7, 12, "", "red", "rot", "grün", "a\nb", [], [1], {}, {"k": 2})


def random_schema(random: Random, depth: int = 2) -> dict[str, Any]:
    """A schema of finite documents, `depth` objects or arrays deep at most."""
    kinds = [_values, _values, _scalar, _scalar, _string]
    if depth:
        kinds += [_object, _object, _object, _array, _union]
    return random.choice(kinds)(random, depth)


def _values(random: Random, depth: int) -> dict[str, Any]:
    if random.random() < 0.3:
        return {"const": random.choice(VALUES)}
    return {"enum": random.sample(VALUES, random.randrange(1, 5))}


def _scalar(random: Random, depth: int) -> dict[str, Any]:
    return {"type": random.choice(["integer", "number", "boolean", "null"])}


def _string(random: Random, depth: int) -> dict[str, Any]:
    low = random.randrange(3)
    return {"type": "string", "minLength": low, "maxLength": low + random.randrange(8)}


def _object(random: Random, depth: int) -> dict[str, Any]:
    names = random.sample(WORDS, random.randrange(4))
    return {
        "type": "object",
        "properties": {name: random_schema(random, depth - 1) for name in names},
        "required": [name for name in names if random.random() < 0.6],
        "additionalProperties": False,
    }


def _array(random: Random, depth: int) -> dict[str, Any]:
    low = random.randrange(3)
    items = random_schema(random, depth - 1)
    return {"type": "array", "items": items, "minItems": low, "maxItems": low + random.randrange(3)}


def _union(random: Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [random_schema(random, depth - 1) for _ in range(2)]}


def fits(schema: dict[str, Any], value: Any) -> bool:
    """Whether a value is one of a schema that was made here."""
    if "anyOf" in schema:
        return any(fits(each, value) for each in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        # as text: True is not 1
        known = schema.get("enum", [schema.get("const")])
        return json.dumps(value) in [json.dumps(each) for each in known]
    match schema["type"]:
        case "string":
            length = len(value) if isinstance(value, str) else -1
            return schema["minLength"] <= length <= schema["maxLength"]
        case "array":
            if not isinstance(value, list):
                return False
            sized = schema["minItems"] <= len(value) <= schema["maxItems"]
            return sized and all(fits(schema["items"], each) for each in value)
        case "object":
            known = schema["properties"]
            return (
                isinstance(value, dict)
                and value.keys() <= known.keys()
                and set(schema["required"]) <= value.keys()
                and all(fits(known[name], each) for name, each in value.items())
            )
        case "integer":
            return isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
    return value is None
