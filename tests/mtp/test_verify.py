"""What is accepted: greedy to the token, sampled to the distribution, and the same text by seed."""

from collections.abc import Callable, Sequence
from random import Random

import numpy as np
import pytest

from diskmoe.engine.sampling import Sampler, Sampling
from diskmoe.mtp import verify as rule
from diskmoe.mtp.source import Draft, Odds

VOCAB = 6


def verify(sampler: Sampler, logits: np.ndarray, tokens: list[int], stops=()) -> list[int]:
    return rule.verify(sampler, logits, [Draft(token) for token in tokens], stops)


def rows(*likeliest: int) -> np.ndarray:
    """Logits whose likeliest tokens are these."""
    logits = np.zeros((len(likeliest), VOCAB), np.float32)
    logits[np.arange(len(likeliest)), likeliest] = 5
    return logits


def greedy(vocab: int = VOCAB) -> Sampler:
    return Sampler(Sampling(), vocab)


def test_drafts_are_taken_up_to_the_first_wrong_one_and_the_model_goes_on() -> None:
    assert verify(greedy(), rows(3, 4, 5, 0), [3, 4, 1]) == [3, 4, 5]
    assert verify(greedy(), rows(3, 4, 5, 0), [3, 4, 5]) == [3, 4, 5, 0]
    assert verify(greedy(), rows(3, 4, 5, 0), [2, 4, 5]) == [3]
    assert verify(greedy(), rows(3), []) == [3]


def test_a_tie_goes_to_the_token_that_plain_decoding_takes() -> None:
    flat = np.zeros((2, VOCAB), np.float32)
    assert verify(greedy(), flat, [1]) == [0]
    assert verify(greedy(), flat, [0]) == [0, 0]


def odds(**shares: float) -> Odds:
    """odds(a=0.5, c=0.5): ids 0 and 2."""
    return Odds(
        np.array([ord(letter) - ord("a") for letter in shares], np.int32),
        np.array(list(shares.values())),
    )


def test_a_stop_token_ends_the_tokens_as_a_draft_too() -> None:
    assert verify(greedy(), rows(3, 4, 5, 0), [3, 4, 5], stops={4}) == [3, 4]
    assert verify(greedy(), rows(3, 4), [1], stops={3}) == [3]
    drawn = [Draft(3), Draft(4, odds=odds(e=1.0)), Draft(5)]
    assert rule.verify(greedy(), rows(3, 4, 5, 0), drawn, {4}) == [3, 4]


def test_a_token_without_logits_to_it_is_never_taken() -> None:
    """A draft beyond the tokenizer's vocabulary is one that no pick can be."""
    sampler = Sampler(Sampling(temperature=1.0, seed=1), 4)
    for draft in (4, 5):
        for drawn in (Draft(draft), Draft(draft, odds=odds(a=0.5, e=0.2, f=0.3))):
            assert all(rule.verify(sampler, rows(4, 5), [drawn])[0] < 4 for _ in range(50))


def test_a_draft_that_the_filters_took_away_is_never_taken() -> None:
    sampler = Sampler(Sampling(temperature=1.0, top_k=2, seed=1), VOCAB)
    logits = np.array([[5, 4, 3, 2, 1, 0]] * 2, np.float32)
    for drawn in (Draft(2), Draft(2, odds=odds(c=1.0))):
        assert {rule.verify(sampler, logits, [drawn])[0] for _ in range(100)} == {0, 1}


def test_under_greedy_a_drawn_draft_is_taken_where_it_is_the_likeliest() -> None:
    for token in range(VOCAB):
        drawn = [Draft(token, odds=odds(a=0.1, b=0.1, c=0.1, d=0.1, e=0.1, f=0.5))]
        assert rule.verify(greedy(), rows(3, 4), drawn) == ([3, 4] if token == 3 else [3])


SETTINGS = [
    Sampling(temperature=1.0, seed=5),
    Sampling(temperature=1.5, top_k=4, seed=6),
    Sampling(temperature=1.3, top_p=0.8, seed=7),
    Sampling(temperature=1.3, min_p=0.15, seed=8),
    Sampling(temperature=1.5, top_k=5, top_p=0.9, min_p=0.05, seed=9),
]
settings = pytest.mark.parametrize("sampling", SETTINGS, ids=str)

# what a source says of (the target's logits, its own random numbers, how far ahead)
Source = Callable[[Sampler, np.ndarray, Random, int], Draft]


def _drawn(random: Random, ids: Sequence[int], weights: np.ndarray) -> Draft:
    """Drawn from odds that are in proportion to some weights."""
    probs = np.asarray(weights, np.float64) / np.sum(weights)
    token = random.choices(ids, probs.tolist())[0]
    return Draft(token, odds=Odds(np.array(ids, np.int32), probs))


def sometimes_likely(sampler: Sampler, row: np.ndarray, random: Random, ahead: int) -> Draft:
    return Draft(int(row.argmax()) if random.random() < 0.5 else random.randrange(VOCAB))


def disturbed(row: np.ndarray) -> np.ndarray:
    return (row + np.sin(np.arange(VOCAB)) / 2).astype(np.float32)


def likely_with_odds(sampler: Sampler, row: np.ndarray, random: Random, ahead: int) -> Draft:
    """From what the target would say of logits that are somewhat other."""
    ids, probs = sampler.probabilities(disturbed(row))
    return _drawn(random, ids.tolist(), probs)


def contrary(sampler: Sampler, row: np.ndarray, random: Random, ahead: int) -> Draft:
    return _drawn(random, range(VOCAB), np.exp(-2.0 * row))


def of_a_part(sampler: Sampler, row: np.ndarray, random: Random, ahead: int) -> Draft:
    """Of three tokens only, which the target may have and may not; two behind its vocabulary."""
    return _drawn(random, [1, 2, 5, 7, 90], np.array([0.4, 0.3, 0.1, 0.1, 0.1]))


def same_noise(sampler: Sampler, row: np.ndarray, random: Random, ahead: int) -> Draft:
    token, _ = sampler.guess(disturbed(row), [0] * ahead)
    return Draft(token)


def mixed(sampler: Sampler, row: np.ndarray, random: Random, ahead: int) -> Draft:
    source = random.choice([sometimes_likely, likely_with_odds, contrary, of_a_part])
    return source(sampler, row, random, ahead)


CERTAIN = [sometimes_likely, same_noise]
SOURCES = [*CERTAIN, likely_with_odds, contrary, of_a_part, mixed]


class Chain:
    """A model whose next token depends on the last: logits (VOCAB, VOCAB), a row for each."""

    def __init__(self) -> None:
        self.logits = np.random.default_rng(2).normal(size=(VOCAB, VOCAB)).astype(np.float32)
        self.taken = 0

    def text(self, sampler: Sampler, n: int, source: Source, length: int, seed: int) -> list[int]:
        """n tokens, with chains of drafts."""
        random = Random(seed)
        tokens = [0]
        self.taken = 0
        while len(tokens) <= n:
            drafts: list[Draft] = []
            rows = [tokens[-1]]
            for ahead in range(length):
                drafts.append(source(sampler, self.logits[rows[-1]], random, ahead))
                rows.append(min(drafts[-1].token, VOCAB - 1))  # of what is no id, any: it is wrong
            found = rule.verify(sampler, self.logits[rows], drafts)
            self.taken += len(found) - 1
            tokens += found
        return tokens[1 : n + 1]


@settings
@pytest.mark.parametrize("source", CERTAIN)
def test_a_seed_gives_the_same_text_with_drafts_and_without(
    sampling: Sampling, source: Source
) -> None:
    chain = Chain()
    plain = chain.text(Sampler(sampling, VOCAB), 300, source, 0, 0)
    for length in (1, 3):
        assert chain.text(Sampler(sampling, VOCAB), 300, source, length, length) == plain
        assert chain.taken > 50


@pytest.mark.parametrize("source", SOURCES)
def test_a_seed_and_the_same_drafts_give_the_same_text(source: Source) -> None:
    first, second = (Chain().text(Sampler(SETTINGS[4], VOCAB), 200, source, 2, 4) for _ in "ab")
    assert first == second


def chi_square(chain: Chain, sampler: Sampler, tokens: Sequence[int]) -> tuple[float, int]:
    """Of tokens against the sampler's own probabilities, by the token before; and its freedom."""
    counts = np.zeros((VOCAB, VOCAB))
    np.add.at(counts, (tokens[:-1], tokens[1:]), 1)
    statistic, freedom = 0.0, 0
    for before, seen in enumerate(counts):
        ids, probs = sampler.probabilities(chain.logits[before])
        assert seen.sum() == seen[ids].sum()  # nothing that the filters took away
        expected = probs * seen.sum()
        if seen.sum():
            statistic += float((((seen[ids] - expected) ** 2) / expected).sum())
            freedom += len(ids) - 1
    return statistic, freedom


@settings
@pytest.mark.parametrize("source", SOURCES)
def test_with_drafts_the_targets_distribution_is_kept(sampling: Sampling, source: Source) -> None:
    """Chi-square of 3,000 tokens with chains of three drafts."""
    chain, sampler = Chain(), Sampler(sampling, VOCAB)
    statistic, freedom = chi_square(chain, sampler, [0, *chain.text(sampler, 3_000, source, 3, 9)])
    # mean and spread of chi-square; 4 spreads are a chance of 1 in 10,000, and the seed is fixed
    assert abs(statistic - freedom) < 4 * (2 * freedom) ** 0.5
    assert chain.taken


def test_the_test_sees_a_rule_that_is_slightly_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replacing a rejected draft by a plain draw from p is what one writes first."""

    def careless(picker, row, token, odds):
        ids, probs = picker.probabilities(row)
        accept, choose = picker.uniforms()
        if accept * rule._share(odds.ids, odds.probs, token) < rule._share(ids, probs, token):
            return token
        return rule._drawn(ids, probs, choose)

    monkeypatch.setattr(rule, "_judged", careless)
    chain, sampler = Chain(), Sampler(SETTINGS[0], VOCAB)
    tokens = [0, *chain.text(sampler, 5_000, likely_with_odds, 3, 9)]
    statistic, freedom = chi_square(chain, sampler, tokens)
    assert abs(statistic - freedom) > 6 * (2 * freedom) ** 0.5


@settings
@pytest.mark.parametrize("likely", [likely_with_odds, contrary, of_a_part])
def test_drawn_drafts_are_taken_as_often_as_p_and_q_have_in_common(
    sampling: Sampling, likely: Source
) -> None:
    sampler, random = Sampler(sampling, VOCAB), Random(3)
    logits = Chain().logits[:2]
    ids, probs = sampler.probabilities(logits[0])
    p = dict(zip(ids.tolist(), probs.tolist(), strict=True))
    n, taken, common = 2_000, 0, 0.0
    for _ in range(n):
        draft = likely(sampler, logits[0], random, 0)
        assert draft.odds is not None
        q = dict(zip(draft.odds.ids.tolist(), draft.odds.probs.tolist(), strict=True))
        common = sum(min(p.get(token, 0.0), share) for token, share in q.items())
        taken += rule.verify(sampler, logits, [draft])[0] == draft.token
    assert abs(taken / n - common) < 4 * (common * (1 - common) / n) ** 0.5 + 1e-9


def test_a_draft_is_accepted_with_its_probability_and_replaced_by_the_others() -> None:
    """The accept-or-resample rule for a draft that is certain: p(x) and, else, p without x."""
    sampler = Sampler(SETTINGS[4], VOCAB)
    logits = np.array([[1.0, 0.5, 0.2, 0.0, -0.5, -3.0]] * 2, np.float32)
    ids, probs = sampler.probabilities(logits[0])
    draft, n = int(ids[1]), 3_000
    first = np.array([verify(sampler, logits, [draft])[0] for _ in range(n)])
    share = (first == draft).mean()
    assert abs(share - probs[1]) < 4 * (probs[1] * (1 - probs[1]) / n) ** 0.5
    others = np.bincount(first[first != draft], minlength=VOCAB)[ids] / (first != draft).sum()
    wanted = np.where(ids == draft, 0, probs) / (1 - probs[1])
    assert np.abs(others - wanted).max() < 0.04


def test_equal_odds_are_always_right_and_disjoint_ones_never() -> None:
    sampler = Sampler(SETTINGS[0], VOCAB)
    logits = Chain().logits[:2]
    same = Odds(*sampler.probabilities(logits[0]))
    for token in range(VOCAB):
        drafts = [Draft(token, odds=same)]
        assert all(rule.verify(sampler, logits, drafts)[0] == token for _ in range(50))
    narrow = Sampler(Sampling(temperature=1.0, top_k=1, seed=1), VOCAB)
    other = int(logits[0].argmin())
    apart = Odds(np.array([other], np.int32), np.ones(1))
    assert rule.verify(narrow, logits, [Draft(other, odds=apart)]) == [int(logits[0].argmax())]


def test_a_number_at_the_end_of_the_last_share_takes_no_token_without_a_share() -> None:
    ids = np.array([4, 7, 9, 11], np.int32)
    shares = np.array([0.5, 0.0, 0.5, 0.0])
    numbers = (2**-53, 0.49, 0.5, 1 - 2**-53, 1.0)
    assert [rule._drawn(ids, shares, u) for u in numbers] == [4, 4, 9, 9, 9]
