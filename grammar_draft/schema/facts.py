"""What a schema says of one value, free of ``anyOf``, ``$ref`` and the like.

A node is a conjunction of schemas that a value must satisfy, or must not: pairs (number of a place,
whether it holds), sorted. `Facts` is what is left of a node when one way has been chosen at every
branch: per type of JSON the bounds that apply to a value of this type.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

from diskmoe.grammar_draft.regex.pattern import from_pattern
from diskmoe.grammar_draft.schema.document import Place

Node = tuple[tuple[int, bool], ...]
ANY: Node = ()
NEVER: Node = ((-1, True),)

TYPES = ("null", "boolean", "number", "string", "array", "object")
BIT = {kind: 1 << i for i, kind in enumerate(TYPES)}
ALL = (1 << len(TYPES)) - 1
Range = tuple[int, int | None]  # both ends included


def both(nodes: Iterable[Node]) -> Node:
    """The conjunction of nodes."""
    parts = {part for node in nodes for part in node}
    if (-1, True) in parts or any((number, not holds) in parts for number, holds in parts):
        return NEVER
    return tuple(sorted(parts))


class Keys(NamedTuple):
    """properties, patternProperties and additionalProperties of one schema: every key has a node."""

    names: dict[str, Node]
    patterns: tuple[tuple[str, Node], ...] = ()
    rest: Node = ANY
    given: bool = False  # whether the schema says what the rest is
    closes: bool = False  # whether naming some is taken to exclude others, where nothing is given

    def node(self, key: str) -> Node:
        nodes = [self.names[key]] if key in self.names else []
        nodes += [node for pattern, node in self.patterns if from_pattern(pattern).matches(key)]
        return both(nodes) if nodes else self.rest


class Items(NamedTuple):
    """prefixItems and items of one schema."""

    prefix: tuple[Node, ...]
    rest: Node = ANY
    given: bool = False

    def node(self, index: int) -> Node:
        return self.prefix[index] if index < len(self.prefix) else self.rest


class Contains(NamedTuple):
    node: Node
    low: int
    high: int | None


class Member(NamedTuple):
    """There is a member with this value among the keys that match `wanted`, or, where that is None,
    that are none of `names` and match none of `patterns`."""

    names: frozenset[str]
    patterns: tuple[str, ...]
    wanted: str | None
    node: Node

    def speaks_of(self, key: str) -> bool:
        if self.wanted is not None:
            return from_pattern(self.wanted).matches(key)
        return key not in self.names and not any(
            from_pattern(pattern).matches(key) for pattern in self.patterns
        )


class Fact(NamedTuple):
    """One thing that a schema says. annotates: it also evaluates what it speaks of."""

    kind: str
    value: Any
    place: Place
    annotates: bool = False


Text = tuple[str, bool]  # a pattern or format, and whether it holds


@dataclass
class Facts:
    """All that is said of a value, by type."""

    types: int = ALL
    whole: bool | None = None  # a number has no fraction, or must have one
    values: list[Any] | None = None  # one of these
    excluded: list[Any] = field(default_factory=list)
    low: tuple[Decimal, bool] | None = None  # a bound, and whether it is excluded itself
    high: tuple[Decimal, bool] | None = None
    multiples: list[tuple[Decimal, bool]] = field(default_factory=list)
    length: Range = (0, None)
    patterns: list[Text] = field(default_factory=list)
    formats: list[Text] = field(default_factory=list)
    items: list[Items] = field(default_factory=list)
    size: Range = (0, None)
    contains: list[Contains] = field(default_factory=list)
    unique: bool = False
    keys: list[Keys] = field(default_factory=list)
    required: dict[str, None] = field(default_factory=dict)
    members: Range = (0, None)
    names: list[Node] = field(default_factory=list)
    some: list[Member] = field(default_factory=list)
    places: dict[str, Place] = field(default_factory=dict)  # where each kind was said last

    @cached_property
    def forbidden(self) -> set[Any]:
        """The excluded values, `canonical`; asked for when all facts are known."""
        return {canonical(value) for value in self.excluded}

    @cached_property
    def allowed(self) -> set[Any]:
        """The values of const and enum, `canonical`; asked for when all facts are known."""
        return {canonical(value) for value in self.values or ()}

    def item(self, index: int) -> Node:
        return both(items.node(index) for items in self.items)

    def rest_of(self, kind: str) -> bool:
        """Whether anything but the type is said of values of a type."""
        return bool(
            {
                "number": self.whole is not None or self.low or self.high or self.multiples,
                "string": self.length != (0, None) or self.patterns or self.formats,
                "array": self.items or self.size != (0, None) or self.contains or self.unique,
                "object": self.keys or self.required or self.members != (0, None)
                or self.names or self.some,
            }.get(kind, False)
        )  # fmt: skip


def gather(found: Iterable[Fact]) -> Facts:
    """Facts put together."""
    facts = Facts()
    for kind, value, place, _ in found:
        facts.places[kind] = place
        if kind == "types":
            mask, whole = value
            facts.types &= mask
            if whole is not None:
                if facts.whole not in (None, whole):
                    facts.types &= ~BIT["number"]
                facts.whole = whole
        elif kind == "values":
            if facts.values is None:
                facts.values = value
            else:
                known = {canonical(v) for v in value}
                facts.values = [v for v in facts.values if canonical(v) in known]
        elif kind == "low":
            facts.low = value if facts.low is None else max(facts.low, value)
        elif kind == "high":
            old = facts.high
            facts.high = value if old is None else min(old, value, key=lambda b: (b[0], not b[1]))
        elif kind in ("length", "size", "members"):
            setattr(facts, kind, _narrowed(getattr(facts, kind), value))
        elif kind == "excluded":
            facts.excluded += value
        elif kind == "required":
            facts.required[value] = None
        elif kind == "unique":
            facts.unique = True
        else:
            known_list = getattr(facts, kind)
            if value not in known_list:
                known_list.append(value)
    return facts


def _narrowed(one: Range, other: Range) -> Range:
    highs = [high for high in (one[1], other[1]) if high is not None]
    return max(one[0], other[0]), min(highs) if highs else None


def canonical(value: Any) -> Any:
    """Something hashable that is equal for values that are equal as JSON: 1 and 1.0, not 1 and true.
    Values nest no deeper than `expand` lets them."""
    if isinstance(value, bool) or value is None:
        return ("literal", value)
    if isinstance(value, int | float):
        return ("number", Fraction(exact(value)))
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ("list", *map(canonical, value))
    return ("object", frozenset((key, canonical(inner)) for key, inner in value.items()))


def exact(value: float) -> Decimal:
    """A JSON number as it was written, to the digit that a float keeps."""
    return Decimal(repr(value))
