"""What a text may be doing, as numbered states: subsets of (position, tail), and the steps of bytes.

See `pushdown` for what a state is; here they are made, and calls that lie below all that a byte leads
to are parted from them. What is in a loop that counts (`counts`) shares one number in a state, and one
in a symbol: a step says what becomes of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from itertools import islice

from diskmoe.grammar_draft.counts import COUNT, KEEP, Clash
from diskmoe.grammar_draft.graph import END, Graph
from diskmoe.grammar_draft.patience import breathe
from diskmoe.grammar_draft.rules import Repeat
from diskmoe.grammar_draft.table import Action, Count, Go

MAX_STATES = 6000
MAX_WORK = 200_000  # items and edges looked at
PAUSE = 20  # of this work, between times that others may run
MAX_DEPTH = 16  # open calls, one in another, that one state holds
MAX_PORTS = 8  # rules that are open side by side on the stack
NO_MARKS: Mapping[int, int] = {}


class Tail:
    """Calls that are open: what follows once the innermost is complete. One object per content. A
    port stands for what the symbol below a state says."""

    __slots__ = ("counting", "depth", "items", "marks", "port", "pushable")

    def __init__(
        self, items: Kernel, pushable: bool, port: int = -1, marked: Mapping[int, int] = NO_MARKS
    ):
        """marked: the marks of positions."""
        self.marks: frozenset[int] = frozenset()  # of all loops that what follows is in
        self.counting = 0  # how many loops, one in another
        if marked:
            self.marks, self.counting = marks_of(items, marked)
        self.items = items
        self.pushable = pushable  # whether what is behind it may be a symbol of the stack
        self.port = port  # -1: none
        self.depth = 0 if port >= 0 else 1 + max(tail.depth for _, tail in items)


Item = tuple[int, Tail]
Kernel = frozenset[Item]
Calls = dict[int, tuple[dict[Item, None], dict[Tail, None]]]  # frames, and tails of last calls


def marks_of(items: Kernel, marked: Mapping[int, int]) -> tuple[frozenset[int], int]:
    """The marks of items and of what is below them, and how many loops lie in one another."""
    found: set[int] = set()
    deepest = 0
    for position, tail in items:
        found |= tail.marks
        if position in marked:
            found.add(marked[position])
        deepest = max(deepest, tail.counting + (position in marked))
    return frozenset(found), deepest


class Undecided(Exception):
    """No automaton with a stack within the limits; the text says which was reached."""


class Subsets:
    """States and symbols; what a state reads and where that leads."""

    def __init__(self, graph: Graph, pushed: set[int]):
        """pushed: the rules whose calls are pushed. 0 is the state below everything."""
        self._graph = graph
        self._pushed = pushed
        # per tail, or set of them: the symbol that is parted from them or -1, and what they become
        self._cuts: dict[Tail | frozenset[Tail], tuple[tuple[Kernel, ...], dict[Tail, Tail]]] = {}
        self._tails: dict[tuple[Kernel, bool], Tail] = {}
        self._changes: dict[tuple[Kernel, ...], int] = {}
        self._numbers: dict[tuple[Kernel, ...], int] = {}
        self._work = 0
        self._pause = 0
        self.ports = [Tail(frozenset(), False, port) for port in range(MAX_PORTS)]
        self.contents: list[tuple[Kernel, ...]] = []  # by port; of a state just what it is
        self.live: list[bool] = []  # whether a number goes along
        self.steps: list[
            list[tuple[int, Action]]
        ] = []  # bytes, and what they do: Go, or Count of two
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
            self.live.append(bool(self._graph.marks and self._change(contents)))
        return known

    def spend(self, work: int) -> None:
        self._work += work
        if self._work > self._pause:
            breathe()
            self._pause = self._work + PAUSE
            if self._work > MAX_WORK:
                raise Undecided(f"more than {MAX_WORK} steps of work")

    def explore(self) -> None:
        """Works out the steps of all states that have none yet, and of those they lead to."""
        for contents in islice(self.contents, len(self.steps), None):  # grows
            reads, ends = self._closure(contents[0]) if len(contents) == 1 else ([], 0)
            self.ends.append(ends)
            steps: list[tuple[int, Action]] = []
            for some, reached in self._parted(reads):
                steps.append((some, self._step(*self._cut(reached))))
            self.steps.append(steps)

    def _step(self, below: tuple[Kernel, ...], kernel: Kernel) -> Action:
        """What a byte does that leads to `kernel` above a symbol of these contents, if any."""
        changes = (0, 0)
        if self._graph.marks:
            changes = self._change(below), self._change((kernel,))
        if changes == (0, 0):
            to = self.number((kernel,))
            return Go(to, (self.number(below),)) if below else to
        counts = COUNT in changes
        if counts and KEEP in changes:
            raise Clash(self.loops((*below, kernel)))
        sets = tuple(max(change, 0) for change in (changes if below else changes[1:]))

        def go(last: bool) -> int | Go:
            to = self.number((self._decided(kernel, last),))
            if not below:
                return Go(to, (), sets) if any(sets) else to
            symbol = self.number(tuple([self._decided(one, last) for one in below]))
            return Go(to, (symbol,), sets if any(sets) else ())

        return Count(go(False), go(True)) if counts else go(False)

    def _change(self, contents: tuple[Kernel, ...]) -> int:
        """What becomes of a number: KEEP, COUNT, what it is set to, or 0 where there is none."""
        known = self._changes.get(contents)
        if known is None:
            known = self._changes[contents] = self._changed(contents)
        return known

    def _changed(self, contents: tuple[Kernel, ...]) -> int:
        marked = self._graph.marks
        if not any(p in marked or tail.marks for kernel in contents for p, tail in kernel):
            return 0
        found: set[int] = set()
        for kernel in contents:
            marks, deepest = marks_of(kernel, self._graph.marks)
            found |= marks
            if len(found) > 1 or deepest > 1:
                raise Clash(self.loops(contents))
        return found.pop() if found else 0

    def loops(self, contents: tuple[Kernel, ...]) -> set[Repeat]:
        """The repetitions whose numbers are in some contents."""
        found: set[Repeat] = set()
        seen: set[Tail] = set()
        queue = [item for kernel in contents for item in kernel]
        for position, tail in queue:  # grows
            if position in self._graph.loops:
                found.add(self._graph.loops[position].symbol)
            if tail not in seen:
                seen.add(tail)
                queue += tail.items
        return found

    def _decided(self, kernel: Kernel, last: bool) -> Kernel:
        """A kernel in which what was begun in loops that count is their last, or is not."""
        marks, loops = self._graph.marks, self._graph.loops
        known: dict[Tail, Tail] = {}

        def behind(position: int) -> int:
            mark = marks.get(position, KEEP)
            if mark == KEEP:
                return position
            if mark == COUNT and last:
                return self._graph.canonical(loops[position].last)
            return loops[position].more

        def decided(tail: Tail) -> Tail:
            if tail.marks <= {KEEP}:
                return tail
            if tail not in known:
                inside = frozenset((behind(p), decided(below)) for p, below in tail.items)
                known[tail] = self.tail(inside, tail.pushable)
            return known[tail]

        return frozenset((behind(position), decided(tail)) for position, tail in kernel)

    def _closure(self, kernel: Kernel) -> tuple[list[Item], int]:
        """What a state may do next: positions that read, and the ports that it has completed."""
        heads = self._graph.heads
        if len(kernel) == 1:
            ((position, tail),) = kernel
            if self._graph.plain[position]:
                self._work += 1
                return [(position, tail)], 0
            head = heads(position)
            if not head.calls and (not head.ends or tail.port >= 0):
                self._work += 1
                completed = 1 << tail.port if head.ends else 0
                return [(other, tail) for other in head.positions], completed
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
        if behind in self._graph.marks:
            framed[behind, tail] = None
        elif self._graph.heads(behind).only_ends:
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
            known = self._tails[items, pushable] = Tail(items, pushable, -1, self._graph.marks)
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

    def _cut(self, reached: Kernel) -> tuple[tuple[Kernel, ...], Kernel]:
        """Parts calls that lie below all that was reached: (the symbol to push if any, the state),
        both as what they are."""
        tails: Tail | frozenset[Tail]
        if len(reached) == 1:
            ((_, tails),) = reached
        else:
            tails = frozenset([tail for _, tail in reached])
        known = self._cuts.get(tails)
        if known is None:
            cut = self._parting(frozenset([tails]) if isinstance(tails, Tail) else tails)
            contents = tuple(tail.items for tail in cut)
            known = self._cuts[tails] = contents, dict(zip(cut, self.ports, strict=False))
        below, places = known
        return below, self._moved(reached, places) if below else reached

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
