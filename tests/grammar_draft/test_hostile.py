"""What is hostile ends: refused in one line, or a constraint that works."""

import os
import random
from collections.abc import Callable

import hostile
import numpy as np
import pytest

from diskmoe.grammar_draft.constraint import Constraint
from diskmoe.grammar_draft.errors import BadGrammar, DeadEnd
from diskmoe.grammar_draft.languages import from_gbnf, from_regex, from_schema
from diskmoe.grammar_draft.rules import Grammar
from diskmoe.grammar_draft.vocabulary import Vocabulary

END = 262
WORDS = Vocabulary(
    [*(bytes([b]) for b in range(256)), b"ab", b'"a', b'": ', b"}}", b"word", b"a" * 8, None],
    {END: "<end>"},
    {END},
)
SCHEMAS, PATTERNS, GRAMMARS = hostile.schemas(), hostile.patterns(), hostile.grammars()
# these take half a second or more each; HOSTILE_ALL=1 runs them too
SLOW = (
    set()
    if os.environ.get("HOSTILE_ALL")
    else {
        "pattern: 500 from the end",
        "pattern: the nth from the end",
        "pattern: anything around a count",
        "dependents of dependents",
        "a choice of 100,000",
        "a choice of 20,000 objects",
        "3,000 properties",
        "3,000 properties that must be",
        "400 optional properties and others",
        "a prefix of 5,000 items",
        "oneOf of 100 objects",
        "anyOf of 2,000",
        "pattern: classes of Unicode",
        "pattern: anything around words",
        "20,000 choices in order",
        "the same count, many places",
    }
)


def follow(make: Callable[[], Grammar], seed: int = 1) -> str:
    """Makes a constraint and walks through it at random. Returns what was said where it is refused."""
    choose = random.Random(seed)
    try:
        constraint = Constraint(make(), WORDS)
        state = constraint.start
        for _ in range(30):
            bits = np.unpackbits(constraint.mask(state).view(np.uint8), bitorder="little")
            tokens = np.flatnonzero(bits).tolist()
            assert tokens, "nothing may come, and the text may not end"
            state = constraint.accept(state, choose.choice(tokens))
            assert state is not None
            if constraint.complete(state):
                break
    except (BadGrammar, DeadEnd) as error:
        said = str(error)
        assert said.count("\n") == 0, said
        assert 10 < len(said) < 700
        return said
    return ""


@pytest.mark.parametrize("name", [name for name in SCHEMAS if name not in SLOW])
def test_a_hostile_schema_is_refused_with_its_place_or_works(name: str):
    said = follow(lambda: from_schema(SCHEMAS[name]))
    assert not said or "#" in said or said.startswith("schema:"), said


@pytest.mark.parametrize("name", [name for name in PATTERNS if f"pattern: {name}" not in SLOW])
def test_a_hostile_pattern_is_refused_or_works(name: str):
    follow(lambda: from_regex(PATTERNS[name]))


@pytest.mark.parametrize("name", [name for name in GRAMMARS if name not in SLOW])
def test_a_hostile_grammar_is_refused_with_line_and_column_or_works(name: str):
    said = follow(lambda: from_gbnf(GRAMMARS[name]))
    assert not said or said.startswith("grammar") or "too ambiguous" in said, said


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("minItems of a billion", "#: minItems and maxItems: more than 50000 items"),
        ("minLength of 10^30", "#: minLength and maxLength: more than 150000"),
        ("references in a circle", "can never end"),
        ("a number of 5,000 digits", "digits"),
    ],
)
def test_numbers_that_are_too_large_are_named_by_their_place(name: str, told: str):
    assert told in follow(lambda: from_schema(SCHEMAS[name]))


def test_what_a_message_quotes_is_cut():
    said = follow(lambda: from_gbnf("root ::= " + "r" * 100_000))
    assert said.startswith("grammar:1:10: ") and " ... " in said
