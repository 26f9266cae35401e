"""Rules made into one deterministic automaton with a stack, where that is possible.

A state is what a text may be doing at one place: a set of (position, tail), a tail being the calls
that are open above the state's own stack, shared as in `automaton`. All that a byte leads to is one
state again (subsets, as finite automata are made deterministic). Calls of rules that do not recur
stay within states, so that a regular grammar becomes a finite automaton. Calls of rules that recur
are pushed as soon as all that the text may be doing lies above some: the symbol is what to come back
to. That may be several things, for several rules that are open side by side; the state then says
which it has completed (a *port*). A rule called last leaves no frame and loops are loops: recursion
to the right does not grow the stack, and left recursion is solved by `Graph`.

A state that is complete returns. Where a byte can be read both by it and by what it may return to,
the symbol below decides (a ``Switch``): it is taken back into the state, and both go on together. So
an edge of the automaton has a class of bytes, what must stand on the stack, and what is pushed, as
in Pre3 (arXiv 2506.03887); but sets of stacks are made deterministic here and not LR(1) items, which
needs no table of look-ahead, no elimination of empty rules and no search for cycles. Conflicts of
LR(1) are what does not end here: then some count is reached, and `Undecided` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from diskmoe.grammar_draft.counts import Clash
from diskmoe.grammar_draft.graph import Graph
from diskmoe.grammar_draft.laid import table_of
from diskmoe.grammar_draft.rules import Grammar
from diskmoe.grammar_draft.subsets import MAX_DEPTH, Subsets, Undecided
from diskmoe.grammar_draft.table import (
    END_OF_TEXT,
    POPPED,
    Accept,
    Action,
    Count,
    Go,
    Load,
    Return,
    Row,
    Switch,
    Table,
)

_ALL = END_OF_TEXT * 2 - 1


class Pushdown:
    """The rows of an automaton; 0 is the state below everything."""

    def __init__(self, grammar: Grammar, graph: Graph, pushed: set[int]):
        """pushed: the rules whose calls are pushed, those that recur among them.

        Raises Undecided, and Clash where a number would have to be several.
        """
        subsets = self._subsets = Subsets(graph, pushed)
        self._live = subsets.live
        self._landed: dict[tuple[int, int], int] = {}  # (ports, symbol that is several) -> state
        self._taken: dict[tuple[int, int], int] = {}  # (state, symbol) -> both as one state
        root = (graph.called(grammar.root), subsets.ports[0])
        self.start = subsets.number((frozenset([root]),))
        subsets.explore()
        self._decide()

    def _decide(self) -> None:
        """Finds out where complete states return, and where only the symbol below can say."""
        while True:
            known = len(self._subsets.contents), len(self._landed), len(self._taken)
            self._below = self._find_below()
            groups: dict[tuple[int, int], list[int]] = {}  # states that return alike
            for state, ends in enumerate(self._subsets.ends):
                if ends:
                    groups.setdefault((self._below[state], ends), []).append(state)
            self._returns = {
                group: [(symbol, self._landing(group[1], symbol)) for symbol in _members(group[0])]
                for group in groups
            }
            self._subsets.explore()
            self._find_firsts(groups)
            for group, states in groups.items():
                for state in states:
                    if self._own[state] & self._behind[group]:
                        self._take_all(state, self._returns[group])
            if (len(self._subsets.contents), len(self._landed), len(self._taken)) == known:
                break
            self._subsets.explore()

    def _landing(self, ends: int, symbol: int) -> int:
        """Where a state that has completed these ports returns."""
        contents = self._subsets.contents[symbol]
        if len(contents) == 1:
            return symbol
        known = self._landed.get((ends, symbol))
        if known is None:
            ports = (kernel for port, kernel in enumerate(contents) if ends >> port & 1)
            known = self._landed[ends, symbol] = self._subsets.number((frozenset().union(*ports),))
        return known

    def _take_all(self, state: int, returns: list[tuple[int, int]]) -> None:
        for symbol, to in returns:
            if self._own[state] & self._firsts[to] and (state, symbol) not in self._taken:
                self._subsets.spend(1)
                self._take(state, symbol)

    def _take(self, state: int, symbol: int) -> None:
        """A state that may go on by itself or return to `symbol`: both as one, with one number."""
        if self._live[state] and self._live[symbol]:
            contents = self._subsets.contents
            raise Clash(self._subsets.loops((*contents[state], *contents[symbol])))
        tails = [self._subsets.tail(kernel, True) for kernel in self._subsets.contents[symbol]]
        places = dict(zip(self._subsets.ports, tails, strict=False))
        both = self._subsets.moved(self._subsets.contents[state][0], places)
        self._taken[state, symbol] = self._subsets.number((both,))

    def _find_below(self) -> list[int]:
        """Per state the symbols that may be right below it, as a set."""
        below = [0] * len(self._subsets.contents)
        onward: list[set[int]] = [set() for _ in self._subsets.contents]  # states at the same level
        below[self.start] = 1
        for state, steps in enumerate(self._subsets.steps):
            for _, action in steps:
                if type(action) is int:
                    onward[state].add(action)
                    continue
                for go in _ways(action):
                    onward[state].add(go.push[0] if go.push else go.to)
                    if go.push:
                        below[go.to] |= 1 << go.push[0]
        for (_, symbol), to in (*self._landed.items(), *self._taken.items()):
            onward[symbol].add(to)
        queue = [state for state, symbols in enumerate(below) if symbols]
        while queue:
            state = queue.pop()
            self._subsets.spend(1 + len(onward[state]))
            for other in onward[state]:
                if below[state] & ~below[other]:
                    below[other] |= below[state]
                    queue.append(other)
        return below

    def _find_firsts(self, groups: Mapping[tuple[int, int], list[int]]) -> None:
        """Finds per state what may come next, returns included, and per group what may behind a
        return; the end of the text as well."""
        self._own = [0] * len(self._subsets.contents)  # what a state reads by itself
        for state, steps in enumerate(self._subsets.steps):
            for some, _ in steps:
                self._own[state] |= some
        firsts = self._firsts = list(self._own)
        firsts[0] = END_OF_TEXT
        behind = self._behind = dict.fromkeys(groups, 0)
        changed = True
        while changed:
            changed = False
            for group, states in groups.items():
                self._subsets.spend(1 + len(states))
                total = 0
                for _, to in self._returns[group]:
                    total |= firsts[to]
                if total != behind[group]:
                    changed = True
                    behind[group] = total
                    for state in states:
                        firsts[state] |= total

    # rows

    def _put_back(self, symbol: int, action: Action) -> Action:
        """A step behind a symbol that was popped to see what it is."""
        if isinstance(action, Count):
            return Count(self._put_back(symbol, action.more), self._put_back(symbol, action.last))
        go = Go(action) if isinstance(action, int) else action
        assert isinstance(go, Go)
        own = POPPED if self._live[symbol] else 0
        sets = (own, *(go.sets or [0] * (len(go.push) + 1)))
        return Go(go.to, (symbol, *go.push), sets if any(sets) else ())

    def table(self) -> Table:
        """The rows as a table. Raises Undecided."""
        return table_of(self.rows(), self.start, self._live)

    def rows(self) -> list[Row]:
        """What each state does with each byte. Raises Undecided."""
        return [self._row(state, _ALL) for state in range(len(self._subsets.contents))]

    def _row(self, state: int, some: int, depth: int = 0) -> Row:
        """What a state does with some of the bytes. depth: symbols that were popped before."""
        if depth > MAX_DEPTH:
            raise Undecided(f"more than {MAX_DEPTH} returns before one byte")
        if not state:
            return [(END_OF_TEXT, Accept())] if some & END_OF_TEXT else []
        if not self._subsets.ends[state]:
            steps = self._subsets.steps[state]
            return [(bits & some, action) for bits, action in steps if bits & some]
        row: Row = []
        group = (self._below[state], self._subsets.ends[state])
        returned = self._behind.get(group, 0)  # bytes that are read behind a return
        switched = 0
        if returned and self._landed:
            for symbol, to in self._returns[group]:
                switched |= self._firsts[to] if to != symbol else 0
        returned &= some
        for bits, go in self._subsets.steps[state]:
            bits &= some
            if bits:
                if bits & ~returned:
                    row.append((bits & ~returned, go))
                if bits & returned:
                    row += self._switches(state, bits & returned, go, depth)
                    returned &= ~bits
        if returned & switched:
            row += self._switches(state, returned & switched, None, depth)
        if returned & ~switched:
            row.append((returned & ~switched, Return()))
        return row

    def _switches(self, state: int, some: int, go: Action | None, depth: int) -> Row:
        """The rows of bytes where the symbol below a state says what they do. go: what the state
        does with them by itself."""
        returns = self._returns[self._below[state], self._subsets.ends[state]]
        self._subsets.spend(len(returns))
        parts: dict[int, dict[int, Action]] = {some: {}}
        for symbol, landed in returns:
            both = some & self._firsts[landed]
            joined: Row = []
            if both:
                both_as_one = landed if go is None else self._taken[state, symbol]
                joined = self._row(both_as_one, both, depth + 1)
                # the number of what goes on: that of the symbol, if it is in what goes on
                if self._live[symbol] or (go is None and self._live[state]):
                    joined = [(bits, Load(action)) for bits, action in joined]
            if go is not None and some & ~both:
                joined.append((some & ~both, self._put_back(symbol, go)))
            finer: dict[int, dict[int, Action]] = {}
            for bits, cases in parts.items():
                left = bits
                for more, action in joined:
                    if bits & more:
                        finer[bits & more] = {**cases, symbol: action}
                        left &= ~more
                if left:
                    finer[left] = cases
            parts = finer
        return [
            (bits, Switch(1, tuple(sorted(cases.items(), key=_symbol))))
            for bits, cases in parts.items()
        ]


def _ways(action: Action) -> tuple[Go, ...]:
    """Where a step may lead."""
    if isinstance(action, Count):
        return (*_ways(action.more), *_ways(action.last))
    if isinstance(action, int):
        return (Go(action),)
    assert isinstance(action, Go)
    return (action,)


def _members(some: int) -> Iterator[int]:
    """The members of a set of small numbers."""
    while some:
        lowest = some & -some
        yield lowest.bit_length() - 1
        some ^= lowest


def _symbol(case: tuple[int, Action]) -> int:
    return case[0]
