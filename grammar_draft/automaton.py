"""A grammar as an automaton over bytes: which may come next, and where a byte leads.

A state is a set of stacks. The stacks of one position share a ``Tail``: a set of (position to go on
from, tail below), one object per content, so that equal stacks are one and a state costs what its
top costs (a graph-structured stack, Tomita 1986, made persistent). A rule called last in another
leaves no frame. States are immutable, one object per content, and remember where each byte leads:
a document is walked by dictionary look-ups. They may be kept, copied and dropped freely; when too
many are remembered all is forgotten and grows anew. An automaton is for one thread at a time.

    >>> from diskmoe.grammar_draft.gbnf import parse
    >>> automaton = Automaton(parse('root ::= "id=" [0-9]+'))
    >>> automaton.forced(automaton.start, 8)
    b'id='
    >>> automaton.walk(automaton.start, b"id=7").may_end
    True
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from weakref import WeakValueDictionary

from diskmoe.grammar_draft.graph import Graph, Heads
from diskmoe.grammar_draft.rules import Grammar

MAX_STATES = 8192  # remembered at a time
MAX_DEPTH = 100_000  # frames of a stack
MAX_WORK = 4000  # frames touched by one byte; usual grammars touch tens

Frame = tuple[int, "Tail"]


class Tail:
    """What stands below a position: a set of frames, and whether the root may be complete."""

    __slots__ = ("__weakref__", "depth", "frames", "root", "serial")

    def __init__(self, frames: tuple[Frame, ...], root: bool, serial: int):
        self.frames = frames
        self.root = root
        self.serial = serial
        self.depth = 1 + max((tail.depth for _, tail in frames), default=0)


class State:
    """A set of stacks. Compare with ``is``."""

    __slots__ = ("allowed", "choices", "items", "key", "may_end", "next", "only", "tokens")

    def __init__(self, items: tuple[tuple[int, Tail], ...], may_end: bool, graph: Graph):
        self.items = items
        # the positions alone: what states at one place of a grammar have in common
        self.key = tuple(position for position, _ in items)
        self.may_end = may_end  # the text may stop here
        self.next: dict[int, State | None] = {}
        allowed = 0
        self.tokens = False  # whether a token may come next, whatever its bytes
        for position, _ in items:
            allowed |= graph.mask[position]
            self.tokens = self.tokens or bool(graph.tokens[position])
        self.allowed = allowed  # a 256-bit set: bit b is set when byte b may come next
        self.choices = allowed.bit_count()
        forced = self.choices == 1 and not may_end and not self.tokens
        self.only = allowed.bit_length() - 1 if forced else -1  # the byte that must come next


class TooMuch(Exception):
    """A byte would touch more stacks than is reasonable, or a stack is too deep."""


class Automaton:
    """The states of a grammar, made as they are needed."""

    def __init__(self, grammar: Grammar, graph: Graph | None = None):
        """graph: the grammar's, if there is one already."""
        self.name = grammar.name
        self.gave_up = 0  # bytes that were refused for their cost, not for the grammar
        self.work = 0  # frames touched since the start: the cost of everything not remembered
        # the count of work at which the byte at hand is refused; what the root begins with is as
        # large as the grammar has made it
        self._limit = 1 << 62
        self._graph = graph or Graph(grammar)
        self._states: dict[tuple[int, ...], State] = {}
        self._tails: WeakValueDictionary[tuple[int, ...], Tail] = WeakValueDictionary()
        self._serial = 0
        self._bits: dict[int, tuple[int, ...]] = {}
        self._bottom = self._tail((), True)
        empty = self._graph.empty[grammar.root]
        self.start = self._called({grammar.root: ([], [self._bottom])}, {}, empty)

    def allowed(self, state: State) -> int:
        """The bytes that may come next, as a 256-bit set."""
        return state.allowed

    def may_end(self, state: State) -> bool:
        """Whether the text may stop here."""
        return state.may_end

    def advance(self, state: State, byte: int) -> State | None:
        """The state behind a byte; None when it may not come next."""
        after = state.next.get(byte)
        if after is None and state.allowed >> byte & 1 and byte not in state.next:
            return self._step(state, byte)
        return after

    def walk(self, state: State, data: bytes) -> State | None:
        """The state behind some bytes, None as soon as one may not come."""
        for byte in data:
            after = state.next.get(byte) or self.advance(state, byte)
            if after is None:
                return None
            state = after
        return state

    def forced(self, state: State, limit: int) -> bytes:
        """The bytes that must come next, at most `limit`; they stop where the text may."""
        data = bytearray()
        while state.only >= 0 and len(data) < limit:
            after = self.advance(state, state.only)
            if after is None:
                break
            data.append(state.only)
            state = after
        return bytes(data)

    def forced_token(self, state: State) -> int | None:
        """The id of the token that must come next, where a grammar names one."""
        if not state.tokens or state.allowed or state.may_end:
            return None
        wanted = self.named(state)
        number, negated = wanted.pop()
        return None if wanted or negated else number

    def named(self, state: State) -> set[tuple[int, bool]]:
        """The tokens that a grammar names here: (id, whether it is any other than this one)."""
        if not state.tokens:
            return set()
        return {edge[:2] for position, _ in state.items for edge in self._graph.tokens[position]}

    def advance_token(self, state: State, token: int, data: bytes) -> State | None:
        """The state behind a whole token: named by the grammar, spelled by its bytes, or both."""
        spelled = self.walk(state, data) if data else None
        if not state.tokens:
            return spelled
        reached: list[tuple[int, Tail]] = []
        for position, tail in state.items:
            for number, negated, behind in self._graph.tokens[position]:
                if (number == token) != negated:
                    reached.append((behind, tail))
        return self._guarded(reached, spelled)

    def parts(self, state: State) -> list[tuple[State, Tail]]:
        """The stacks of a state by what stands below their tops: the tops as a state that may end
        where they are complete, and the tail below."""
        tops: dict[Tail, dict[int, list[Tail]]] = {}
        for position, tail in state.items:
            tops.setdefault(tail, {})[position] = [self._bottom]
        return [(self._state(positions, False), tail) for tail, positions in tops.items()]

    def below(self, tail: Tail) -> State | None:
        """The state of what stands in a tail, once what is above it is complete."""
        return self._guarded(list(tail.frames))

    # making states

    def _step(self, state: State, byte: int) -> State | None:
        """Computes where a byte leads, and remembers it for all bytes that lead the same way."""
        reached: list[tuple[int, Tail]] = []
        alike = -1
        for position, tail in state.items:
            for some, behind in self._graph.edges[position]:
                if some >> byte & 1:
                    reached.append((behind, tail))
                    alike &= some
                else:
                    alike &= ~some
        after = self._guarded(reached)
        alike &= (1 << 256) - 1
        bits = self._bits.get(alike)
        if bits is None:
            if len(self._bits) >= MAX_STATES:
                self._bits.clear()
            bits = self._bits[alike] = tuple(b for b in range(256) if alike >> b & 1)
        state.next.update(dict.fromkeys(bits, after))
        return after

    def _guarded(
        self, reached: list[tuple[int, Tail]], beside: State | None = None
    ) -> State | None:
        if not reached:
            return beside
        self._limit = self.work + MAX_WORK
        try:
            return self._settled(reached, beside)
        except TooMuch:
            self.gave_up += 1
            return None

    def _settled(self, reached: list[tuple[int, Tail]], beside: State | None) -> State:
        """The state whose stacks have just read something: rules that are complete are left, rules
        that begin are entered, until every stack stands where it reads. `beside`: a state whose
        stacks are to be among them."""
        heads = self._graph.heads
        tails: dict[int, list[Tail]] = {}
        queue = list(reached)
        seen = set()
        left: set[int] = set()  # tails below complete rules, by serial number: each is left once
        may_end = beside is not None and beside.may_end
        while queue:
            item = queue.pop()
            if item in seen:
                continue
            seen.add(item)
            position, tail = item
            tails.setdefault(position, []).append(tail)
            if tail.serial not in left and heads(position).ends:
                left.add(tail.serial)
                may_end = may_end or tail.root
                queue += tail.frames
                self._spend(len(tail.frames))
        tops = {position: [tail] for position, tail in beside.items} if beside else {}
        calls: dict[int, tuple[list[Frame], list[Tail]]] = {}
        for position, below in tails.items():
            self._enter(heads(position), self._union(below), tops, calls)
        return self._called(calls, tops, may_end)

    def _called(
        self,
        calls: dict[int, tuple[list[Frame], list[Tail]]],
        tops: dict[int, list[Tail]],
        may_end: bool,
    ) -> State:
        """Enters the called rules, callers before callees: a rule's callers are all known when it
        is entered, and it is entered once."""
        order, entry = self._graph.order, self._graph.entry
        heap: list[tuple[int, int]] = []
        for rule in calls:
            heappush(heap, (-order[rule], rule))
        while heap:
            _, rule = heappop(heap)
            frames, below = calls.pop(rule)
            if frames:
                below.append(self._tail(frames, False))
            known = set(calls)
            self._enter(entry(rule), self._union(below), tops, calls)
            for other in calls:
                if other not in known:
                    heappush(heap, (-order[other], other))
        return self._state(tops, may_end)

    def _enter(
        self,
        heads: Heads,
        tail: Tail,
        tops: dict[int, list[Tail]],
        calls: dict[int, tuple[list[Frame], list[Tail]]],
    ) -> None:
        for position in heads.positions:
            tops.setdefault(position, []).append(tail)
        for rule, behind in heads.calls:
            frames, below = calls.setdefault(rule, ([], []))
            if self._graph.heads(behind).only_ends:
                below.append(tail)  # nothing left to do there: no frame
            else:
                frames.append((behind, tail))

    def _state(self, tops: dict[int, list[Tail]], may_end: bool) -> State:
        items = tuple((position, self._union(tops[position])) for position in sorted(tops))
        key = (may_end, *(number for position, tail in items for number in (position, tail.serial)))
        state = self._states.get(key)
        if state is None:
            if len(self._states) >= MAX_STATES:
                self._forget()
            state = self._states[key] = State(items, may_end, self._graph)
        return state

    def _forget(self) -> None:
        """Drops what states remember of each other; states that are held stay good."""
        for state in self._states.values():
            state.next.clear()
        self._states.clear()

    def _spend(self, frames: int) -> None:
        self.work += frames
        if self.work > self._limit:
            raise TooMuch

    def _union(self, tails: list[Tail]) -> Tail:
        if len(tails) == 1:
            return tails[0]
        distinct = {tail.serial: tail for tail in tails}
        if len(distinct) == 1:
            return tails[0]
        frames = [frame for tail in distinct.values() for frame in tail.frames]
        return self._tail(frames, any(tail.root for tail in distinct.values()))

    def _tail(self, frames: Iterable[Frame], root: bool) -> Tail:
        """The one tail of this content."""
        sorted_ = sorted({(position, tail.serial): tail for position, tail in frames}.items())
        self._spend(len(sorted_))
        key = (root, *(number for pair, _ in sorted_ for number in pair))
        tail = self._tails.get(key)
        if tail is None:
            self._serial += 1
            tail = Tail(tuple((pair[0], below) for pair, below in sorted_), root, self._serial)
            if tail.depth > MAX_DEPTH:
                raise TooMuch
            self._tails[key] = tail
        return tail
