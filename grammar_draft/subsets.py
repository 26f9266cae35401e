"""What a text may be doing, as numbered states: subsets of (position, tail), and the steps of bytes.

See `pushdown` for what a state is; here they are made, and calls that lie below all that a byte leads
to are parted from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from itertools import islice

from diskmoe.grammar_draft.graph import END, Graph

MAX_STATES = 6000
MAX_WORK = 200_000  # items and edges looked at
MAX_DEPTH = 16  # open calls, one in another, that one state holds
MAX_PORTS = 8  # rules that are open side by side on the stack


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


class Subsets:
    """States and symbols; what a state reads and where that leads."""

    def __init__(self, graph: Graph, pushed: set[int]):
        """pushed: the rules whose calls are pushed. 0 is the state below everything."""
        self._graph = graph
        self._pushed = pushed
        # per tail, or set of them: the symbol that is parted from them or -1, and what they become
        self._cuts: dict[Tail | frozenset[Tail], tuple[int, dict[Tail, Tail]]] = {}
        self._tails: dict[tuple[Kernel, bool], Tail] = {}
        self._numbers: dict[tuple[Kernel, ...], int] = {}
        self._work = 0
        self.ports = [Tail(frozenset(), False, port) for port in range(MAX_PORTS)]
        self.contents: list[tuple[Kernel, ...]] = []  # by port; of a state just what it is
        self.steps: list[list[tuple[int, int, int]]] = []  # (bytes, symbol or -1, state)
        self.ends: list[int] = []  # the ports that a state may have completed, as a set
        self.number((frozenset(),))

    def number(self, contents: tuple[Kernel, ...]) -> int:
        """The number of a state, or of a symbol that is several."""
        known = self._numbers.get(contents)
        if known is None:
            if len(self.contents) >= MAX_STATES:
                raise Undecided(f"more than {MAX_STATES} states")
            known = self._numbers[contents] = len(self.contents)
            self.contents.append(contents)
        return known

    def spend(self, work: int) -> None:
        self._work += work
        if self._work > MAX_WORK:
            raise Undecided(f"more than {MAX_WORK} steps of work")

    def explore(self) -> None:
        """Works out the steps of all states that have none yet, and of those they lead to."""
        for contents in islice(self.contents, len(self.steps), None):  # grows
            reads, ends = self._closure(contents[0]) if len(contents) == 1 else ([], 0)
            self.ends.append(ends)
            steps: list[tuple[int, int, int]] = []
            for some, reached in self._parted(reads):
                symbol, to = self._cut(reached)
                steps.append((some, symbol, self.number((to,))))
            self.steps.append(steps)

    def _closure(self, kernel: Kernel) -> tuple[list[Item], int]:
        """What a state may do next: positions that read, and the ports that it has completed."""
        heads = self._graph.heads
        if len(kernel) == 1:
            ((position, tail),) = kernel
            head = heads(position)
            if not head.calls and not head.ends:
                self._work += 1
                return [(other, tail) for other in head.positions], 0
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
        self.spend(len(queue) + len(reads))
        return list(reads), ends

    def _call(self, calls: Calls, rule: int, behind: int, tail: Tail) -> None:
        framed, bare = calls.setdefault(rule, ({}, {}))
        if self._graph.heads(behind).only_ends:
            bare[tail] = None  # nothing left to do there: no frame
        else:
            framed[self._graph.canonical(behind), tail] = None

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
                tail = self.tail(frozenset(items), rule in self._pushed)
            entry = self._graph.entry(rule)
            for position in entry.positions:
                reads[position, tail] = None
            for other, behind in entry.calls:
                if other not in calls:
                    heappush(heap, (-order[other], other))
                self._call(calls, other, behind, tail)

    def tail(self, items: Kernel, pushable: bool) -> Tail:
        known = self._tails.get((items, pushable))
        self.spend(len(items))
        if known is None:
            known = self._tails[items, pushable] = Tail(items, pushable)
            if known.depth > MAX_DEPTH:
                raise Undecided(f"more than {MAX_DEPTH} open calls in one state")
        return known

    def _parted(self, reads: list[Item]) -> list[tuple[int, Kernel]]:
        """Where bytes lead: disjoint sets of bytes, each with all that it leads to."""
        edges = self._graph.edges
        canonical = self._graph.canonical
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
                self.spend(len(parts))
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
        tails: Tail | frozenset[Tail]
        if len(reached) == 1:
            ((_, tails),) = reached
        else:
            tails = frozenset([tail for _, tail in reached])
        known = self._cuts.get(tails)
        if known is None:
            cut = self._parting(frozenset([tails]) if isinstance(tails, Tail) else tails)
            symbol = self.number(tuple(tail.items for tail in cut)) if cut else -1
            known = self._cuts[tails] = symbol, dict(zip(cut, self.ports, strict=False))
        symbol, places = known
        return symbol, reached if symbol < 0 else self._moved(reached, places)

    def _parting(self, tails: frozenset[Tail]) -> list[Tail]:
        """The tails at whose place the stack is parted, none where it cannot be."""
        if any(tail.port >= 0 for tail in tails):
            return []
        if len(tails) == 1 and all(tail.pushable for tail in tails):
            return list(tails)
        return self._lowest(tails)

    def _lowest(self, tails: frozenset[Tail]) -> list[Tail]:
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

    def moved(self, items: Kernel, places: Mapping[Tail, Tail]) -> Kernel:
        """Items with other tails in the place of some."""
        return self._moved(items, dict(places))

    def _moved(self, items: Kernel, known: dict[Tail, Tail]) -> Kernel:
        """Likewise; what other tails become is added to `known`."""
        found: list[Item] = []
        for position, tail in items:
            other = known.get(tail)
            if other is None:
                if tail.port < 0:
                    other = self.tail(self._moved(tail.items, known), tail.pushable)
                else:
                    other = tail
                known[tail] = other
            found.append((position, other))
        return frozenset(found)


def _depth(tail: Tail) -> int:
    return tail.depth
