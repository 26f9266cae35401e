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

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush

from diskmoe.grammar_draft.graph import END, Graph, components
from diskmoe.grammar_draft.rules import Grammar, Ref, Repeat, Token
from diskmoe.grammar_draft.table import END_OF_TEXT, Accept, Action, Go, Return, Row, Switch

MAX_STATES = 6000
MAX_WORK = 200_000  # items and edges looked at
MAX_DEPTH = 16  # open calls, one in another, that one state holds
MAX_PORTS = 8  # rules that are open side by side on the stack
_ALL = END_OF_TEXT * 2 - 1


class Tail:
    """Calls that are open: what follows once the innermost is complete. One object per content. A
    port stands for what the symbol below a state says."""

    __slots__ = ("depth", "items", "port", "pushable")

    def __init__(self, items: Kernel, pushable: bool, port: int = -1):
        self.items = items
        self.pushable = pushable  # whether what is behind it may be a symbol of the stack
        self.port = port  # -1: none
        self.depth = 0 if port >= 0 else 1 + max(tail.depth for _, tail in items)


Item = tuple[int, Tail]
Kernel = frozenset[Item]
Calls = dict[int, tuple[dict[Item, None], dict[Tail, None]]]  # frames, and tails of last calls


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
        self._ports = [Tail(frozenset(), False, port) for port in range(MAX_PORTS)]
        self._tails: dict[tuple[Kernel, bool], Tail] = {}
        self._numbers: dict[tuple[Kernel, ...], int] = {}
        self._contents: list[tuple[Kernel, ...]] = []  # by port; of a state just what it is
        self._steps: list[list[tuple[int, int, int]]] = []  # (bytes, symbol or -1, state)
        self._ends: list[int] = []  # the ports that a state may have completed, as a set
        self._landed: dict[tuple[int, int], int] = {}  # (state, symbol) -> where it returns
        self._taken: dict[tuple[int, int], int] = {}  # (state, symbol) -> both as one state
        self._work = 0
        self._number(frozenset())
        self.start = self._number(frozenset([(graph.called(grammar.root), self._ports[0])]))
        self._explore()
        self._decide()

    # states

    def _number(self, *contents: Kernel) -> int:
        """The number of a state, or of a symbol that is several."""
        known = self._numbers.get(contents)
        if known is None:
            if len(self._contents) >= MAX_STATES:
                raise Undecided(f"more than {MAX_STATES} states")
            known = self._numbers[contents] = len(self._contents)
            self._contents.append(contents)
        return known

    def _spend(self, work: int) -> None:
        self._work += work
        if self._work > MAX_WORK:
            raise Undecided(f"more than {MAX_WORK} steps of work")

    def _explore(self) -> None:
        """Works out the steps of all states that have none yet, and of those they lead to."""
        while len(self._steps) < len(self._contents):
            contents = self._contents[len(self._steps)]
            steps: list[tuple[int, int, int]] = []
            self._steps.append(steps)
            if len(contents) > 1:
                self._ends.append(0)
                continue
            (kernel,) = contents
            reads, ends = self._closure(kernel)
            self._ends.append(ends)
            for some, reached in self._parted(reads):
                symbol, to = self._cut(reached)
                steps.append((some, symbol, self._number(to)))

    def _closure(self, kernel: Iterable[Item]) -> tuple[list[Item], int]:
        """What a state may do next: positions that read, and the ports that it has completed."""
        heads = self._graph.heads
        reads: dict[Item, None] = {}
        calls: Calls = {}
        ends = 0
        queue = list(kernel)
        seen = set(queue)
        for position, tail in queue:  # grows
            head = heads(position)
            for other in head.positions:
                reads[other, tail] = None
            for rule, behind in head.calls:
                self._call(calls, rule, behind, tail)
            if head.ends:
                if tail.port >= 0:
                    ends |= 1 << tail.port
                    continue
                for item in tail.items:
                    if item not in seen:
                        seen.add(item)
                        queue.append(item)
        if calls:
            self._enter(calls, reads)
        self._spend(len(queue) + len(reads))
        return list(reads), ends

    def _call(self, calls: Calls, rule: int, behind: int, tail: Tail) -> None:
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
                    items.update(other.items if other.port < 0 else ((END, other),))
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
        cut = self._lowest({tail for _, tail in reached})
        if not cut:
            return -1, reached
        ports = dict(zip(cut, self._ports, strict=False))
        return self._number(*(tail.items for tail in cut)), self._moved(reached, ports)

    def _lowest(self, tails: set[Tail]) -> list[Tail]:
        """Tails that may be pushed and that everything lies above: one, or else several."""
        found = set(tails)
        while all(tail.port < 0 for tail in found):
            highest = max(found, key=_depth)
            if len(found) == 1 and highest.pushable:
                return [highest]
            found.discard(highest)  # paths to what is below all of them lead through its items
            found.update(tail for _, tail in highest.items)
        found = set(tails)
        while all(tail.port < 0 for tail in found):
            within = [tail for tail in found if not tail.pushable]
            if not within:
                return sorted(found, key=self._rank) if len(found) <= MAX_PORTS else []
            found.difference_update(within)
            found.update(below for tail in within for _, below in tail.items)
        return []

    def _rank(self, tail: Tail) -> list[int]:
        return sorted(position for position, _ in tail.items)

    def _moved(self, items: Kernel, places: Mapping[Tail, Tail]) -> Kernel:
        """Items with other tails in the place of some."""
        known = dict(places)

        def moved(tail: Tail) -> Tail:
            if tail.port >= 0:
                return known.get(tail, tail)
            if tail not in known:
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
        """Finds out where complete states return, and where only the symbol below can say."""
        while True:
            below = self._below()
            pairs = [
                (s, symbol) for s, found in enumerate(below) if self._ends[s] for symbol in found
            ]
            known = len(self._landed) + len(self._taken)
            for state, symbol in pairs:
                if (state, symbol) not in self._landed:
                    self._landed[state, symbol] = self._landing(state, symbol)
            self._explore()
            firsts = self._firsts()
            for state, symbol in pairs:
                both = self._own(state) & firsts[self._landed[state, symbol]]
                if both and (state, symbol) not in self._taken:
                    self._take(state, symbol)
            if len(self._landed) + len(self._taken) == known:
                break
            self._explore()
        self._symbols, self._first = below, firsts

    def _landing(self, state: int, symbol: int) -> int:
        """Where a complete state returns."""
        contents = self._contents[symbol]
        if len(contents) == 1:
            return symbol
        ports = (c for port, c in enumerate(contents) if self._ends[state] >> port & 1)
        return self._number(frozenset().union(*ports))

    def _take(self, state: int, symbol: int) -> None:
        """A state that may go on by itself or return to `symbol`: both as one."""
        tails = [self._tail(kernel, True) for kernel in self._contents[symbol]]
        places = dict(zip(self._ports, tails, strict=False))
        self._taken[state, symbol] = self._number(self._moved(self._contents[state][0], places))

    def _own(self, state: int) -> int:
        total = 0
        for some, _, _ in self._steps[state]:
            total |= some
        return total

    def _below(self) -> list[set[int]]:
        """Per state the symbols that may be right below it."""
        below: list[set[int]] = [set() for _ in self._contents]
        onward: list[set[int]] = [set() for _ in self._contents]  # states at the same level
        queue: list[tuple[int, int]] = [(self.start, 0)]
        for state, steps in enumerate(self._steps):
            for _, symbol, to in steps:
                if symbol < 0:
                    onward[state].add(to)
                else:
                    onward[state].add(symbol)
                    queue.append((to, symbol))
        for found in (self._landed, self._taken):
            for (_, symbol), to in found.items():
                if to != symbol:
                    onward[symbol].add(to)
        while queue:
            state, symbol = queue.pop()
            if symbol not in below[state]:
                self._spend(1 + len(onward[state]))
                below[state].add(symbol)
                queue += [(other, symbol) for other in onward[state]]
        return below

    def _firsts(self) -> list[int]:
        """Per state what may come next, returns included; the end of the text as well."""
        firsts = [self._own(state) for state in range(len(self._contents))]
        firsts[0] = END_OF_TEXT
        returning: list[list[int]] = [[] for _ in firsts]  # per state those that return to it
        for (state, _), to in self._landed.items():
            returning[to].append(state)
        queue = list(range(len(firsts)))
        while queue:
            to = queue.pop()
            for state in returning[to]:
                if firsts[to] & ~firsts[state]:
                    firsts[state] |= firsts[to]
                    queue.append(state)
        return firsts

    # rows

    def rows(self) -> list[Row]:
        """What each state does with each byte. Raises Undecided."""
        rows: list[Row] = [[(END_OF_TEXT, Accept())]]
        rows += [self._row(state, _ALL) for state in range(1, len(self._contents))]
        return rows

    def _row(self, state: int, some: int) -> Row:
        """What a state does with some of the bytes."""
        row: Row = []
        returned = switched = 0  # bytes that are read behind a return
        if self._ends[state]:
            for symbol in self._symbols[state]:
                to = self._landed[state, symbol]
                returned |= self._first[to]
                if to != symbol:
                    switched |= self._first[to]
        returned &= some
        for bits, symbol, to in self._steps[state]:
            bits &= some
            if bits:
                go = Go(to, () if symbol < 0 else (symbol,))
                if bits & ~returned:
                    row.append((bits & ~returned, go))
                if bits & returned:
                    row += self._switches(state, bits & returned, go)
                    returned &= ~bits
        if returned & switched:
            row += self._switches(state, returned & switched, None)
        if returned & ~switched:
            row.append((returned & ~switched, Return()))
        return row

    def _switches(self, state: int, some: int, go: Go | None) -> Row:
        """The rows of bytes where the symbol below a state says what they do. go: what the state
        does with them by itself."""
        self._spend(len(self._symbols[state]))
        parts: dict[int, dict[int, Action]] = {some: {}}
        for symbol in self._symbols[state]:
            landed = self._landed[state, symbol]
            both = some & self._first[landed]
            joined: Row = []
            if both:
                joined = self._row(landed if go is None else self._taken[state, symbol], both)
            if go and some & ~both:
                joined.append((some & ~both, Go(go.to, (symbol, *go.push))))
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


def names_tokens(grammar: Grammar) -> bool:
    """Whether a grammar names tokens, which no byte can stand for."""
    symbols = (s for n in grammar.used for a in grammar.rules[n].alternatives for s in a)
    return any(isinstance(s.item if isinstance(s, Repeat) else s, Token) for s in symbols)


def _symbol(case: tuple[int, Action]) -> int:
    return case[0]


def _depth(tail: Tail) -> int:
    return tail.depth


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
