"""Rules as positions: where a walk can stand, what it may read there, where that leads.

A position reads bytes, reads a token, calls a rule, or is passed for nothing. Loops are cycles, so
that only real nesting grows a stack. Bodies are built when a walk first needs them.

Three things make closures finite and small, whatever the grammar:

* A call of a rule that may be empty also has a way past it. So a call is only ever completed by a
  rule that has read something, and what can be read first in a rule (its ``entry``) is a fixed set
  that never pops a frame (after Aycock and Horspool, "Practical Earley Parsing", 2002).
* Left-recursive rules call each other before reading in circles. Such a family is solved like the
  arcs of a finite automaton: begin with any member's own beginning, and when a member is complete
  go on behind every place that calls it first (left-corner order; Rosenkrantz and Lewis 1970).
* What remains of first calls has no circles; ``order`` sorts it, callers above callees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from diskmoe.grammar_draft.checks import MAX_STATES, cost, rule_error
from diskmoe.grammar_draft.rules import (
    Alternative,
    Chars,
    Grammar,
    Literal,
    Ranges,
    Ref,
    Repeat,
    Symbol,
    Token,
)
from diskmoe.grammar_draft.utf8 import sequences

END = 0  # the position at the end of every rule

Call = tuple[int, int]  # a rule, and the position to go on from behind it


class Heads(NamedTuple):
    """What can happen next at a position without reading: read, call, or be at the rule's end."""

    positions: tuple[int, ...]
    calls: tuple[Call, ...]
    ends: bool

    @property
    def only_ends(self) -> bool:
        return self.ends and not self.positions and not self.calls


class Graph:
    """The positions of a grammar's useful rules. Everything is indexed by position."""

    def __init__(self, grammar: Grammar):
        self._rules = grammar.rules
        self.empty = grammar.empty
        self._ends = grammar.ends
        self.edges: list[tuple[tuple[int, int], ...]] = []  # (256-bit set, position behind)
        self.tokens: list[tuple[tuple[int, bool, int], ...]] = []  # (id, negated, position behind)
        self.mask: list[int] = []  # all bytes that a position reads
        self._calls: list[tuple[Call, ...]] = []
        self._passes: list[list[int]] = []
        self._heads: dict[int, Heads] = {}
        self._canon: dict[int, int] = {}
        self._same: dict[object, int] = {}
        self._entries: dict[int, Heads] = {}
        self._new()  # END
        self.order, self.family = self._sorted(grammar.used)
        self._check_families(grammar)

    def _check_families(self, grammar: Grammar) -> None:
        """Each member of a family that is called from elsewhere needs a copy of the family."""
        for family in set(self.family.values()):
            size = sum(
                cost(s) for rule in family for a in self._rules[rule].alternatives for s in a
            )
            if size * len(family) > MAX_STATES:
                raise rule_error(
                    grammar,
                    family[0],
                    f"{len(family)} rules with {size} symbols are left-recursive through each other; "
                    f"at most {MAX_STATES} in rules x symbols can be solved",
                )

    def heads(self, position: int) -> Heads:
        """What follows a position once something has been read."""
        known = self._heads.get(position)
        if known is None:
            known = self._heads[position] = self._closure(position)
        return known

    def canonical(self, position: int) -> int:
        """The one position for all that go on alike."""
        known = self._canon.get(position)
        if known is None:
            if self.mask[position] and not self._passes[position] and not self._calls[position]:
                return position
            head = self.heads(position)
            if len(head.positions) == 1 and not head.calls and not head.ends:
                known = head.positions[0]
            else:
                key = (frozenset(head.positions), frozenset(head.calls), head.ends)
                known = self._same.setdefault(key, position)
            self._canon[position] = known
        return known

    def entry(self, rule: int) -> Heads:
        """What a rule begins with, its being empty left aside (callers have a way past it)."""
        known = self._entries.get(rule)
        if known is None:
            family = self.family.get(rule)
            if family is None:
                begin = self._closure(self._body(rule, END))
                known = Heads(begin.positions, begin.calls, False)
            else:
                known = self._solved(rule, family)
            self._entries[rule] = known
        return known

    def called(self, rule: int) -> int:
        """A position that calls a rule and is at the end behind it."""
        return self._new(calls=((rule, END),), passes=[END] if self.empty[rule] else [])

    def _solved(self, rule: int, family: tuple[int, ...]) -> Heads:
        """The entry of a left-recursive rule: a copy of its family's bodies with their ends joined
        to the places behind the family's first calls."""
        complete = {member: self._new() for member in family}
        begins = [self._closure(self._body(member, complete[member])) for member in family]
        self._passes[complete[rule]].append(END)
        positions: dict[int, None] = {}
        calls: dict[Call, None] = {}
        for begin in begins:
            positions.update(dict.fromkeys(begin.positions))
            for called, behind in begin.calls:
                if called in complete:
                    self._passes[complete[called]].append(behind)
                else:
                    calls[called, behind] = None
        return Heads(tuple(positions), tuple(calls), False)

    def _closure(self, position: int) -> Heads:
        if not self._passes[position]:
            reads = self.mask[position] or self.tokens[position]
            return Heads((position,) if reads else (), self._calls[position], position == END)
        seen = {position}
        queue = [position]
        positions: list[int] = []
        calls: list[Call] = []
        while queue:
            here = queue.pop()
            if self.mask[here] or self.tokens[here]:
                positions.append(here)
            calls += self._calls[here]
            for other in self._passes[here]:
                if other not in seen:
                    seen.add(other)
                    queue.append(other)
        return Heads(tuple(positions), tuple(calls), END in seen)

    # building

    def _new(
        self,
        edges: tuple[tuple[int, int], ...] = (),
        tokens: tuple[tuple[int, bool, int], ...] = (),
        calls: tuple[Call, ...] = (),
        passes: Iterable[int] = (),
    ) -> int:
        if len(edges) == 1:
            mask = edges[0][0]
        else:
            mask = 0
            for some, _ in edges:
                mask |= some
        self.edges.append(edges)
        self.tokens.append(tokens)
        self.mask.append(mask)
        self._calls.append(calls)
        self._passes.append(list(passes))
        return len(self.mask) - 1

    def _body(self, rule: int, end: int) -> int:
        """Builds a rule's alternatives in front of `end`, back to front."""
        starts = []
        for alternative in self._rules[rule].alternatives:
            if self._possible(alternative):
                behind = end
                for symbol in reversed(alternative):
                    behind = self._before(symbol, behind)
                starts.append(behind)
        return starts[0] if len(starts) == 1 else self._new(passes=starts)

    def _possible(self, alternative: Alternative) -> bool:
        for symbol in alternative:
            if type(symbol) is not Literal and not self._productive(symbol):
                return False
        return True

    def _productive(self, symbol: Symbol) -> bool:
        if type(symbol) is Repeat:
            return symbol.low == 0 or self._productive(symbol.item)
        if type(symbol) is Ref:
            return self._ends[symbol.rule]
        return type(symbol) is not Chars or bool(symbol.ranges)

    def _before(self, symbol: Symbol, behind: int) -> int:
        """A position that reads `symbol` and is then at `behind`."""
        if isinstance(symbol, Repeat):
            if not self._productive(symbol.item):
                return behind
            if symbol.high is None:
                loop = self._new(passes=[behind])
                self._passes[loop].append(self._before(symbol.item, loop))
                behind = loop
            else:
                enough = behind  # one more, or none at all: not one more or the one after it
                for _ in range(symbol.high - symbol.low):
                    behind = self._new(passes=[self._before(symbol.item, behind), enough])
            for _ in range(symbol.low):
                behind = self._before(symbol.item, behind)
            return behind
        if isinstance(symbol, Literal):
            for byte in reversed(symbol.data):
                behind = self._new(((1 << byte, behind),))
            return behind
        if isinstance(symbol, Chars):
            return self._chars(symbol.ranges, behind)
        if isinstance(symbol, Token):
            return self._new(tokens=((symbol.id, symbol.negated, behind),))
        past = [behind] if self.empty[symbol.rule] else []
        return self._new(calls=((symbol.rule, behind),), passes=past)

    def _chars(self, ranges: Ranges, behind: int) -> int:
        """One character: positions for its continuation bytes are shared between sequences."""
        positions = [behind]
        *inner, firsts = _steps_of(ranges)
        for ((some, place),) in inner:
            positions.append(self._new(((some, positions[place]),)))
        return self._new(tuple([(some, positions[place]) for some, place in firsts]))

    def _first_calls(self, rule: int) -> list[int]:
        """The rules that a rule may call before it has read anything."""
        found: dict[int, None] = {}
        for alternative in self._rules[rule].alternatives:
            if not self._possible(alternative):
                continue
            for symbol in alternative:
                item = symbol.item if isinstance(symbol, Repeat) else symbol
                empty = isinstance(symbol, Repeat) and symbol.low == 0
                if isinstance(item, Ref) and self._ends[item.rule]:
                    found[item.rule] = None
                    empty = empty or self.empty[item.rule]
                if not empty:
                    break
        return list(found)

    def _sorted(self, used: list[int]) -> tuple[dict[int, int], dict[int, tuple[int, ...]]]:
        """The components of first calls.

        Returns (rank per rule, lower for callees; family per left-recursive rule).
        """
        leads = {rule: self._first_calls(rule) for rule in used}
        order = components(leads)
        members: dict[int, list[int]] = {}
        for rule, rank in order.items():
            members.setdefault(rank, []).append(rule)
        family = {
            rule: tuple(members[rank])
            for rule, rank in order.items()
            if len(members[rank]) > 1 or rule in leads[rule]
        }
        return order, family


def components(leads: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """The strongly connected components of a graph (Tarjan 1972, without recursion).

    Returns per node the number of its component, lower for what it leads to.
    """
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    component: dict[int, int] = {}
    count = 0
    stack: list[int] = []
    for start in leads:
        if start in index:
            continue
        path = [(start, iter(leads[start]))]
        index[start] = low[start] = len(index)
        stack.append(start)
        while path:
            node, rest = path[-1]
            for other in rest:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    path.append((other, iter(leads[other])))
                    break
                if other not in component:
                    low[node] = min(low[node], index[other])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == index[node]:
                    while True:
                        member = stack.pop()
                        component[member] = count
                        if member == node:
                            break
                    count += 1
    return component


@lru_cache(1024)
def _steps_of(ranges: Ranges) -> tuple[tuple[tuple[int, int], ...], ...]:
    """The positions of one character, what it begins with last: each as edges (256-bit set, place of
    the position behind, 0 for what follows the character). Continuation bytes are shared."""
    found: list[tuple[tuple[int, int], ...]] = []
    places: dict[tuple[int, int], int] = {}
    firsts: dict[int, int] = {}  # place -> the bytes that lead to it
    for sequence in sequences(ranges):
        place = 0
        for low, high in reversed(sequence[1:]):
            step = (_set(low, high), place)
            if step not in places:
                found.append((step,))
                places[step] = len(found)
            place = places[step]
        firsts[place] = firsts.get(place, 0) | _set(*sequence[0])
    found.append(tuple((some, place) for place, some in firsts.items()))
    return tuple(found)


def _set(low: int, high: int) -> int:
    """The bytes low..high as a 256-bit set."""
    return (1 << (high + 1)) - (1 << low)
