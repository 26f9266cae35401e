"""How a checkpoint says that its weights are codes."""

from typing import Any

import pytest
from complaints import complaint
from tiny_model import tiny_config

from diskmoe.engine.model.config import read_config

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
