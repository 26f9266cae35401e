"""How positions turn queries and keys is read from config.json as transformers reads it."""

import math

import pytest
from complaints import complaint
from tiny_model import tiny_config

from diskmoe.engine.model.config import read_config
from diskmoe.engine.model.rope import Llama3, Yarn


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


def test_rope_that_differs_between_layers_is_refused():
    raw = tiny_config("qwen3_moe", rope_parameters={"full_attention": {"rope_theta": 1e6}})
    assert "differs between layers" in complaint(raw)


def test_an_empty_rope_scaling_means_plain_rope():
    raw = tiny_config("qwen3_moe", rope_scaling={}, rope_parameters={"rope_theta": 3e4})
    assert read_config(raw, "x").rope_theta == 3e4
