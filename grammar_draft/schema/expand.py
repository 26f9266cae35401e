"""Nodes worked out: every ``anyOf``, ``oneOf``, ``not``, ``if`` and ``$ref`` followed, so that what is
left are ways, each a plain list of facts about one value.

A way is a branch with things to do and facts found, both linked lists that branches share. Nothing
recurses but `hopeless`, three levels deep: it looks whether a member that must be there can be.
What grows beyond a bound is an error that names the schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from diskmoe.grammar_draft.patience import breathe
from diskmoe.grammar_draft.schema.contraries import failing
from diskmoe.grammar_draft.schema.document import Place, shown
from diskmoe.grammar_draft.schema.facts import (
    ALL,
    ANY,
    BIT,
    NEVER,
    TYPES,
    Fact,
    Facts,
    Items,
    Keys,
    Node,
    both,
    canonical,
    gather,
)
from diskmoe.grammar_draft.schema.keywords import (
    KEYWORDS,
    REMARKS,
    Also,
    Either,
    Entry,
    Exactly,
    Inexpressible,
    Keywords,
)
from diskmoe.grammar_draft.schema.values import holds, type_of

MAX_WAYS = 2000  # of one node
MAX_STEPS = 300_000  # of all nodes
MAX_APPLIED = 400  # schemas that refer to each other for one value
_DEPTH = 3  # levels of members that are looked into for a contradiction
_SUBSETS = 4  # choices of anyOf that are combined for what they evaluate together


class _End:
    """Where all that a schema with unevaluated keywords says has been found."""

    def __init__(self, place: Place, mark: Any):
        self.place, self.mark = place, mark


class Expander:
    """The ways of nodes, remembered."""

    def __init__(self, keywords: Keywords, lax: bool):
        self.keywords = keywords
        self.document = keywords.document
        self.lax = lax
        self.ignored: dict[str, str] = {}  # keyword and pointer -> why
        self.reasons: dict[Node, str] = {}  # why nothing satisfies a node
        self._ways: dict[Node, list[Facts]] = {}
        self._written: dict[Node, list[Facts]] = {}
        self._open: set[Node] = set()
        self._read: dict[tuple[int, bool], list[Entry]] = {}
        self._depth = 0
        self._steps = 0

    def ways(self, node: Node) -> list[Facts]:
        """The ways to satisfy a node; none where it contradicts itself."""
        known = self._ways.get(node)
        if known is None:
            self._open.add(node)
            written = self.read(node)
            known, reason = [], self.reasons.get(node, "")
            for facts in written:
                why = self._contradiction(facts, True)
                reason = reason or why
                if not why:
                    known.append(facts)
            if not known:
                self.reasons[node] = reason or "nothing satisfies it"
            self._ways[node] = known
            self._open.discard(node)
        return known

    def read(self, node: Node) -> list[Facts]:
        """The ways of a node as they are written, those that contradict themselves among them."""
        known = self._written.get(node)
        if known is None:
            known = self._written[node] = self._expanded(node)
        return known

    def hopeless(self, node: Node) -> bool:
        """Whether nothing satisfies a node, as far as a few levels tell."""
        if node == NEVER:
            return True
        if node == ANY or node in self._open or self._depth >= _DEPTH:
            return False
        self._depth += 1
        try:
            return not self.ways(node)
        finally:
            self._depth -= 1

    def refuse(self, place: Place, keyword: str, why: str) -> None:
        """Something that cannot be expressed: an error, or a note where that is allowed."""
        if not self.lax:
            raise self.document.error(
                place, f"{keyword}: {why}; leave it out, or ignore it with SCHEMA_LAX=1"
            )
        self.ignored[f"{keyword} at {place.pointer}"] = why

    def _expanded(self, node: Node) -> list[Facts]:
        if node == NEVER:
            return []
        todo: Any = None
        for number, positive in node:
            todo = ((Also(self.keywords.places[number], positive), None, True), todo)
        found: list[Facts] = []
        reason = ""
        # (what is to be done, facts, types left, Eithers passed, open scopes)
        branches: list[tuple[Any, Any, int, int, int]] = [(todo, None, ALL, 0, 0)]
        while branches:
            breathe()
            todo, facts, mask, passed, scopes = branches.pop()
            while todo is not None and mask:
                self._steps += 1
                if self._steps > MAX_STEPS:
                    raise self._too_much(node, f"more than {MAX_STEPS} steps are needed")
                (entry, chain, annotates), todo = todo
                if isinstance(entry, Fact):
                    if entry.kind == "types":
                        mask &= entry.value[0]
                        if not mask:
                            reason = reason or f"at {entry.place.pointer}: no type is left"
                    facts = (entry if annotates else entry._replace(annotates=False), facts)
                elif isinstance(entry, Also):
                    chain = self._linked(entry, chain)
                    if self._scoped(entry):
                        todo = ((_End(entry.place, facts), chain, annotates), todo)
                        scopes += 1
                    counts = annotates and entry.holds
                    for part in reversed(self._entries(entry)):
                        todo = ((part, chain, counts), todo)
                elif isinstance(entry, _End):
                    scopes -= 1
                    for fact in self._unevaluated(entry, facts):
                        todo = ((fact, chain, annotates), todo)
                else:
                    if passed >= 3 and self._contradiction(gather(_listed(facts)), False):
                        break
                    if len(branches) + len(found) > MAX_WAYS:
                        raise self._too_much(node, f"there are more than {MAX_WAYS} ways")
                    for way in reversed(self._choices(entry, scopes > 0)):
                        rest = todo
                        for part in reversed(way):
                            rest = ((part, chain, annotates), rest)
                        branches.append((rest, facts, mask, passed + 1, scopes))
                    break
            else:
                if mask:
                    found.append(gather(_listed(facts)))
        if not found and reason:
            self.reasons[node] = reason
        return found

    def _linked(self, entry: Also, chain: Any) -> Any:
        """The chain of schemas that led to one, with it; none may come twice."""
        place, depth, link = entry.place, 0, chain
        while link is not None:
            if link[0] is place:
                raise self.document.error(
                    place, "the schema refers to itself for the same value: that can never end"
                )
            link, depth = link[1], depth + 1
        if depth > MAX_APPLIED:
            raise self.document.error(place, f"more than {MAX_APPLIED} schemas for one value")
        return (place, chain)

    def _entries(self, entry: Also) -> list[Entry]:
        """What a schema, or its contrary, says."""
        place, positive = entry
        key = (place.number, positive)
        known = self._read.get(key)
        if known is None:
            value = place.value
            entries: list[Entry] = []
            if isinstance(value, dict):
                self._check_keywords(place)
                try:
                    if positive:
                        entries = self.keywords.holding(place)
                    else:
                        entries = [Either(failing(self.keywords, place))]
                except Inexpressible as error:
                    self.refuse(error.place, error.keyword, str(error))
                    if positive:
                        entries = self._salvaged(place, error)
            elif self.keywords.node(place, positive) == NEVER:
                entries = [Fact("types", (0, None), place)]
            known = self._read[key] = entries
        return known

    def _salvaged(self, place: Place, error: Inexpressible) -> list[Entry]:
        """A schema without the keyword that cannot be expressed."""
        rest = {key: value for key, value in place.value.items() if key != error.keyword}
        place.value = rest
        return self._entries(Also(place, True)) if rest else []

    def _check_keywords(self, place: Place) -> None:
        for key in place.value:
            if key in KEYWORDS or key in REMARKS or key.startswith("x-"):
                if key == "nullable" and not self.keywords.profile.guesses:
                    self.refuse(
                        place, key, "JSON Schema has no such keyword; write type [..., null]"
                    )
                continue
            self.refuse(place, key, "this keyword is not known")

    def _scoped(self, entry: Also) -> bool:
        value = entry.place.value
        return (
            entry.holds
            and isinstance(value, dict)
            and ("unevaluatedProperties" in value or "unevaluatedItems" in value)
        )

    def _choices(self, entry: Either | Exactly, scoped: bool) -> list[list[Any]]:
        if isinstance(entry, Either):
            if entry.overlap and scoped and len(entry.ways) <= _SUBSETS:
                count = len(entry.ways)
                return [
                    [part for i in range(count) if some >> i & 1 for part in entry.ways[i]]
                    for some in range(1, 1 << count)
                ]
            return entry.ways
        if not self.keywords.profile.exclusive:
            return [[Also(place, True)] for place in entry.places]
        return self._one_of(entry.places)

    def _one_of(self, places: list[Place]) -> list[list[Any]]:
        """Each schema with the contraries of those that it has values in common with."""
        nodes = [self.keywords.node(place) for place in places]
        listed = [self._listed_by(node) for node in nodes]
        ways: list[list[Any]] = [[Also(place, True)] for place in places]
        for i in range(len(places)):
            for k in range(i):
                one, other = listed[i], listed[k]
                if one is not None and other is not None and one.isdisjoint(other):
                    continue
                if self.hopeless(both((nodes[i], nodes[k]))):
                    continue
                ways[i].append(Also(places[k], False))
                ways[k].append(Also(places[i], False))
        return ways

    def _listed_by(self, node: Node) -> set[Any] | None:
        """The values that a schema lists itself, `canonical`; None where it lists none."""
        place = self.keywords.places.get(node[0][0]) if len(node) == 1 else None
        if place is None or not isinstance(place.value, dict):
            return None
        return next(({*map(canonical, some)} for some in self.keywords.values(place)), None)

    def _unevaluated(self, end: _End, facts: Any) -> Iterator[Fact]:
        """What the unevaluated keywords of a schema say, given all that was found in it."""
        place, schema = end.place, end.place.value
        inside: list[Fact] = []
        while facts is not end.mark:
            fact, facts = facts
            if fact.annotates:
                inside.append(fact)
        if "unevaluatedProperties" in schema:
            keys: list[Keys] = [fact.value for fact in inside if fact.kind == "keys"]
            if not any(one.given for one in keys):
                names = {name: ANY for one in keys for name in one.names}
                patterns = tuple({pattern: None for one in keys for pattern, _ in one.patterns})
                rest = self.keywords.below(place, "unevaluatedProperties")
                value = Keys(names, tuple((pattern, ANY) for pattern in patterns), rest, True)
                yield Fact("keys", value, place, True)
        if "unevaluatedItems" in schema:
            items: list[Items] = [fact.value for fact in inside if fact.kind == "items"]
            rest = self.keywords.below(place, "unevaluatedItems")
            if rest != ANY and any(fact.kind == "contains" for fact in inside):
                self.refuse(place, "unevaluatedItems", "beside contains it cannot be expressed")
            elif not any(one.given for one in items):
                count = max((len(one.prefix) for one in items), default=0)
                yield Fact("items", Items((ANY,) * count, rest, True), place, True)

    def _contradiction(self, facts: Facts, all_values: bool) -> str:
        """Why no value fits some facts, or nothing. Takes away types and values that do not fit, of
        values those alone that have no parts unless `all_values`."""
        where = facts.places
        reason = f"at {where['types'].pointer}: no type is left" if "types" in where else ""

        def strike(kind: str, because: str, why: str) -> None:
            nonlocal reason
            if facts.types & BIT[kind]:
                facts.types &= ~BIT[kind]
                place = where.get(because)
                reason = f"at {place.pointer}: {why}" if place else why

        if facts.low and facts.high:
            (low, over), (high, under) = facts.low, facts.high
            if low > high or (low == high and (over or under)):
                strike("number", "high", f"no number is between {low} and {high}")
        for kind, because, what in (
            ("string", "length", "Length"),
            ("array", "size", "Items"),
            ("object", "members", "Properties"),
        ):
            low_, high_ = getattr(facts, because)
            if high_ is not None and low_ > high_:
                strike(kind, because, f"min{what} is {low_} and max{what} {high_}: nothing fits")
        if facts.types & BIT["object"]:
            for name in facts.required:
                node = both(keys.node(name) for keys in facts.keys)
                if self.hopeless(node):
                    inner = self.reasons.get(node, "")
                    said = f": {inner}" if inner else ""
                    strike("object", "required", f"member {shown(name)} cannot be there{said}")
                    break
        if facts.values is not None:
            fits = [
                value
                for value in facts.values
                if not (all_values or type_of(value) not in ("array", "object"))
                or holds(self, facts, value)
            ]
            if not fits and facts.types:
                place = where["values"]
                reason = f"at {place.pointer}: no value of const or enum fits the rest"
                facts.types = 0
            facts.values = fits
        return "" if facts.types else reason or "no type is left"

    def _too_much(self, node: Node, why: str) -> Exception:
        place = self.keywords.places[node[0][0]]
        return self.document.error(
            place, f"the combinations of its anyOf, oneOf, allOf and if are too many: {why}"
        )


def _listed(facts: Any) -> list[Fact]:
    found: list[Fact] = []
    while facts is not None:
        fact, facts = facts
        found.append(fact)
    found.reverse()
    return found


def kinds(facts: Facts) -> list[str]:
    """The types that are left."""
    return [kind for kind in TYPES if facts.types & BIT[kind]]
