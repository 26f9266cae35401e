"""Sampling under a grammar: the masked distribution, whichever way it is come by."""

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest

from diskmoe.engine.sampling import Sampler, Sampling
from diskmoe.grammar_draft.constraint import Constraint
from diskmoe.grammar_draft.course import Course
from diskmoe.grammar_draft.errors import DeadEnd
from diskmoe.grammar_draft.gbnf import parse
from diskmoe.grammar_draft.vocabulary import Vocabulary
from diskmoe.mtp.source import Draft, Odds
from diskmoe.mtp.verify import verify

VOCAB = 200
MODES = ["mask", "check", "1"]
FILTERS = [
    {},
    {"top_k": 3},
    {"top_k": 40},
    {"top_p": 0.8},
    {"top_p": 0.3},
    {"min_p": 0.05},
    {"top_k": 20, "top_p": 0.9},
    {"top_k": 20, "min_p": 0.05},
    {"top_p": 0.9, "min_p": 0.02},
    {"top_k": 30, "top_p": 0.9, "min_p": 0.02},
]


def vocabulary() -> Vocabulary:
    """Token i prints the character U+0100 + i."""
    return Vocabulary([chr(256 + i).encode() for i in range(VOCAB)], {}, frozenset())


def one_of(*ids: int) -> str:
    """A grammar of texts of these tokens."""
    return "root ::= (" + " | ".join(f'"\\u{256 + i:04x}"' for i in sorted(ids)) + ")*"


def sampler_of(sampling: Sampling, grammar: str, mode: str) -> Sampler:
    return Sampler(sampling, VOCAB, Course(Constraint(parse(grammar), vocabulary())), mode)


def masked(logits: np.ndarray, ids: list[int], **sampling) -> dict[int, float]:
    """The distribution of a sampler that has never heard of the other ids."""
    alone, probs = Sampler(Sampling(seed=0, **sampling), len(ids)).probabilities(logits[ids])
    return {ids[i]: float(p) for i, p in zip(alone, probs, strict=True)}


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_all_ways_choose_the_same_tokens(filters, spread):
    random, chance = Random(1), np.random.default_rng(2)
    taken = 0
    for seed in range(12):
        # few, half or nearly all of the tokens are allowed
        allowed = random.sample(range(VOCAB), random.choice([1, 5, 100, 190, 199]))
        samplers = {
            mode: sampler_of(Sampling(0.9, seed=seed, **filters), one_of(*allowed), mode)
            for mode in MODES
        }
        for _ in range(20):
            logits = chance.normal(0, spread, VOCAB).astype(np.float32)
            picked = {mode: sampler.pick(logits) for mode, sampler in samplers.items()}
            assert set(picked.values()) == {picked["mask"]} <= set(allowed)
            taken += 1
    assert taken == 240


def test_greedy_takes_the_likeliest_that_is_allowed_in_all_ways():
    chance = np.random.default_rng(3)
    for mode in MODES:
        sampler = sampler_of(Sampling(), one_of(*range(0, VOCAB, 3)), mode)
        for _ in range(20):
            logits = chance.normal(0, 1, VOCAB).astype(np.float32).round(1)  # with ties
            assert sampler.pick(logits) == 3 * int(logits[::3].argmax())


def test_a_choice_that_the_grammar_likes_is_made_without_a_mask():
    """Where the look at one token decides, no mask is made: what `check` is for."""

    class Maskless(Constraint):
        def mask(self, state):
            raise AssertionError("a mask was made")

    for some in ({}, {"top_k": 3}, {"min_p": 0.1}, {"top_p": 0.5}, {"top_k": 9, "top_p": 0.5}):
        filters: dict[str, Any] = {**some}
        for mode in ("check", "1"):
            course = Course(Maskless(parse(one_of(*range(50))), vocabulary()))
            sampler = Sampler(Sampling(1.0, seed=1, **filters), VOCAB, course, mode)
            logits = np.full(VOCAB, -9, np.float32)
            logits[[3, 20, 40]] = 4, 1, 0
            assert sampler.pick(logits) in (3, 20, 40)
    with pytest.raises(AssertionError, match="a mask was made"):
        logits[100] = 20
        sampler.pick(logits)


CASES = [{}, {"top_k": 4}, {"top_p": 0.7, "min_p": 0.1}]
ALLOWED = [1, 2, 5, 7, 11]
DRAWS = 3000


def same_noise(sampler: Sampler, logits: np.ndarray, random: Random) -> Draft:
    token, _ = sampler.guess(logits + np.float32(0.5) * np.sin(np.arange(VOCAB, dtype=np.float32)))
    return Draft(token)


def sometimes_likely(sampler: Sampler, logits: np.ndarray, random: Random) -> Draft:
    return Draft(random.choice(ALLOWED))


def drawn(sampler: Sampler, logits: np.ndarray, random: Random) -> Draft:
    """By chance of its own, and of some that are forbidden."""
    ids, probs = np.array([1, 3, 5, 12], np.int32), np.array([0.4, 0.1, 0.3, 0.2])
    return Draft(random.choices(ids.tolist(), probs.tolist())[0], odds=Odds(ids, probs))


@pytest.mark.parametrize("drafts", [None, same_noise, sometimes_likely, drawn])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("filters", CASES, ids=str)
def test_tokens_are_distributed_as_the_masked_and_renormalised_logits(filters, mode, drafts):
    logits = np.full(VOCAB, -20, np.float32)
    logits[:14] = np.random.default_rng(5).normal(0, 1.2, 14)
    wanted = masked(logits, ALLOWED, temperature=0.8, **filters)
    sampler = sampler_of(Sampling(0.8, seed=9, **filters), one_of(*ALLOWED), mode)
    random, counts = Random(4), Counter()
    rows = np.stack([logits, logits])
    while sum(counts.values()) < DRAWS:
        chain = [] if drafts is None else [drafts(sampler, logits, random)]
        # of the tokens behind a draft one is of another place, and as it should be too
        counts.update(verify(sampler, rows[: 1 + len(chain)], chain))
    total = sum(counts.values())
    assert set(counts) <= set(wanted)
    square = sum((counts[t] - total * p) ** 2 / (total * p) for t, p in wanted.items())
    freedom = len(wanted) - 1
    # the mean of chi-square is its freedom, its variance twice that: five deviations and a bit
    assert square < freedom + 5 * (2 * freedom) ** 0.5 + 6, (counts, wanted)


def test_a_guess_is_what_the_pick_behind_its_chain_will_be():
    grammar = "root ::= (" + "[\\u0100-\\u010f] [\\u0120-\\u0140] [\\u0150-\\u01a0])*"
    sampler = sampler_of(Sampling(0.9, seed=4), grammar, "1")
    rows = np.random.default_rng(1).normal(0, 2, (12, VOCAB)).astype(np.float32)
    chain: list[int] = []
    for row in rows:
        token, share = sampler.guess(row, chain)
        assert 0 < share <= 1
        chain.append(token)
    assert [sampler.pick(row) for row in rows] == chain
    assert all(token < 16 for token in chain[::3]) and all(token >= 80 for token in chain[2::3])


def test_a_guess_behind_what_is_forbidden_or_complete_is_none():
    sampler = sampler_of(Sampling(), 'root ::= "\\u0100" "\\u0101"', "1")
    logits = np.zeros(VOCAB, np.float32)
    assert sampler.guess(logits, [5]) == (-1, 0.0)
    assert sampler.guess(logits, [0, 1]) == (-1, 0.0)
    assert sampler.guess(logits, [0]) == (1, 1.0)


def test_the_probabilities_are_those_of_what_is_allowed():
    logits = np.random.default_rng(6).normal(0, 1, VOCAB).astype(np.float32)
    sampler = sampler_of(Sampling(0.7, top_p=0.9, seed=1), one_of(*ALLOWED), "check")
    ids, probs = sampler.probabilities(logits)
    wanted = masked(logits, ALLOWED, temperature=0.7, top_p=0.9)
    assert dict(zip(ids.tolist(), probs, strict=True)) == pytest.approx(wanted)


@pytest.mark.parametrize("mode", MODES)
def test_a_grammar_that_no_token_can_follow_is_an_error_with_its_place(mode):
    sampler = sampler_of(Sampling(), 'root ::= "\\u0100" "xyz"', mode)
    logits = np.zeros(VOCAB, np.float32)
    assert sampler.pick(logits) == 0
    with pytest.raises(DeadEnd, match="can follow behind 'Ā': the grammar wants byte 'x'"):
        sampler.pick(logits)
    start = sampler_of(Sampling(1.0, seed=1), 'root ::= "xyz"', mode)
    with pytest.raises(DeadEnd, match="at the start: the grammar wants byte 'x'"):
        start.pick(logits)
    with pytest.raises(DeadEnd):
        start.probabilities(logits)


def test_a_place_without_a_token_ends_a_verify_that_has_others():
    """So that what comes before it is emitted first, as it is without drafts."""
    sampler = sampler_of(Sampling(), 'root ::= "\\u0100" "xyz"', "1")
    rows = np.zeros((2, VOCAB), np.float32)
    assert verify(sampler, rows, [Draft(0)]) == [0]
    with pytest.raises(DeadEnd):
        verify(sampler, rows[:1], [])


def test_a_document_that_is_complete_ends_a_verify():
    sampler = sampler_of(Sampling(), 'root ::= "\\u0100" "\\u0100"', "1")
    rows = np.zeros((4, VOCAB), np.float32)
    assert verify(sampler, rows, [Draft(0), Draft(0), Draft(0)]) == [0, 0] and sampler.done
