"""States, their sharing, and what hostile grammars and documents cost."""

from __future__ import annotations

import gc
import json
import subprocess
import sys

import pytest

from diskmoe.grammar_draft import automaton as module
from diskmoe.grammar_draft.automaton import Automaton, State
from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.gbnf import parse

JSON = r"""
root ::= value
value ::= object | array | string | [0-9]+ | "true" | "null"
object ::= "{" ws (string ":" ws value ws ("," ws string ":" ws value ws)*)? "}"
array ::= "[" ws (value ws ("," ws value ws)*)? "]"
string ::= "\"" ([^"\\\x00-\x1F] | "\\" ["\\/bfnrt])* "\""
ws ::= [ \n]*
"""


def made(text: str) -> Automaton:
    return Automaton(parse(text))


def walked(automaton: Automaton, data: bytes) -> State:
    state = automaton.walk(automaton.start, data)
    assert state is not None
    return state


def test_the_same_place_is_the_same_state() -> None:
    automaton = made(JSON)
    assert walked(automaton, b'{"a":[1,2') is walked(automaton, b'{"bcd":[17,200')
    assert walked(automaton, b'{"a":[1,2') is not walked(automaton, b'{"a":[[1,2')


def test_a_refused_byte_leaves_the_state_as_it_was() -> None:
    automaton = made(JSON)
    state = walked(automaton, b"[1")
    before = (state.items, state.allowed, state.may_end)
    assert automaton.advance(state, ord("x")) is None
    assert (state.items, state.allowed, state.may_end) == before
    assert automaton.walk(state, b",2]") is not None


def test_forced_bytes_stop_at_a_choice_at_an_end_and_at_the_limit() -> None:
    automaton = made('root ::= "abc" ("x" | "y") "def" "g"?')
    assert automaton.forced(automaton.start, 10) == b"abc"
    assert automaton.forced(automaton.start, 2) == b"ab"
    assert automaton.forced(walked(automaton, b"abcx"), 10) == b"def"
    assert automaton.forced(walked(automaton, b"abcxdefg"), 10) == b""


def test_what_may_come_next_is_a_set_of_256_bits() -> None:
    automaton = made("root ::= [a-c\u00e9]")
    assert automaton.allowed(automaton.start) == 0b111 << ord("a") | 1 << 0xC3
    assert not automaton.may_end(automaton.start)
    inside = walked(automaton, b"\xc3")
    assert automaton.allowed(inside) == 1 << 0xA9
    assert not automaton.may_end(inside)


def test_a_list_of_any_length_keeps_the_stack_flat() -> None:
    automaton = made('root ::= item+\nitem ::= "- " [a-z]+ "\\n"')
    one = walked(automaton, b"- abc\n")
    assert walked(automaton, b"- abc\n" * 5000) is one


def test_right_recursion_in_last_place_leaves_no_frames() -> None:
    automaton = made('root ::= "a" root | "b"')
    assert walked(automaton, b"a" * 9) is walked(automaton, b"a")


@pytest.mark.parametrize(
    ("text", "accepted", "rejected"),
    [
        ('root ::= root "+" root | [0-9]', b"1+2+3", b"1+"),
        ('root ::= e\ne ::= t | e "+" t\nt ::= f | t "*" f\nf ::= "(" e ")" | "n"', b"n+(n*n)+n", b"n+*"),
        ('root ::= a "." \na ::= b "x" | "p"\nb ::= a "y" | "q"', b"qxyx.", b"qy."),
        ('root ::= n root "x" | "z"\nn ::= "y"?', b"yyzxxx", b"yyzx"),
        ('root ::= root | "a"', b"a", b"aa"),
        ('root ::= root root | "a" |', b"aaaa", b"b"),
    ],
)  # fmt: skip
def test_left_recursion_is_walked(text: str, accepted: bytes, rejected: bytes) -> None:
    automaton = made(text)
    assert walked(automaton, accepted).may_end
    state = automaton.walk(automaton.start, rejected)
    assert state is None or not state.may_end


@pytest.mark.parametrize("text", ['root ::= (("a"*)*)* "b"', 'root ::= ("" | "a" | ())+ "b"'])
def test_loops_over_nothing_end(text: str) -> None:
    assert walked(made(text), b"aaab").may_end


def test_sixty_four_optional_items_cost_no_more_than_sixty_four_stacks() -> None:
    automaton = made("root ::= " + '"a"? ' * 64)
    state = walked(automaton, b"a" * 30)
    assert len(state.items) <= 64
    assert automaton.walk(automaton.start, b"a" * 65) is None


def test_two_ways_at_each_of_many_levels_do_not_multiply() -> None:
    rules = "".join(f'r{i} ::= r{i + 1} "x" | r{i + 1} "y"\n' for i in range(60))
    automaton = made("root ::= r0\n" + rules + 'r60 ::= "a"')
    assert len(walked(automaton, b"a").items) == 2
    assert walked(automaton, b"a" + b"xy" * 30).may_end


def test_forgetting_states_changes_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STATES", 5)
    automaton = made(JSON)
    held = walked(automaton, b'{"a":[')
    assert walked(automaton, b'[{"k":"v"},12,[[true]]]').may_end
    assert automaton.walk(held, b"1]}") is not None
    assert len(automaton._states) <= 5


def test_a_long_document_needs_no_more_states_than_a_short_one() -> None:
    automaton = made(JSON)
    rows = [{"id": i, "tags": ["a", "\u00e9"], "in": {"x": [i, None]}} for i in range(50)]
    assert walked(automaton, json.dumps(rows, ensure_ascii=False).encode()).may_end
    states = len(automaton._states)
    assert walked(automaton, json.dumps(rows * 100, ensure_ascii=False).encode()).may_end
    assert len(automaton._states) == states


def test_a_deep_stack_can_be_grown_and_dropped() -> None:
    automaton = made('root ::= "(" root ")" | "x"')
    state = walked(automaton, b"(" * 4000)
    assert automaton.walk(state, b"x" + b")" * 4000) is not None
    automaton._forget()
    automaton.start.next.clear()
    del state
    gc.collect()
    assert len(automaton._tails) < 10


def test_a_byte_that_would_touch_too_many_stacks_is_refused_and_counted() -> None:
    automaton = made('root ::= (((x{0,99}){0,99}){0,99})\nx ::= "a"')
    assert automaton.walk(automaton.start, b"a" * 50) is None
    assert automaton.gave_up == 1


HOSTILE = {
    "parentheses": "'root ::= ' + '(' * 100000 + '\"a\"' + ')' * 100000",
    "fewer parentheses": "'root ::= ' + '(' * 9000 + '\"a\"' + ')' * 9000",
    "a chain": "'root ::= r0\\n' + ''.join(f'r{i} ::= r{i+1}\\n' for i in range(200000))",
    "a shorter chain": "'root ::= r0\\n' + ''.join(f'r{i} ::= r{i+1}\\n' for i in range(9000))"
    " + 'r9000 ::= \"a\"'",
    "stacked bounds": "'root ::= (((x{0,99}){0,99}){0,99})\\nx ::= \"a\"'",
    "swapped bounds": "'root ::= \"a\"{5,3}'",
    "alternatives": "'root ::= ' + '\"a\"|' * 200000 + '\"a\"'",
    "stars": "'root ::= \"a\"' + '*' * 100000",
    "classes": "'root ::= ' + '[^a-z]' * 9000",
    "unrolled": "'root ::= ' + '([^a]{0,10000} | [^b]{0,10000})' * 99",
    "left recursion": "''.join(f'r{i} ::= ' + ' | '.join(f'r{j}' for j in range(60))"
    " + ' | \"a\"\\n' for i in range(60)) + 'root ::= r0'",
}


# the peak of getrusage survives exec, so that a big parent would be booked on a small child
PEAK = """
import resource
def peak_kib():
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
"""


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_is_answered_in_bounded_memory(name: str) -> None:
    code = (
        PEAK
        + f"""
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.gbnf import parse
for strict in (False, True):
    try:
        automaton = Automaton(parse({HOSTILE[name]}, strict=strict))
        automaton.walk(automaton.start, b"a" * 20)
    except BadGrammar as error:
        assert len(str(error)) < 400, error
print(peak_kib())
"""
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert int(done.stdout) < 200 * 1024  # KiB


def test_strict_mode_reads_a_grammar_that_no_text_completes_as_llama_cpp_does() -> None:
    automaton = Automaton(parse("root ::= a\na ::= [z-a]", strict=True))
    assert automaton.start.allowed == 0 and not automaton.start.may_end


def test_tangled_left_recursion_is_refused() -> None:
    many = range(150)
    rules = [f"r{i} ::= r{(i + 1) % 150} {' '.join(f'r{j}' for j in many)} | [a]" for i in many]
    with pytest.raises(BadGrammar, match="left-recursive through each other"):
        made("root ::= r0\n" + "\n".join(rules))
