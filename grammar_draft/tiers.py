"""Which automaton a grammar is made into: the simplest that can hold it.

    finite automaton                  a grammar that is regular
    finite automata that call         rules that recur, where a byte, or what is below, says which way
    sets of stacks                    anything else

The limits are counts, so that a grammar has the same automaton on every machine.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.checks import require_end
from diskmoe.grammar_draft.graph import Graph
from diskmoe.grammar_draft.pushdown import Pushdown, Undecided, names_tokens, recurring
from diskmoe.grammar_draft.rules import Grammar
from diskmoe.grammar_draft.stacked import Stacked
from diskmoe.grammar_draft.table import Table, table_of
from diskmoe.grammar_draft.tabled import Tabled
from diskmoe.grammar_draft.trie import Words
from diskmoe.grammar_draft.vocabulary import Vocabulary

S = TypeVar("S")


class Tier(Protocol[S]):
    """What every automaton can do. Its states have `mask`, to be filled in, and `tokens`."""

    start: S

    def step(self, state: S, token: int) -> S | None: ...
    def walk(self, state: S, data: bytes) -> S | None: ...
    def may_end(self, state: S) -> bool: ...
    def words(self, state: S) -> Words: ...
    def allowed(self, state: S) -> int: ...
    def named(self, state: S) -> set[tuple[int, bool]]: ...
    def forced(self, state: S, limit: int) -> bytes: ...


def tier_of(grammar: Grammar, vocabulary: Vocabulary) -> tuple[Tier[Any], str]:
    """The automaton of a grammar for a vocabulary, and in words which it is and why.

    Raises BadGrammar when no text can complete the grammar.
    """
    require_end(grammar)
    graph = Graph(grammar)
    table, words = table_for(grammar, graph)
    if table is None:
        return Stacked(Automaton(grammar, graph), vocabulary), words
    return Tabled(table, vocabulary), words


def table_for(grammar: Grammar, graph: Graph) -> tuple[Table | None, str]:
    """The table of a grammar, None where it has none; and in words what it is."""
    count = sum(not grammar.rules[number].made for number in grammar.used)
    rules = f"{count} rule{'s' if count != 1 else ''}"
    if names_tokens(grammar):
        return None, f"{rules}, sets of stacks: it names tokens"
    why = ""
    # calls stay within states where that makes a finite automaton, if that is not too large
    for push_all in (True, False) if recurring(grammar, graph) else (False, True):
        try:
            made = Pushdown(grammar, graph, push_all)
            table = table_of(made.rows(), made.start)
        except Undecided as error:
            why = why or str(error)
            continue
        kind = f"DFA of {table.states} states"
        if not table.regular:
            kind = f"{table.states} states with a stack"
        return table, f"{rules}, {kind}{': ' + why if why else ''}"
    return None, f"{rules}, sets of stacks: {why}"
