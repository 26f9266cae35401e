"""Which rules of a grammar are called with a frame of the stack."""

from __future__ import annotations

from collections.abc import Container

from diskmoe.grammar_draft.checks import cost
from diskmoe.grammar_draft.counts import times
from diskmoe.grammar_draft.graph import Graph
from diskmoe.grammar_draft.rules import Grammar, Ref, Repeat, Token
from diskmoe.grammar_draft.subsets import MAX_WORK

MAX_COPIED = 100  # states of a rule that is called from several places, about


def shared(
    grammar: Grammar, pushed: set[int], counted: Container[Repeat] = (), eager: bool = False
) -> set[int]:
    """The rules that should be pushed beside those that must: what would be copied too often and, if
    `eager`, what counts. counted: repetitions that are loops."""
    component = grammar.circles
    calls = dict.fromkeys(grammar.used, 0)  # that come back
    for rule in grammar.used:
        for alternative in grammar.rules[rule].alternatives:
            for place, symbol in enumerate(alternative):
                item = symbol.item if isinstance(symbol, Repeat) else symbol
                if isinstance(item, Ref) and (item is not symbol or place != len(alternative) - 1):
                    calls[item.rule] += 1
    found = set(pushed)
    sizes: dict[int, int] = {}  # states, about, with those of the calls that stay within
    for rule in sorted(grammar.used, key=component.__getitem__):  # callees before callers
        size = 0
        counts = False
        for alternative in grammar.rules[rule].alternatives:
            for symbol in alternative:
                item = symbol.item if isinstance(symbol, Repeat) else symbol
                loop = isinstance(symbol, Repeat) and symbol in counted
                counts |= loop
                often = 2 if loop else times(symbol)
                size += often * cost(item)
                if isinstance(item, Ref) and item.rule not in found:
                    size += often * sizes.get(item.rule, 0)
        sizes[rule] = min(size, MAX_WORK)
        if (calls[rule] - 1) * sizes[rule] > MAX_COPIED or (eager and counts and calls[rule] > 1):
            found.add(rule)
    return found


def names_tokens(grammar: Grammar) -> bool:
    """Whether a grammar names tokens, which no byte can stand for."""
    symbols = (s for n in grammar.used for a in grammar.rules[n].alternatives for s in a)
    return any(isinstance(s.item if isinstance(s, Repeat) else s, Token) for s in symbols)


def recurring(grammar: Grammar, graph: Graph) -> set[int]:
    """The rules that need a stack: those in circles of calls of which one comes back.

    A call that is the last thing in an alternative does not come back, and first calls in circles
    are left recursion, which `Graph` solves.
    """
    component = grammar.circles
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
