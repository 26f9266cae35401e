"""Patterns: what is read, what is refused, and that automata agree with Python's own matching."""

from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.languages import from_regex
from diskmoe.grammar_draft.regex import pattern as patterns
from diskmoe.grammar_draft.regex.dfa import (
    ANYTHING,
    TooLarge,
    every,
    of_length,
    of_words,
    other_than,
    without,
)
from diskmoe.grammar_draft.regex.pattern import from_pattern
from diskmoe.grammar_draft.regex.syntax import BadPattern, parse


@pytest.mark.parametrize(
    ("pattern", "accepted", "rejected"),
    [
        ("", ["", "a"], []),
        ("^a", ["a", "ab"], ["ba", ""]),
        ("a$", ["a", "ba"], ["ab", "a\n"]),
        ("^a|b$", ["ax", "xb"], ["xa", "bx"]),
        ("(^|,)x(,|$)", ["x", "a,x", "x,a"], ["ax", "xx"]),
        ("^(a$|b)c?", ["a", "b", "bc"], ["ac"]),
        (r"^\d\w\s$", ["1_ ", "1a\u00a0", "1a\ufeff"], ["\u0661a ", "1\u00e9 "]),
        (r"^[\D]$", ["a"], ["1"]),
        (r"^[^\D]$", ["1"], ["a"]),
        ("^.$", ["a", "\U0001f600"], ["\n", "\u2028", ""]),
        ("^[]$", [], ["", "a"]),
        ("^[^]$", ["\n", "a"], [""]),
        ("^[a-]$", ["a", "-"], ["b"]),
        (r"^[\w-]$", ["-", "w"], [","]),
        (r"^[\b]$", ["\b"], ["b"]),
        (r"^\x41\u0042\u{43}\cA\0$", ["ABC\x01\x00"], []),
        (r"^\uD83D\uDE00$", ["\U0001f600"], []),
        (r"^\p{Lu}\p{Letter}\P{L}\pN$", ["\u00c9\u00e91\u0663"], ["\u00e9\u00e911"]),
        ("^(?:a)(?<n>b)$", ["ab"], []),
        ("^a+?b*?c??d{1,2}?$", ["abd", "acdd"], ["a"]),
        ("^(a|ab)(c|bcd)$", ["ac", "abc", "abcd", "abbcd"], ["abcdd"]),
        ("^a{0}b{2}c{1,}$", ["bbc", "bbccc"], ["abbc", "bc"]),
        ("^x{a}{$", ["x{a}{"], []),
        (r"^\/\-\]\}$", ["/-]}"], []),
    ],
)
def test_a_pattern_means_what_ecma_262_says(
    pattern: str, accepted: list[str], rejected: list[str]
) -> None:
    machine = from_pattern(pattern)
    for text in accepted:
        assert machine.matches(text), text
    for text in rejected:
        assert not machine.matches(text), text


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("a(?=b)", "character 2 of the pattern: lookahead (?= is not supported"),
        ("(?!b)", "lookahead (?!"),
        ("(?<=b)", "lookbehind (?<="),
        ("(?<!b)", "lookbehind (?<!"),
        ("(?i)a", "flags"),
        ("(?P<n>a)", "(?P"),
        (r"(a)\1", "character 4 of the pattern: backreference or octal \\1"),
        (r"(?<n>a)\k<n>", "backreference \\k"),
        (r"\bword", "word boundary \\b"),
        (r"\Aa", "escape '\\\\A' is not supported"),
        (r"\p{Script=Greek}", "property 'Script=Greek' is not supported"),
        ("(", "character 1 of the pattern: a group that is not closed"),
        ("a)", "a ) that closes nothing"),
        ("[a", "a class [ that is not closed"),
        ("[z-a]", "a range that ends before it begins"),
        ("*a", "nothing to repeat before *"),
        ("a**", "nothing to repeat before *"),
        ("a{3,2}", "{3,2}: 2 is less than 3"),
        ("a{99999999999}", "more than 1000000 repetitions"),
        ("\\", "is not supported"),
        ("a" * 20_001, "at most 20000 are read"),
    ],
)
def test_what_is_no_pattern_or_not_supported_is_named(pattern: str, said: str) -> None:
    with pytest.raises(BadPattern) as caught:
        parse(pattern)
    assert said in str(caught.value)
    with pytest.raises(BadGrammar, match="^regex: "):
        from_regex(pattern)


def drawn(random: Random, depth: int) -> str:
    kind = random.randrange(8 if depth else 3)
    if kind == 0:
        return random.choice("abc")
    if kind == 1:
        return random.choice(("[ab]", "[^a]", ".", r"\d", "[a-c1]"))
    if kind == 2:
        return random.choice(("^", "$", "", "b"))
    if kind in (3, 4):
        return drawn(random, depth - 1) + drawn(random, depth - 1)
    if kind == 5:
        return f"(?:{drawn(random, depth - 1)}|{drawn(random, depth - 1)})"
    inner = drawn(random, depth - 1)
    return f"(?:{inner}){random.choice(('*', '+', '?', '{2}', '{1,2}', '{0,2}?'))}"


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 1 << 40))
def test_automata_match_as_python_does(seed: int) -> None:
    random = Random(seed)
    pattern = drawn(random, 4)
    machine = from_pattern(pattern)
    wanted = re.compile(pattern.replace("$", r"\Z"), re.ASCII)
    for _ in range(20):
        text = "".join(random.choices("abc1x", k=random.randrange(7)))
        assert machine.matches(text) == bool(wanted.search(text)), (pattern, text)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 40))
def test_rules_of_a_pattern_accept_what_its_automaton_does(seed: int) -> None:
    random = Random(seed)
    pattern = drawn(random, 4)
    try:
        automaton = Automaton(from_regex(pattern))
    except BadGrammar as error:
        assert "no text matches" in str(error)
        return
    whole = re.compile(f"(?:{pattern})".replace("$", r"\Z"), re.ASCII)
    for _ in range(20):
        text = "".join(random.choices("abc1\u00e9", k=random.randrange(7)))
        state = automaton.walk(automaton.start, text.encode())
        accepted = state is not None and state.may_end
        assert accepted == bool(whole.fullmatch(text)), (pattern, text)


def test_a_pattern_too_large_for_an_automaton_keeps_its_shape() -> None:
    automaton = Automaton(from_regex("(a|b)*a(a|b){20}|[c-e]{3000}"))
    for text, fits in (
        ("a" + "b" * 20, True),
        ("b" * 21, False),
        ("cde" * 1000, True),
        ("c", False),
    ):
        state = automaton.walk(automaton.start, text.encode())
        assert (state is not None and state.may_end) == fits


@pytest.mark.parametrize(
    "pattern",
    [
        "(((a{0,99}){0,99}){0,99}){0,99}",
        "(a|b)*a(a|b){40}",
        "|".join(f"w{i}x" for i in range(2500)),
    ],
)
def test_a_regex_bomb_ends(pattern: str) -> None:
    with pytest.raises(TooLarge):
        from_pattern(f"^({pattern})$")
    assert Automaton(from_regex(pattern)).start.allowed


def test_deep_groups_do_not_recurse() -> None:
    assert from_pattern("(" * 9000 + "a" + ")" * 9000).matches("a")


def test_automata_are_put_together() -> None:
    words, short = of_words(["a", "ab", "abc"]), of_length(0, 2)
    both = every([words, short, ANYTHING])
    assert [both.matches(text) for text in ("a", "ab", "abc", "b")] == [True, True, False, False]
    assert without(words, both) == of_words(["abc"])
    assert other_than(("a",)).matches("b") and not other_than(("a",)).matches("a")
    assert every([words, from_pattern("^b")]).empty
    assert every([]) == from_pattern("^[^]*$") == ANYTHING
    assert of_length(2, None).matches("a\U0001f600") and not of_length(2, None).matches("a")


def test_equal_languages_are_one_automaton() -> None:
    assert from_pattern("^(a|b)*$") == from_pattern("^[ab]*$") == from_pattern("^(a*b*)*$")
    assert patterns.MAX_POSITIONS > 10_000
