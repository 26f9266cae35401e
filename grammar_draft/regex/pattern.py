"""Patterns as automata.

>>> date = from_pattern("^[0-9]{4}-[0-9]{2}$")
>>> date.matches("2024-02"), date.matches("2024-2")
(True, False)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from diskmoe.grammar_draft.patience import breathe
from diskmoe.grammar_draft.regex.charsets import UNIVERSE
from diskmoe.grammar_draft.regex.dfa import NO, Dfa, TooLarge, explore, sweep
from diskmoe.grammar_draft.regex.syntax import Node, parse
from diskmoe.grammar_draft.rules import Ranges

MAX_POSITIONS = 20_000  # of a pattern with its repetitions written out
MAX_WORK = 400_000  # positions looked at, and ranges, while an automaton is made


@lru_cache(128)
def from_pattern(pattern: str) -> Dfa:
    """The texts in which a pattern is found, anywhere unless ``^`` and ``$`` say where."""
    nfa = _Nfa(parse(pattern))
    work = 0

    def moves(key: frozenset[int]) -> Iterable[tuple[Ranges, frozenset[int]]]:
        nonlocal work
        edges = [(edge[0], edge[1]) for state in sorted(key) if (edge := nfa.edges[state])]
        work += sum(len(ranges) for ranges, _ in edges)
        breathe()
        if work > MAX_WORK:
            raise TooLarge("too much work")
        for targets, ranges in sweep(edges):
            yield ranges, nfa.closure(targets, False)

    def label(key: frozenset[int]) -> int:
        # the empty text is at its start and at its end
        return 0 if nfa.may_end(key) else NO

    return explore(nfa.closure((nfa.first,), True), moves, label)


class _Nfa:
    """A pattern as states that are passed for nothing, or read one set of characters.

    The start of a text is a matter of the first closure only, its end one of acceptance.
    """

    def __init__(self, nodes: Sequence[Node]):
        self.edges: list[tuple[Ranges, int] | None] = []
        self._passes: list[list[int]] = []
        self._starts: list[list[int]] = []  # passed at the start of the text only
        self._ends: list[list[int]] = []  # and at its end
        self._closures: dict[tuple[tuple[int, ...], bool], frozenset[int]] = {}
        self.first = self._new()
        found, self.last = self._new(), self._new()
        self._loop(self.first)
        self._loop(self.last)
        self._passes[self.first].append(found)
        self._build(nodes, found, self.last)

    def _loop(self, state: int) -> None:
        step = self._new()
        self.edges[step] = (UNIVERSE, state)
        self._passes[state].append(step)

    def _new(self) -> int:
        if len(self.edges) >= MAX_POSITIONS:
            raise TooLarge(f"its repetitions written out are more than {MAX_POSITIONS} positions")
        self.edges.append(None)
        for passes in (self._passes, self._starts, self._ends):
            passes.append([])
        return len(self.edges) - 1

    def _build(self, nodes: Sequence[Node], begin: int, end: int) -> None:
        queue = [(len(nodes) - 1, begin, end)]
        while queue:
            number, begin, end = queue.pop()
            node = nodes[number]
            if node.kind == "chars":
                step = self._new()
                self._passes[begin].append(step)
                self.edges[step] = (node.ranges, end)
            elif node.kind == "start":
                self._starts[begin].append(end)
            elif node.kind == "end":
                self._ends[begin].append(end)
            elif node.kind == "alt":
                queue += [(child, begin, end) for child in node.children]
            elif node.kind == "cat":
                for child in node.children:
                    after = self._new()
                    queue.append((child, begin, after))
                    begin = after
                self._passes[begin].append(end)
            else:
                (child,) = node.children
                for _ in range(node.low):
                    after = self._new()
                    queue.append((child, begin, after))
                    begin = after
                if node.high is None:
                    loop = self._new()
                    self._passes[begin].append(loop)
                    queue.append((child, loop, loop))
                    begin = loop
                else:
                    for _ in range(node.high - node.low):
                        self._passes[begin].append(end)
                        after = self._new()
                        queue.append((child, begin, after))
                        begin = after
                self._passes[begin].append(end)

    def closure(self, states: tuple[int, ...], at_start: bool) -> frozenset[int]:
        known = self._closures.get((states, at_start))
        if known is None:
            reached = self._reached(states, at_start, False)
            kept = (s for s in reached if self.edges[s] or self._ends[s] or s == self.last)
            known = self._closures[states, at_start] = frozenset(kept)
            if at_start and self.last in self._reached(states, True, True):
                known = known | {self.last}  # only an empty text is at both ends
        return known

    def may_end(self, states: frozenset[int]) -> bool:
        return self.last in states or self.last in self._reached(states, False, True)

    def _reached(self, states: Iterable[int], at_start: bool, at_end: bool) -> set[int]:
        seen = set(states)
        queue = list(seen)
        while queue:
            here = queue.pop()
            others = self._passes[here]
            if at_start:
                others = others + self._starts[here]
            if at_end:
                others = others + self._ends[here]
            for other in others:
                if other not in seen:
                    seen.add(other)
                    queue.append(other)
        return seen
