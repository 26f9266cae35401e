"""Tokens that a state takes by operations on sets, and what lets a walk leave the others out."""

import random

import naive_grammar
import numpy as np
import pytest

from diskmoe.grammar_draft.alike import FIRSTS, OTHERS_FIRST, add_alike
from diskmoe.grammar_draft.compiled_table import Attempts
from diskmoe.grammar_draft.gbnf import parse
from diskmoe.grammar_draft.library import load
from diskmoe.grammar_draft.loops import REFUSED
from diskmoe.grammar_draft.table import Table
from diskmoe.grammar_draft.trie import trie_of

ARITHMETIC = """
root  ::= (expr "=" ws term "\\n")+
expr  ::= term ([-+*/] ws term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \\t]*
"""
GRAMMARS = {
    "json": "json",
    "arithmetic": ARITHMETIC,
    "bounded": 'root ::= "<" [^<>]{2,9} ">"',
    "names": 'root ::= [a-z]{3} ([a-z] | [^x]){0,4} " " [A-Za-z]+',
    "words": "root ::= ([a-z]+ | [A-Z]+ | [^a-zA-Z])*",
}
TEXTS = [
    *(bytes([byte]) for byte in range(256)),
    *(
        f"{space}{word}".encode()
        for space in ("", " ", "  ")
        for word in ("abc", "a_1", "aB", "é日")
    ),
    *(b"a" * length for length in range(2, 12)),
    *(b" " + b"b" * length for length in range(2, 12)),
    b'ab"',
    b"a b",
    b" a b",
    b"\xc3",
    b"a\xc3",
    b" \xc3\xa9",
    b"a\xff",
    b"\xa9a",
    b"x" * 40,
    b" " + b"y" * 40,
]


def table(name: str) -> Table:
    text = GRAMMARS[name]
    grammar = load(text) if len(text) < 9 else parse(text)
    return Attempts(grammar, worth=1 << 30).made(push_all=False)  # with chains written out


@pytest.mark.parametrize("name", GRAMMARS)
def test_tokens_alike_are_those_of_the_twin(name: str):
    made = table(name)
    sets = trie_of(sorted((text, token) for token, text in enumerate(TEXTS)), 5).sets
    found_some = 0
    for start in range(1, len(made.act)):
        words = np.zeros(5, np.uint64)
        origins = np.empty((4, FIRSTS), np.int32)
        add_alike(
            *(sets.having, sets.starting, sets.second, sets.again, sets.within),
            *(sets.broken, sets.spelled, sets.longest, sets.lengths),
            *(made.classes, made.act, made.kind, made.number, made.at, made.found, made.live),
            *(made.loops, made.room, made.whole, start, words, origins),
        )
        expected, tokens = naive_grammar.alike(made, TEXTS, start)
        told = {
            b" " * place + bytes([byte]): int(origins[place, byte])
            for place in range(2)
            for byte in range(OTHERS_FIRST + 1)
            if origins[place, byte] >= 0
        }
        assert told == expected
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")
        assert set(np.flatnonzero(bits).tolist()) == tokens
        found_some += len(tokens) > 20
        for token in tokens:  # and they fit, whatever lies below
            assert naive_grammar.walk(made, (0, start), TEXTS[token]) is not None
    assert found_some


@pytest.mark.parametrize("name", GRAMMARS)
def test_bytes_that_neither_loop_nor_leave_are_refused_all_along_a_chain(name: str):
    made = table(name)
    choose = random.Random(2)
    checked = 0
    for start in range(len(made.act)):
        loops = [b for b in range(128) if int(made.loops[start, b >> 6]) >> (b & 63) & 1]
        leaves = [b for b in range(128) if int(made.leaves[start, b >> 6]) >> (b & 63) & 1]
        assert not set(loops) & set(leaves)
        never = [b for b in range(128) if b not in loops and b not in leaves]
        never += range(128, 256) if made.ascii_only[start] else []
        for _ in range(8):
            length = choose.randint(0, min(int(made.room[start]) - 1, 6)) if loops else 0
            state = start
            for byte in choose.choices(loops, k=length) if loops else ():
                state = int(made.act[state, made.classes[byte]])
            assert all(made.act[state, made.classes[byte]] == REFUSED for byte in never)
            checked += bool(never)
    assert checked > 20


@pytest.mark.parametrize("name", GRAMMARS)
def test_the_only_byte_of_a_state_is_known(name: str):
    made = table(name)
    for state, row in enumerate(made.act):
        fits = [byte for byte in range(256) if row[made.classes[byte]] != REFUSED]
        alone = len(fits) == 1 and row[-1] == REFUSED and row[made.classes[fits[0]]] >= 0
        assert made.only[state] == (fits[0] if alone else -1)
