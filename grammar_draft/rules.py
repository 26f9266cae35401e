"""A grammar as flat rules: what every language is read into and the automaton is made from.

A rule is a list of alternatives, an alternative a tuple of symbols. Nothing nests: a group is a
rule of its own, made for the place it stands at, so that all work on rules is a loop and its depth
is never the depth of somebody's parentheses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

from diskmoe.grammar_draft.components import components

Ranges: TypeAlias = tuple[tuple[int, int], ...]  # code points, both ends included, sorted, disjoint

LAST_CODE_POINT = 0x10FFFF
MAX_TIMES = 200_000  # that an item is counted
_RULE_BYTES, _SYMBOL_BYTES = 400, 200
_SURROGATES = (0xD800, 0xDFFF)


class Literal(NamedTuple):
    """Bytes as they stand; never empty."""

    data: bytes


class Chars(NamedTuple):
    """One character out of a set of code points; an empty set matches nothing."""

    ranges: Ranges


class Token(NamedTuple):
    """One token by its id, or any token but this one."""

    id: int
    negated: bool


class Ref(NamedTuple):
    """Another rule, by its number."""

    rule: int


class Repeat(NamedTuple):
    """An item `low` to `high` times; `high` None: without end."""

    item: Literal | Chars | Token | Ref
    low: int
    high: int | None


Item: TypeAlias = Literal | Chars | Token | Ref
Symbol: TypeAlias = Literal | Chars | Token | Ref | Repeat
Alternative: TypeAlias = tuple[Symbol, ...]


@dataclass
class Rule:
    """A name and what it stands for. `position` is where its source text defines it."""

    name: str
    alternatives: list[Alternative] = field(default_factory=list)
    position: int = 0
    made: str = ""  # when nobody wrote its name: "group", "stack" (of repetitions) or "json"


@dataclass
class Grammar:
    """Rules, the number of the root, and where they came from (for messages).

    What follows from the rules (`used`, `empty`, `ends`) is worked out when first asked for; the
    rules are complete by then.
    """

    rules: list[Rule]
    root: int = 0
    name: str = "grammar"
    text: str = ""
    notes: list[str] = field(default_factory=list)  # one line each: what was ignored or is odd

    def uses(self, number: int) -> Iterator[int]:
        """The rules that a rule mentions."""
        for alternative in self.rules[number].alternatives:
            for symbol in alternative:
                item = symbol.item if type(symbol) is Repeat else symbol
                if type(item) is Ref:
                    yield item.rule

    @cached_property
    def nbytes(self) -> int:
        """What the rules take, about."""
        symbols = sum(len(a) for rule in self.rules for a in rule.alternatives)
        return len(self.text) + _RULE_BYTES * len(self.rules) + _SYMBOL_BYTES * symbols

    @cached_property
    def used(self) -> list[int]:
        """The rules that the root leads to, ascending."""
        seen = {self.root}
        queue = [self.root]
        while queue:
            for other in self.uses(queue.pop()):
                if other not in seen:
                    seen.add(other)
                    queue.append(other)
        return sorted(seen)

    @cached_property
    def circles(self) -> dict[int, int]:
        """Per used rule the number of the circle of calls that it is in, lower for what it calls."""
        return components({rule: sorted(set(self.uses(rule))) for rule in self.used})

    @cached_property
    def empty(self) -> list[bool]:
        """Per used rule: whether it can stand for no bytes at all."""

        def needs(symbol: Symbol) -> int:
            if type(symbol) is Repeat:
                if symbol.low == 0:
                    return HOLDS
                symbol = symbol.item
            return symbol.rule if type(symbol) is Ref else NEVER

        return _closure(self, needs)

    @cached_property
    def ends(self) -> list[bool]:
        """Per used rule: whether any text can complete it."""

        def needs(symbol: Symbol) -> int:
            if type(symbol) is Repeat:
                if symbol.low == 0:
                    return HOLDS
                symbol = symbol.item
            if type(symbol) is Ref:
                return symbol.rule
            return NEVER if type(symbol) is Chars and not symbol.ranges else HOLDS

        return _closure(self, needs)


HOLDS, NEVER = -1, -2


def _closure(grammar: Grammar, needs: Callable[[Symbol], int]) -> list[bool]:
    """The least set of rules with an alternative all of whose symbols hold.

    needs(symbol): HOLDS, NEVER, or the rule that a symbol depends on. Linear in the grammar
    (Dowling and Gallier 1984, for Horn formulae).
    """
    holds = [False] * len(grammar.rules)
    waiting: dict[int, list[list[int]]] = {}  # rule -> [open needs, owner] of alternatives
    queue: list[int] = []
    for number in grammar.used:
        for alternative in grammar.rules[number].alternatives:
            wanted = set(map(needs, alternative))
            if NEVER in wanted:
                continue
            wanted.discard(HOLDS)
            if not wanted:
                if not holds[number]:
                    holds[number] = True
                    queue.append(number)
                break
            entry = [len(wanted), number]
            for other in wanted:
                waiting.setdefault(other, []).append(entry)
    while queue:
        for entry in waiting.pop(queue.pop(), ()):
            entry[0] -= 1
            if not entry[0] and not holds[entry[1]]:
                holds[entry[1]] = True
                queue.append(entry[1])
    return holds


def normal(ranges: Iterable[tuple[int, int]], negated: bool = False) -> Ranges:
    """Sorted, disjoint ranges of code points that UTF-8 can carry.

    A range whose ends are swapped is empty. The complement leaves out U+0000, which no text of a
    model holds and llama.cpp never matches.
    """
    merged: list[tuple[int, int]] = []
    for low, high in sorted((low, high) for low, high in ranges if low <= high):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    if negated:
        holes, start = [], 1
        for low, high in merged:
            if start < low:
                holes.append((start, low - 1))
            start = max(start, high + 1)
        if start <= LAST_CODE_POINT:
            holes.append((start, LAST_CODE_POINT))
        merged = holes
    first, last = _SURROGATES
    kept = []
    for low, high in merged:
        high = min(high, LAST_CODE_POINT)
        if low < first:
            kept.append((low, min(high, first - 1)))
        if high > last:
            kept.append((max(low, last + 1), high))
    return tuple((low, high) for low, high in kept if low <= high)


ANY = normal((), negated=True)
