"""JSON Schemas of all keywords by chance, documents that may fit them, and walks through a grammar."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from diskmoe.grammar_draft.automaton import Automaton

KEYS = ("a", "b", "ab", "c")
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
SCALARS = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    1.5,
    -0.5,
    10,
    12,
    "",
    "a",
    "b",
    "ab",
    "abc",
    "\t",
    'q"',
    "\u00e9",
    "3",
)
PATTERNS = ("^a", "b$", "^[ab]*$", "^(a|bc)+$", "c", "^.{1,2}$", "^[0-9]+$", "^[^a]", "^$", "a|^b")  # fmt: skip


def document(random: Random, depth: int = 2) -> Any:
    kind = random.random()
    if depth and kind < 0.25:
        return [document(random, depth - 1) for _ in range(random.randint(0, 3))]
    if depth and kind < 0.6:
        names = random.sample(KEYS, random.randint(0, 3))
        return {name: document(random, depth - 1) for name in names}
    return random.choice(SCALARS)


def wild_schema(random: Random) -> Any:
    """A schema, one of three with definitions that refer to each other and to it."""
    if random.random() < 0.7:
        return _schema(random, 3, ())
    references = ("#/$defs/x", "#/$defs/y", "#")
    found = _schema(random, 3, references)
    return {**found, "$defs": {name: _schema(random, 2, references) for name in ("x", "y")}}


def _schema(random: Random, depth: int, references: tuple[str, ...]) -> dict[str, Any]:
    if not depth:
        simple = [{"type": "integer"}, {"type": "string"}, {"const": random.choice(SCALARS)}, {}]
        return random.choice(simple)
    schema: dict[str, Any] = {}

    def below() -> Any:
        return _schema(random, depth - 1, references)

    for _ in range(random.choice((1, 1, 2, 2, 3, 4))):
        schema.update(random.choice(_KEYWORDS)(random, below))
    if references and random.random() < 0.2:
        schema["$ref"] = random.choice(references)
    return schema


Below = Callable[[], Any]


def _of_type(random: Random, below: Below) -> dict[str, Any]:
    return {"type": random.choice(TYPES) if random.random() < 0.7 else random.sample(TYPES, 2)}


def _listed(random: Random, below: Below) -> dict[str, Any]:
    if random.random() < 0.5:
        return {"const": document(random, 1)}
    return {"enum": [document(random, 1) for _ in range(random.randint(1, 4))]}


def _number(random: Random, below: Below) -> dict[str, Any]:
    low, high = random.choice((-12, 0, 0.5, 3, -2.25, 100)), random.choice((0, 1, 2.5, 12, 1000))
    return random.choice(
        (
            {random.choice(("minimum", "exclusiveMinimum")): low},
            {"minimum": low, random.choice(("maximum", "exclusiveMaximum")): high},
            {"multipleOf": random.choice((1, 2, 3, 0.5, 5))},
        )
    )


def _string(random: Random, below: Below) -> dict[str, Any]:
    return random.choice(
        (
            {"pattern": random.choice(PATTERNS)},
            {"minLength": random.randint(0, 2)},
            {"minLength": random.randint(0, 2), "maxLength": random.randint(0, 4)},
        )
    )


def _array(random: Random, below: Below) -> dict[str, Any]:
    return random.choice(
        (
            lambda: {"items": below()},
            lambda: {"prefixItems": [below() for _ in range(random.randint(1, 2))]},
            lambda: {"minItems": random.randint(0, 2), "maxItems": random.randint(1, 3)},
            lambda: {"contains": below()},
            lambda: {"contains": below(), "minContains": random.randint(0, 2), "maxContains": 2},
            lambda: {"uniqueItems": True},
            lambda: {"unevaluatedItems": random.choice((False, below()))},
        )
    )()


def _object(random: Random, below: Below) -> dict[str, Any]:
    return random.choice(
        (
            lambda: {"properties": {k: below() for k in random.sample(KEYS, random.randint(1, 3))}},
            lambda: {"properties": {k: below() for k in random.sample(KEYS, 2)}},
            lambda: {"required": random.sample(KEYS, random.randint(1, 2))},
            lambda: {"additionalProperties": random.choice((False, below()))},
            lambda: {"patternProperties": {random.choice(PATTERNS): below()}},
            lambda: {"propertyNames": random.choice(({"maxLength": 1}, {"enum": ["a", "b"]}))},
            lambda: {random.choice(("minProperties", "maxProperties")): random.randint(0, 3)},
            lambda: {"dependentRequired": {random.choice(KEYS): [random.choice(KEYS)]}},
            lambda: {"dependentSchemas": {random.choice(KEYS): below()}},
            lambda: {"unevaluatedProperties": random.choice((False, below()))},
        )
    )()


def _several(random: Random, below: Below) -> dict[str, Any]:
    key = random.choice(("anyOf", "oneOf", "allOf", "not", "if"))
    if key == "not":
        return {"not": below()}
    if key == "if":
        return {"if": below(), random.choice(("then", "else")): below()}
    return {key: [below() for _ in range(random.randint(1, 3))]}


_KEYWORDS = (_of_type, _of_type, _listed, _number, _string, _array, _object, _object, _several)


def written(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def orders(value: Any) -> Iterator[Any]:
    """A document with its members in all orders."""
    if isinstance(value, dict):
        for names in itertools.permutations(value):
            for inner in itertools.product(*[list(orders(value[name])) for name in names]):
                yield dict(zip(names, inner, strict=True))
    elif isinstance(value, list):
        yield from map(list, itertools.product(*[list(orders(inner)) for inner in value]))
    else:
        yield value


def walk(random: Random, automaton: Automaton, most: int = 120) -> bytes | None:
    """A text that a grammar allows, or None when it becomes too long."""
    state, text = automaton.start, bytearray()
    while not state.may_end or (state.allowed and random.random() < 0.7):
        if len(text) > most:
            return None
        choices = [byte for byte in range(256) if state.allowed >> byte & 1]
        assert choices, "a state from which no text ends"
        weights = [8 if b in b'"}],:' else 1 if b < 128 else 0.05 for b in choices]
        text.append(random.choices(choices, weights)[0])
        after = automaton.advance(state, text[-1])
        assert after is not None
        state = after
    return bytes(text)
