"""Whether rules can be worked with: that they end, do not loop and stay small.

The default mode refuses a grammar no text can complete, and makes a note of rules that are never
used. Strict mode asks only what llama.cpp asks: whether a rule is left-recursive, as that program
sees it (it takes a rule for possibly empty only when one of its alternatives is written empty).
"""

from __future__ import annotations

from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.rules import (
    MAX_TIMES,
    Chars,
    Grammar,
    Literal,
    Ref,
    Repeat,
    Symbol,
)

MAX_STATES = 200_000  # positions of all rules, short repetitions written out
WRITTEN_OUT = 512  # positions of a repetition; of a longer one copies are made as they are needed
_SHOWN = 8  # names of a chain that a message lists


def check(grammar: Grammar, strict: bool) -> None:
    """Refuses what cannot be used, and notes what is odd. Raises BadGrammar."""
    if strict:
        chain = _left_recursion(grammar)
        if chain:
            raise rule_error(grammar, chain[0], f"left recursion: {_arrows(grammar, chain)}")
    _check_size(grammar)
    if strict:
        return
    require_end(grammar)
    used = set(grammar.used)
    for number, rule in enumerate(grammar.rules):
        if rule.made:
            continue
        if number not in used:
            grammar.notes.append(f"rule '{rule.name}' is never used")
        elif not grammar.ends[number]:
            grammar.notes.append(f"rule '{rule.name}' can never end and is left out")


def require_end(grammar: Grammar) -> None:
    """Refuses a grammar that no text can complete. Raises BadGrammar."""
    if not grammar.ends[grammar.root]:
        raise rule_error(grammar, grammar.root, _never_ends(grammar))


def _check_size(grammar: Grammar) -> None:
    total = 0
    for number in grammar.used:
        symbols = [s for a in grammar.rules[number].alternatives for s in a]
        most = max((max(s.low, s.high or 0) for s in symbols if type(s) is Repeat), default=0)
        if most > MAX_TIMES:
            raise rule_error(
                grammar,
                number,
                f"rule '{grammar.rules[number].name}' repeats something {most} times; at most "
                f"{MAX_TIMES} are counted: use * or +, or a smaller number",
            )
        size = sum(map(cost, symbols))
        total += size
        if total > MAX_STATES:
            raise rule_error(
                grammar,
                number,
                f"rule '{grammar.rules[number].name}' takes {size} positions, {total} with those "
                f"before it; at most {MAX_STATES} are possible: use fewer or smaller rules",
            )


def cost(symbol: Symbol) -> int:
    """How many positions a symbol takes in the automaton, about."""
    if type(symbol) is Repeat:
        return min(cost(symbol.item) * max(symbol.high or symbol.low + 1, 1), WRITTEN_OUT)
    if type(symbol) is Literal:
        return len(symbol.data)
    if type(symbol) is Chars and symbol.ranges and symbol.ranges[-1][1] > 0x7F:
        return 2 * len(symbol.ranges) + 4
    return 1


def _never_ends(grammar: Grammar) -> str:
    """Follows what a rule cannot do without, to where it comes back or matches nothing."""
    chain = [grammar.root]
    while True:
        wanted = next((n for n in grammar.uses(chain[-1]) if not grammar.ends[n]), None)
        name = grammar.rules[grammar.root].name
        if wanted is None:
            return (
                f"no text can complete '{name}': {_arrows(grammar, chain)} needs a character "
                "class that matches nothing"
            )
        if wanted in chain:
            loop = [*chain[chain.index(wanted) :], wanted]
            return (
                f"no text can complete '{name}': {_arrows(grammar, loop)} has no way out; "
                "add an alternative without it"
            )
        chain.append(wanted)


def _left_recursion(grammar: Grammar) -> list[int]:
    """A chain of rules that leads from one back to itself without reading, or nothing."""
    hollow = [any(not a for a in rule.alternatives) for rule in grammar.rules]

    def skipped(symbol: Symbol) -> bool:
        """Whether llama.cpp looks at what stands behind a symbol."""
        if type(symbol) is Repeat:
            return symbol.low == 0 or skipped(symbol.item)
        return type(symbol) is Ref and hollow[symbol.rule]

    for number, rule in enumerate(grammar.rules):
        if rule.made == "stack":  # its item is older than itself
            hollow[number] = all(skipped(symbol) for symbol in rule.alternatives[0])
    leads: list[list[int]] = []
    for number, rule in enumerate(grammar.rules):
        first: dict[int, None] = {}
        for alternative in rule.alternatives:
            leading = True
            for symbol in alternative:
                item = symbol.item if type(symbol) is Repeat else symbol
                if type(symbol) is Repeat and symbol.high is None and skipped(item):
                    return [number, number]  # S' ::= S S' with an S that may be empty
                if leading and type(item) is Ref:
                    first[item.rule] = None
                leading = leading and skipped(symbol)
        leads.append(list(first))
    return _cycle(leads)


def _cycle(leads: list[list[int]]) -> list[int]:
    """A cycle of a graph given by its edges, first node repeated at the end, or nothing."""
    fresh, open_, closed = range(3)
    colour = [fresh] * len(leads)
    for start in range(len(leads)):
        if colour[start] != fresh:
            continue
        path, branches = [start], [iter(leads[start])]
        colour[start] = open_
        while path:
            follower = next(branches[-1], None)
            if follower is None:
                colour[path.pop()] = closed
                branches.pop()
            elif colour[follower] == open_:
                return [*path[path.index(follower) :], follower]
            elif colour[follower] == fresh:
                colour[follower] = open_
                path.append(follower)
                branches.append(iter(leads[follower]))
    return []


def _arrows(grammar: Grammar, chain: list[int]) -> str:
    """a -> b -> a, groups left out, long chains shortened in the middle."""
    names = [grammar.rules[n].name for n in chain if not grammar.rules[n].made]
    if len(names) < 2 and len(chain) > 1:  # all of it inside one rule
        names = [grammar.rules[n].name for n in chain]
    if len(names) > _SHOWN:
        names = [*names[: _SHOWN // 2], "...", *names[-_SHOWN // 2 :]]
    return " -> ".join(names)


def rule_error(grammar: Grammar, number: int, message: str) -> BadGrammar:
    """An error placed where a rule is defined."""
    position = grammar.rules[number].position if grammar.text else None
    return BadGrammar(message, grammar.name, grammar.text, position)
