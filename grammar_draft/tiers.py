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
from diskmoe.grammar_draft.rules import Grammar
from diskmoe.grammar_draft.stacked import Stacked
from diskmoe.grammar_draft.tabled import Tabled
from diskmoe.grammar_draft.tables import Tables
from diskmoe.grammar_draft.trie import Words
from diskmoe.grammar_draft.vocabulary import Vocabulary

S = TypeVar("S")


class Tier(Protocol[S]):
    """What every automaton can do. Its states have `mask`, to be filled in, and `tokens`."""

    start: S

    @property
    def gave_up(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...

    def step(self, state: S, token: int) -> S | None: ...
    def walk(self, state: S, data: bytes) -> S | None: ...
    def may_end(self, state: S) -> bool: ...
    def words(self, state: S) -> Words: ...
    def allowed(self, state: S) -> int: ...
    def named(self, state: S) -> set[tuple[int, bool]]: ...
    def forced(self, state: S, limit: int) -> bytes: ...


def tier_of(
    grammar: Grammar, vocabulary: Vocabulary, tables: Tables | None = None
) -> tuple[Tier[Any], str]:
    """The automaton of a grammar for a vocabulary, and in words which it is and why.

    tables: where compiled grammars are kept. Raises BadGrammar when no text can complete the grammar.
    """
    require_end(grammar)
    table, words = (tables or Tables()).of(grammar)
    if table is None:
        return Stacked(Automaton(grammar), vocabulary), words
    return Tabled(table, vocabulary), words
