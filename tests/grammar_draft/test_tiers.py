"""Which automaton a grammar is made into, and that all of them say the same."""

import random
from collections import Counter
from typing import Any

import fuzz_masks
import fuzz_tiers
import naive_grammar
import numpy as np
import pytest

from diskmoe.grammar_draft import patience, stacked
from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.compiled_table import table_for
from diskmoe.grammar_draft.errors import BadGrammar, DeadEnd
from diskmoe.grammar_draft.gbnf import parse
from diskmoe.grammar_draft.graph import Graph
from diskmoe.grammar_draft.library import load
from diskmoe.grammar_draft.loops import FOREVER
from diskmoe.grammar_draft.minimal import refine
from diskmoe.grammar_draft.pushdown import Pushdown
from diskmoe.grammar_draft.rules import Chars, Grammar, Ref, Rule
from diskmoe.grammar_draft.stacked import Stacked
from diskmoe.grammar_draft.subsets import Undecided
from diskmoe.grammar_draft.table import Table
from diskmoe.grammar_draft.tabled import Tabled
from diskmoe.grammar_draft.tiers import tier_of
from diskmoe.grammar_draft.vocabulary import Vocabulary

ARITHMETIC = r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] ws term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""
LVALUES = """
root ::= s+
s ::= l "=" e ";" | e ";"
l ::= [a-z] ("[" e "]")*
e ::= l | e "+" l | "(" e ")"
"""
TEXTS = [b"", None, None, None, *(bytes([b]) for b in range(256)), b"ab", b'"}', "é!".encode()]
WORDS = Vocabulary(TEXTS, {1: "<x>"}, {2, 3})


def how(text: str) -> str:
    grammar = parse(text)
    return table_for(grammar)[1]


def table(text: str, push_all: bool = False) -> Table:
    grammar = parse(text)
    graph = Graph(grammar)
    made = Pushdown(grammar, graph, fuzz_tiers.pushed(grammar, graph, push_all))
    return made.table()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('root ::= "a" "b"* "c"', "1 rule, DFA of 3 states"),
        # right and left recursion are loops
        ('root ::= "a" root | "b"', "1 rule, DFA of 2 states"),
        ('root ::= root "a" | "b"', "1 rule, DFA of 2 states"),
        # equal beginnings are one
        ('root ::= x "c" | y "d"\nx ::= "ab"\ny ::= "ab"', "3 rules, DFA of 4 states"),
        # nothing tells "a" [0-9] from "b" [0-9]
        ('root ::= "a" [0-9] | "b" [0-9]', "1 rule, DFA of 3 states"),
    ],
)
def test_a_regular_grammar_is_the_smallest_finite_automaton(text: str, told: str):
    assert how(text) == told


@pytest.mark.parametrize(
    "text",
    [
        'root ::= "(" root ")" | "x"',
        'root ::= e\ne ::= e "+" t | t\nt ::= t "*" f | f\nf ::= "(" e ")" | [0-9]+',
        # what is between brackets shows only behind them
        'root ::= a "x" | b "y"\na ::= "(" a ")" | "c"\nb ::= "(" b ")" | "c"',
        'root ::= a "x" | b "y"\na ::= "(" a ")" | "1"\nb ::= "(" b "))" | "2"',
        # which of two things a rule is part of shows only behind it
        LVALUES,
        # blanks may belong to what is complete or to what is around it
        ARITHMETIC,
    ],
)
def test_rules_that_recur_have_a_stack(text: str):
    assert how(text).endswith("with a stack")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('root ::= root "+" root | [0-9]', "more than "),
        ('root ::= "a" root "a" | "b" root "b" | ""', "more than "),
        ('root ::= a "x" | b "y"\na ::= "(" a ")" | "c"\nb ::= "(" b "))" | "c"', "more than "),
        ("root ::= <[7]>", "it names tokens"),
    ],
)
def test_what_no_table_can_hold_are_sets_of_stacks_and_it_is_said_why(text: str, why: str):
    assert f"sets of stacks: {why}" in how(text)


def test_what_is_large_and_called_from_many_places_is_not_copied():
    rules = "".join(f"r{i} ::= r{i + 1} [0-9] r{i + 1} [a-f]?\n" for i in range(14))
    assert how("root ::= r0\n" + rules + 'r14 ::= "x"') == "16 rules, 408 states with a stack"
    word = f'w ::= "" | " " | "{"wxyz" * 16}"\n'
    assert how(f'root ::= "a" w "b" w "c" w "d" w "e"\n{word}') == "2 rules, 73 states with a stack"


def test_recursion_to_the_right_does_not_grow_the_stack():
    tier = Tabled(
        table('root ::= "[" list "]"\nlist ::= "x" | "x" list | "(" root ")" list'), WORDS
    )
    one, many = tier.walk(tier.start, b"[x"), tier.walk(tier.start, b"[" + b"x" * 500)
    assert one is many


def test_what_comes_back_to_a_place_is_the_same_state():
    tier, _ = tier_of(load("json"), WORDS)
    begun = tier.walk(tier.start, b'{"a": [')
    assert tier.walk(begun, b'1, {"b": []}, ') is tier.walk(begun, b"0, ")


def test_a_grammar_that_nothing_completes_is_refused():
    grammar = Grammar([Rule("root", [(Ref(0), Chars(((97, 97),)))])])
    with pytest.raises(BadGrammar, match="no text can complete"):
        tier_of(grammar, WORDS)


@pytest.mark.parametrize("push_all", [False, True])
@pytest.mark.parametrize("text", [ARITHMETIC, "json", "json_compact", "fit"])
def test_masks_are_what_the_bytes_of_each_token_do(text: str, push_all: bool):
    grammar = load(text) if len(text) < 20 else parse(text)
    graph = Graph(grammar)
    made = Pushdown(grammar, graph, fuzz_tiers.pushed(grammar, graph, push_all))
    arrays = made.table()
    texts = [*TEXTS, b'"a', b'"],', b"}}", b"]]]", b"))) ", b'": ', b"\n\n", b"12", b'\\"', b"x=\n"]
    words = Vocabulary(texts, {1: "<x>"}, {2, 3})
    tier = Tabled(arrays, words)
    choose = random.Random(5)
    for _ in range(6):
        state, stack = tier.start, (0, arrays.start)
        for _ in range(40):
            mask = np.unpackbits(tier.words(state).view(np.uint8), bitorder="little")
            fits = {
                token
                for token, data in enumerate(words.plain)
                if data and naive_grammar.walk(arrays, stack, data) is not None
            }
            assert set(np.flatnonzero(mask).tolist()) == fits
            ended = naive_grammar.step(arrays, stack, arrays.act.shape[1] - 1) == ()
            assert tier.may_end(state) == ended
            assert fits or ended
            if not fits:
                break
            token = choose.choice(sorted(fits))
            data = words.plain[token]
            assert data is not None
            state, stack = tier.step(state, token), naive_grammar.walk(arrays, stack, data)
            assert state is not None and stack is not None and state.symbol == stack[-1]


def test_forced_bytes_cross_calls_and_stop_where_the_text_may_end():
    tier, _ = tier_of(parse('root ::= "<" x "/>" "!"? | "no"\nx ::= "id" | "(" root ")"'), WORDS)
    assert tier.forced(tier.start, 9) == b""
    assert tier.forced(tier.walk(tier.start, b"<i"), 9) == b"d/>"
    assert tier.forced(tier.walk(tier.start, b"<i"), 2) == b"d/"
    assert tier.forced(tier.walk(tier.start, b"<(n"), 9) == b"o)/>"


@pytest.mark.parametrize(
    "text",
    [
        "root ::= [^a]* | [ab]+",
        "root ::= .*",
        'root ::= ([^"] | "é")*',
        "root ::= [^a]{0,9}",
        "root ::= [a-z]{3} ([a-z] | [^x]){0,4}",
        "root ::= ([b-z] [a-z])*",
    ],
)
def test_a_state_can_read_what_it_loops_on_as_often_as_it_has_room(text: str):
    made = table(text)
    choose = random.Random(1)
    others = "é\u07ff\u0800\u20ac\ud7ff\ue000\U0001f600\U0010ffff"
    chains = 0
    for state in range(len(made.act)):
        found = int(made.loops[state, 0]) | int(made.loops[state, 1]) << 64
        letters = [chr(byte) for byte in range(128) if found >> byte & 1]
        assert bool(letters) == bool(made.room[state])
        if letters:
            chains += made.room[state] < FOREVER
            letters += others * bool(made.whole[state])
            for _ in range(20):
                data = "".join(choose.choices(letters, k=min(int(made.room[state]), 12)))
                assert naive_grammar.stays(made, state, data.encode())
    assert (chains > 1) == ("{" in text or "[a-z])*" in text)


def test_masks_of_bounded_strings_are_what_bytes_do():
    made = table('root ::= "<" [^<>]{2,9} ">"')
    runs = [b"a" * n for n in range(2, 13)]
    words = Vocabulary([*TEXTS, *runs, "éé".encode(), b"aa>"], {}, {2})
    tier = Tabled(made, words)
    for length in range(10):
        data = b"<" + b"b" * length
        state, stack = tier.walk(tier.start, data), naive_grammar.walk(made, (0, made.start), data)
        assert state is not None
        mask = np.unpackbits(tier.words(state).view(np.uint8), bitorder="little")
        fits = {
            token
            for token, text in enumerate(words.plain)
            if text and naive_grammar.walk(made, stack, text) is not None
        }
        assert set(np.flatnonzero(mask).tolist()) == fits


def test_states_are_parted_as_by_the_twin():
    rng = np.random.default_rng(3)
    for _ in range(30):
        states, columns = int(rng.integers(1, 30)), int(rng.integers(1, 4))
        act = rng.integers(-3, states, (states, columns)).astype(np.int32)
        act[rng.random((states, columns)) < 0.5] = -1
        kinds = [tuple(row) for row in np.minimum(act, 0).tolist()]
        blocks = np.array([sorted(set(kinds)).index(kind) for kind in kinds], np.int32)
        names = np.empty(states, np.int32)
        refine(act, blocks, names)
        assert names.tolist() == naive_grammar.same(act.tolist())


def test_work_on_a_hostile_grammar_is_bounded():
    nested = "".join(f"r{i} ::= r{i + 1} r{i + 1}? | r{i + 1} [a-z]\n" for i in range(40))
    grammar = parse(f'root ::= r0 root? "x"\n{nested}r40 ::= [a-c]*')
    with pytest.raises(Undecided):
        Pushdown(grammar, Graph(grammar), set(grammar.used))


def test_random_grammars_have_one_language_in_every_automaton():
    tally: Counter[str] = Counter()
    for seed in range(60):
        fuzz_tiers.compare(seed, 10, tally)
    assert tally["strings"] > 300 and tally["masks"] > 20


def test_at_every_prefix_of_random_documents_the_mask_is_what_feeding_every_token_says():
    tally = fuzz_masks.run(20, 4)
    assert tally["documents"] == 20 and tally["prefixes"] > 1000


def test_calls_that_may_end_anywhere_note_each_place_of_the_vocabulary_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Places where a call is complete lie below one another: their subtrees are walked again and
    again, and what is noted of them has room for each node once."""
    kernel, most = stacked.spread, 0

    def watched(*arrays: Any) -> Any:
        nonlocal most
        count, unknown = kernel(*arrays)
        most = max(most, count)
        return count, unknown

    monkeypatch.setattr(stacked, "spread", watched)
    texts = [b"a" * length for length in range(1, 31)] + [b"ab", b"b"]
    vocabulary = Vocabulary([*texts, None], special={len(texts): "<end>"}, ends={len(texts)})
    grammar = parse("root ::= x x x\nx ::= y y y y\ny ::= z? z? z? z?\nz ::= [a-z]{0,30}")
    automaton = Automaton(grammar)
    tier = Stacked(automaton, vocabulary)
    state = tier.start
    for token in (1, 30):
        words = tier.words(state)
        for number, text in enumerate(texts):
            fits = automaton.walk(state.stacks, text) is not None
            assert bool(int(words[0]) >> number & 1) == fits, text
        after = tier.step(state, token)
        assert after is not None
        state = after
    assert 0 < most <= len(vocabulary.trie.byte)


def test_ways_that_double_with_each_byte_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, calls = stacked.spread, 0

    def counted(*arrays: Any) -> Any:
        nonlocal calls
        calls += 1
        assert calls < 1000
        return kernel(*arrays)

    monkeypatch.setattr(stacked, "spread", counted)
    monkeypatch.setattr(stacked, "MAX_WAYS", 400)
    texts = [b"a" * length for length in range(1, 17)]
    rules = 'root ::= x\nx ::= ("a" x "a"){0,8} | y x* y\ny ::= "a" x? | ("a" y? "a"?){1,3}'
    tier = Stacked(Automaton(parse(rules)), Vocabulary(texts, {}, ()))
    with pytest.raises(DeadEnd, match="too ambiguous"):
        tier.words(tier.start)
    assert tier.gave_up


def test_rows_that_were_not_worked_out_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Enough(Exception):
        """Nobody wants it any more."""

    def check() -> None:
        raise Enough

    texts = [bytes([byte]) for byte in range(97, 123)] + [b"ab"]
    vocabulary = Vocabulary(texts, {}, ())
    tier = Stacked(Automaton(parse('root ::= x x\nx ::= "a" | "b" x "c"')), vocabulary)
    monkeypatch.setattr(patience, "SLICE_SECONDS", 0.0)
    with patience.patient(check), pytest.raises(Enough):
        tier.words(tier.start)
    assert int(tier.words(tier.start)[0]) == 0b11 | 1 << 26
