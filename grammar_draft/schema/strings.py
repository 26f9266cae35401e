"""Strings: lengths, patterns, formats and values that are excluded, as rules and as automata."""

from __future__ import annotations

from functools import lru_cache

from diskmoe.grammar_draft.json_rules import word
from diskmoe.grammar_draft.regex.dfa import (
    ANYTHING,
    NO,
    Dfa,
    TooLarge,
    combine,
    every,
    of_length,
    of_words,
    without,
)
from diskmoe.grammar_draft.regex.emit import joined, single_class, write, write_shape
from diskmoe.grammar_draft.regex.pattern import from_pattern
from diskmoe.grammar_draft.regex.syntax import parse
from diskmoe.grammar_draft.rules import Alternative, Repeat
from diskmoe.grammar_draft.schema.builder import Builder
from diskmoe.grammar_draft.schema.facts import Facts, Range
from diskmoe.grammar_draft.schema.formats import pattern_of

MAX_LENGTH = 150_000  # characters of a bounded string; more is a rule larger than all may be


def strings(builder: Builder, facts: Facts, label: str) -> list[Alternative]:
    """The alternatives of a string."""
    made = builder.made
    excluded = [value for value in facts.excluded if isinstance(value, str)]
    patterns = patterns_of(facts)
    low, high = facts.length
    if max(low, high or 0) > MAX_LENGTH:
        builder.refuse(facts, "length", f"more than {MAX_LENGTH} characters are not counted")
        low, high = (0 if low > MAX_LENGTH else low), None
    if not patterns and not excluded:
        if (low, high) == (0, None):
            return [(made.shared("string"),)]
        return [made.sized_string(low, high)]
    only = patterns[0][0] if len(patterns) == 1 and patterns[0][1] and not excluded else None
    if only is not None:
        one = single_class(parse(only))
        if one is not None:
            ranges, least, most = one
            least, most = (
                max(least, low),
                min((n for n in (most, high) if n is not None), default=None),
            )
            if most is not None and most < least:
                return []
            if most == 0 or not ranges:
                return [(word('""'),)] if least == 0 else []
            character = made.item((made.character(ranges, True),), label)
            return [joined((word('"'), Repeat(character, least, most), word('"')))]
    known = made.known(("string", patterns, low, high, *excluded))
    if known is not None:
        return [(known,)]
    try:
        dfa = automaton(patterns, (low, high), tuple(excluded))
    except TooLarge as error:
        if only is None:
            builder.refuse(facts, "patterns" if patterns else "excluded", str(error))
            return [made.sized_string(low, high)]
        if (low, high) != (0, None):
            builder.refuse(
                facts, "length", f"beside the pattern of #/pattern it is too much: {error}"
            )
        return [joined((word('"'), *write_shape(made, parse(only), label, True), word('"')))]
    if dfa.empty:
        return []
    found = write(made, dfa, [(word('"'),)], label, True)
    rest = found[0] if len(found) == 1 else (made.rule(label, found),)
    key = ("string", patterns, low, high, *excluded)
    return [(made.kept(key, label, [joined((word('"'), *rest))]),)]


def patterns_of(facts: Facts) -> tuple[tuple[str, bool], ...]:
    """Patterns and formats alike, as patterns that hold or do not."""
    formats = ((pattern_of(name), wanted) for name, wanted in facts.formats)
    return tuple(dict.fromkeys([*facts.patterns, *formats]))


def automaton_of(facts: Facts) -> Dfa:
    """The strings that fit some facts. Raises TooLarge."""
    if facts.values is not None:
        return of_words([value for value in facts.values if isinstance(value, str)])
    excluded = tuple(value for value in facts.excluded if isinstance(value, str))
    return automaton(patterns_of(facts), facts.length, excluded)


@lru_cache(128)
def automaton(
    patterns: tuple[tuple[str, bool], ...], length: Range, excluded: tuple[str, ...]
) -> Dfa:
    """The strings that match some patterns and not others, of a length, without some."""
    parts = [from_pattern(pattern) for pattern, wanted in patterns if wanted]
    if length != (0, None):
        parts.append(of_length(*length))
    dfa = every(parts)
    if dfa.empty:
        return dfa
    for pattern, wanted in patterns:
        if not wanted:
            dfa = without(dfa, from_pattern(pattern))
    return without(dfa, of_words(excluded)) if excluded else dfa


def union(parts: list[Dfa]) -> Dfa:
    """What at least one of some automata accepts."""
    if len(parts) == 1:
        return parts[0]
    if any(part.universal for part in parts):
        return ANYTHING
    return combine(parts, lambda labels: 0 if max(labels) != NO else NO)
