"""The ways in which a value can break a schema: what ``not``, ``oneOf`` and ``else`` stand on.

A keyword whose contrary rules cannot say raises Inexpressible.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

from diskmoe.grammar_draft.schema.document import Place
from diskmoe.grammar_draft.schema.facts import (
    ALL,
    ANY,
    BIT,
    NEVER,
    Contains,
    Fact,
    Items,
    Keys,
    Member,
    Node,
)
from diskmoe.grammar_draft.schema.keywords import Also, Entry, Inexpressible, Keywords


def failing(keywords: Keywords, place: Place) -> list[list[Entry]]:
    """The ways in which a value breaks a schema."""
    return _Contrary(keywords, place).found


def contrary(node: Node) -> Node:
    """What is not a node of one schema."""
    if node in (ANY, NEVER):
        return NEVER if node == ANY else ANY
    return ((node[0][0], not node[0][1]),)


class _Contrary:
    def __init__(self, keywords: Keywords, place: Place):
        self.read, self.place, self.schema = keywords, place, place.value
        self.found: list[list[Entry]] = []
        self._values()
        self._items()
        self._keys()
        self._applied()

    def _way(self, kind: str, *entries: Entry) -> None:
        self.found.append([self._fact("types", (BIT[kind], None)), *entries])

    def _fact(self, kind: str, value: Any) -> Fact:
        return Fact(kind, value, self.place)

    def _refuse(self, keyword: str, why: str) -> None:
        why = f"its contrary cannot be expressed ({why})"
        raise Inexpressible(self.place, keyword, why)

    def _values(self) -> None:
        read, place, schema = self.read, self.place, self.schema
        types = read.types(place)
        if types is not None:
            self.found.append([self._fact("types", (ALL & ~types[0], None))])
            if types[1]:
                self.found.append([self._fact("types", (BIT["number"], False))])
        for values in read.values(place):
            self.found.append([self._fact("excluded", values)])
        for end, (bound, strict) in read.bounds(place):
            self._way("number", self._fact("high" if end == "low" else "low", (bound, not strict)))
        if "multipleOf" in schema:
            self._way("number", self._fact("multiples", (read.multiple(place), False)))
        for kind, what, of in (
            ("length", "Length", "string"),
            ("size", "Items", "array"),
            ("members", "Properties", "object"),
        ):
            low, high = read.range(place, what) or (0, None)
            if low:
                self._way(of, self._fact(kind, (0, low - 1)))
            if high is not None:
                self._way(of, self._fact(kind, (high + 1, None)))
        if "pattern" in schema:
            self._way("string", self._fact("patterns", (read.pattern(place), False)))
        if "format" in schema and read.known_format(place):
            self._way("string", self._fact("formats", (schema["format"], False)))

    def _items(self) -> None:
        read, place, schema = self.read, self.place, self.schema
        if schema.get("uniqueItems") is True:
            self._refuse("uniqueItems", "an item that is there twice")
        items, contains = read.items(place), read.contains(place)
        if items is not None:
            for i, node in enumerate(items.prefix):
                bad = contrary(node)
                self._way(
                    "array",
                    self._fact("items", Items((*(ANY,) * i, bad))),
                    self._fact("size", (i + 1, None)),
                )
            if items.rest == NEVER:
                self._way("array", self._fact("size", (len(items.prefix) + 1, None)))
            elif items.rest != ANY:
                if items.prefix:
                    self._refuse("items", "behind prefixItems")
                self._way("array", self._fact("contains", Contains(contrary(items.rest), 1, None)))
        if contains is not None:
            if contains.low:
                self._way(
                    "array", self._fact("contains", contains._replace(low=0, high=contains.low - 1))
                )
            if contains.high is not None:
                self._way(
                    "array",
                    self._fact("contains", contains._replace(low=contains.high + 1, high=None)),
                )
        if schema.get("unevaluatedItems", True) is not True:
            self._refuse("unevaluatedItems", "what another schema did not look at")

    def _keys(self) -> None:
        read, place, schema = self.read, self.place, self.schema
        for name in read.listed(place, schema.get("required", []), "required"):
            self._way("object", self._fact("keys", Keys({name: NEVER})))
        keys = read.keys(place)
        if keys is not None:
            for name, node in keys.names.items():
                if node != ANY:
                    bad = self._fact("keys", Keys({name: contrary(node)}))
                    self._way("object", bad, self._fact("required", name))
            patterns = tuple(pattern for pattern, _ in keys.patterns)
            for pattern, node in keys.patterns:
                if node != ANY:
                    some = Member(frozenset(), (), pattern, contrary(node))
                    self._way("object", self._fact("some", some))
            if keys.rest != ANY:
                some = Member(frozenset(keys.names), patterns, None, contrary(keys.rest))
                self._way("object", self._fact("some", some))
        if "propertyNames" in schema:
            self._refuse("propertyNames", "a key of another kind")
        for name, wanted in read.dependencies(place):
            there = self._fact("required", name)
            if isinstance(wanted, Place):
                self._way("object", there, Also(wanted, False))
            else:
                for other in wanted:
                    self._way("object", there, self._fact("keys", Keys({other: NEVER})))
        if schema.get("unevaluatedProperties", True) is not True:
            self._refuse("unevaluatedProperties", "what another schema did not look at")

    def _applied(self) -> None:
        read, place, schema = self.read, self.place, self.schema
        at = read.document.at
        for key in ("$ref", "$dynamicRef"):
            if key in schema:
                target = read.document.target(schema[key], place, key == "$dynamicRef")
                self.found.append([Also(target, False)])
        if "allOf" in schema:
            for part in read.many(place, "allOf"):
                self.found.append([Also(part, False)])
        if "not" in schema:
            self.found.append([Also(at(place, "not"), True)])
        for key in ("anyOf", "oneOf"):
            if key in schema:
                self.found.append([Also(part, False) for part in read.many(place, key)])
        if "oneOf" in schema:
            parts = read.many(place, "oneOf")
            for one, other in combinations(parts, 2):
                self.found.append([Also(one, True), Also(other, True)])
        if "if" in schema:
            for key, holds in (("then", True), ("else", False)):
                if key in schema:
                    self.found.append([Also(at(place, "if"), holds), Also(at(place, key), False)])
