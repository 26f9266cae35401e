"""config.json is read as transformers reads it, and nothing in it is believed."""

import math
from dataclasses import replace
from typing import Any

import pytest
from tiny_model import tiny_config

from diskmoe.engine.model.config import read_config
from diskmoe.engine.model.families import FAMILIES
from diskmoe.engine.model.latent_config import IndexerShape, LatentShape
from diskmoe.engine.model.rope import Llama3, Yarn
from diskmoe.experts.errors import BadModel


def complaint(raw: object) -> str:
    with pytest.raises(BadModel) as caught:
        read_config(raw, "some/config.json")
    message = str(caught.value)
    assert message.startswith("some/config.json: ") and "\n" not in message
    assert len(message) < 350
    return message


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


def test_rope_parameters_of_the_new_form_mean_the_same_as_the_old_keys():
    old = tiny_config("glm4_moe", rope_theta=5e5, partial_rotary_factor=0.25, rope_scaling=None)
    new = tiny_config(
        "glm4_moe",
        partial_rotary_factor=None,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 5e5,
            "partial_rotary_factor": 0.25,
        },
    )
    assert read_config(old, "x") == read_config(new, "x")
    assert read_config(new, "x").rope_dims == 8


def test_values_inside_rope_parameters_win_over_plain_keys():
    raw = tiny_config(
        "qwen3_moe", rope_theta=1e4, rope_parameters={"rope_type": "default", "rope_theta": 7e6}
    )
    assert read_config(raw, "x").rope_theta == 7e6


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e6}},
    ],
)
def test_scaled_rope_is_refused_by_name(changes):
    assert "'linear'" in complaint(tiny_config("qwen3_moe", **changes))


def test_yarn_is_read_with_its_defaults():
    given = {"rope_type": "yarn", "factor": 4.0, "beta_slow": None}
    yarn = read_config(tiny_config("qwen3_moe", rope_scaling=given), "x").rope_scaling
    assert yarn == Yarn(4.0, 256, 32.0, 1.0, True, 0.1 * math.log(4) + 1)
    given |= {"attention_factor": 1.25, "truncate": False, "original_max_position_embeddings": 64}
    yarn = read_config(tiny_config("qwen3_moe", rope_scaling=given), "x").rope_scaling
    assert yarn == Yarn(4.0, 64, 32.0, 1.0, False, 1.25)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"factor": None}, "factor is missing"),
        ({"factor": 0.5}, "factor is 0.5"),
        ({"beta_fast": 0}, "beta_fast is 0"),
        ({"truncate": 1}, "truncate is 1"),
        ({"mscale": "1"}, "mscale is '1'"),
        ({"mscale_all_dim": -1}, "mscale_all_dim is -1"),
        ({"rope_theta": 1.0}, "more than 1"),
        ({"original_max_position_embeddings": 0}, "original_max_position_embeddings is 0"),
    ],
)
def test_a_yarn_that_cannot_be_is_refused(changes, words):
    scaling = {"rope_type": "yarn", "factor": 4.0} | changes
    assert words in complaint(tiny_config("qwen3_moe", rope_scaling=scaling))


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "factor": 8.0}
LLAMA3 |= {"rope_type": "llama3", "original_max_position_embeddings": 64}


def test_the_scaling_of_llama_3_is_read():
    given = {"rope_scaling": LLAMA3}
    assert read_config(tiny_config("llama", **given), "x").rope_scaling == Llama3(8.0, 64, 1.0, 4.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *(({key: None}, f"{key} is missing") for key in LLAMA3 if key != "rope_type"),
        ({"high_freq_factor": 1.0}, "more than low_freq_factor, 1"),
        ({"factor": "8"}, "factor is '8'"),
    ],
)
def test_a_scaling_of_llama_3_that_cannot_be_is_refused(changes, words):
    assert words in complaint(tiny_config("llama", rope_scaling=LLAMA3 | changes))


def test_yarn_divides_its_magnitudes_and_latent_attention_takes_one_into_its_scores():
    given = {"rope_type": "yarn", "factor": 40.0, "mscale": 2.0, "mscale_all_dim": 0.5}
    ours, theirs = 0.1 * 2 * math.log(40) + 1, 0.1 * 0.5 * math.log(40) + 1
    plain = read_config(tiny_config("qwen3_moe", rope_scaling=given), "x")
    assert isinstance(plain.rope_scaling, Yarn)
    assert plain.rope_scaling.magnitude == pytest.approx(ours / theirs)
    assert plain.attention_scale == 32**-0.5
    latent = read_config(tiny_config("deepseek_v3", rope_scaling=given), "x")
    assert latent.rope_scaling == plain.rope_scaling
    assert latent.attention_scale == pytest.approx(48**-0.5 * theirs**2)


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


def test_rope_that_differs_between_layers_is_refused():
    raw = tiny_config("qwen3_moe", rope_parameters={"full_attention": {"rope_theta": 1e6}})
    assert "differs between layers" in complaint(raw)


def test_an_empty_rope_scaling_means_plain_rope():
    raw = tiny_config("qwen3_moe", rope_scaling={}, rope_parameters={"rope_theta": 3e4})
    assert read_config(raw, "x").rope_theta == 3e4


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


INT4 = {
    "num_bits": 4,
    "type": "int",
    "symmetric": True,
    "strategy": "group",
    "group_size": 32,
    "actorder": None,
}


def quantised(method: str, **settings: Any) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": method, **settings}}


def int4(**changes: Any) -> dict[str, Any]:
    groups = {"group_0": {"weights": {**INT4, **changes}, "targets": ["Linear"]}}
    return quantised("compressed-tensors", format="pack-quantized", config_groups=groups)


def float8(strategy: str, **changes: Any) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy, **changes}
    groups = {"group_0": {"weights": weights, "targets": ["Linear"]}}
    return quantised("compressed-tensors", format="float-quantized", config_groups=groups)


@pytest.mark.parametrize(
    ("family", "changes", "method"),
    [
        ("gpt_oss", quantised("mxfp4"), "mxfp4"),
        ("qwen3_moe", quantised("fp8", weight_block_size=[128, 128]), "fp8"),
        ("mixtral", quantised("fp8", activation_scheme="static"), "fp8"),
        ("mixtral", float8("tensor"), "fp8"),
        ("qwen3_moe", float8("channel"), "fp8"),
        ("qwen3_moe", float8("block", block_structure=[128, 128]), "fp8"),
        ("glm4_moe", int4(), "int4"),
        ("glm4_moe", int4(group_size=128), "int4"),
        ("glm4_moe", int4(strategy="channel", group_size=None), "int4"),
    ],
)
def test_the_way_weights_are_quantised_is_read(family, changes, method):
    assert read_config(tiny_config(family, **changes), "x").quantisation == method


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (quantised("gptq", bits=4), "gptq"),
        (quantised("mxfp4"), "mxfp4"),
        ({"quantization_config": "awq"}, "awq"),
        ({"quantization_config": {}}, "None"),
        (quantised("fp8", weight_block_size=[64, 128]), "weight_block_size [64, 128]"),
        (float8("group"), "strategy group"),
        (float8("block", block_structure=[64, 64]), "block_structure [64, 64]"),
        (float8("channel", num_bits=4), "num_bits 4"),
        (quantised("compressed-tensors", format="nvfp4-pack-quantized"), "nvfp4-pack-quantized"),
        (quantised("compressed-tensors", format="pack-quantized"), "without config_groups"),
        (int4(group_size=48), "group_size 48, allowed: a multiple of 32"),
        (int4(group_size=True), "group_size True"),
        (int4(group_size=-32), "group_size -32"),
        (int4(strategy="tensor"), "strategy tensor"),
        (int4(symmetric=False), "symmetric False"),
        (int4(actorder="group"), "actorder group"),
        (int4(num_bits=8), "num_bits 8"),
    ],
)
def test_weights_quantised_in_another_way_are_refused_with_what_is_supported(changes, said):
    message = complaint(tiny_config("qwen3_moe", **changes))
    assert said in message and "supported are fp8 with factors for blocks of" in message


def test_a_family_without_experts_needs_none_of_their_keys():
    config = read_config(tiny_config("llama"), "x")
    assert config.moe_layers == () and config.dense_width == 96
    assert "intermediate_size" in complaint(tiny_config("llama", intermediate_size=None))
    assert "mlp_bias is True, allowed: False" in complaint(tiny_config("llama", mlp_bias=True))
    biased = read_config(tiny_config("qwen2"), "x")
    assert biased.qkv_bias and not biased.output_bias
