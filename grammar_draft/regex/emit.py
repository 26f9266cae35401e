"""Automata and patterns as rules.

An automaton becomes right-linear rules, one for a state at which there is a choice: every alternative
begins with other characters and ends in the rule of the next state, so that whoever follows calls in
last place as jumps has the automaton back. A pattern that is too large for an automaton becomes
rules of its own shape, its counted repetitions kept as such.

Inside a JSON string (`quoted`) every character is spelled one way: as it is where JSON allows that,
else by its short escape, else as \\u00XX in either case.
"""

from __future__ import annotations

from collections.abc import Sequence

from diskmoe.grammar_draft.json_rules import MUST_ESCAPE, JsonRules
from diskmoe.grammar_draft.regex.charsets import UNIVERSE, difference, intersection
from diskmoe.grammar_draft.regex.dfa import NO, Dfa, TooLarge
from diskmoe.grammar_draft.regex.syntax import Node
from diskmoe.grammar_draft.rules import Alternative, Literal, Ranges, Ref, Repeat, Symbol


def write(
    made: JsonRules, dfa: Dfa, tails: Sequence[Alternative], label: str, quoted: bool
) -> list[Alternative]:
    """An automaton as the alternatives of one rule, further rules made where they are needed.

    tails: by label, what follows a text that ends there.
    """
    entries = [0] * len(dfa.moves)
    for moves in dfa.moves:
        for _, target in moves:
            entries[target] += 1
    entries[0] += 1
    rules: dict[int, Ref] = {}
    queue = [0]

    def behind(state: int) -> list[Symbol]:
        """What follows once a state is reached: its chain up to the next choice."""
        symbols: list[Symbol] = []
        while True:
            moves, ends = dfa.moves[state], dfa.labels[state] != NO
            if ends and not moves:
                return [*symbols, *tails[dfa.labels[state]]]
            if ends or len(moves) != 1 or entries[state] != 1:
                break
            symbols.append(made.character(moves[0][0], quoted))
            state = moves[0][1]
        if state not in rules:
            rules[state] = made.rule(label)
            queue.append(state)
        return [*symbols, rules[state]]

    first: list[Alternative] = []
    for state in queue:
        found: list[Alternative] = []
        escaped = [edge for edge in dfa.moves[state] if quoted and _must_escape(edge[0])]
        for ranges, target in dfa.moves[state]:
            after = behind(target)
            if len(escaped) > 1:
                ranges = difference(ranges, MUST_ESCAPE)
            if ranges:
                found.append(joined([made.character(ranges, quoted), *after]))
        if len(escaped) > 1:
            rest = [
                joined([*spelling, *behind(target)])
                for ranges, target in escaped
                for spelling in made.escapes(intersection(ranges, MUST_ESCAPE))
            ]
            found.append((Literal(b"\\"), made.rule(label, rest)))
        if dfa.labels[state] != NO:
            found.append(tuple(tails[dfa.labels[state]]))
        if state == 0 and not first:
            first = found
            if 0 in rules:
                made.define(rules[0], found)
        else:
            made.define(rules[state], found)
    return first


def _must_escape(ranges: Ranges) -> bool:
    """Whether a set has characters that cannot stand in a JSON string as they are."""
    return ranges[0][0] < 32 or any(low <= 34 <= high or low <= 92 <= high for low, high in ranges)


def joined(symbols: Sequence[Symbol]) -> Alternative:
    """Symbols with neighbouring literals made one."""
    merged: list[Symbol] = []
    for symbol in symbols:
        if merged and type(symbol) is Literal and type(merged[-1]) is Literal:
            merged[-1] = Literal(merged[-1].data + symbol.data)
        else:
            merged.append(symbol)
    return tuple(merged)


def single_class(nodes: Sequence[Node]) -> tuple[Ranges, int, int | None] | None:
    """The one set and how often it stands in a pattern like ``^[a-z]{1,64}$``; None for others."""
    body = _anchored(nodes)
    if body is None:
        return None
    item, low, high = nodes[body], 1, 1
    if item.kind == "repeat":
        item, low, high = nodes[item.children[0]], item.low, item.high
    return (item.ranges, low, high) if item.kind == "chars" else None


def _anchored(nodes: Sequence[Node]) -> int | None:
    """The node between ``^`` and ``$`` where a pattern is of the form ``^item$``."""
    root = nodes[-1]
    kinds = [nodes[child].kind for child in root.children] if root.kind == "cat" else []
    if len(kinds) == 3 and kinds[0] == "start" and kinds[2] == "end":
        return root.children[1]
    return None


def write_shape(made: JsonRules, nodes: Sequence[Node], label: str, quoted: bool) -> Alternative:
    """A pattern as rules of its own shape. Raises TooLarge where it has anchors within."""
    root = nodes[-1]
    inside = list(root.children) if root.kind == "cat" else [len(nodes) - 1]
    anything = Repeat(made.item((made.character(UNIVERSE, quoted),), label), 0, None)
    before = after = (anything,)
    if inside and nodes[inside[0]].kind == "start":
        inside, before = inside[1:], ()
    if inside and nodes[inside[-1]].kind == "end":
        inside, after = inside[:-1], ()
    shapes: list[Alternative] = []
    for number, node in enumerate(nodes):
        parts = [shapes[child] for child in node.children]
        if node.kind in ("start", "end"):
            outer = root.kind == "cat" and number in (root.children[0], root.children[-1])
            if not outer and number != len(nodes) - 1:
                raise TooLarge("it has too many states, and anchors within")
            shapes.append(())
        elif node.kind == "chars":
            shapes.append((made.character(node.ranges, quoted),))
        elif node.kind == "cat":
            shapes.append(tuple(symbol for part in parts for symbol in part))
        elif node.kind == "alt":
            shapes.append((made.rule(label, parts),))
        elif parts[0] and node.high != 0:
            shapes.append((Repeat(made.item(parts[0], label), node.low, node.high),))
        else:
            shapes.append(())
    return joined([*before, *(s for child in inside for s in shapes[child]), *after])
