"""Long repetitions: few states, exact at their bounds, however long."""

import json

import numpy as np
import pytest

from diskmoe.grammar_draft.compiled_table import table_for
from diskmoe.grammar_draft.constraint import Constraint
from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.gbnf import parse
from diskmoe.grammar_draft.languages import from_schema
from diskmoe.grammar_draft.rules import Grammar
from diskmoe.grammar_draft.vocabulary import Vocabulary

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TEXTS = [
    *(bytes([b]) for b in range(256)),
    *(b"a" * n for n in range(2, 40)),
    b'a"',
    "é日".encode(),
]
WORDS = Vocabulary([*TEXTS, None], {len(TEXTS): "<end>"}, {len(TEXTS)})


def tokens(constraint: Constraint, state: object) -> set[bytes | None]:
    """The texts of the tokens that may come next; None: the end."""
    bits = np.unpackbits(constraint.mask(state).view(np.uint8), bitorder="little")
    return {WORDS.texts[i] for i in np.flatnonzero(bits).tolist()}


@pytest.mark.parametrize(
    ("grammar", "told"),
    [
        (parse("root ::= [a-z]{10,5000}"), "DFA of 5 states and counters"),
        (parse("root ::= [a-z]{0,200000}"), "DFA of 3 states and counters"),
        (from_schema({"type": "string", "maxLength": 1000}), "DFA of 43 states and counters"),
        (from_schema({"type": "string", "minLength": 100_000}), "DFA of 43 states and counters"),
        (
            from_schema({"type": "string", "pattern": "^[a-z]{1,2000}$"}),
            "DFA of 6 states and counters",
        ),
        (
            from_schema(
                {"type": "array", "maxItems": 900, "items": {"type": "string", "maxLength": 900}},
                whitespace="compact",
            ),
            "89 states with a stack and counters",
        ),
        # the count in the brackets is that of a frame of its own
        (parse('root ::= ("(" [a-z]{0,500} ")"){2,500}'), "8 states with a stack and counters"),
        # the shorter one is written out: two numbers cannot be one
        (parse('root ::= "x"{0,4000} "." | [x]{0,90} ","'), "DFA of 271 states and counters"),
    ],
)
def test_a_long_repetition_is_a_loop_that_counts(grammar: Grammar, told: str):
    assert table_for(grammar)[1].endswith(told)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1000), (1, 1000), (700, 1000), (1000, 1000), (900, None)]
)
def test_a_string_may_end_from_its_least_length_to_its_greatest(low: int, high: int | None):
    bounds = {"minLength": low} if high is None else {"minLength": low, "maxLength": high}
    constraint = Constraint(from_schema({"type": "string", **bounds}), WORDS)
    state = constraint.walk(constraint.start, b'"')
    for length in range(1003):
        allowed = tokens(constraint, state)
        left = 40 if high is None else high - length
        assert (b'"' in allowed) == (length >= low)
        assert {len(t) for t in allowed if t and not t.strip(b"a")} == set(
            range(1, min(left, 39) + 1)
        )
        assert ("é日".encode() in allowed) == (left >= 2)
        assert (b'a"' in allowed) == (left >= 1 and length + 1 >= low)
        if length == high:
            break
        # a character counts once, however it is written
        one = (b"a", "é".encode(), b"\\u00e9", b"\\n", b"\\ud83d\\ude00", "😀".encode())[length % 6]
        state = constraint.walk(state, one)
        assert state is not None


def test_items_are_counted_around_strings_that_count():
    schema = {
        "type": "array",
        "minItems": 300,
        "maxItems": 301,
        "items": {"type": "string", "maxLength": 99},
    }
    constraint = Constraint(from_schema(schema, whitespace="compact"), WORDS)
    for count in (299, 300, 301, 302):
        state = constraint.walk(
            constraint.start, json.dumps(["a" * 99] * count).replace(" ", "").encode()
        )
        assert (state is not None and constraint.may_end(state)) == (count in (300, 301))
    assert constraint.walk(constraint.start, b'["' + b"a" * 100 + b'"') is None


def test_what_must_come_is_known_through_a_repetition():
    constraint = Constraint(parse('root ::= "ab"{300} [0-9]{0,300} "." "!"{200}'), WORDS)
    assert constraint.forced(constraint.start, 1000) == b"ab" * 300
    behind = constraint.walk(constraint.start, b"ab" * 300 + b"7.")
    assert constraint.forced(behind, 1000) == b"!" * 200
    end = constraint.walk(behind, b"!" * 200)
    assert constraint.complete(end) and constraint.forced(end) == b""


def test_states_far_from_the_bounds_have_one_mask():
    constraint = Constraint(parse("root ::= [a-z]{0,100000}"), WORDS)
    states = [constraint.walk(constraint.start, b"a" * n) for n in (100, 5000, 99_000)]
    assert len({id(constraint.mask(state)) for state in states}) == 1
    near = constraint.walk(constraint.start, b"a" * 99_998)
    assert tokens(constraint, near) == {None, b"aa", *(letter.encode() for letter in LETTERS)}


def test_numbers_side_by_side_that_differ_are_not_mixed_up():
    grammar = parse('root ::= x | y\nx ::= [a-z]{0,300} "!"\ny ::= [a-c]{0,2000} "?"')
    constraint = Constraint(grammar, WORDS)
    state = constraint.walk(constraint.start, b"a" * 300)
    assert tokens(constraint, state) >= {b"!", b"?", b"a" * 39} and b"z" not in tokens(
        constraint, state
    )
    state = constraint.walk(state, b"a" * 1700)
    assert tokens(constraint, state) == {b"?"}


def test_more_than_can_be_counted_is_refused_with_its_place():
    with pytest.raises(BadGrammar, match="1:13: a repetition of 1000000; at most 200000"):
        parse('root ::= "a"{0,1000000}')
