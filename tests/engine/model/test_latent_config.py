"""Latent attention and a choice of keys are read from config.json, and what cannot be is refused."""

import pytest
from complaints import complaint
from tiny_model import tiny_config

from diskmoe.engine.model.config import read_config
from diskmoe.engine.model.latent_config import IndexerShape, LatentShape


def test_latent_attention_is_read_with_and_without_a_latent_of_queries():
    config = read_config(tiny_config("deepseek_v2"), "x")
    assert config.latent == LatentShape(0, 48, 32, 16, 16)
    assert (config.kv_heads, config.head_dim, config.q_width) == (1, 48, 192)
    assert (config.cached_parts, config.cached_dims, config.rope_dims) == (1, 64, 16)
    config = read_config(tiny_config("deepseek_v3", head_dim=16), "x")
    assert config.latent == LatentShape(40, 48, 32, 16, 16)


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"])
@pytest.mark.parametrize(
    "wrong",
    [
        {"num_key_value_heads": 2},
        {"kv_lora_rank": 0},
        {"q_lora_rank": "40"},
        {"qk_nope_head_dim": 24},
        {"qk_rope_head_dim": 15},
        {"v_head_dim": 1 << 40},
        {"num_attention_heads": 4096, "v_head_dim": 4096, "num_key_value_heads": None},
        {"moe_layer_freq": 2},
        {"scoring_func": "sqrtsoftplus"},
        {"topk_method": "random"},
    ],
)
def test_latent_attention_that_cannot_be_is_refused(family, wrong):
    message = complaint(tiny_config(family, **wrong))
    name = "head_dim" if "qk_rope_head_dim" in wrong else next(iter(wrong))
    assert name in message


def test_a_latent_of_queries_must_be_said_to_be_absent():
    assert "q_lora_rank is missing" in complaint(tiny_config("deepseek_v2", q_lora_rank=None))


def test_deepseek_v2_has_groups_only_where_its_method_says_so():
    raw = tiny_config("deepseek_v2", n_group=4, topk_group=2)
    assert (read_config(raw, "x").groups, read_config(raw, "x").top_groups) == (1, 1)
    config = read_config(raw | {"topk_method": "group_limited_greedy"}, "x")
    assert (config.groups, config.top_groups, config.group_score) == (4, 2, "max")
    assert read_config(tiny_config("deepseek_v3"), "x").group_score == "top2"


@pytest.mark.parametrize(
    ("changes", "full"),
    [
        ({"indexer_types": ["full", "shared", "full"]}, (True, False, True)),
        ({"index_topk_pattern": "FSS"}, (True, False, False)),
        ({"index_topk_pattern": ["full", "shared", "shared"]}, (True, False, False)),
        ({}, (True, True, True)),
        ({"index_topk_freq": 0}, (True, True, True)),
        ({"index_topk_freq": 4, "num_hidden_layers": 8}, tuple(i in (0, 1, 5) for i in range(8))),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 1}, (True, False, True)),
    ],
)
def test_layers_that_choose_keys_are_listed_or_a_pattern_or_every_so_many(changes, full):
    listed = {"indexer_types": None, "mlp_layer_types": None}
    config = read_config(tiny_config("glm_moe_dsa", **(listed | changes)), "x")
    assert config.indexer == IndexerShape(8, 24, True, 8, full)
    assert [config.chooses(layer) for layer in range(config.layers + 1)] == [*full, False]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("indexer_types", ["shared", "full", "full"]),
        ("indexer_types", ["full", "full"]),
        ("indexer_types", ["full", "full", "dense"]),
        ("indexer_types", ["full", {}, "full"]),
        ("indexer_types", 3),
        ("index_topk", 0),
        ("index_n_heads", 1 << 20),
        ("index_head_dim", 15),
        ("indexer_rope_interleave", False),
        ("rope_interleave", False),
    ],
)
def test_a_choice_of_keys_that_cannot_be_is_refused(key, value):
    assert key in complaint(tiny_config("glm_moe_dsa") | {key: value})


def test_a_choice_of_keys_needs_a_latent_of_queries():
    assert "q_lora_rank" in complaint(tiny_config("glm_moe_dsa") | {"q_lora_rank": None})
