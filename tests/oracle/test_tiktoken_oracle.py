"""Kimi's vocabulary against tiktoken, on texts drawn anew and on ranks drawn at random."""

import random
from pathlib import Path

import pytest

from diskmoe.engine.text.tokenizer import load_tokenizer

pytest.importorskip("tiktoken")
maker = pytest.importorskip("make_tiktoken_golden")

pytestmark = pytest.mark.oracle

GOLDEN = Path(__file__).parents[1] / "golden" / "tiktoken"


def test_ids_equal_those_of_tiktoken():
    ours, theirs = load_tokenizer(GOLDEN, maker.VOCAB_SIZE), maker.reference(maker.ranks())
    assert ours is not None
    for text in maker.texts(5000, seed=7):
        assert ours.encode(text) == theirs.encode(text, allowed_special="all"), text


@pytest.mark.parametrize("seed", range(10))
def test_any_ranks_join_as_tiktoken_joins_them(tmp_path, seed, monkeypatch):
    """Tokens that overlap themselves and one another, in an order that no training gives."""
    monkeypatch.setattr(maker, "TOKENS", 300)
    monkeypatch.setattr(maker, "SPECIAL", {})
    chance = random.Random(seed)
    ranks = [bytes([byte]) for byte in range(256)]
    chance.shuffle(ranks)
    parts = [b"a", b"b", b" "]
    while len(ranks) < maker.TOKENS:
        token = chance.choice(parts) + chance.choice(parts)
        if token not in ranks and len(token) < 9:
            ranks.append(token)
            parts.append(token)
    mergeable = {token: rank for rank, token in enumerate(ranks)}
    maker.write_vocabulary(tmp_path, mergeable)
    ours, theirs = load_tokenizer(tmp_path, maker.VOCAB_SIZE), maker.reference(mergeable)
    assert ours is not None
    for _ in range(300):
        text = "".join(chance.choices("ab ", k=chance.randint(1, 14)))
        assert ours.encode(text) == theirs.encode(text), text
