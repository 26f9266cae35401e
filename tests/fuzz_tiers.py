"""Random grammars and strings: every automaton, and a slow recogniser, must agree.

python tests/fuzz_tiers.py --grammars 200 --strings 100000
python tests/fuzz_tiers.py --counting          # long repetitions, which loops can count
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable

import earley
import numpy as np
from slow_constraint import SlowConstraint

from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.compiled_table import Attempts
from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.gbnf import parse
from diskmoe.grammar_draft.graph import Graph
from diskmoe.grammar_draft.pushdown import Pushdown
from diskmoe.grammar_draft.pushed import recurring
from diskmoe.grammar_draft.rules import Grammar
from diskmoe.grammar_draft.stacked import Stacked
from diskmoe.grammar_draft.subsets import Undecided
from diskmoe.grammar_draft.tabled import Tabled
from diskmoe.grammar_draft.tiers import Tier
from diskmoe.grammar_draft.vocabulary import Vocabulary

BYTES = sorted(set(earley.LETTERS.encode()) | {0x80, 0xC0, 0xC3, 0xED, 0xF4, 0xFF, 0x00})


def vocabulary(choose: random.Random) -> Vocabulary:
    """Every byte, a hundred random strings, one special token, and an end."""
    texts: list[bytes | None] = [bytes([byte]) for byte in range(256)]
    for _ in range(60):
        texts.append("".join(choose.choices(earley.LETTERS, k=choose.randint(2, 6))).encode())
    for _ in range(40):
        texts.append(bytes(choose.choices(BYTES, k=choose.randint(2, 5))))
    return Vocabulary([*texts, None, None], {len(texts): "<x>", len(texts) + 1: "<end>"}, {357})


def pushed(grammar: Grammar, graph: Graph, all_rules: bool) -> set[int]:
    """The rules whose calls are pushed: all, or only those that must."""
    return set(grammar.used) if all_rules else recurring(grammar, graph)


def automata(grammar: Grammar, words: Vocabulary) -> list[tuple[str, Tier]]:
    """All that a grammar can be made into."""
    made: list[tuple[str, Tier]] = [("sets of stacks", Stacked(Automaton(grammar), words))]
    late = Automaton(grammar, Graph(grammar, written_out=0))
    made.append(("copies as they are needed", Stacked(late, words)))
    graph = Graph(grammar)
    for push_all in (False, True):
        try:
            pushdown = Pushdown(grammar, graph, pushed(grammar, graph, push_all))
            table = pushdown.table()
        except Undecided:
            continue
        made.append((f"table, {push_all=}", Tabled(table, words)))
        try:
            table = Attempts(grammar, worth=0).made(push_all)
        except Undecided:
            continue
        counts = "that counts " if table.counts else ""
        made.append((f"table {counts}as it can, {push_all=}", Tabled(table, words)))
    return made


def compare(
    seed: int,
    strings: int,
    tally: Counter[str],
    drawn: Callable[[random.Random], dict[str, earley.Node]] = earley.drawn,
) -> None:
    """One grammar: the same verdict behind every byte of its strings, the same masks at some."""
    choose = random.Random(seed)
    rules = drawn(choose)
    text = earley.gbnf(rules)
    oracle = earley.Earley(rules)
    try:
        grammar = parse(text)
    except BadGrammar:
        assert not oracle.alive, text
        tally["refused"] += 1
        return
    words = vocabulary(choose)
    slow = SlowConstraint(grammar, words)
    found = automata(grammar, words)
    longest = 12 if drawn is earley.drawn else 40
    tally.update(name for name, _ in found)
    for number in range(strings):
        tally["strings"] += 1
        data = b""
        state = slow.start
        states = [tier.start for _, tier in found]
        ended = False
        for _ in range(choose.randint(0, longest)):
            told = (state.may_end, state.allowed)
            for (name, tier), here in zip(found, states, strict=True):
                assert (tier.may_end(here), tier.allowed(here)) == told, (text, data, name)
                forced = slow.automaton.forced(state, 8)
                assert tier.forced(here, 8) == forced, (text, data, name)
            legal = [byte for byte in BYTES if state.allowed >> byte & 1]
            byte = choose.choice(
                legal if legal and choose.random() < 0.9 + 0.08 * (longest > 12) else BYTES
            )
            data += bytes([byte])
            after = slow.automaton.advance(state, byte)
            behind = [
                tier.walk(here, data[-1:]) for (_, tier), here in zip(found, states, strict=True)
            ]
            assert all((b is None) == (after is None) for b in behind), (text, data)
            if after is None:
                ended = True
                break
            state, states = after, behind
        verdict = oracle.verdict(data)
        assert (verdict is None) == ended, (text, data)
        if verdict is not None:
            assert verdict == (state.may_end, state.allowed), (text, data)
            if number % 8 == 0:
                compare_masks(slow, state, found, states, choose, (text, data))
                tally["masks"] += 1
    assert slow.automaton.gave_up == 0


def compare_masks(slow, state, found, states, choose, where) -> None:
    """The mask of a state and what each token leads to."""
    told = slow.mask(state) - set(slow.vocabulary.ends)
    token = choose.choice(sorted(told)) if told else 0
    after = slow.accept(state, token)
    for (name, tier), here in zip(found, states, strict=True):
        words = tier.words(here)
        bits = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
        assert set(bits.tolist()) == told, (*where, name)
        behind = tier.step(here, token)
        assert (behind is None) == (after is None), (*where, name, token)
        if after is not None:
            assert tier.allowed(behind) == after.allowed, (*where, name, token)
            assert tier.may_end(behind) == after.may_end, (*where, name, token)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--grammars", type=int, default=200)
    parser.add_argument("--strings", type=int, default=100_000, help="in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--counting", action="store_true", help="grammars of long repetitions")
    words = parser.parse_args()
    tally: Counter[str] = Counter()
    each = -(-words.strings // words.grammars)
    seed = words.seed
    drawn = earley.drawn_counting if words.counting else earley.drawn
    while tally["sets of stacks"] < words.grammars:
        compare(seed, each, tally, drawn)
        seed += 1
    print(f"seeds {words.seed} to {seed - 1}: all agree; {dict(tally)}")


if __name__ == "__main__":
    main()
