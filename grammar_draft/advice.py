"""What may be unwise in a grammar that is otherwise fine, in one line each."""

from __future__ import annotations

from collections.abc import Iterator

from diskmoe.grammar_draft.rules import Chars, Grammar, Literal, Ref, Repeat, Symbol

_BLANKS = b" \t\r\n"


def warnings(grammar: Grammar) -> list[str]:
    """The notes of a grammar's reading, and: blanks without end, two ways to say one thing."""
    return list(dict.fromkeys([*grammar.notes, *_found(grammar)]))


def _found(grammar: Grammar) -> Iterator[str]:
    blank = _blank_rules(grammar)
    for number in grammar.used:
        rule = grammar.rules[number]
        if rule.made == "json":  # a schema is not held against its reader
            continue
        named = f"rule '{rule.name}'"
        if len(set(rule.alternatives)) < len(rule.alternatives):
            yield f"{named} is ambiguous: two of its alternatives are the same"
        for alternative in rule.alternatives:
            for symbol in alternative:
                if not isinstance(symbol, Repeat):
                    continue
                item = symbol.item
                if symbol.high is None and _is_blank(item, blank):
                    yield (
                        f"{named} takes blanks without end: a model that is held to this grammar "
                        "can write them forever; bound them, as in [ ]{0,8}"
                    )
                elif isinstance(item, Ref) and grammar.empty[item.rule]:
                    yield f"{named} is ambiguous: it repeats something that may be empty"


def _is_blank(symbol: Symbol, blank: set[int]) -> bool:
    """Whether a symbol stands for blanks only."""
    if isinstance(symbol, Repeat):
        return _is_blank(symbol.item, blank)
    if isinstance(symbol, Ref):
        return symbol.rule in blank
    if isinstance(symbol, Literal):
        return not symbol.data.strip(_BLANKS)
    if isinstance(symbol, Chars):
        return all(chr(low) in " \t\r\n" and high - low < 2 for low, high in symbol.ranges)
    return False


def _blank_rules(grammar: Grammar) -> set[int]:
    """The rules that stand for blanks only: what is left when all others are struck out."""
    blank = set(grammar.used)
    changed = True
    while changed:
        kept = {
            number
            for number in blank
            if all(_is_blank(s, blank) for a in grammar.rules[number].alternatives for s in a)
        }
        changed, blank = kept != blank, kept
    return blank
