"""What GBNF is read as, and what is said when it cannot be."""

from __future__ import annotations

import pytest

from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.gbnf import parse


def complete(grammar: str, text: str | bytes, strict: bool = False) -> bool:
    automaton = Automaton(parse(grammar, strict=strict))
    data = text.encode() if isinstance(text, str) else text
    state = automaton.walk(automaton.start, data)
    return state is not None and state.may_end


def refusal(grammar: str | bytes, strict: bool = False, **more: object) -> BadGrammar:
    with pytest.raises(BadGrammar) as caught:
        parse(grammar, "f.gbnf", strict=strict, **more)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("grammar", "accepted", "rejected"),
    [
        (r'root ::= "\x41\u00e9\U0001F600\t\r\n\\\"\[\]\-"', 'A\u00e9\U0001f600\t\r\n\\"[]-', "A"),
        ('root ::= "two\nlines"', "two\nlines", "two"),
        ("root ::= [a-cx-]+", "abcx-", "d"),
        ("root ::= [-+*/]", "+", ","),
        (r"root ::= [\]\[\\^]+", "][\\^", "a"),
        ('root ::= [^"\\n]', "\u20ac", '"'),
        ("root ::= [z-a]*", "", "m"),
        ("root ::= [^z-a]", "m", ""),
        ("root ::= []", "", "a"),
        ('root ::= [^] "b"', "b", "ab"),
        ("root ::= .", "\n", "ab"),
        ("root ::= .", "\U0001f600", ""),
        ('root ::= | "a"', "", "b"),
        ('root ::= "a" |', "a", "aa"),
        ("root ::= ()", "", " "),
        ('root ::= "ab"+', "abab", "aba"),
        ('root ::= "a"??', "", "aa"),
        ('root ::= "a" { 2 , 3 }', "aaa", "aaaa"),
        ('root ::= "a"{2}', "aa", "a"),
        ('root ::= "a"{2,}', "aaaa", "a"),
        ('root ::= "x" "a"{0}', "x", "xa"),
        ('root ::= # comment\n  "a" |\n  "b" # more\n', "b", "ab"),
        ('root ::= ("a"\n # in a group\n "b")\r\nx ::= "c"\r', "ab", "c"),
        ('root ::= A-1 -x\nA-1 ::= "1"\n-x ::= "2"', "12", "1"),
        (r'root ::= "\uD83D" | "ok"', "ok", "\U0001f43d"),
    ],
)
def test_the_language_is_read_as_llama_cpp_reads_it(
    grammar: str, accepted: str, rejected: str, strict: bool
) -> None:
    assert complete(grammar, accepted, strict)
    assert not complete(grammar, rejected, strict)


@pytest.mark.parametrize(
    ("grammar", "accepted"),
    [
        ('my_root ::= "a"\nroot ::= my_root', "a"),
        (r"root ::= [\^a]", "^"),
        ('root ::= "a"\n  "b"\n  | "c"', "ab"),
        ('root ::= ""* "a" []+', "a"),
        ('root ::= ("" | "a")* "b"', "aab"),
        ('\ufeffroot ::= "a"', "a"),
        ('root ::= root "+" root | "1"', "1+1+1"),
    ],
)
def test_the_default_mode_also_reads_what_other_engines_do(grammar: str, accepted: str) -> None:
    assert complete(grammar, accepted)
    refusal(grammar, strict=True)


def test_strict_mode_lets_the_last_of_two_definitions_win() -> None:
    assert complete('root ::= "a"\nroot ::= "b"', "b", strict=True)
    assert "defined twice; first at 1:1" in str(refusal('root ::= "a"\nroot ::= "b"'))


def test_strict_mode_takes_large_bounds_for_none_and_the_default_is_exact() -> None:
    assert complete('root ::= "a"{0,2001}', b"a" * 2002, strict=True)
    assert not complete('root ::= "a"{0,2001}', b"a" * 2002)
    assert complete('root ::= "a"{0,2001}', b"a" * 2001)


@pytest.mark.parametrize(
    "lead", [b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\x80", b"\0"]
)
def test_a_class_matches_well_formed_utf8_only(lead: bytes) -> None:
    assert not complete('root ::= [^"]', lead)
    assert not complete("root ::= .", lead)


def test_a_quote_cannot_hide_in_a_broken_character() -> None:
    assert not complete('root ::= "\\"" [^"]* "\\""', b'"\xc3"')


@pytest.mark.parametrize("strict", [False, True])
def test_tokens_are_named_by_id_or_by_text(strict: bool) -> None:
    vocabulary = {"<think>": 7}
    grammar = parse("root ::= <think> !<[9]>* <[9]>", strict=strict, token_id=vocabulary.get)
    automaton = Automaton(grammar)
    state = automaton.advance_token(automaton.start, 7, b"<think>")
    assert state is not None
    assert automaton.forced_token(automaton.start) == 7
    state = automaton.advance_token(state, 3, b"\xf0\x9f")  # part of a character is a token too
    assert state is not None and not state.may_end
    state = automaton.advance_token(state, 9, b"</think>")
    assert state is not None and state.may_end
    assert automaton.advance_token(automaton.start, 8, b"<think>") is None


PLACES = [
    ('root ::= \u201cx"', "1:10", "typographic quote"),
    ('root ::= "x\u201d', "1:10", "typographic quote"),
    ('root ::= \uff02x"', "1:10", "typographic quote"),
    ("root ::= 'x'", "1:10", "double quotes"),
    ('root : "x"', "1:6", "name ::="),
    ('root = "x"', "1:6", "name ::="),
    ('root ::= "a"\nb := "x"', "2:3", "name ::="),
    ('root ::= "a", "b"', "1:13", "separated by spaces"),
    ('root ::= "a";', "1:13", "remove the ;"),
    ('root ::= "a" // no', "1:14", "starts with #"),
    ('root ::= "a" )', "1:14", "closes nothing"),
    ('root ::= ("a"', "1:14", "closes the group of 1:10"),
    ("root ::= [a-z", "1:10", "expected ]"),
    ('root ::= "a\nb ::= "c"', "2:9", "1:10 runs over several lines"),
    (r'root ::= "\d"', "1:11", "[0-9]"),
    (r'root ::= "\x4"', "1:11", "two hexadecimal digits"),
    ('root ::= "a"{5,3}', "1:13", "{5,3} has its bounds swapped"),
    ('root ::= "a"{,3}', "1:14", "{0,3}".replace("3", "n")),
    ('root ::= "a"{3', "1:15", "expected }"),
    ('root ::= "a"{99999999999999999999999}', "1:14", "no repetition"),
    ('root ::= "a"{2000000}', "1:13", "at most"),
    ("root ::= * ", "1:10", "something to repeat"),
    ("root ::= nmae\nname ::= [a]", "1:10", "did you mean 'name'?"),
    ("root ::= <think>", "1:10", "no vocabulary"),
    ("root ::= <[1] >", "1:10", "a token"),
    ('root ::= a b ::= "x"', "1:14", "new line"),
    ("\n  ::= [a]", "2:3", "the name of a rule"),
    ("root ::= a\na ::= b\nb ::= a", "1:1", "a -> b -> a has no way out"),
    ('root ::= "a" x\nx ::= [z-a]', "1:1", "matches nothing"),
]


@pytest.mark.parametrize(("grammar", "where", "said"), PLACES)
def test_an_error_names_its_place_and_what_was_meant(grammar: str, where: str, said: str) -> None:
    error = refusal(grammar)
    assert str(error).startswith(f"f.gbnf:{where}: ")
    assert said in str(error)
    assert "\n" not in str(error).replace("\\n", "")


def test_the_caret_stands_under_the_place() -> None:
    assert (
        refusal('x ::= "a"\nroot\t::= x ? y').excerpt == ""[:0] + "root\t::= x ? y\n    \t        ^"
    )
    assert refusal("root ::= " + "a " * 500 + ",").excerpt.splitlines()[1].endswith("^")


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ("", "no rules"),
        ("# only a comment", "no rules"),
        ('rot ::= "a"', "no rule 'root' to start from (did you mean 'rot'?)"),
        ("x" * 2_000_000, "at most 1048576"),
    ],
)
def test_errors_without_a_place_name_the_file(grammar: str, said: str) -> None:
    assert str(refusal(grammar)).startswith("f.gbnf: ") and said in str(refusal(grammar))


def test_bytes_that_are_no_text_are_refused_with_their_place() -> None:
    assert str(refusal(b'root ::= "\xff"')).startswith("f.gbnf:1:11: ")


@pytest.mark.parametrize(
    ("grammar", "chain"),
    [
        ('root ::= root "a" | "b"', "root -> root"),
        ('root ::= a\na ::= b "x" | "y"\nb ::= a', "a -> b -> a"),
        ('root ::= e root "d" | "a"\ne ::= "x" | ', "root -> root"),
        ('root ::= ("" | "a")*', ""),
    ],
)
def test_strict_mode_names_the_chain_of_a_left_recursion(grammar: str, chain: str) -> None:
    error = str(refusal(grammar, strict=True))
    assert "left recursion" in error and chain in error


def test_odd_rules_are_noted_and_not_refused() -> None:
    notes = parse('root ::= "a" | x\nx ::= x "b"\ny ::= "c"').notes
    assert notes == ["rule 'x' can never end and is left out", "rule 'y' is never used"]


def test_another_root_can_be_chosen() -> None:
    grammar = parse('a ::= "x"\nb ::= "y"', root="b")
    assert grammar.rules[grammar.root].name == "b"
