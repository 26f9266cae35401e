"""Random grammars and byte strings: the automaton and a slow recogniser must agree everywhere.

The default run is short. ``GRAMMAR_FUZZ=600 pytest tests/grammar_draft/test_against_earley.py``
goes on for that many seconds.
"""

from __future__ import annotations

import os
import random
import time

import earley
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.gbnf import parse

LETTERS = 'ab"\n\u00e9\u20ac\U0001f600'
BYTES = sorted(set(LETTERS.encode()) | {0x80, 0xC0, 0xC3, 0xED, 0xF4, 0xFF, 0x00})


def drawn(choose: random.Random) -> dict[str, earley.Node]:
    """A grammar of up to four rules, small enough for every one of its loops to be met."""
    names = ["root", "x", "y", "z"][: choose.randint(1, 4)]

    def node(depth: int) -> earley.Node:
        kind = choose.choice(("text", "text", "set", "ref", "ref", "seq", "alt", "repeat"))
        if depth <= 0 and kind in ("seq", "alt", "repeat"):
            kind = "text"
        if kind == "text":
            return ("text", "".join(choose.choices(LETTERS, k=choose.choice((0, 1, 1, 1, 2)))))
        if kind == "set":
            ranges = []
            for _ in range(choose.randint(1, 3)):
                low = ord(choose.choice(LETTERS)) + choose.randint(-1, 1)
                ranges.append((low, low + choose.choice((0, 0, 1, 40, 3000))))
            return ("set", choose.random() < 0.3, ranges)
        if kind == "ref":
            return ("ref", choose.choice(names))
        if kind == "repeat":
            low = choose.choice((0, 0, 1, 2))
            high = choose.choice((None, low, low + 1, low + 2))
            return ("repeat", node(depth - 1), low, high)
        return (kind, [node(depth - 1) for _ in range(choose.randint(1, 3))])

    return {name: node(3) for name in names}


def compare(seed: int) -> None:
    """One grammar, some strings: the same verdict behind every byte."""
    choose = random.Random(seed)
    rules = drawn(choose)
    text = earley.gbnf(rules)
    oracle = earley.Earley(rules)
    try:
        automaton = Automaton(parse(text))
    except BadGrammar as error:
        assert not oracle.alive, f"{error}\n{text}"
        return
    assert oracle.alive, text
    for _ in range(6):
        state = automaton.start
        data = b""
        for _ in range(choose.randint(0, 10)):
            known = oracle.verdict(data)
            assert known is not None, (text, data)
            assert (state.may_end, state.allowed) == known, (text, data)
            legal = [byte for byte in BYTES if state.allowed >> byte & 1]
            byte = choose.choice(legal if legal and choose.random() < 0.9 else BYTES)
            after = automaton.advance(state, byte)
            assert (after is not None) == bool(state.allowed >> byte & 1), (text, data, byte)
            if after is None:
                break
            forced = automaton.forced(state, 8)
            assert not forced or forced[0] == byte or byte not in legal, (text, data)
            state, data = after, data + bytes([byte])
    assert automaton.gave_up == 0


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 40))
def test_the_automaton_agrees_with_earley_behind_every_byte(seed: int) -> None:
    compare(seed)


@pytest.mark.skipif(not os.environ.get("GRAMMAR_FUZZ"), reason="GRAMMAR_FUZZ=seconds runs it")
def test_a_long_fuzz_finds_no_disagreement() -> None:
    ends = time.monotonic() + float(os.environ["GRAMMAR_FUZZ"])
    seed = random.SystemRandom().getrandbits(40)
    print(f"from seed {seed}")
    count = 0
    while time.monotonic() < ends:
        compare(seed + count)
        count += 1
    print(f"{count} grammars")
