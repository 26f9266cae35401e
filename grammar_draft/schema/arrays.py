"""Arrays: items by place, how many, some that must be of a kind, none twice."""

from __future__ import annotations

from typing import Any, NamedTuple

from diskmoe.grammar_draft.json_rules import word
from diskmoe.grammar_draft.regex.dfa import TooLarge
from diskmoe.grammar_draft.regex.emit import joined
from diskmoe.grammar_draft.rules import Alternative, Ref, Repeat, Symbol
from diskmoe.grammar_draft.schema.builder import Builder
from diskmoe.grammar_draft.schema.facts import ANY, BIT, NEVER, Facts, Node, both, canonical

MAX_ITEMS = 50_000  # that are counted
_MAX_STATES = 3000
_MAX_UNIQUE = 8  # values of which each may come once


def arrays(builder: Builder, facts: Facts, label: str) -> list[Alternative]:
    """The alternatives of an array."""
    made = builder.made
    if not facts.rest_of("array"):
        return [made.any("array")]
    low, high = facts.size
    if max(low, high or 0) > MAX_ITEMS:
        builder.refuse(facts, "size", f"more than {MAX_ITEMS} items are not counted")
        low, high = (0 if low > MAX_ITEMS else low), None
    prefix = max((len(items.prefix) for items in facts.items), default=0)
    for i in range(prefix + 1):  # an item that cannot be ends the array before it
        if builder.hopeless(facts.item(i)) and (high is None or high > i):
            high = i
    if high is not None and high < low:
        return []
    if facts.unique and (high is None or high > 1):
        values = _finite(builder, facts, prefix)
        if values is not None:
            return _Choices(builder, facts, label, low, high, prefix, values).alternatives()
        builder.refuse(
            facts, "unique", f"only items with at most {_MAX_UNIQUE} values can be told apart"
        )
    if facts.contains:
        return _Choices(builder, facts, label, low, high, prefix, []).alternatives()
    if high == 0:
        return [made.members("[", (), "]", high=0)]
    if prefix == 0:
        return [made.members("[", (builder.rule(facts.item(0)),), "]", low, high)]
    return _in_order(builder, facts, label, low, high, prefix)


def _in_order(
    builder: Builder, facts: Facts, label: str, low: int, high: int | None, prefix: int
) -> list[Alternative]:
    """Items by place, then any number of one kind: a chain from the last place to the first."""
    made = builder.made
    last = prefix if high is None else min(prefix, high)
    behind: list[Alternative] = [(word("]"),)]
    if high is None or high > prefix:
        rest = builder.rule(facts.item(prefix))
        more = made.rule(label, [(word(","), *made.ws(), rest, *made.ws())])
        most = None if high is None else high - prefix
        behind = [(Repeat(more, max(low - prefix, 0), most), word("]"))]
    for i in range(last, 0, -1):
        comma: list[Symbol] = [word(","), *made.ws()] if i > 1 else []
        tail: Alternative = behind[0] if len(behind) == 1 else (made.rule(label, behind),)
        item = builder.rule(facts.item(i - 1))
        behind = [joined((*comma, item, *made.ws(), *tail))]
        if i - 1 >= low:
            behind.append((word("]"),))
    opened = (word("["), *made.ws())
    return [(*opened, *behind[0])] if len(behind) == 1 else [(*opened, made.rule(label, behind))]


def _finite(builder: Builder, facts: Facts, prefix: int) -> list[Any] | None:
    """The values that items can have, where they are few."""
    found: dict[Any, Any] = {}
    for i in range(prefix + 1):
        node = facts.item(i)
        if node == ANY:
            return None
        for way in builder.ways(node):
            values = way.values
            if values is None:
                if way.types & ~(BIT["null"] | BIT["boolean"]):
                    return None
                values = [None] if way.types & BIT["null"] else []
                values = values + ([True, False] if way.types & BIT["boolean"] else [])
            found.update({canonical(value): value for value in values})
            if len(found) > _MAX_UNIQUE:
                return None
    return list(found.values())


class _State(NamedTuple):
    """place: items so far, as far as it matters; counts: of the items that each `contains` has
    found, as far as it matters; used: the values that are taken."""

    place: int
    counts: tuple[int, ...]
    used: int


class _Choices:
    """Arrays whose items are counted or told apart: a rule for each state of the books."""

    def __init__(
        self,
        builder: Builder,
        facts: Facts,
        label: str,
        low: int,
        high: int | None,
        prefix: int,
        values: list[Any],
    ):
        self.builder, self.made, self.facts, self.label = builder, builder.made, facts, label
        self.low, self.high, self.values = low, high, values
        self.furthest = max(prefix, low, high or 0)
        self.rules: dict[_State, Ref] = {}
        self.queue: list[_State] = []

    def alternatives(self) -> list[Alternative]:
        made = self.made
        start = _State(0, (0,) * len(self.facts.contains), 0)
        first: list[Alternative] = [(word("]"),)] if self._may_close(start) else []
        first += self._items(start)
        while self.queue:
            state = self.queue.pop()
            found: list[Alternative] = [(word("]"),)] if self._may_close(state) else []
            items = self._items(state)
            if items:
                found.append((word(","), *made.ws(), made.item(items[0], self.label)
                              if len(items) == 1 else made.rule(self.label, items)))  # fmt: skip
            made.define(self.rules[state], found)
        return [(word("["), *made.ws(), made.rule(self.label, first))] if first else []

    def _may_close(self, state: _State) -> bool:
        return state.place >= self.low and all(
            count >= wanted.low
            for count, wanted in zip(state.counts, self.facts.contains, strict=True)
        )

    def _items(self, state: _State) -> list[Alternative]:
        """The next item, and what follows it."""
        if self.high is not None and state.place >= self.high:
            return []
        found: list[Alternative] = []
        ways: list[tuple[Node, tuple[int, ...]]] = [(self.facts.item(state.place), ())]
        for count, wanted in zip(state.counts, self.facts.contains, strict=True):
            then: list[tuple[Node, tuple[int, ...]]] = []
            for node, counts in ways:
                top = wanted.high if wanted.high is not None else wanted.low
                if count < top or wanted.high is None:
                    then.append((both((node, wanted.node)), (*counts, min(count + 1, top))))
                if wanted.high is None:
                    if count < top:
                        then.append((node, (*counts, count)))
                    else:  # enough are there
                        then[-1] = (node, (*counts, count))
                else:
                    contrary = self.builder.contrary(wanted.node)
                    then.append((both((node, contrary)), (*counts, count)))
            ways = then
        for node, counts in ways:
            if node == NEVER:
                continue
            place = min(state.place + 1, self.furthest)
            if not self.facts.unique:
                behind = self._rest(_State(place, counts, 0))
                found.append((self.builder.rule(node), *self.made.ws(), behind))
                continue
            for i, value in enumerate(self.values):
                if not state.used >> i & 1 and self.builder.fits(node, value):
                    behind = self._rest(_State(place, counts, state.used | 1 << i))
                    found.append((*self.made.constant(value), *self.made.ws(), behind))
        return found

    def _rest(self, state: _State) -> Ref:
        known = self.rules.get(state)
        if known is None:
            if len(self.rules) >= _MAX_STATES:
                raise TooLarge(f"the array needs more than {_MAX_STATES} rules")
            known = self.rules[state] = self.made.rule(self.label)
            self.queue.append(state)
        return known
