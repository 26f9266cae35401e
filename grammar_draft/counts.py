"""Long repetitions as loops that count.

Written out, ``x{0,1000}`` is a thousand copies of x that differ in nothing but how many may follow. As
a loop it is one copy and a number, which stands beside the state of an automaton: how many more are to
come. The number is set as the first x begins, and becomes one less as each further x begins; with the
last one it is gone. (``x{m,n}`` is m copies that must be, and then n - m that may be: two loops in a
row.) Whoever makes rules deterministic carries one number beside a state and each symbol of its stack,
so that all that a text may be doing at one place must count alike; where it does not (`Clash`), the
smaller of the loops is written out.

What the beginning of an x does to the number is a mark of the position behind x.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from diskmoe.grammar_draft.checks import cost
from diskmoe.grammar_draft.rules import Grammar, Ref, Repeat, Symbol

KEEP, COUNT = -1, -2  # marks; any other one is what the number is set to
WORTH = 60  # positions of a repetition written out, from which it is a loop
_MOST = 1 << 30


class Loop(NamedTuple):
    """One loop that counts. more, last: the positions behind an item that is not the last, or is."""

    symbol: Repeat
    more: int
    last: int


class Clash(Exception):
    """Numbers that differ where one is to stand for them. loops: whose numbers."""

    def __init__(self, loops: set[Repeat]) -> None:
        super().__init__("repetitions that count differently at one place")
        self.loops = loops


def times(symbol: Symbol) -> int:
    """How often an item stands in a row, written out."""
    return max(symbol.high or symbol.low + 1, 1) if isinstance(symbol, Repeat) else 1


def countable(grammar: Grammar, worth: int = WORTH) -> dict[Repeat, int]:
    """The repetitions that are worth a loop, with how many positions they are written out."""
    sizes: dict[int, int] = {}
    found: dict[Repeat, int] = {}
    for rule in _callees_first(grammar):
        size = 0
        for alternative in grammar.rules[rule].alternatives:
            for symbol in alternative:
                item = symbol.item if isinstance(symbol, Repeat) else symbol
                one = sizes.get(item.rule, 0) + 1 if isinstance(item, Ref) else cost(item)
                all_of_them = one * times(symbol)
                size += all_of_them
                if isinstance(symbol, Repeat) and times(symbol) > 1 and all_of_them > worth:
                    found[symbol] = min(all_of_them, _MOST)
        sizes[rule] = min(size, _MOST)
    return found


def nested(grammar: Grammar, counted: Container[Repeat]) -> set[int]:
    """The rules that are repeated by a loop and lead to another: each needs a number of its own, so
    a frame of its own."""
    counting: set[int] = set()
    found: set[int] = set()
    for rule in _callees_first(grammar):
        for alternative in grammar.rules[rule].alternatives:
            for symbol in alternative:
                item = symbol.item if isinstance(symbol, Repeat) else symbol
                counts = isinstance(symbol, Repeat) and symbol in counted
                leads = isinstance(item, Ref) and item.rule in counting
                if leads or counts:
                    counting.add(rule)
                if leads and counts and isinstance(item, Ref):
                    found.add(item.rule)
    return found


def _callees_first(grammar: Grammar) -> list[int]:
    component = grammar.circles
    return sorted(grammar.used, key=component.__getitem__)
