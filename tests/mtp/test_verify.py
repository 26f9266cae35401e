"""What is accepted: greedy to the token, sampled to the distribution, and the same text by seed."""

from random import Random

import numpy as np
import pytest

from diskmoe.engine.sampling import Sampler, Sampling
from diskmoe.mtp import verify as rule
from diskmoe.mtp.source import Draft

VOCAB = 6


def verify(pick: rule.Pick, logits: np.ndarray, tokens: list[int], stops=()) -> list[int]:
    return rule.verify(pick, logits, [Draft(token) for token in tokens], stops)


def rows(*likeliest: int) -> np.ndarray:
    """Logits whose likeliest tokens are these."""
    logits = np.zeros((len(likeliest), VOCAB), np.float32)
    logits[np.arange(len(likeliest)), likeliest] = 5
    return logits


def greedy(row: np.ndarray) -> int:
    return int(row.argmax())


def test_drafts_are_taken_up_to_the_first_wrong_one_and_the_model_goes_on() -> None:
    assert verify(greedy, rows(3, 4, 5, 0), [3, 4, 1]) == [3, 4, 5]
    assert verify(greedy, rows(3, 4, 5, 0), [3, 4, 5]) == [3, 4, 5, 0]
    assert verify(greedy, rows(3, 4, 5, 0), [2, 4, 5]) == [3]
    assert verify(greedy, rows(3), []) == [3]


def test_a_tie_goes_to_the_token_that_plain_decoding_takes() -> None:
    pick = Sampler(Sampling(), VOCAB).pick
    flat = np.zeros((2, VOCAB), np.float32)
    assert verify(pick, flat, [1]) == [0]
    assert verify(pick, flat, [0]) == [0, 0]


def test_a_stop_token_ends_the_tokens_as_a_draft_too() -> None:
    assert verify(greedy, rows(3, 4, 5, 0), [3, 4, 5], stops={4}) == [3, 4]
    assert verify(greedy, rows(3, 4), [1], stops={3}) == [3]


def test_a_token_without_logits_to_it_is_never_taken() -> None:
    """A draft beyond the tokenizer's vocabulary is one that no pick can be."""
    pick = Sampler(Sampling(temperature=1.0, seed=1), 4).pick
    for draft in (4, 5):
        assert all(verify(pick, rows(4, 5), [draft])[0] < 4 for _ in range(50))


SETTINGS = [
    Sampling(temperature=1.0, seed=5),
    Sampling(temperature=1.5, top_k=4, top_p=0.9, min_p=0.05, seed=6),
]


class Chain:
    """A model whose next token depends on the last: logits (VOCAB, VOCAB), a row for each."""

    def __init__(self) -> None:
        self.logits = np.random.default_rng(2).normal(size=(VOCAB, VOCAB)).astype(np.float32)

    def text(self, sampler: Sampler, n: int, draft_length: int, seed: int) -> list[int]:
        """n tokens, with drafts that are sometimes likely and mostly not."""
        random = Random(seed)
        tokens = [0]
        while len(tokens) <= n:
            drafts = random.choices(range(VOCAB), k=draft_length)
            if draft_length and random.random() < 0.5:
                drafts[0] = int(self.logits[tokens[-1]].argmax())
            tokens += verify(sampler.pick, self.logits[[tokens[-1], *drafts]], drafts)
        return tokens[1 : n + 1]


@pytest.mark.parametrize("sampling", SETTINGS)
def test_a_seed_gives_the_same_text_with_drafts_and_without(sampling: Sampling) -> None:
    chain = Chain()
    plain = chain.text(Sampler(sampling, VOCAB), 400, 0, 0)
    for length in (1, 3):
        assert chain.text(Sampler(sampling, VOCAB), 400, length, length) == plain


def test_with_drafts_the_targets_distribution_is_kept() -> None:
    """Chi-square of 100,000 tokens against the sampler's own probabilities, by the token before."""
    chain, sampler = Chain(), Sampler(Sampling(temperature=1.3, min_p=0.05, seed=7), VOCAB)
    tokens = [0, *chain.text(sampler, 100_000, 3, 9)]
    counts = np.zeros((VOCAB, VOCAB))
    np.add.at(counts, (tokens[:-1], tokens[1:]), 1)
    statistic, freedom = 0.0, 0
    for before, seen in enumerate(counts):
        ids, probs = sampler.probabilities(chain.logits[before])
        assert seen.sum() == seen[ids].sum()  # nothing that the filters took away
        expected = probs * seen.sum()
        statistic += float((((seen[ids] - expected) ** 2) / expected).sum())
        freedom += len(ids) - 1
    # mean and spread of chi-square; 4 spreads are a chance of 1 in 10,000, and the seed is fixed
    assert abs(statistic - freedom) < 4 * (2 * freedom) ** 0.5


def test_a_draft_is_accepted_with_its_probability_and_replaced_by_the_others() -> None:
    """The accept-or-resample rule itself: p(x) and, where it is not x, p without x."""
    sampler = Sampler(SETTINGS[1], VOCAB)
    logits = np.array([[1.0, 0.5, 0.2, 0.0, -0.5, -3.0]] * 2, np.float32)
    ids, probs = sampler.probabilities(logits[0])
    draft, n = int(ids[1]), 4_000
    first = np.array([verify(sampler.pick, logits, [draft])[0] for _ in range(n)])
    share = (first == draft).mean()
    assert abs(share - probs[1]) < 4 * (probs[1] * (1 - probs[1]) / n) ** 0.5
    others = np.bincount(first[first != draft], minlength=VOCAB)[ids] / (first != draft).sum()
    wanted = np.where(ids == draft, 0, probs) / (1 - probs[1])
    assert np.abs(others - wanted).max() < 0.04
