"""How a text is followed that need not keep to the grammar, and what it is expected to say."""

from __future__ import annotations

import random

import pytest

from diskmoe.grammar_draft.anchors import anchors
from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.gbnf import parse
from diskmoe.grammar_draft.habits import Habits
from diskmoe.grammar_draft.walker import Walker

ROWS = r"""
root ::= ( "{\"id\":" [0-9]+ ",\"kind\":\"" ( "good" | "bad" ) "\",\"why\":" string "}\n" )+
string ::= "\"" [^"\\\n]* "\""
"""
OBJECT = r"""
root ::= "{" ws "\"name\":" ws string ws ",\"size\":" ws [0-9]+ ws "}"
string ::= "\"" [^"\\]* "\""
ws ::= [ \n]*
"""
LINES = r"""
root ::= "[\n" row ( ",\n" row )* "\n]"
row ::= "  {\n    \"a\": " [0-9]+ ",\n    \"b\": " [0-9]+ ",\n    \"c\": " [0-9]+ "\n  }"
"""


def walker(grammar: str = ROWS, **more: object) -> Walker:
    return Walker(Automaton(parse(grammar)), **more)  # type: ignore[arg-type]


def expected(walker: Walker, text: str = "") -> str:
    walker.feed(text.encode())
    return walker.expected(200)[0].decode() if walker.ready else "not ready"


def test_it_waits_for_the_first_byte_that_the_root_admits() -> None:
    walk = walker()
    assert expected(walk, "Sure, here it is:\n```json\n") == "not ready"
    assert expected(walk, "{") == '"id":'


def test_bytes_may_come_in_any_pieces() -> None:
    text = '{"id":1,"kind":"good","why":"caf\u00e9 \U0001f600"}\n{"id":2,"ki'.encode()
    for seed in range(20):
        walk, rest = walker(), text
        choose = random.Random(seed)
        while rest:
            size = choose.randint(1, 5)
            walk.feed(rest[:size])
            rest = rest[size:]
        assert expected(walk).startswith('nd":"')


def test_thinking_is_not_looked_at() -> None:
    walk = walker(tags=(b"<think>", b"</think>"))
    assert expected(walk, '<think>{"id":') == "not ready"
    assert expected(walk, "7,</thi") == "not ready"
    assert expected(walk, "nk>\n{") == '"id":'
    walk.restart(thinking=True)
    assert expected(walk, '{"id":</think>{') == '"id":'


def test_what_only_begins_like_a_tag_is_text() -> None:
    walk = walker('root ::= "<then>" [a-z]', tags=(b"<think>", b"</think>"))
    assert expected(walk, "<the") == "n>"


def test_a_tag_inside_a_string_of_the_text_opens_nothing() -> None:
    walk = walker(tags=(b"<think>", b"</think>"))
    assert expected(walk, '{"id":1,"kind":"bad","why":"<think>"') == "}\n"


def test_a_row_that_is_left_is_taken_up_with_the_next_line() -> None:
    walk = walker()
    assert expected(walk, '{"id":1,"kind":"good","why":"x"}\n{') == '"id":'
    assert expected(walk, '"title":{"id":') == "not ready"  # a nested { begins no row
    assert expected(walk, "9}}\n{") == '"id":'


def test_a_value_that_the_grammar_does_not_have_costs_that_value_only() -> None:
    walk = walker()
    assert expected(walk, '{"id":null,"kind":"') == ""  # a branch, and its place is known
    assert expected(walk, "good") == '","why":"'
    walk.feed(b'","why":"x"}\n{"id":2,"kind":"so, so')
    assert not walk.ready
    assert expected(walk, '","why": "') == ""
    assert expected(walk, 'z"') == '}\n{"id":'


def test_members_may_be_missing_or_unknown() -> None:
    walk = walker()
    assert expected(walk, '{"id":1,"colour":"red","kind":') == '"'
    assert expected(walk, '"bad","why":"x"}\n{"id":2,"why":') == '"'


def test_anchors_are_spellings_ahead_on_the_same_line() -> None:
    automaton = Automaton(parse(ROWS))
    left = automaton.walk(automaton.start, b'{"id":')
    assert left is not None
    found = anchors(automaton, [left])
    assert found[b'"kind"'] is automaton.walk(left, b'7,"kind"')
    assert found[b'd","wh'] is automaton.walk(left, b'7,"kind":"bad","wh')
    assert b'{"id":' not in found


def test_a_line_inside_a_structure_is_taken_up_where_lines_like_it_began() -> None:
    walk = walker(LINES)
    row = '  {\n    "a": 1,\n    "b": 2,\n    "c": 3\n  }'
    walk.feed(f"[\n{row},\n{row},\n".encode())
    walk.feed(b'  {\n    "a": null,\n')  # no number: the grammar is left
    assert walk.state is None
    assert expected(walk, '    "b') == '": '
    assert expected(walk, '": 5,\n    "') == 'c": '


def test_without_lines_or_anchors_it_starts_anew_at_the_root() -> None:
    walk = walker('root ::= "<" [a-z]+ "=" [0-9]+ ">"')
    assert expected(walk, "<abcdef=!") == "not ready"
    assert expected(walk, " <ab=1>") == ""


def test_a_false_start_in_prose_changes_nothing() -> None:
    walk = walker()
    walk.feed(b'{"id":1,"kind":"good","why":"x"}\n{"id":nil and {a}, {"id" or {"kind":')
    assert expected(walk) == '"good","why":"'


def test_a_new_text_begins_at_the_root_whatever_lines_the_last_one_had() -> None:
    walk = walker('root ::= "{\\n" "{" "x" "}\\n" "}"')
    walk.feed(b"{\n{x}\n}")
    walk.restart()
    assert expected(walk, "{") == "\n{x}\n}"


def test_a_complete_text_may_be_followed_by_another() -> None:
    walk = walker('root ::= "{" [a-z]+ ":end}"')
    assert expected(walk, "{a:") == "end}"
    assert expected(walk, "end} and {b:") == "end}"


def test_blanks_out_of_place_are_stepped_over_and_expected_the_next_time() -> None:
    walk = walker()
    row = '{"id": 1, "kind": "good", "why": "a"}\n'
    assert expected(walk, row + "{") == '"id": '
    assert expected(walk, '"id": 2,') == ' "kind": "good", "why": "'


def test_indentation_out_of_place_is_a_habit_too() -> None:
    walk = walker()
    row = '{\n  "id": 1,\n  "kind": "bad",\n  "why": "a"\n}\n'
    walk.feed((row * 2).encode())
    assert expected(walk, "{") == '\n  "id": '
    assert expected(walk, '\n  "id": 3,') == '\n  "kind": "bad",\n  "why": "'


def test_a_foreseen_blank_is_guessed_as_it_was_last_time() -> None:
    walk = walker(OBJECT)
    walk.feed(b'{ "name": "a" ,"size": 1 }')
    assert expected(walk, "\n{") == ' "name": "'


def test_a_branch_goes_on_as_it_last_did_until_that_is_wrong() -> None:
    walk = walker()
    good = '{"id":1,"kind":"good","why":"x"}\n'
    bad = good.replace("good", "bad")
    assert expected(walk, good + '{"id":1,').startswith('"kind":"good"')
    assert expected(walk, '"kind":"bad","why":"x"}\n{"id":1,') == '"kind":"'
    assert expected(walk, '"kind":"bad","why":"x"}\n' + bad + '{"id":1,').startswith('"kind":"bad"')


def test_free_text_has_no_habits() -> None:
    walk = walker()
    for _ in range(5):
        walk.feed(b'{"id":1,"kind":"good","why":"aaaaaa"}\n')
    assert expected(walk, '{"id":1,"kind":"good","why":"a') == ""


def test_habits_survive_a_restart_and_the_place_does_not() -> None:
    walk = walker()
    walk.feed(b'{"id": 1, "kind": "good", "why": "a"}\n{"id": 2')
    walk.restart()
    assert not walk.ready
    assert expected(walk, "{") == '"id": '


def test_expected_bytes_are_never_more_than_the_limit() -> None:
    walk = walker()
    walk.feed(b"{")
    assert walk.expected(3)[0] == b'"id'


def test_tokens_of_the_grammar_are_followed_by_their_ids() -> None:
    walk = walker('root ::= <[7]> [a-z]+ <[8]> "done"')
    walk.feed(b"prose", 3)
    assert walk.state is None
    walk.feed(b"", 7)
    walk.feed(b"abc", 4)
    walk.feed(b"</x>", 8)
    assert expected(walk) == "done"


def test_a_grammar_that_costs_too_much_is_given_up_with_a_reason() -> None:
    walk = walker("root ::= (((x{0,20}){0,20}){0,20})\nx ::= [a-z]")
    for _ in range(2000):
        walk.feed(b"abcdefgh ")
        if walk.off:
            break
    assert "too ambiguous" in walk.off and not walk.ready


@pytest.mark.parametrize("grammar", [ROWS, OBJECT, LINES, "root ::= .*", 'root ::= "" | "a" root'])
def test_no_bytes_whatever_break_it(grammar: str) -> None:
    choose = random.Random(5)
    walk = walker(grammar, tags=(b"<t>", b"</t>"))
    alphabet = b'{}[]":,\n  abcid<t>/\xc3\xa9\xff\x00' + grammar.encode()[:40]
    for _ in range(3000):
        walk.feed(bytes(choose.choices(alphabet, k=choose.randint(0, 4))))
        if walk.ready:
            said, state = walk.expected(40)
            assert len(said) <= 40 and state is not None


def test_a_habit_needs_two_outcomes_where_many_are_possible() -> None:
    habits = Habits()
    habits.learn("place", 5, few=False)
    assert habits.guess("place") is None
    habits.learn("place", 5, few=False)
    habits.learn("place", 5, few=False)
    assert habits.guess("place") is not None
