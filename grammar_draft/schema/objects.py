"""Objects: named members in the order of the schema, any of the optional ones missing, then others.

The rules are a chain. `more` waits for a key and `rest` for what follows a member; both know which
named members may still come and how much of what else is asked (a number of members, some member
with a value of its own kind) is met. The chain's last rule holds the closing brace, so the only
calls that return are those of values.
"""

from __future__ import annotations

from typing import NamedTuple

from diskmoe.grammar_draft.json_rules import spelled, word
from diskmoe.grammar_draft.regex.dfa import (
    ANYTHING,
    NO,
    Dfa,
    TooLarge,
    combine,
    of_words,
    other_than,
)
from diskmoe.grammar_draft.regex.emit import joined, write
from diskmoe.grammar_draft.regex.pattern import from_pattern
from diskmoe.grammar_draft.rules import Alternative, Ref
from diskmoe.grammar_draft.schema.builder import Builder
from diskmoe.grammar_draft.schema.facts import ANY, NEVER, Facts, Keys, Member, Node, both
from diskmoe.grammar_draft.schema.strings import automaton_of, union
from diskmoe.grammar_draft.tries import trie

_TRIES = 24  # optional members in a row whose keys are put into one trie at each place
_MAX_STATES = 6000


class _State(NamedTuple):
    """next: the named member that may come next. sure: members with different keys, up to as many as
    there must be; total: all members, where there may not be many; other: whether one that is not
    named is among the sure; met: the demands of `some` that are met."""

    next: int
    sure: int
    total: int
    other: bool
    met: int


def objects(builder: Builder, facts: Facts, label: str) -> list[Alternative]:
    """The alternatives of an object."""
    made = builder.made
    if not facts.rest_of("object") or (
        not facts.required and all(k.rest == ANY and not k.names and not k.patterns for k in facts.keys)
        and facts.members == (0, None) and not facts.names and not facts.some
    ):  # fmt: skip
        return [made.any("object")]
    return _Object(builder, facts, label).alternatives()


class _Object:
    def __init__(self, builder: Builder, facts: Facts, label: str):
        self.builder, self.made, self.label = builder, builder.made, label
        self.facts = facts
        self.some = facts.some
        closed = any(k.closes for k in facts.keys) and not any(k.given for k in facts.keys)
        listed = dict.fromkeys(name for keys in facts.keys for name in keys.names)
        listed.update(facts.required)
        known: list[tuple[str, Node]] = []
        for name in listed:
            node = both(keys.node(name) for keys in facts.keys)
            if not all(builder.fits(names, name) for names in facts.names):
                node = NEVER
            known.append((name, node))
        self.taken = list(listed)
        if builder.profile.required_first:
            known.sort(key=lambda pair: pair[0] not in facts.required)
        self.named = [(n, node) for n, node in known if not builder.hopeless(node)]
        left = {name for name, _ in self.named}
        self.possible = all(name in left for name in facts.required)
        # per place the next named member that must come, or how many there are
        self.needed = [len(self.named)] * (len(self.named) + 1)
        for i in range(len(self.named) - 1, -1, -1):
            self.needed[i] = i if self.named[i][0] in facts.required else self.needed[i + 1]
        self.others, self.nodes = (None, []) if closed else self._others()
        self.low, self.high = self._counts()
        self.rules: dict[tuple[str, _State], Ref] = {}
        self.parts: dict[tuple[object, ...], Ref] = {}
        self.queue: list[tuple[str, _State]] = []

    def _others(self) -> tuple[Dfa | None, list[tuple[Node, int]]]:
        """The keys that are not named, labelled by (what their values must be, the demands that
        they may meet)."""
        facts = self.facts
        if all(keys.rest == NEVER and not keys.patterns for keys in facts.keys) and facts.keys:
            return None, []
        patterns = list(
            dict.fromkeys(
                [p for keys in facts.keys for p, _ in keys.patterns]
                + [p for one in self.some for p in (*one.patterns, one.wanted) if p is not None]
            )
        )
        words = sorted({*self.taken, *(name for one in self.some for name in one.names)})
        extra = [word for word in words if word not in self.taken]
        allowed = [
            union([automaton_of(way) for way in self.builder.ways(node) if way.types & 8])
            if any(way.types & 8 for way in self.builder.ways(node))
            else of_words([])
            for node in facts.names
        ]
        parts = [of_words(self.taken), *(of_words([w]) for w in extra)]
        parts += [*map(from_pattern, patterns), *allowed]
        nodes: list[tuple[Node, int]] = []
        first, after = 1 + len(extra), 1 + len(extra) + len(patterns)

        def label(labels: tuple[int, ...]) -> int:
            if labels[0] != NO or NO in labels[after:]:
                return NO
            word = next((w for w, l in zip(extra, labels[1:first], strict=True) if l != NO), None)
            matched = {p for p, l in zip(patterns, labels[first:after], strict=True) if l != NO}
            node = both(_value(keys, matched) for keys in facts.keys)
            if self.builder.hopeless(node):
                return NO
            meets = 0
            for i, one in enumerate(self.some):
                if _speaks_of(one, word, matched):
                    meets |= 1 << i
            if (node, meets) not in nodes:
                nodes.append((node, meets))
            return nodes.index((node, meets))

        if len(parts) == 1:
            label((NO,))
            dfa = other_than(tuple(self.taken)) if self.taken else ANYTHING
            return (dfa if nodes else None), nodes
        dfa = combine(parts, label, tuple(range(after, len(parts))))
        return (None if dfa.empty else dfa), nodes

    def _counts(self) -> tuple[int, int | None]:
        """How many members there must be beyond what is certain, and may be where that matters."""
        low, high = self.facts.members
        if low <= len(self.facts.required):
            low = 0
        if self.others is None and high is not None and high >= len(self.named):
            high = None
        if self.others is not None and low > len(self.named) + 1:
            self.builder.refuse(
                self.facts,
                "members",
                f"of {low} members only {len(self.named)} are named, and others could repeat a key",
            )
            low = len(self.named) + 1
        return low, high

    def alternatives(self) -> list[Alternative]:
        made = self.made
        if not self.possible:
            return []
        free = self.others is ANYTHING and not self.named and not self.some
        if free and (self.low == 0 or (self.low == 1 and self.high is None)):
            value = self.builder.rule(self.nodes[0][0])
            member = (made.shared("string"), *made.colon(), value)
            return [made.members("{", member, "}", self.low, self.high)]
        state = _State(0, 0, 0, False, 0)
        opened = (word("{"), *made.ws())
        first: list[Alternative] = [(word("}"),)] if self._may_close(state) else []
        if self._may_go_on(state):
            first += self._more(state)
        while self.queue:
            kind, wanted = self.queue.pop()
            if len(self.rules) > _MAX_STATES:
                raise TooLarge(f"the object needs more than {_MAX_STATES} rules")
            rule = self.rules[kind, wanted]
            made.define(rule, self._more(wanted) if kind == "more" else self._rest(wanted))
        if not first:
            return []
        return (
            [(*opened, *first[0])] if len(first) == 1 else [(*opened, made.rule(self.label, first))]
        )

    def _rule(self, kind: str, state: _State) -> Ref:
        known = self.rules.get((kind, state))
        if known is None:
            known = self.rules[kind, state] = self.made.rule(self.label)
            self.queue.append((kind, state))
        return known

    def _may_close(self, state: _State) -> bool:
        return (
            self.needed[state.next] == len(self.named)
            and state.sure >= self.low
            and state.met == (1 << len(self.some)) - 1
        )

    def _may_go_on(self, state: _State) -> bool:
        if self.high is not None and state.total >= self.high:
            return False
        return state.next < len(self.named) or self.others is not None

    def _rest(self, state: _State) -> list[Alternative]:
        """Behind a member and its blanks."""
        found: list[Alternative] = [(word("}"),)] if self._may_close(state) else []
        if self._may_go_on(state):
            found.append((word(","), *self.made.ws(), self._rule("more", state)))
        return found

    def _more(self, state: _State) -> list[Alternative]:
        """Where a key must come."""
        last = self.needed[state.next]
        run = range(state.next, min(last + 1, len(self.named)))
        open_ = last == len(self.named) and self.others is not None
        if len(run) > _TRIES:
            run, chained = run[:1], True
        else:
            chained = False
        keys = [(spelled(self.named[i][0]).encode(), (self._after(state, i),)) for i in run]
        found = trie(self.made, keys, self.label)
        if chained:
            found.append((self._rule("more", state._replace(next=state.next + 1)),))
        elif open_:
            found += self._other(state)
        return found

    def _after(self, state: _State, index: int) -> Ref:
        """Behind the key of a named member."""
        name, node = self.named[index]
        met = 0
        for i, one in enumerate(self.some):
            met |= one.speaks_of(name) << i
        counted = self._counted(state, True)._replace(next=index + 1)
        return self._part((name, counted), self._values(node, met, counted))

    def _other(self, state: _State) -> list[Alternative]:
        """The other members: all their keys, and behind each what its value must be."""
        assert self.others is not None
        counted = self._counted(state, not state.other)
        counted = counted._replace(next=len(self.named), other=state.other or self.low > 0)
        tails: list[Alternative] = []
        for i, (node, meets) in enumerate(self.nodes):
            tails.append((word('"'), self._part((i, counted), self._values(node, meets, counted))))
        if self.others is ANYTHING:
            return [(self.made.shared("string"), tails[0][1])]
        if (counted,) not in self.parts:
            keys = write(self.made, self.others, tails, self.label, True)
            self.parts[(counted,)] = self.made.rule(self.label, keys)
        return [(word('"'), self.parts[(counted,)])]

    def _part(self, key: tuple[object, ...], alternatives: list[Alternative]) -> Ref:
        """The one rule of a key among those of this object."""
        known = self.parts.get(key)
        if known is None:
            known = self.parts[key] = self.made.rule(self.label, alternatives)
        return known

    def _values(self, node: Node, meets: int, state: _State) -> list[Alternative]:
        """A colon, a value and what follows; a value may meet some demand at the same time."""
        made, found = self.made, []
        choices = [(node, 0)]
        for i, one in enumerate(self.some):
            if meets >> i & 1:
                choices += [(both((some, one.node)), met | 1 << i) for some, met in choices]
        for some, met in choices:
            if some != NEVER:
                after = state._replace(met=state.met | met)
                value = self.builder.rule(some)
                found.append(joined((*made.colon(), value, *made.ws(), self._rule("rest", after))))
        return found

    def _counted(self, state: _State, distinct: bool) -> _State:
        """The state with one more member."""
        return state._replace(
            sure=min(state.sure + distinct, self.low),
            total=state.total + (self.high is not None),
        )


def _value(keys: Keys, matched: set[str]) -> Node:
    """What one schema says of the values of keys that match some patterns."""
    nodes = [node for pattern, node in keys.patterns if pattern in matched]
    return both(nodes) if nodes else keys.rest


def _speaks_of(some: Member, name: str | None, matched: set[str]) -> bool:
    if some.wanted is not None:
        return some.wanted in matched
    return name not in some.names and not matched.intersection(some.patterns)
