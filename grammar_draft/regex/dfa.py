"""Deterministic automata over code points, and what can be made of several.

A state's moves are disjoint sets of code points with the state behind them; a missing one leads
nowhere. A state has a label: NO where no text may end, else a number that the maker of the automaton
gives a meaning (0 for a plain yes). State 0 is the start. All automata are trimmed: from every state
(but the start of an empty language) a text can end. What would grow beyond a bound raises TooLarge.

    >>> other_than(("a", "ab")).matches("aba"), other_than(("a", "ab")).matches("ab")
    (True, False)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

from diskmoe.grammar_draft.patience import breathe
from diskmoe.grammar_draft.regex.charsets import UNIVERSE
from diskmoe.grammar_draft.rules import Ranges

NO = -1
MAX_STATES = 4000
MAX_OF_WORDS = 15_000  # states of listed texts, which are made in no time
_MINIMISED = 600  # states, and ...
_MINIMISED_RANGES = 20_000  # of all moves; larger automata are left as they are

Moves = tuple[tuple[Ranges, int], ...]
Key = TypeVar("Key", bound=Hashable)


class TooLarge(ValueError):
    """An automaton with more states than are reasonable."""


class Dfa(NamedTuple):
    moves: tuple[Moves, ...]
    labels: tuple[int, ...]

    @property
    def empty(self) -> bool:
        return len(self.moves) == 1 and self.labels[0] == NO

    @property
    def universal(self) -> bool:
        """Whether every text has label 0 (exact for automata that have been minimised)."""
        return self == ANYTHING

    def label(self, text: str) -> int:
        """The label of a text."""
        state = 0
        for character in text:
            state = _target(self.moves[state], ord(character))
            if state == NO:
                return NO
        return self.labels[state]

    def matches(self, text: str) -> bool:
        return self.label(text) != NO


ANYTHING = Dfa((((UNIVERSE, 0),),), (0,))


def _target(moves: Moves, point: int) -> int:
    for ranges, state in moves:
        i = bisect_right(ranges, (point, 1 << 30)) - 1
        if i >= 0 and ranges[i][1] >= point:
            return state
    return NO


def explore(
    start: Key,
    moves: Callable[[Key], Iterable[tuple[Ranges, Key]]],
    label: Callable[[Key], int],
    most: int = MAX_STATES,
) -> Dfa:
    """The automaton whose states are found by following `moves` (disjoint) from `start`."""
    number = {start: 0}
    queue = [start]
    found: list[Moves] = []
    for key in queue:
        breathe()
        row: dict[int, Ranges] = {}
        for ranges, target in moves(key):
            state = number.get(target)
            if state is None:
                state = number[target] = len(queue)
                queue.append(target)
                if state >= most:
                    raise TooLarge(f"it needs more than {most} states")
            row[state] = tuple(sorted((*row[state], *ranges))) if state in row else ranges
        found.append(tuple((ranges, state) for state, ranges in row.items()))
    return _tidy(Dfa(tuple(found), tuple(map(label, queue))))


def _tidy(dfa: Dfa) -> Dfa:
    """Without states from which no text ends; with as few states as possible where they are few."""
    count = len(dfa.moves)
    before: list[list[int]] = [[] for _ in range(count)]
    for state, moves in enumerate(dfa.moves):
        for _, target in moves:
            before[target].append(state)
    queue = [state for state in range(count) if dfa.labels[state] != NO]
    alive = set(queue)
    while queue:
        for state in before[queue.pop()]:
            if state not in alive:
                alive.add(state)
                queue.append(state)
    if 0 not in alive:
        return Dfa(((),), (NO,))
    block = [dfa.labels[state] if state in alive else NO - 1 for state in range(count)]
    blocks = 0
    ranges = sum(len(some) for moves in dfa.moves for some, _ in moves)
    if count > _MINIMISED or ranges > _MINIMISED_RANGES:
        block = [state if state in alive else NO - 1 for state in range(count)]
    else:
        while len(set(block)) != blocks:  # Moore 1956
            blocks = len(set(block))
            names: dict[object, int] = {}
            block = [
                NO - 1
                if block[state] == NO - 1
                else names.setdefault((block[state], *_merged(dfa.moves[state], block)), len(names))
                for state in range(count)
            ]
    first = {name: state for state, name in reversed(list(enumerate(block)))}
    order: dict[int, int] = {block[0]: 0}
    firsts = [0]
    rows: list[Moves] = []
    for state in firsts:
        row = _merged(dfa.moves[state], block)
        for target, _ in row:
            if target not in order:
                order[target] = len(firsts)
                firsts.append(first[target])
        rows.append(tuple((ranges, order[target]) for target, ranges in row))
    return Dfa(tuple(rows), tuple(dfa.labels[state] for state in firsts))


def _merged(moves: Moves, block: Sequence[int]) -> tuple[tuple[int, Ranges], ...]:
    """A state's moves by the block of their target, dead ends left out."""
    row: dict[int, list[tuple[int, int]]] = {}
    for ranges, target in moves:
        if block[target] != NO - 1:
            row.setdefault(block[target], []).extend(ranges)
    return tuple((name, _joined(pairs)) for name, pairs in sorted(row.items()))


def _joined(pairs: list[tuple[int, int]]) -> Ranges:
    """Sorted, neighbours made one. (The gap of the surrogates keeps its two sides apart.)"""
    pairs.sort()
    joined = [pairs[0]]
    for low, high in pairs[1:]:
        if low == joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    return tuple(joined)


def sweep(edges: Iterable[tuple[Ranges, int]]) -> list[tuple[tuple[int, ...], Ranges]]:
    """Overlapping edges as disjoint ones: (the targets of all that a character may take, sorted;
    the characters)."""
    edges = [edge for edge in edges if edge[0]]
    if len(edges) == 1:
        return [((edges[0][1],), edges[0][0])]
    events: list[tuple[int, int, int]] = []
    for ranges, target in edges:
        for low, high in ranges:
            events += [(low, 1, target), (high + 1, -1, target)]
    events.sort()
    active: dict[int, int] = {}
    found: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    since = 0
    for point, step, target in events:
        if point > since and active:
            found.setdefault(tuple(sorted(active)), []).append((since, point - 1))
        since = point
        count = active.get(target, 0) + step
        if count:
            active[target] = count
        else:
            del active[target]
    return [(targets, _joined(pairs)) for targets, pairs in found.items()]


def combine(
    parts: Sequence[Dfa],
    label: Callable[[tuple[int, ...]], int],
    needed: Sequence[int] = (),
    most: int = MAX_STATES,
) -> Dfa:
    """The automaton whose label of a text is a function of the labels that `parts` give it.

    needed: the parts without whose yes the label is NO anyway.
    """
    size = len(parts)

    def moves(key: tuple[int, ...]) -> Iterable[tuple[Ranges, tuple[int, ...]]]:
        edges = [(UNIVERSE, NO)]
        for i, (part, state) in enumerate(zip(parts, key, strict=True)):
            if state != NO:
                edges += [(ranges, target * size + i) for ranges, target in part.moves[state]]
        for targets, ranges in sweep(edges):
            behind = [NO] * size
            for target in targets:
                if target != NO:
                    behind[target % size] = target // size
            after = tuple(behind)
            if all(after[i] != NO for i in needed) and (none != NO or max(after) != NO):
                yield ranges, after

    def of(key: tuple[int, ...]) -> int:
        return label(tuple(NO if s == NO else p.labels[s] for p, s in zip(parts, key, strict=True)))

    none = label((NO,) * size)
    return explore((0,) * size, moves, of, most)


def every(parts: Sequence[Dfa], most: int = MAX_STATES) -> Dfa:
    """What all of some automata accept."""
    parts = [part for part in parts if not part.universal]
    if not parts:
        return ANYTHING
    if len(parts) == 1:
        return parts[0]
    return combine(parts, lambda labels: NO if NO in labels else 0, range(len(parts)), most)


@lru_cache(128)
def without(dfa: Dfa, taken: Dfa) -> Dfa:
    """What one accepts and the other does not."""
    return combine([dfa, taken], lambda labels: labels[0] if labels[1] == NO else NO, (0,))


@lru_cache(128)
def of_length(low: int, high: int | None) -> Dfa:
    """Texts of `low` to `high` characters."""
    count = low if high is None else high
    if count >= MAX_STATES:
        raise TooLarge(f"a length of {count} characters is more than {MAX_STATES} states")
    moves: list[Moves] = [((UNIVERSE, state + 1),) for state in range(count)]
    moves.append(((UNIVERSE, count),) if high is None else ())
    return Dfa(tuple(moves), tuple(0 if state >= low else NO for state in range(count + 1)))


def of_words(words: Iterable[str]) -> Dfa:
    """A finite number of texts."""
    trie: list[dict[int, int]] = [{}]
    ends: set[int] = set()
    for word in words:
        state = 0
        for character in word:
            state = trie[state].setdefault(ord(character), len(trie))
            if state == len(trie):
                trie.append({})
        ends.add(state)
    return explore(
        0,
        lambda state: [(((point, point),), target) for point, target in trie[state].items()],
        lambda state: 0 if state in ends else NO,
        MAX_OF_WORDS,
    )


@lru_cache(128)
def other_than(words: tuple[str, ...]) -> Dfa:
    """All texts but a few."""
    parts = [ANYTHING, of_words(words)]
    return combine(parts, lambda labels: NO if labels[1] != NO else 0, (0,), MAX_OF_WORDS)
