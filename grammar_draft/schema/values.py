"""Whether a value that a schema lists fits what else is said of it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Protocol

from diskmoe.grammar_draft.regex.pattern import from_pattern
from diskmoe.grammar_draft.schema.facts import (
    ANY,
    BIT,
    NEVER,
    Facts,
    Node,
    Range,
    both,
    canonical,
    exact,
)
from diskmoe.grammar_draft.schema.formats import pattern_of


class Ways(Protocol):
    """Who knows the ways to satisfy a node."""

    def read(self, node: Node) -> list[Facts]: ...


def fits(known: Ways, node: Node, value: Any) -> bool:
    """Whether a value satisfies a node. As deep as the value is."""
    if node == ANY or node == NEVER:
        return node == ANY
    return any(holds(known, facts, value) for facts in known.read(node))


def holds(known: Ways, facts: Facts, value: Any) -> bool:
    """Whether facts are true of a value."""
    kind = type_of(value)
    if not facts.types & BIT[kind]:
        return False
    same = canonical(value)
    if same in facts.forbidden or (facts.values is not None and same not in facts.allowed):
        return False
    if kind == "number":
        return number_fits(facts, exact(value))
    if kind == "string":
        return _within(facts.length, len(value)) and all(
            from_pattern(pattern).matches(value) == wanted
            for pattern, wanted in [
                *facts.patterns,
                *((pattern_of(name), wanted) for name, wanted in facts.formats),
            ]
        )
    if kind == "array":
        return _array_fits(known, facts, value)
    if kind == "object":
        return _object_fits(known, facts, value)
    return True


def type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return {str: "string", list: "array", dict: "object"}[type(value)]


def number_fits(facts: Facts, value: Decimal) -> bool:
    whole = value == value.to_integral_value()
    if facts.whole is not None and facts.whole != whole:
        return False
    if facts.low and (value < facts.low[0] or (facts.low[1] and value == facts.low[0])):
        return False
    if facts.high and (value > facts.high[0] or (facts.high[1] and value == facts.high[0])):
        return False
    return all(is_multiple(value, step) == wanted for step, wanted in facts.multiples)


def is_multiple(value: Decimal, step: Decimal) -> bool:
    top, bottom = value.as_integer_ratio()
    high, low = step.as_integer_ratio()
    return top * low % (bottom * high) == 0


def _within(bounds: Range, count: int) -> bool:
    return bounds[0] <= count and (bounds[1] is None or count <= bounds[1])


def _array_fits(known: Ways, facts: Facts, value: list[Any]) -> bool:
    if not _within(facts.size, len(value)):
        return False
    if facts.unique and len({canonical(item) for item in value}) < len(value):
        return False
    if not all(fits(known, facts.item(i), item) for i, item in enumerate(value)):
        return False
    return all(
        _within((wanted.low, wanted.high), sum(fits(known, wanted.node, v) for v in value))
        for wanted in facts.contains
    )


def _object_fits(known: Ways, facts: Facts, value: dict[str, Any]) -> bool:
    if not _within(facts.members, len(value)) or any(name not in value for name in facts.required):
        return False
    for name, inner in value.items():
        node = both(keys.node(name) for keys in facts.keys)
        if not fits(known, node, inner):
            return False
        if not all(fits(known, names, name) for names in facts.names):
            return False
    return all(
        any(some.speaks_of(name) and fits(known, some.node, inner) for name, inner in value.items())
        for some in facts.some
    )
