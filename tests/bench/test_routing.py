"""Routings: what a card says is what the engine does, and what was asked for."""

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_synthetic import tiny_model

from diskmoe.bench.card import hits_of, measure
from diskmoe.bench.decode import measure as run_decode
from diskmoe.bench.decode import token_ids
from diskmoe.bench.model import Synthetic
from diskmoe.bench.routing import routing_named, shared_share, zipf_shares
from diskmoe.bench.shapes import SHAPES, Shape
from diskmoe.bench.writing import write_model
from diskmoe.engine.api import Model, Options
from diskmoe.engine.errors import BadRequest


def real_model(name: str, layers: int, routing: str) -> Synthetic:
    """The real shape, but for a vocabulary that is quick to walk."""
    real = SHAPES[name]
    shape = Shape(name, {**real.config, "vocab_size": 20_000}, real.gguf_arch)
    return Synthetic.make(shape, layers, routing, "q4", "q8", 0)


def engine_hits(directory: Path, tokens: int, cap: int) -> tuple[int, int]:
    options = Options(cap=cap, threads=1, ctx=256, ram_gb=4, policy="lru")
    with Model.load(directory, options) as model:
        stats, _ = run_decode(model, 0, tokens)
    return stats.decode.hits, stats.decode.misses


@pytest.mark.parametrize("cap", [4, 8, 24])
def test_the_simulated_hits_are_those_that_the_engine_counts(
    written: tuple[Synthetic, Path, Path], cap: int
) -> None:
    model, directory, _ = written
    ids = token_ids(model.raw, model.config.vocab, 0, 100)
    hits, asked = hits_of(model.chosen(ids), model.config.experts, cap)
    assert engine_hits(directory, 100, cap) == (hits, asked - hits)


@pytest.mark.parametrize(
    "name",
    [
        *("olmoe", "glm-4.5-air", "deepseek-v3", "deepseek-v2-lite"),
        *("qwen3-next-80b", "qwen3.5-35b"),
        *("mixtral-8x7b", "qwen1.5-moe", "minimax-m2", "granite-3.1-3b-a800m"),
    ],
)
def test_so_they_are_in_other_families(name: str, tmp_path: Path) -> None:
    model = tiny_model(name, "zipf:1")
    arch = SHAPES[name].gguf_arch
    write_model(model, tmp_path / "m", None, arch, lambda line: None)
    ids = token_ids(model.raw, model.config.vocab, 0, 60)
    hits, asked = hits_of(model.chosen(ids), model.config.experts, 8)
    assert engine_hits(tmp_path / "m", 60, 8) == (hits, asked - hits)


def test_lru_by_hand() -> None:
    chosen = np.array([[[0, 1], [1, 2], [0, 2], [0, 1]]])
    # 2 slots: miss 0 1 | hit 1, miss 2 | hit 2, miss 0 | hit 0, miss 1
    assert hits_of(chosen, 4, 2) == (3, 8)
    assert hits_of(chosen, 4, 3) == (5, 8)
    assert hits_of(chosen, 4, 3, warming=1) == (5, 6)
    with pytest.raises(ValueError, match="fewer than"):
        hits_of(chosen, 4, 1)


def test_unique_experts_by_hand() -> None:
    chosen = np.tile(np.array([[[0, 1], [1, 2]]]), (1, 80, 1))
    unique, rates = measure(chosen, 4, [3])
    assert unique == 3 and rates == {3: 1.0}


def test_uniform_hits_as_often_as_slots_by_experts() -> None:
    card = real_model("qwen3-30b-a3b", 3, "uniform").card(0)
    for slots, rate in card.hit_rate.items():
        assert abs(rate - slots / 128) < 0.05
    assert card.unique > 126


def test_the_preset_is_like_qwen() -> None:
    model = real_model("qwen3-30b-a3b", 12, "sticky")
    rates = model.card(0).hit_rate
    for times, wanted in ((1, 0.38), (2, 0.53), (3, 0.65), (4, 0.73), (6, 0.85)):
        assert abs(rates[8 * times] - wanted) < 0.04


def test_sticky_shares_what_it_says() -> None:
    model = real_model("qwen3-30b-a3b", 4, "sticky:0.6")
    assert abs(model.card(0).hit_rate[8] - 0.6) < 0.04
    assert shared_share(0.0, 8 / 128) == pytest.approx(8 / 128, rel=0.01)


def test_zipf_chooses_by_rank() -> None:
    model = real_model("olmoe", 2, "zipf:0.8")
    chosen = model.chosen(range(0, 20_000, 4))
    wanted = zipf_shares(0.8, 64, 8)
    assert wanted.sum() == pytest.approx(8)
    for layer in chosen:
        share = np.sort(np.bincount(layer.ravel(), minlength=64) / len(layer))[::-1]
        assert np.abs(share - wanted).max() < 0.06
    first, second = (np.argmax(np.bincount(layer.ravel())) for layer in chosen)
    assert first != second  # ranks are dealt anew in each layer


def test_another_seed_is_another_routing() -> None:
    one, same, other = (tiny_model(seed=seed).chosen(range(50)) for seed in (1, 1, 2))
    assert np.array_equal(one, same) and not np.array_equal(one, other)


@pytest.mark.parametrize("text", ["unifrom", "zipf:x", "zipf:9", "sticky:", "sticky:1", ""])
def test_an_unknown_routing_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="--routing"):
        routing_named(text, 64, 8)


def test_the_card_is_printed_and_can_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tiny_synthetic import tiny_shape

    from diskmoe.bench import shapes
    from diskmoe.engine.cli import main

    monkeypatch.setattr(shapes, "SHAPES", {"qwen3-30b-a3b": tiny_shape()})
    words = ["bench", "synth", "--like", "qwen3-30b-a3b", "--layers", "1"]
    assert main([*words, "--out", str(tmp_path / "a"), "--json"]) == 0
    card = json.loads(capsys.readouterr().out)
    assert set(card) == {
        "path", "gguf", "routing", "experts", "top_k", "unique_experts_128", "lru_hit_rate",
        "expert_bytes", "total_bytes",
    }  # fmt: skip
    assert set(card["lru_hit_rate"]) == {"4", "8", "12", "16", "24"}
    assert main([*words, "--out", str(tmp_path / "b")]) == 0
    text = capsys.readouterr().out
    assert "experts a layer in 128 tokens" in text and "at 8" in text
