"""Models of which some layers have a delta rule, and texts within other models."""

from dataclasses import replace

import pytest
from complaints import complaint
from tiny_model import tiny_config

from diskmoe.engine.model.config import read_config

HYBRIDS = ("qwen3_next", "qwen3_5_moe_text")


@pytest.mark.parametrize("family", HYBRIDS)
def test_hybrids_have_attention_in_every_so_manieth_layer_unless_layers_are_listed(family):
    config = read_config(tiny_config(family, num_hidden_layers=8), "x")
    assert config.delta_layers == (0, 2, 4, 6)
    raw = tiny_config(family, num_hidden_layers=8, full_attention_interval=None)
    assert read_config(raw, "x").delta_layers == (0, 1, 2, 4, 5, 6)
    listed = ["full_attention", "linear_attention", "full_attention"]
    assert read_config(tiny_config(family, layer_types=listed), "x").delta_layers == (1,)


@pytest.mark.parametrize("family", HYBRIDS)
def test_hybrids_gate_their_attention_and_centre_norms_at_zero(family):
    config = read_config(tiny_config(family), "x")
    assert config.q_gate and config.q_outputs == 2 * config.q_width == 256
    assert config.zero_centred and config.shared_gated
    assert (config.shared_width, config.rope_dims, config.qk_norm) == (40, 8, "per_head")


def test_qwen35_renormalises_whatever_the_file_says():
    assert read_config(tiny_config("qwen3_5_moe_text", norm_topk_prob=False), "x").renorm
    assert not read_config(tiny_config("qwen3_next", norm_topk_prob=False), "x").renorm


def test_an_mtp_layer_of_its_own_is_expected_unless_the_file_says_there_is_none():
    assert read_config(tiny_config("qwen3_next"), "x").mtp_layers == 1
    assert (
        read_config(tiny_config("qwen3_5_moe_text", mtp_num_hidden_layers=0), "x").mtp_layers == 0
    )


def test_a_text_model_within_another_one_is_the_same_model():
    nested = tiny_config("qwen3_5_moe")
    inner = read_config(nested["text_config"], "x")
    assert replace(read_config(nested, "x"), family=inner.family) == inner
    outer = nested | {"vocab_size": 7, "tie_word_embeddings": False, "vision_config": {}}
    assert read_config(outer, "x").vocab == 96


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("linear_num_value_heads", 3, "a multiple of 2 key heads"),
        ("linear_num_key_heads", 0, "allowed: a whole number 1 to 4096"),
        ("linear_num_value_heads", 2**40, "allowed: a whole number 1 to 4096"),
        ("linear_key_head_dim", 24, "allowed: a multiple of 16"),
        ("linear_value_head_dim", -16, "allowed: a whole number 1 to 4096"),
        ("linear_value_head_dim", "16", "allowed: a whole number 1 to 4096"),
        ("linear_conv_kernel_dim", 1, "allowed: a whole number 2 to 16"),
        ("linear_conv_kernel_dim", 1 << 30, "allowed: a whole number 2 to 16"),
        ("full_attention_interval", 0, "allowed: a whole number 1 to 1024"),
        ("layer_types", ["mamba"] * 3, "a list of linear_attention or full_attention"),
        ("layer_types", ["full_attention"] * 4, "as many as there are layers, 3"),
        ("layer_types", "full_attention", "a list of linear_attention or full_attention"),
        ("layer_types", [["full_attention"]] * 3, "a list of linear_attention or full_attention"),
        ("shared_expert_intermediate_size", 0, "allowed: a whole number 1 to"),
        ("mtp_num_hidden_layers", -1, "allowed: a whole number 0 to 16"),
    ],
)
@pytest.mark.parametrize("family", HYBRIDS)
def test_a_hybrid_that_cannot_be_is_refused_by_key(family, key, value, allowed):
    message = complaint(tiny_config(family, **{key: value}))
    assert key in message and allowed in message


def test_the_heads_of_a_delta_rule_are_bounded_together():
    changes = {"linear_num_key_heads": 4096, "linear_num_value_heads": 4096}
    message = complaint(tiny_config("qwen3_next", **changes, linear_key_head_dim=4096))
    assert "linear_key_head_dim is 4096" in message and "4096 heads" in message


@pytest.mark.parametrize("missing", ["linear_num_key_heads", "linear_conv_kernel_dim"])
def test_a_size_of_the_delta_rule_that_is_missing_is_named(missing):
    assert f"{missing} is missing" in complaint(tiny_config("qwen3_next", **{missing: None}))


@pytest.mark.parametrize("part", [[], "text", 3])
def test_a_text_config_that_is_no_object_is_refused(part):
    message = complaint({"model_type": "qwen3_5_moe", "text_config": part})
    assert "text_config" in message and "an object" in message


def test_a_text_config_that_contradicts_what_is_around_it_is_refused():
    nested = tiny_config("qwen3_5_moe") | {"tie_word_embeddings": True}
    assert "text_config.tie_word_embeddings is False" in complaint(nested)
