"""Rules made into one deterministic automaton with a stack, where that is possible.

A state is what a text may be doing at one place: a set of (position, tail), a tail being the calls
that are open above the state's own stack, shared as in `automaton`. The set of all that a byte leads
to is one state again (subsets, as finite automata are made deterministic). Calls of rules that do not
recur stay within states, so that a regular grammar becomes a finite automaton. A call of a rule that
recurs is pushed as soon as all that the text may be doing lies above it: the symbol is the state to
come back to, which may be several things at once. A rule called last leaves no frame and loops are
loops: recursion to the right does not grow the stack, and left recursion is solved by `Graph`.

A state that is complete returns. Where a byte can be read both by it and by a state that it may
return to, the symbol below decides (a ``Switch``): the frame is taken back into the state, and both
go on together. This ends for nearly all grammars that people write. Where it does not, some count
is reached and `Undecided` says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from diskmoe.grammar_draft.graph import END, Graph, components
from diskmoe.grammar_draft.rules import Grammar, Ref, Repeat, Token
from diskmoe.grammar_draft.table import END_OF_TEXT, Accept, Action, Go, Return, Row, Switch

MAX_STATES = 6000
MAX_WORK = 200_000  # items and edges looked at
MAX_DEPTH = 16  # open calls, one in another, that one state holds
_ALL = END_OF_TEXT * 2 - 1


class Tail:
    """Calls that are open: what follows once the innermost is complete. One object per content."""

    __slots__ = ("depth", "items", "pushable")

    def __init__(self, items: Kernel, pushable: bool):
        self.items = items
        self.pushable = pushable  # whether the state behind it may be a symbol of the stack
        self.depth = 1 + max(tail.depth if tail else 0 for _, tail in items)


Item = tuple[int, Tail | None]  # None: nothing is open above the stack
Kernel = frozenset[Item]
Calls = dict[
    int, tuple[dict[Item, None], dict[Tail | None, None]]
]  # frames, and tails of last calls


class Undecided(Exception):
    """No automaton with a stack within the limits; the text says which was reached."""


class Pushdown:
    """The rows of an automaton; 0 is the state below everything."""

    def __init__(self, grammar: Grammar, graph: Graph, push_all: bool = False):
        """push_all: every call that is agreed upon is pushed, of rules that do not recur as well.

        Raises Undecided.
        """
        self._graph = graph
        self._pushed = set(grammar.used) if push_all else recurring(grammar, graph)
        self._same: dict[object, int] = {}
        self._canon: dict[int, int] = {}
        self._numbers: dict[Kernel, int] = {frozenset(): 0}
        self._kernels: list[Kernel] = [frozenset()]
        self._steps: list[list[tuple[int, int, int]]] = [[]]  # (bytes, symbol or -1, state)
        self._ends = [False]
        self._tails: dict[tuple[Kernel, bool], Tail] = {}
        self._work = 0
        self.start = self._number(frozenset([(graph.called(grammar.root), None)]))
        self._explore()
        self._decide()

    # states

    def _number(self, kernel: Kernel) -> int:
        known = self._numbers.get(kernel)
        if known is None:
            if len(self._kernels) >= MAX_STATES:
                raise Undecided(f"more than {MAX_STATES} states")
            known = self._numbers[kernel] = len(self._kernels)
            self._kernels.append(kernel)
        return known

    def _spend(self, work: int) -> None:
        self._work += work
        if self._work > MAX_WORK:
            raise Undecided(f"more than {MAX_WORK} steps of work")

    def _explore(self) -> None:
        """Works out the steps of all states that have none yet, and of those they lead to."""
        while len(self._steps) < len(self._kernels):
            reads, ends = self._closure(self._kernels[len(self._steps)])
            self._ends.append(ends)
            steps: list[tuple[int, int, int]] = []
            self._steps.append(steps)
            for some, reached in self._parted(reads):
                symbol, kernel = self._cut(reached)
                steps.append((some, symbol, self._number(kernel)))

    def _closure(self, kernel: Iterable[Item]) -> tuple[list[Item], bool]:
        """What a state may do next: positions that read, and whether it may be complete."""
        heads = self._graph.heads
        reads: dict[Item, None] = {}
        calls: Calls = {}
        ends = False
        queue = list(kernel)
        seen = set(queue)
        for position, tail in queue:  # grows
            head = heads(position)
            for other in head.positions:
                reads[other, tail] = None
            for rule, behind in head.calls:
                self._call(calls, rule, behind, tail)
            if head.ends:
                if tail is None:
                    ends = True
                    continue
                for item in tail.items:
                    if item not in seen:
                        seen.add(item)
                        queue.append(item)
        if calls:
            self._enter(calls, reads)
        self._spend(len(queue) + len(reads))
        return list(reads), ends

    def _call(self, calls: Calls, rule: int, behind: int, tail: Tail | None) -> None:
        framed, bare = calls.setdefault(rule, ({}, {}))
        if self._graph.heads(behind).only_ends:
            bare[tail] = None  # nothing left to do there: no frame
        else:
            framed[self._canonical(behind), tail] = None

    def _enter(self, calls: Calls, reads: dict[Item, None]) -> None:
        """Enters called rules, callers before callees, each once."""
        order = self._graph.order
        heap = sorted((-order[rule], rule) for rule in calls)
        while heap:
            _, rule = heappop(heap)
            framed, bare = calls.pop(rule)
            if not framed and len(bare) == 1:
                (tail,) = bare
            else:
                items = set(framed)
                for other in bare:
                    items.update(other.items if other else ((END, None),))
                tail = self._tail(frozenset(items), rule in self._pushed)
            entry = self._graph.entry(rule)
            for position in entry.positions:
                reads[position, tail] = None
            for other, behind in entry.calls:
                if other not in calls:
                    heappush(heap, (-order[other], other))
                self._call(calls, other, behind, tail)

    def _tail(self, items: Kernel, pushable: bool) -> Tail:
        known = self._tails.get((items, pushable))
        self._spend(len(items))
        if known is None:
            known = self._tails[items, pushable] = Tail(items, pushable)
            if known.depth > MAX_DEPTH:
                raise Undecided(f"more than {MAX_DEPTH} open calls in one state")
        return known

    def _parted(self, reads: list[Item]) -> list[tuple[int, Kernel]]:
        """Where bytes lead: disjoint sets of bytes, each with all that it leads to."""
        edges = self._graph.edges
        canonical = self._canonical
        if len(reads) == 1 and len(edges[reads[0][0]]) == 1:
            (some, behind), tail = edges[reads[0][0]][0], reads[0][1]
            return [(some, frozenset([(canonical(behind), tail)]))]
        parts: list[tuple[int, set[Item]]] = []
        union = 0
        for position, tail in reads:
            for some, behind in edges[position]:
                item = (canonical(behind), tail)
                if not some & union:
                    parts.append((some, {item}))
                    union |= some
                    continue
                union |= some
                self._spend(len(parts))
                for i in range(len(parts)):
                    bits, reached = parts[i]
                    common = bits & some
                    if not common:
                        continue
                    if common == bits:
                        reached.add(item)
                    else:
                        parts[i] = (bits & ~common, reached)
                        parts.append((common, {*reached, item}))
                    some &= ~common
                    if not some:
                        break
                if some:
                    parts.append((some, {item}))
        joined: dict[Kernel, int] = {}
        for bits, reached in parts:
            kernel = frozenset(reached)
            joined[kernel] = joined.get(kernel, 0) | bits
        return [(bits, kernel) for kernel, bits in joined.items()]

    def _cut(self, reached: Kernel) -> tuple[int, Kernel]:
        """Parts calls that lie below all that was reached: (the symbol to push or -1, the state)."""
        tails = {tail for _, tail in reached}
        while None not in tails:
            highest = max(tails, key=_depth)
            assert highest is not None
            if len(tails) == 1 and highest.pushable:
                break
            tails.discard(highest)  # paths to what is below all of them lead through its items
            tails.update(tail for _, tail in highest.items)
        else:
            return -1, reached
        (cut,) = tails
        return self._number(cut.items), self._moved(reached, cut, None)

    def _moved(self, items: Kernel, old: Tail | None, new: Tail | None) -> Kernel:
        """Items with another tail in the place of one."""
        known: dict[Tail | None, Tail | None] = {old: new}

        def moved(tail: Tail | None) -> Tail | None:
            if tail not in known:
                assert tail is not None
                inside = frozenset((position, moved(below)) for position, below in tail.items)
                known[tail] = self._tail(inside, tail.pushable)
            return known[tail]

        return frozenset((position, moved(tail)) for position, tail in items)

    def _canonical(self, position: int) -> int:
        """The one position for all that go on alike."""
        known = self._canon.get(position)
        if known is None:
            head = self._graph.heads(position)
            key = (frozenset(head.positions), frozenset(head.calls), head.ends)
            known = self._canon[position] = self._same.setdefault(key, position)
        return known

    # returns

    def _decide(self) -> None:
        """Finds out where a complete state returns, and where only the symbol below can say."""
        self._taken: dict[tuple[int, int], int] = {}  # (state, symbol) -> both as one state
        while True:
            below = self._below()
            firsts = self._firsts(below)
            fresh = False
            for state, symbols in enumerate(below):
                if not self._ends[state]:
                    continue
                own = self._own(state)
                for symbol in symbols:
                    if own & firsts[symbol] and (state, symbol) not in self._taken:
                        self._take(state, symbol)
                        fresh = True
            if not fresh:
                break
            self._explore()
        self._symbols, self._first = below, firsts

    def _take(self, state: int, symbol: int) -> None:
        """A state that may go on by itself or return to `symbol`: both as one."""
        tail = self._tail(self._kernels[symbol], True)
        self._taken[state, symbol] = self._number(self._moved(self._kernels[state], None, tail))

    def _own(self, state: int) -> int:
        total = 0
        for some, _, _ in self._steps[state]:
            total |= some
        return total

    def _below(self) -> list[set[int]]:
        """Per state the symbols that may be right below it."""
        below: list[set[int]] = [set() for _ in self._kernels]
        onward: list[set[int]] = [set() for _ in self._kernels]  # states at the same level
        queue: list[tuple[int, int]] = [(self.start, 0)]
        for state, steps in enumerate(self._steps):
            for _, symbol, to in steps:
                if symbol < 0:
                    onward[state].add(to)
                else:
                    onward[state].add(symbol)
                    queue.append((to, symbol))
        by_symbol: dict[int, list[int]] = {}
        for (_, symbol), both in self._taken.items():
            by_symbol.setdefault(symbol, []).append(both)
        for symbol, states in by_symbol.items():
            onward[symbol].update(states)
        while queue:
            state, symbol = queue.pop()
            if symbol not in below[state]:
                self._spend(1 + len(onward[state]))
                below[state].add(symbol)
                queue += [(other, symbol) for other in onward[state]]
        return below

    def _firsts(self, below: list[set[int]]) -> list[int]:
        """Per state what may come next, returns included; the end of the text as well."""
        firsts = [self._own(state) for state in range(len(below))]
        firsts[0] = END_OF_TEXT
        returns: list[list[int]] = [[] for _ in below]  # per symbol the states that return to it
        for state, symbols in enumerate(below):
            if self._ends[state]:
                for symbol in symbols:
                    returns[symbol].append(state)
        queue = list(range(len(below)))
        while queue:
            symbol = queue.pop()
            for state in returns[symbol]:
                if firsts[symbol] & ~firsts[state]:
                    firsts[state] |= firsts[symbol]
                    queue.append(state)
        return firsts

    # rows

    def rows(self) -> list[Row]:
        """What each state does with each byte. Raises Undecided."""
        rows: list[Row] = [[(END_OF_TEXT, Accept())]]
        rows += [self._row(state, _ALL) for state in range(1, len(self._kernels))]
        return rows

    def _switches(self, state: int, some: int, go: Go) -> Row:
        """The rows of bytes that a state and one below it may both read."""
        self._spend(len(self._symbols[state]))
        parts: dict[int, dict[int, Action]] = {some: {}}
        for symbol in self._symbols[state]:
            stay = Go(go.to, (symbol, *go.push))
            both = some & self._first[symbol]
            if not both:
                for cases in parts.values():
                    cases[symbol] = stay
                continue
            joined = self._row(self._taken[state, symbol], both)
            finer: dict[int, dict[int, Action]] = {}
            for bits, cases in parts.items():
                if bits & ~both:
                    finer[bits & ~both] = {**cases, symbol: stay}
                for more, action in joined:
                    if bits & more:
                        finer[bits & more] = {**cases, symbol: action}
            parts = finer
        return [(bits, Switch(1, tuple(sorted(cases.items())))) for bits, cases in parts.items()]

    def _row(self, state: int, some: int) -> Row:
        """What a state does with some of the bytes."""
        row: Row = []
        returned = 0
        if self._ends[state]:
            for symbol in self._symbols[state]:
                returned |= self._first[symbol]
        for bits, symbol, to in self._steps[state]:
            bits &= some
            if bits:
                some &= ~bits
                go = Go(to, () if symbol < 0 else (symbol,))
                if bits & ~returned:
                    row.append((bits & ~returned, go))
                if bits & returned:
                    row += self._switches(state, bits & returned, go)
        if some & returned:
            row.append((some & returned, Return()))
        return row


def names_tokens(grammar: Grammar) -> bool:
    """Whether a grammar names tokens, which no byte can stand for."""
    symbols = (s for n in grammar.used for a in grammar.rules[n].alternatives for s in a)
    return any(isinstance(s.item if isinstance(s, Repeat) else s, Token) for s in symbols)


def _depth(tail: Tail | None) -> int:
    return tail.depth if tail else 0


def recurring(grammar: Grammar, graph: Graph) -> set[int]:
    """The rules that need a stack: those in circles of calls of which one comes back.

    A call that is the last thing in an alternative does not come back, and first calls in circles
    are left recursion, which `Graph` solves.
    """
    component = components({rule: sorted(set(grammar.uses(rule))) for rule in grammar.used})
    found: set[int] = set()
    for rule in grammar.used:
        family = graph.family.get(rule, ())
        for alternative in grammar.rules[rule].alternatives:
            for place, symbol in enumerate(alternative):
                once = not isinstance(symbol, Repeat) or symbol.high == 1
                item = symbol.item if isinstance(symbol, Repeat) else symbol
                if not isinstance(item, Ref) or component[item.rule] != component[rule]:
                    continue
                last = once and place == len(alternative) - 1 and not family
                leading = item is symbol and not place and item.rule in family
                if not last and not leading:
                    found.add(component[rule])
    return {rule for rule in grammar.used if component[rule] in found}
