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

BYTES = sorted(set(earley.LETTERS.encode()) | {0x80, 0xC0, 0xC3, 0xED, 0xF4, 0xFF, 0x00})


def compare(seed: int) -> None:
    """One grammar, some strings: the same verdict behind every byte."""
    choose = random.Random(seed)
    rules = earley.drawn(choose)
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
