"""What each keyword of a schema says of a value: its values checked, its meaning as entries.

An entry is a `Fact`, an `Also` (another schema for the same value), an `Either` (ways to choose from)
or an `Exactly`.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

from diskmoe.grammar_draft.regex.dfa import TooLarge
from diskmoe.grammar_draft.regex.pattern import from_pattern
from diskmoe.grammar_draft.regex.syntax import BadPattern, parse
from diskmoe.grammar_draft.schema.document import Document, Place, shown
from diskmoe.grammar_draft.schema.facts import (
    ANY,
    BIT,
    NEVER,
    Contains,
    Fact,
    Items,
    Keys,
    Node,
    exact,
)
from diskmoe.grammar_draft.schema.formats import FORMATS
from diskmoe.grammar_draft.schema.profiles import Profile

MAX_NESTED = 50  # levels of a constant
NAMES = (*BIT, "integer")
REMARKS = {
    *("$schema", "$id", "id", "$comment", "$anchor", "$dynamicAnchor", "$vocabulary", "$defs"),
    *("definitions", "title", "description", "default", "examples", "example", "deprecated"),
    *("readOnly", "writeOnly", "discriminator", "strict", "contentMediaType", "contentEncoding"),
    *("contentSchema", "externalDocs", "xml"),
}
KEYWORDS = {
    *("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "nullable"),
    *("type", "const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("multipleOf", "minLength", "maxLength", "pattern", "format", "items", "prefixItems"),
    *("additionalItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains"),
    *("maxContains", "unevaluatedItems", "properties", "patternProperties", "required"),
    *("additionalProperties", "propertyNames", "minProperties", "maxProperties"),
    *("dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties"),
}
_OF_TYPE = {
    "object": ("properties", "required", "additionalProperties", "patternProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "format", "pattern"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}


class Also(NamedTuple):
    place: Place
    holds: bool


class Either(NamedTuple):
    ways: list[list[Any]]
    overlap: bool = False  # several may hold at once, and what they evaluate adds up


class Exactly(NamedTuple):
    """One of some schemas holds and the others do not."""

    places: list[Place]


Entry: TypeAlias = "Fact | Also | Either | Exactly"


class Inexpressible(Exception):
    """Something that rules cannot say."""

    def __init__(self, place: Place, keyword: str, why: str):
        super().__init__(why)
        self.place, self.keyword, self.why = place, keyword, why


class Keywords:
    """Reads the schemas of one document."""

    def __init__(self, document: Document, profile: Profile):
        self.document = document
        self.profile = profile
        self.error = document.error
        self.places: dict[int, Place] = {}

    # nodes

    def node(self, place: Place, holds: bool = True) -> Node:
        """The node of one schema; a mere reference is what it refers to."""
        for _ in range(100):
            value = place.value
            if value is True or value == {}:
                return ANY if holds else NEVER
            if value is False:
                return NEVER if holds else ANY
            if not isinstance(value, dict):
                raise self.error(place, f"a schema is an object, this is {shown(value)}")
            if "$ref" not in value or any(key not in REMARKS and key != "$ref" for key in value):
                break
            place = self.document.target(value["$ref"], place)
        self.places[place.number] = place
        return ((place.number, holds),)

    def below(self, place: Place, *steps: str | int, holds: bool = True) -> Node:
        return self.node(self.document.at(place, *steps), holds)

    def many(self, place: Place, key: str) -> list[Place]:
        """The schemas of a list."""
        value = place.value[key]
        if not isinstance(value, list) or not value:
            raise self.error(place, f"{key} is {shown(value)}, not a list of schemas")
        return [self.document.at(place, key, i) for i in range(len(value))]

    def named(self, place: Place, key: str) -> dict[str, Place]:
        """The schemas of an object."""
        value = place.value.get(key, {})
        if not isinstance(value, dict):
            raise self.error(place, f"{key} is {shown(value)}, not an object")
        return {name: self.document.at(place, key, name) for name in value}

    # values of keywords

    def count(self, place: Place, key: str) -> int | None:
        value = place.value.get(key)
        if value is None:
            return None
        whole = isinstance(value, float) and value.is_integer()
        if isinstance(value, bool) or not (isinstance(value, int) or whole) or value < 0:
            raise self.error(place, f"{key} is {shown(value)}, not a whole number")
        return int(value)

    def range(self, place: Place, what: str) -> tuple[int, int | None] | None:
        low, high = self.count(place, f"min{what}"), self.count(place, f"max{what}")
        return None if low is None and high is None else (low or 0, high)

    def quantity(self, place: Place, key: str) -> Decimal:
        value = place.value[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(place, f"{key} is {shown(value)}, not a number")
        found = exact(value)
        if not found.is_finite():
            raise self.error(place, f"{key} is {value}, which is no JSON")
        return found

    def bounds(self, place: Place) -> Iterator[tuple[str, tuple[Decimal, bool]]]:
        """The bounds on a number: which end, the bound, whether it is excluded itself."""
        schema = place.value
        for end, key, strict in (
            ("low", "minimum", "exclusiveMinimum"),
            ("high", "maximum", "exclusiveMaximum"),
        ):
            old = isinstance(schema.get(strict), bool)  # as in draft 4
            if key in schema:
                yield end, (self.quantity(place, key), old and schema[strict])
            if strict in schema and not old:
                yield end, (self.quantity(place, strict), True)

    def types(self, place: Place) -> tuple[int, bool | None] | None:
        """The types of a schema as a mask, and whether numbers must be whole."""
        schema = place.value
        named = schema.get("type")
        if named is None:
            if self.profile.guesses:
                for kind, keys in _OF_TYPE.items():
                    if any(key in schema for key in keys):
                        return BIT[kind], None
            return None
        kinds = named if isinstance(named, list) else [named]
        for kind in kinds:
            if not isinstance(kind, str) or kind not in NAMES:
                raise self.error(place, f"type is {shown(kind)}; types are {', '.join(NAMES)}")
        mask = 0
        for kind in kinds:
            mask |= BIT["number" if kind == "integer" else kind]
        return mask, True if "integer" in kinds and "number" not in kinds else None

    def values(self, place: Place) -> Iterator[list[Any]]:
        """The values of const and of enum."""
        schema = place.value
        for key in ("const", "enum"):
            if key in schema:
                value = schema[key] if key == "enum" else [schema[key]]
                if not isinstance(value, list) or not value:
                    raise self.error(place, f"{key} is {shown(value)}, not a list of something")
                _check_depth(self, place, key, value)
                yield value

    def text(self, place: Place, key: str) -> str:
        value = place.value[key]
        if not isinstance(value, str):
            raise self.error(place, f"{key} is {shown(value)}, not a text")
        return value

    def listed(self, place: Place, value: Any, key: str) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self.error(place, f"{key} is {shown(value)}, not a list of names")
        return value

    def dependencies(self, place: Place) -> Iterator[tuple[str, list[str] | Place]]:
        """What a member demands when it is there: other members, or a schema."""
        for key in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, below in self.named(place, key).items():
                if isinstance(below.value, list) and key != "dependentSchemas":
                    yield name, self.listed(place, below.value, key)
                elif key == "dependentRequired":
                    raise self.error(below, f"this is {shown(below.value)}, not a list of names")
                else:
                    yield name, below

    def items(self, place: Place) -> Items | None:
        """prefixItems and items, or the items and additionalItems of older drafts."""
        schema = place.value
        first, then = "prefixItems", "items"
        if isinstance(schema.get("items"), list) and "prefixItems" not in schema:
            first, then = "items", "additionalItems"
        if first not in schema and then not in schema:
            return None
        prefix: list[Node] = []
        if first in schema:
            if not isinstance(schema[first], list):
                raise self.error(place, f"{first} is {shown(schema[first])}, not a list of schemas")
            prefix = [self.below(place, first, i) for i in range(len(schema[first]))]
        rest = self.below(place, then) if then in schema else ANY
        if self.profile.closed and prefix and then not in schema:
            rest = NEVER
        return Items(tuple(prefix), rest, then in schema)

    def keys(self, place: Place) -> Keys | None:
        schema = place.value
        if not any(
            key in schema for key in ("properties", "patternProperties", "additionalProperties")
        ):
            return None
        given = "additionalProperties" in schema
        return Keys(
            {name: self.node(below) for name, below in self.named(place, "properties").items()},
            tuple(self.key_patterns(place)),
            self.below(place, "additionalProperties") if given else ANY,
            given,
            self.profile.closed and bool(schema.get("properties")),
        )

    def key_patterns(self, place: Place) -> Iterator[tuple[str, Node]]:
        for pattern, below in self.named(place, "patternProperties").items():
            try:
                from_pattern(pattern)
            except (BadPattern, TooLarge) as error:
                raise Inexpressible(place, "patternProperties", str(error)) from None
            yield pattern, self.node(below)

    def pattern(self, place: Place) -> str:
        """A pattern that can be read."""
        pattern = self.text(place, "pattern")
        try:
            parse(pattern)
        except BadPattern as error:
            raise Inexpressible(place, "pattern", str(error)) from None
        return pattern

    def contains(self, place: Place) -> Contains | None:
        if "contains" not in place.value:
            return None
        low, high = self.count(place, "minContains"), self.count(place, "maxContains")
        return Contains(self.below(place, "contains"), 1 if low is None else low, high)

    # what holds

    def holding(self, place: Place) -> list[Entry]:
        """What a schema says of a value."""
        schema = place.value
        entries: list[Entry] = []

        def say(kind: str, value: Any, annotates: bool = False) -> None:
            entries.append(Fact(kind, value, place, annotates))

        types = self.types(place)
        if types is not None and not self.nullable(place):
            say("types", types)
        for values in self.values(place):
            say("values", values)
        for end, bound in self.bounds(place):
            say(end, bound)
        if "multipleOf" in schema:
            say("multiples", (self.multiple(place), True))
        for kind, what in (("length", "Length"), ("size", "Items"), ("members", "Properties")):
            found = self.range(place, what)
            if found is not None:
                say(kind, found)
        if "pattern" in schema:
            say("patterns", (self.pattern(place), True))
        if "format" in schema and self.known_format(place):
            say("formats", (schema["format"], True))
        items, keys, contains = self.items(place), self.keys(place), self.contains(place)
        if items is not None:
            say("items", items, True)
            if self.profile.closed and items.prefix and "minItems" not in schema:
                say("size", (len(items.prefix), None))  # a tuple
        if contains is not None:
            say("contains", contains, True)
        if schema.get("uniqueItems") is True:
            say("unique", True)
        if keys is not None:
            say("keys", keys, True)
        if "required" in schema:
            for name in self.listed(place, schema["required"], "required"):
                say("required", name)
        if "propertyNames" in schema:
            say("names", self.below(place, "propertyNames"))
        entries += self._applied(place)
        if self.nullable(place):
            null = Fact("types", (BIT["null"], None), place)
            whole = [] if types is None else [Fact("types", types, place)]
            return [Either([[null], [*whole, *entries]])]
        return entries

    def nullable(self, place: Place) -> bool:
        return place.value.get("nullable") is True and self.profile.guesses

    def _applied(self, place: Place) -> Iterator[Entry]:
        """Other schemas that speak of the same value."""
        schema, at = place.value, self.document.at
        for key in ("$ref", "$dynamicRef"):
            if key in schema:
                yield Also(self.document.target(schema[key], place, key == "$dynamicRef"), True)
        if "allOf" in schema:
            yield from (Also(part, True) for part in self.many(place, "allOf"))
        if "not" in schema:
            yield Also(at(place, "not"), False)
        if "anyOf" in schema:
            yield Either([[Also(part, True)] for part in self.many(place, "anyOf")], overlap=True)
        if "oneOf" in schema:
            yield Exactly(self.many(place, "oneOf"))
        if "if" in schema and ("then" in schema or "else" in schema):
            given = at(place, "if")
            ways: list[list[Any]] = []
            for key, holds in (("then", True), ("else", False)):
                then = [Also(at(place, key), True)] if key in schema else []
                ways.append([Also(given, holds), *then])
            yield Either(ways)
        for name, wanted in self.dependencies(place):
            there: list[Any] = [Fact("types", (BIT["object"], None), place)]
            there.append(Fact("required", name, place))
            if isinstance(wanted, Place):
                there.append(Also(wanted, True))
            else:
                there += [Fact("required", other, place) for other in wanted]
            yield Either([[Fact("keys", Keys({name: NEVER}), place)], there])

    def multiple(self, place: Place) -> Decimal:
        found = self.quantity(place, "multipleOf")
        if found <= 0:
            raise self.error(place, f"multipleOf is {found}, not above 0")
        return found

    def known_format(self, place: Place) -> bool:
        name = self.text(place, "format")
        if name not in FORMATS:
            raise Inexpressible(
                place, "format", f"{shown(name)} is not known; known are {', '.join(FORMATS)}"
            )
        return FORMATS[name] is not None


def _check_depth(keywords: Keywords, place: Place, key: str, value: list[Any]) -> None:
    level: list[Any] = value
    for _ in range(MAX_NESTED):
        level = [
            inner
            for one in level
            if isinstance(one, list | dict)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return
    raise keywords.error(place, f"{key} is nested more than {MAX_NESTED} deep")
