"""config.json is read as transformers reads it, and nothing in it is believed."""

import math

import pytest
from complaints import complaint
from tiny_model import tiny_config

from diskmoe.engine.model.config import read_config
from diskmoe.engine.model.families import FAMILIES
from diskmoe.engine.model.rope import Yarn


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_of_the_table_reads_its_tiny_config(family):
    config = read_config(tiny_config(family), "x")
    assert config.family == family
    experts = (0, 0) if FAMILIES[family].dense_rule == "all" else (8, 3)
    assert (config.hidden, config.layers, config.experts, config.top_k) == (64, 3, *experts)


def test_qwen3_uses_its_head_dim_and_normalises_heads():
    config = read_config(tiny_config("qwen3_moe"), "x")
    assert (config.head_dim, config.q_width, config.kv_width) == (32, 128, 64)
    assert config.qk_norm == "per_head"
    assert config.rope_theta == 1e6
    assert config.renorm
    assert config.moe_layers == (0, 1, 2)


def test_qwen3_layers_follow_sparse_step_and_mlp_only_layers():
    raw = tiny_config("qwen3_moe", num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3])
    config = read_config(raw, "x")
    assert config.moe_layers == (1, 5)
    assert config.dense_width == 96


def test_olmoe_derives_head_dim_and_keeps_weights_unnormalised_by_default():
    config = read_config(tiny_config("olmoe", norm_topk_prob=None, num_key_value_heads=None), "x")
    assert (config.head_dim, config.kv_heads, config.rope_dims) == (16, 4, 16)
    assert config.qk_norm == "full_vector"
    assert not config.renorm
    assert config.clip_qkv is None
    assert config.expert_width == 48
    assert config.dense_width == 0


def test_olmoe_reads_clip_qkv():
    assert read_config(tiny_config("olmoe", clip_qkv=8), "x").clip_qkv == 8.0


def test_glm4_defaults_are_those_of_its_model_code():
    raw = tiny_config(
        "glm4_moe",
        partial_rotary_factor=None,
        use_qk_norm=None,
        attention_bias=None,
        first_k_dense_replace=None,
        n_group=None,
        topk_group=None,
        norm_topk_prob=None,
        routed_scaling_factor=None,
        n_shared_experts=None,
        rms_norm_eps=None,
    )
    config = read_config(raw, "x")
    assert config.rope_dims == 16
    assert config.qk_norm == "none"
    assert not config.qkv_bias
    assert config.moe_layers == (1, 2)
    assert (config.groups, config.top_groups) == (1, 1)
    assert config.renorm
    assert config.routed_scale == 1.0
    assert config.shared_width == 48
    assert config.norm_epsilon == 1e-5
    assert config.score == "sigmoid"
    assert config.correction_bias


def test_attention_bias_reaches_the_output_projection_only_where_the_family_says():
    assert read_config(tiny_config("qwen3_moe", attention_bias=True), "x").output_bias
    config = read_config(tiny_config("glm4_moe", attention_bias=True), "x")
    assert config.qkv_bias and not config.output_bias


def test_listed_dense_layers_win_over_a_count():
    listed = ["dense", "sparse", "dense"]
    raw = tiny_config("glm4_moe_lite", mlp_layer_types=listed, first_k_dense_replace=0)
    assert read_config(raw, "x").moe_layers == (1,)
    raw = tiny_config("glm4_moe_lite", mlp_layer_types=None, first_k_dense_replace=2)
    assert read_config(raw, "x").moe_layers == (2,)
    for wrong in (listed[:2], ["dense", "sparse", "linear"], "dense"):
        assert "mlp_layer_types" in complaint(tiny_config("glm4_moe_lite", mlp_layer_types=wrong))


def test_gpt_oss_alternates_windows_and_has_yarn_by_default():
    gone = dict.fromkeys(("rope_scaling", "rope_theta", "sliding_window", "swiglu_limit"))
    config = read_config(tiny_config("gpt_oss", attention_bias=None, **gone), "x")
    assert config.windows == (128, 0, 128)
    assert [config.window(layer) for layer in (0, 1, 3)] == [128, 0, 0]
    assert config.rope_scaling == Yarn(32.0, 4096, 32.0, 1.0, False, 0.1 * math.log(32) + 1)
    assert (config.rope_theta, config.swiglu_limit, config.swiglu_alpha) == (150_000, 7, 1.702)
    assert config.qkv_bias and config.output_bias and config.sinks and config.router_bias
    assert config.quantisation is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"layer_types": ["full_attention"] * 2},
        {"layer_types": ["full_attention", "sliding_attention", "chunked_attention"]},
        {"layer_types": "full_attention"},
        {"sliding_window": 0},
        {"swiglu_limit": 0},
    ],
)
def test_windows_and_limits_that_cannot_be_are_refused(wrong):
    assert next(iter(wrong)) in complaint(tiny_config("gpt_oss", **wrong))


def test_layers_with_a_window_need_one():
    assert "sliding_window is None" in complaint(tiny_config("gpt_oss") | {"sliding_window": None})
    full = {"sliding_window": None, "layer_types": ["full_attention"] * 3}
    assert read_config(tiny_config("gpt_oss") | full, "x").windows == (0, 0, 0)


def test_an_unsupported_family_is_named_and_the_supported_ones_listed():
    message = complaint(tiny_config("qwen3_moe") | {"model_type": "llama4"})
    assert "'llama4'" in message
    assert ", ".join(sorted(FAMILIES)) in message


def test_mixtral_has_a_window_in_all_layers_or_in_none():
    assert read_config(tiny_config("mixtral"), "x").windows == ()
    assert read_config(tiny_config("mixtral", sliding_window=9), "x").windows == (9, 9, 9)
    assert "sliding_window is 0" in complaint(tiny_config("mixtral", sliding_window=0))


def test_minimax_turns_the_dims_of_rotary_dim_unless_a_share_is_given():
    assert read_config(tiny_config("minimax_m2", rotary_dim=None), "x").rope_dims == 32
    assert read_config(tiny_config("minimax_m2", rotary_dim=20), "x").rope_dims == 20
    shared = {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}
    assert read_config(tiny_config("minimax_m2", **shared), "x").rope_dims == 8
    assert "rotary_dim is 33" in complaint(tiny_config("minimax_m2", rotary_dim=33))


def test_qwen2_has_biases_of_its_own_switch_and_a_shared_expert_of_its_own_width():
    config = read_config(tiny_config("qwen2_moe"), "x")
    assert config.qkv_bias and not config.output_bias and not config.renorm
    assert (config.shared_width, config.shared_gated) == (40, True)
    assert not read_config(tiny_config("qwen2_moe", qkv_bias=False), "x").qkv_bias
    missing = complaint(tiny_config("qwen2_moe", shared_expert_intermediate_size=None))
    assert "shared_expert_intermediate_size" in missing


def test_granite_holds_the_hidden_state_divided_by_the_residual_multiplier():
    changes = {"embedding_multiplier": 12, "residual_multiplier": 0.5, "rms_norm_eps": 1e-5}
    config = read_config(tiny_config("granitemoe", **changes), "x")
    assert (config.embedding_scale, config.norm_epsilon) == (24, 4e-5)
    assert (config.attention_scale, config.logit_scale) == (0.1, 1 / 6)
    plain = read_config(tiny_config("qwen3_moe", **changes), "x")
    assert (plain.embedding_scale, plain.logit_scale, plain.attention_scale) == (1, 1, 32**-0.5)


@pytest.mark.parametrize("value", [0, -1, float("nan"), "1"])
@pytest.mark.parametrize(
    "key",
    ["embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"],
)
def test_a_multiplier_that_cannot_be_is_refused(key, value):
    assert key in complaint(tiny_config("granitemoe", **{key: value}))


@pytest.mark.parametrize(
    ("key", "value", "only"),
    [
        ("scoring_func", "softmax", "'sigmoid'"),
        ("use_qk_norm", False, "True"),
        ("qk_norm_type", "per_head", "'per_layer'"),
    ],
)
def test_a_setting_that_a_family_has_in_one_way_only_is_refused_in_another(key, value, only):
    message = complaint(tiny_config("minimax_m2", **{key: value}))
    assert f"{key} is {value!r}, allowed: {only}" in message


@pytest.mark.parametrize("raw", [None, [], "text", 3])
def test_a_config_that_is_no_object_is_refused(raw):
    assert "expected a JSON object" in complaint(raw)


def test_a_missing_model_type_is_named():
    assert "model_type is missing" in complaint({"hidden_size": 8})


def test_a_model_type_of_a_wrong_type_is_refused():
    assert "not supported" in complaint({"model_type": {"a": 1}})


@pytest.mark.parametrize(
    "key",
    [
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_experts_per_tok",
        "num_experts",
        "moe_intermediate_size",
    ],
)
def test_a_missing_size_is_named(key):
    assert f"{key} is missing" in complaint(tiny_config("qwen3_moe", **{key: None}))


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("hidden_size", 1 << 60, "1 to 65536"),
        ("hidden_size", 0, "1 to 65536"),
        ("hidden_size", -64, "1 to 65536"),
        ("hidden_size", True, "whole number"),
        ("hidden_size", 64.0, "whole number"),
        ("hidden_size", "64", "whole number"),
        ("hidden_size", [64], "whole number"),
        ("num_hidden_layers", 1_000_000_000, "1 to 1024"),
        ("num_experts", 10**30, "1 to 4096"),
        ("vocab_size", 2_000_001, "1 to 2000000"),
        ("num_experts_per_tok", 9, "at most the 8 experts"),
        ("num_key_value_heads", 3, "a divisor of 4"),
        ("head_dim", 1 << 40, "2 to 4096"),
        ("head_dim", 33, "even number of rotary dims"),
        ("moe_intermediate_size", 1 << 31, "1 to 1048576"),
        ("rms_norm_eps", math.nan, "0 to 1"),
        ("rms_norm_eps", -1e-6, "0 to 1"),
        ("rms_norm_eps", "small", "0 to 1"),
        ("rope_theta", math.inf, "1 to 1e+12"),
        ("rope_theta", True, "1 to 1e+12"),
        ("max_position_embeddings", 1 << 62, "1 to 2147483648"),
        ("norm_topk_prob", 1, "true or false"),
        ("tie_word_embeddings", "yes", "true or false"),
        ("attention_bias", 0, "true or false"),
        ("hidden_act", "gelu", "silu"),
        ("mlp_only_layers", "0", "a list"),
        ("mlp_only_layers", [0.5], "whole numbers"),
        ("decoder_sparse_step", 0, "1 to 1024"),
        ("rope_scaling", "yarn", "an object"),
    ],
)
def test_an_absurd_value_is_refused_with_key_value_and_what_is_allowed(key, value, allowed):
    message = complaint(tiny_config("qwen3_moe", **{key: value}))
    assert key in message and allowed in message


def test_long_values_are_cut_in_the_message():
    assert "..." in complaint(tiny_config("qwen3_moe", hidden_size="9" * 10_000))


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [
        ({"n_group": 3}, "a divisor of 8 experts"),
        ({"n_group": 8}, "2 or more in a group"),
        ({"n_group": 2, "topk_group": 3}, "1 to 2"),
        ({"n_group": 4, "topk_group": 1}, "at most the 2 experts of topk_group"),
        ({"n_shared_experts": 5000}, "0 to 1024"),
        ({"routed_scaling_factor": math.inf}, "0 to 1e+06"),
        ({"partial_rotary_factor": 1.5}, "0 to 1"),
        ({"partial_rotary_factor": 0.01}, "even number of rotary dims"),
        ({"num_nextn_predict_layers": 99}, "0 to 16"),
    ],
)
def test_glm4_settings_that_contradict_each_other_are_refused(changes, allowed):
    assert allowed in complaint(tiny_config("glm4_moe", **changes))


def test_a_model_without_experts_is_refused():
    raw = tiny_config("glm4_moe", first_k_dense_replace=3)
    assert "none of the 3 layers has experts" in complaint(raw)


def test_a_dense_layer_needs_a_width():
    raw = tiny_config("glm4_moe", intermediate_size=None)
    assert "intermediate_size is missing" in complaint(raw)


def test_a_sliding_window_is_refused_by_name():
    message = complaint(tiny_config("qwen3_moe", use_sliding_window=True))
    assert "use_sliding_window" in message


def test_a_family_without_experts_needs_none_of_their_keys():
    config = read_config(tiny_config("llama"), "x")
    assert config.moe_layers == () and config.dense_width == 96
    assert "intermediate_size" in complaint(tiny_config("llama", intermediate_size=None))
    assert "mlp_bias is True, allowed: False" in complaint(tiny_config("llama", mlp_bias=True))
    biased = read_config(tiny_config("qwen2"), "x")
    assert biased.qkv_bias and not biased.output_bias
