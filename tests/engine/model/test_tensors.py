"""The tensor plan of real models, reckoned from their published config.json values alone."""

import math
from typing import Any

import pytest
from tiny_model import random_tensors, tiny_config, write_checkpoint

from diskmoe.bench.hybrid_shapes import QWEN3_5_35B, QWEN3_NEXT_80B
from diskmoe.engine.model.config import read_config
from diskmoe.engine.model.kvcache import kv_cache_bytes
from diskmoe.engine.model.tensors import tensor_plan
from diskmoe.experts.checkpoint import Checkpoint, TensorPlan
from diskmoe.experts.errors import BadModel
from diskmoe.experts.tiles import record_layout

QWEN3_30B_A3B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
OLMOE_1B_7B: dict[str, Any] = {
    "architectures": ["OlmoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "clip_qkv": None,
    "eos_token_id": 50279,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 1024,
    "max_position_embeddings": 4096,
    "model_type": "olmoe",
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 16,
    "num_key_value_heads": 16,
    "output_router_logits": False,
    "pad_token_id": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": 50304,
}
GLM_4_5_AIR: dict[str, Any] = {
    "architectures": ["Glm4MoeForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": [151329, 151336, 151338],
    "first_k_dense_replace": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 10944,
    "max_position_embeddings": 131072,
    "model_type": "glm4_moe",
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 96,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 46,
    "num_key_value_heads": 8,
    "num_nextn_predict_layers": 1,
    "pad_token_id": 151329,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "routed_scaling_factor": 1.0,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "use_cache": True,
    "use_qk_norm": False,
    "vocab_size": 151552,
}


def parameters(plan: TensorPlan) -> tuple[int, int]:
    """(dense, routed) parameters."""
    dense = sum(math.prod(tensor.shape) for tensor in plan.dense)
    return dense, len(plan.experts) * plan.n_experts * 3 * plan.hidden * plan.ffn


def tensor_count(plan: TensorPlan) -> int:
    return len(plan.dense) + len(plan.experts) * plan.n_experts * 3


@pytest.mark.parametrize(
    ("raw", "tensors", "total", "q4_record", "bf16_record", "kv_4096"),
    [
        (QWEN3_30B_A3B, 18_867, 30_532_122_624, 2_670_592, 9_437_184, 805_306_368),
        (OLMOE_1B_7B, 3_219, 6_919_161_856, 3_555_328, 12_582_912, 1_073_741_824),
        (GLM_4_5_AIR, 17_925, 106_852_251_264, 9_760_768, 34_603_008, 1_543_503_872),
        (QWEN3_NEXT_80B, 74_391, 79_674_391_296, 1_781_760, 6_291_456, 310_112_256),
        (QWEN3_5_35B, 31_333, 34_660_610_688, 1_781_760, 6_291_456, 258_426_880),
    ],
    ids=["Qwen3-30B-A3B", "OLMoE-1B-7B", "GLM-4.5-Air", "Qwen3-Next-80B", "Qwen3.5-35B"],
)
def test_real_models_have_the_tensors_and_bytes_they_are_known_for(
    raw, tensors, total, q4_record, bf16_record, kv_4096
):
    config = read_config(raw, "config.json")
    plan = tensor_plan(config)
    assert tensor_count(plan) == tensors
    assert sum(parameters(plan)) == total
    assert record_layout("q4", config.hidden, config.expert_width).nbytes == q4_record
    assert record_layout("bf16", config.hidden, config.expert_width).nbytes == bf16_record
    assert kv_cache_bytes(config, 4096) == kv_4096
    assert len({tensor.name for tensor in plan.dense}) == len(plan.dense)


def test_qwen3_has_the_names_and_shapes_of_the_hub():
    plan = tensor_plan(read_config(QWEN3_30B_A3B, "config.json"))
    shapes = {tensor.name: tensor.shape for tensor in plan.dense}
    assert shapes["model.embed_tokens.weight"] == (151936, 2048)
    assert shapes["lm_head.weight"] == (151936, 2048)
    assert shapes["model.layers.47.self_attn.q_proj.weight"] == (4096, 2048)
    assert shapes["model.layers.47.self_attn.k_proj.weight"] == (512, 2048)
    assert shapes["model.layers.47.self_attn.o_proj.weight"] == (2048, 4096)
    assert shapes["model.layers.0.self_attn.q_norm.weight"] == (128,)
    assert shapes["model.layers.0.mlp.gate.weight"] == (128, 2048)
    assert plan.experts[5].names(127) == (
        "model.layers.5.mlp.experts.127.gate_proj.weight",
        "model.layers.5.mlp.experts.127.up_proj.weight",
        "model.layers.5.mlp.experts.127.down_proj.weight",
    )


def test_olmoe_norms_the_whole_query_vector():
    shapes = {t.name: t.shape for t in tensor_plan(read_config(OLMOE_1B_7B, "x")).dense}
    assert shapes["model.layers.0.self_attn.q_norm.weight"] == (2048,)


def test_glm4_air_has_a_dense_first_layer_and_shared_experts_after_it():
    config = read_config(GLM_4_5_AIR, "config.json")
    kinds = {t.name: (t.shape, t.kind) for t in tensor_plan(config).dense}
    assert kinds["model.layers.0.mlp.gate_proj.weight"] == ((10944, 4096), "matrix")
    assert "model.layers.0.mlp.gate.weight" not in kinds
    assert kinds["model.layers.1.mlp.gate.weight"] == ((128, 4096), "vector")
    assert kinds["model.layers.1.mlp.gate.e_score_correction_bias"] == ((128,), "vector")
    assert kinds["model.layers.1.mlp.shared_experts.up_proj.weight"] == ((1408, 4096), "matrix")
    assert kinds["model.layers.1.self_attn.k_proj.bias"] == ((1024,), "vector")
    assert "model.layers.1.self_attn.o_proj.bias" not in kinds
    assert config.rope_dims == 64


def test_the_mtp_layer_is_planned_only_where_the_files_have_it():
    config = read_config(GLM_4_5_AIR, "config.json")
    without = tensor_plan(config, lambda name: False)
    assert without == tensor_plan(config)
    plan = tensor_plan(config, lambda name: "experts" not in name)
    assert tensor_count(plan) == tensor_count(without) + 384 + 14 + 4
    shapes = {tensor.name: tensor.shape for tensor in plan.dense}
    assert shapes["model.layers.46.eh_proj.weight"] == (4096, 8192)
    assert shapes["model.layers.46.shared_head.norm.weight"] == (4096,)
    assert plan.experts[-1].layer == 46


def test_hybrids_have_a_delta_rule_in_three_layers_of_four():
    shapes = {t.name: t.shape for t in tensor_plan(read_config(QWEN3_NEXT_80B, "x")).dense}
    assert shapes["model.layers.0.linear_attn.in_proj_qkvz.weight"] == (12288, 2048)
    assert shapes["model.layers.0.linear_attn.in_proj_ba.weight"] == (64, 2048)
    assert shapes["model.layers.0.linear_attn.conv1d.weight"] == (8192, 1, 4)
    assert shapes["model.layers.3.self_attn.q_proj.weight"] == (8192, 2048)
    assert shapes["model.layers.3.mlp.shared_expert_gate.weight"] == (1, 2048)
    assert "model.layers.3.linear_attn.norm.weight" not in shapes
    shapes = {t.name: t.shape for t in tensor_plan(read_config(QWEN3_5_35B, "x")).dense}
    assert shapes["model.layers.38.linear_attn.in_proj_qkv.weight"] == (8192, 2048)
    assert shapes["model.layers.38.linear_attn.in_proj_z.weight"] == (4096, 2048)
    assert shapes["model.layers.38.linear_attn.in_proj_a.weight"] == (32, 2048)
    assert shapes["model.layers.39.self_attn.o_proj.weight"] == (2048, 4096)


def test_norms_that_are_centred_at_zero_are_told_from_those_within_a_delta_rule():
    plan = tensor_plan(read_config(QWEN3_5_35B, "x"), lambda name: "experts" not in name)
    norms = {t.name: t.form for t in plan.dense if "norm" in t.name}
    plain = {name for name, form in norms.items() if form == "plain"}
    assert plain == {name for name in norms if name.endswith("linear_attn.norm.weight")}
    assert "mtp.pre_fc_norm_hidden.weight" in norms


@pytest.mark.parametrize("raw", [QWEN3_NEXT_80B, QWEN3_5_35B])
def test_an_mtp_layer_of_its_own_is_one_with_attention(raw):
    config = read_config(raw, "x")
    without, plan = tensor_plan(config), tensor_plan(config, lambda name: "experts" not in name)
    added = {t.name: t.shape for t in plan.dense if t.mtp}
    assert len(plan.dense) == len(without.dense) + len(added) == len(without.dense) + 17
    assert added["mtp.fc.weight"] == (2048, 4096)
    assert added["mtp.norm.weight"] == added["mtp.pre_fc_norm_embedding.weight"] == (2048,)
    assert added["mtp.layers.0.self_attn.q_proj.weight"] == (8192, 2048)
    experts = plan.experts[-1]
    assert (experts.layer, experts.mtp) == (config.layers, True)
    assert experts.names(7)[2] == "mtp.layers.0.mlp.experts.7.down_proj.weight"
    stacked = tensor_plan(config, lambda name: True).experts[-1]
    assert (stacked.form, stacked.gate) == ("stacked", "mtp.layers.0.mlp.experts.gate_up_proj")


def test_families_without_mtp_ignore_what_a_config_announces():
    raw = tiny_config("qwen3_moe", num_nextn_predict_layers=1)
    config = read_config(raw, "x")
    assert config.mtp_layers == 0
    assert tensor_plan(config, lambda name: "experts" not in name) == tensor_plan(config)


@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe_lite"])
@pytest.mark.parametrize("key", ["num_nextn_predict_layers", "num_mtp_layers"])
def test_an_mtp_layer_of_latent_attention_has_the_tensors_of_a_layer_with_experts(family, key):
    raw = tiny_config(family, num_nextn_predict_layers=None) | {key: 1}
    plan = tensor_plan(read_config(raw, "x"), lambda name: True)
    of_layer = {
        layer: {
            tensor.name.removeprefix(f"model.layers.{layer}."): tensor.shape
            for tensor in plan.dense
            if tensor.name.startswith(f"model.layers.{layer}.")
        }
        for layer in (2, 3)
    }
    extra = {name: of_layer[3].pop(name) for name in [*of_layer[3]] if name not in of_layer[2]}
    assert of_layer[2] == of_layer[3] and "self_attn.kv_b_proj.weight" in of_layer[3]
    assert extra == {
        "enorm.weight": (64,),
        "hnorm.weight": (64,),
        "eh_proj.weight": (64, 128),
        "shared_head.norm.weight": (64,),
    }
    assert plan.experts[-1].layer == 3 and plan.experts[-1].mtp


def test_layers_that_choose_keys_have_an_indexer_and_others_have_none():
    raw = tiny_config("glm_moe_dsa", num_nextn_predict_layers=1)
    plan = tensor_plan(read_config(raw, "x"), lambda name: True)
    shapes = {t.name: t.shape for t in plan.dense if "indexer" in t.name}
    layers = {int(name.split(".")[2]) for name in shapes}
    assert layers == {0, 2}  # nor has the MTP layer, whatever the files have
    at = "model.layers.2.self_attn.indexer."
    assert {name.removeprefix(at): s for name, s in shapes.items() if name.startswith(at)} == {
        "wq_b.weight": (192, 40),
        "wk.weight": (24, 64),
        "k_norm.weight": (24,),
        "k_norm.bias": (24,),
        "weights_proj.weight": (8, 64),
    }


@pytest.mark.parametrize("family", ["glm4_moe", "deepseek_v3", "glm4_moe_lite", "glm_moe_dsa"])
def test_a_checkpoint_with_every_planned_tensor_is_verified(tmp_path, family):
    raw = tiny_config(family, num_nextn_predict_layers=1)
    write_checkpoint(tmp_path, raw, random_tensors(raw, 0, mtp=True))
    checkpoint = Checkpoint.open(tmp_path)
    checkpoint.verify(tensor_plan(read_config(raw, "x"), checkpoint.has))


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ("model.layers.2.mlp.experts.5.up_proj.weight", "of layer 2 is missing"),
        ("model.layers.1.mlp.gate.e_score_correction_bias", "of layer 1 is missing"),
        ("model.norm.weight", "is missing"),
    ],
)
def test_a_missing_tensor_is_named_with_its_layer(tmp_path, lost, words):
    raw = tiny_config("glm4_moe")
    tensors = random_tensors(raw, 0)
    del tensors[lost]
    write_checkpoint(tmp_path, raw, tensors)
    with pytest.raises(BadModel) as caught:
        Checkpoint.open(tmp_path).verify(tensor_plan(read_config(raw, "x")))
    assert lost in str(caught.value) and words in str(caught.value)


def test_a_tensor_of_a_wrong_shape_is_named_with_both_shapes(tmp_path):
    raw = tiny_config("glm4_moe")
    tensors = random_tensors(raw, 0)
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors[name] = tensors[name][:64]
    write_checkpoint(tmp_path, raw, tensors)
    with pytest.raises(BadModel) as caught:
        Checkpoint.open(tmp_path).verify(tensor_plan(read_config(raw, "x")))
    message = str(caught.value)
    assert name in message and "[64, 64]" in message and "[128, 64]" in message


def test_an_mtp_layer_that_is_there_in_part_is_refused(tmp_path):
    raw = tiny_config("glm4_moe", num_nextn_predict_layers=1)
    tensors = random_tensors(raw, 0, mtp=True)
    del tensors["model.layers.3.hnorm.weight"]
    write_checkpoint(tmp_path, raw, tensors)
    checkpoint = Checkpoint.open(tmp_path)
    with pytest.raises(BadModel, match="model.layers.3.hnorm.weight"):
        checkpoint.verify(tensor_plan(read_config(raw, "x"), checkpoint.has))
