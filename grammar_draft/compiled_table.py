"""The table of a grammar: which rules are pushed, which repetitions count."""

from __future__ import annotations

import hashlib
from contextlib import suppress

from diskmoe.grammar_draft.counts import WORTH, Clash, countable, nested
from diskmoe.grammar_draft.graph import Graph
from diskmoe.grammar_draft.pushdown import Pushdown
from diskmoe.grammar_draft.pushed import names_tokens, recurring, shared
from diskmoe.grammar_draft.rules import Grammar, Repeat
from diskmoe.grammar_draft.subsets import Undecided
from diskmoe.grammar_draft.table import Table

MAX_WRITTEN_OUT = 20_000  # positions of a repetition that cannot count where it stands
VERSION = "diskmoe table 2"  # another one whenever tables, or how they are made, change

Made = tuple[Table | None, str]  # no table: sets of stacks


def table_for(grammar: Grammar) -> Made:
    """The table of a grammar, None where it has none; and in words what it is."""
    count = sum(not grammar.rules[number].made for number in grammar.used)
    rules = f"{count} rule{'s' if count != 1 else ''}"
    if names_tokens(grammar):
        return None, f"{rules}, sets of stacks: it names tokens"
    try:
        table, why = Attempts(grammar).table()
    except Undecided as error:
        return None, f"{rules}, sets of stacks: {error}"
    states = f"{table.states} states"
    kind = f"DFA of {states}" if table.regular else f"{states} with a stack"
    return table, f"{rules}, {kind}{' and counters' if table.counts else ''}{why}"


class Attempts:
    """What is tried until a table is there."""

    def __init__(self, grammar: Grammar, worth: int = WORTH):
        """worth: positions of a repetition written out, from which it is a loop that counts."""
        self._grammar = grammar
        self._counted = countable(grammar, worth)
        self._failed: dict[tuple[frozenset[int], int], Undecided] = {}  # by rules pushed, loops

    def table(self) -> tuple[Table, str]:
        """The table and, where it is not the first that was tried, why. Raises Undecided."""
        # what counts, or is called often and large, is not copied; then nothing that is called is
        with suppress(Undecided):
            return self.made(push_all=False, eager=True), ""
        try:
            return self.made(push_all=False), ""
        except Undecided as error:
            try:
                return self.made(push_all=True), f": {error}"
            except Undecided:
                raise error from None

    def made(self, push_all: bool, eager: bool = False) -> Table:
        """The table that pushes all calls, or those that it must or should (`shared`). Raises
        Undecided."""
        grammar = self._grammar
        while True:
            graph = Graph(grammar, self._counted)
            must = recurring(grammar, graph) | nested(grammar, self._counted)
            pushed = set(grammar.used) if push_all else shared(grammar, must, self._counted, eager)
            attempt = frozenset(pushed), len(self._counted)
            if attempt in self._failed:
                raise self._failed[attempt]
            try:
                return Pushdown(grammar, graph, pushed).table()
            except Clash as clash:
                self._write_out(clash.loops)
            except Undecided as error:
                self._failed[attempt] = error
                raise

    def _write_out(self, loops: set[Repeat]) -> None:
        """The smallest of some repetitions does not count any more."""
        smallest = min(loops, key=lambda loop: (self._counted[loop], loop))
        if self._counted.pop(smallest) > MAX_WRITTEN_OUT:
            raise Undecided("repetitions count differently at one place")


def digest(grammar: Grammar) -> str:
    """Names what a table is made from: the rules that the root leads to."""
    rules = [(n, grammar.rules[n].alternatives, bool(grammar.rules[n].made)) for n in grammar.used]
    text = f"{VERSION} {grammar.root} {rules!r}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
