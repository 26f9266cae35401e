"""Rules as positions: where a walk can stand, what it may read there, where that leads.

A position reads bytes, reads a token, calls a rule, or is passed for nothing. Loops are cycles, so
that only real nesting grows a stack. Bodies are built when a walk first needs them.

A repetition that would be many positions is a loop that counts (`counts`), or, where what is counted
cannot be one number, the copies of what it repeats are made as a walk comes to them.

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

from collections.abc import Container, Sequence
from functools import lru_cache
from typing import NamedTuple

from diskmoe.grammar_draft.checks import MAX_STATES, WRITTEN_OUT, cost, rule_error
from diskmoe.grammar_draft.components import components
from diskmoe.grammar_draft.counts import COUNT, KEEP, Loop
from diskmoe.grammar_draft.rules import (
    Alternative,
    Chars,
    Grammar,
    Literal,
    Ranges,
    Ref,
    Repeat,
    Rule,
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

    def __init__(
        self, grammar: Grammar, counted: Container[Repeat] = (), written_out: int = WRITTEN_OUT
    ):
        """counted: the repetitions that are loops that count. written_out: positions of others that
        are made at once, at most."""
        self._rules = list(grammar.rules)  # and those of single symbols that are repeated
        self.empty = list(grammar.empty)
        self._ends = list(grammar.ends)
        self._counted = counted
        self._written_out = written_out
        self.marks: dict[int, int] = {}  # positions of loops that count, see `counts`
        self.loops: dict[int, Loop] = {}  # of the same positions
        self._later: dict[int, tuple[int, int, int, bool]] = {}  # see `_copies`
        self._singles: dict[Symbol, int] = {}
        self.edges: list[tuple[tuple[int, int], ...]] = []  # (256-bit set, position behind)
        self.tokens: list[tuple[tuple[int, bool, int], ...]] = []  # (id, negated, position behind)
        self.mask: list[int] = []  # all bytes that a position reads
        self.plain: list[bool] = []  # whether it does nothing but read bytes
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
        if self.plain[position] or position in self.marks:
            return position
        known = self._canon.get(position)
        if known is None:
            head = self.heads(position)
            positions, calls = head.positions, head.calls
            if len(positions) > 1 or len(calls) > 1:
                known = self._same.setdefault(
                    (frozenset(positions), frozenset(calls), head.ends), position
                )
            elif not positions or calls or head.ends:
                known = self._same.setdefault(head, position)
            else:
                known = positions[0]
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
        if not self._passes[position] and position not in self._later:
            reads = self.mask[position] or self.tokens[position]
            return Heads((position,) if reads else (), self._calls[position], position == END)
        seen = {position}
        queue = [position]
        positions: list[int] = []
        calls: list[Call] = []
        while queue:
            here = queue.pop()
            if here in self._later:
                self._copy(here)
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
        passes: Sequence[int] = (),
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
        self.plain.append(bool(edges) and not passes)
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
                behind = self._repeated(symbol, symbol.high - symbol.low, False, behind)
            return self._repeated(symbol, symbol.low, True, behind)
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

    def _repeated(self, symbol: Repeat, count: int, exactly: bool, behind: int) -> int:
        """A position that reads an item so many times, or, if not `exactly`, at most."""
        item = symbol.item
        recurs = isinstance(item, Ref) and item.rule in self.family
        if count > 1 and symbol in self._counted and not recurs:
            return self._loop(symbol, count, exactly, behind)
        if count * cost(symbol.item) > self._written_out:
            return self._copies(self._single(symbol.item), count, exactly, behind)
        last = behind
        for _ in range(count):
            behind = self._before(symbol.item, behind)
            if not exactly:  # one more, or none at all: not one more or the one after it
                behind = self._new(passes=[behind, last])
        return behind

    def _loop(self, symbol: Repeat, count: int, exactly: bool, behind: int) -> int:
        """The same as a loop that counts: see `counts`."""
        rule = self._single(symbol.item)
        ways = [behind] if not exactly or self.empty[rule] else []
        first, more = self._new(passes=ways), self._new(passes=ways)
        loop = Loop(symbol, more, behind)
        for place, mark in ((first, count - 1), (more, COUNT)):
            counting = self._new()  # behind an item whose beginning was just read
            self.marks[counting], self.loops[counting] = mark, loop
            self._calls[place] = ((rule, counting),)
        self.marks[more], self.loops[more] = KEEP, loop
        return first

    def _copies(self, rule: int, count: int, exactly: bool, behind: int) -> int:
        """The same as copies that are made when a walk comes to them."""
        if not count:
            return behind
        copies = self._new()
        self._later[copies] = (rule, count, behind, exactly)
        return copies

    def _copy(self, position: int) -> None:
        rule, count, behind, exactly = self._later.pop(position)
        self._calls[position] = ((rule, self._copies(rule, count - 1, exactly, behind)),)
        if not exactly or self.empty[rule]:
            self._passes[position].append(behind)

    def _single(self, item: Symbol) -> int:
        """A rule that is one item."""
        if isinstance(item, Ref):
            return item.rule
        known = self._singles.get(item)
        if known is None:
            known = self._singles[item] = len(self._rules)
            self._rules.append(Rule("", [(item,)], made="group"))
            self.empty.append(False)
            self._ends.append(True)
            self.order[known] = -1  # it calls nothing
        return known

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
