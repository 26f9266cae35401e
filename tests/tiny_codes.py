"""Tiny models whose weights are codes, as the hub has them: MXFP4, FP8, packed int4.

coded, stored, exact = with_fp8(config, random_tensors(config, seed=1))
write_checkpoint(tmp_path / "codes", coded, stored)
write_checkpoint(tmp_path / "plain", config, exact)  # the same numbers
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from tiny_model import Stored, Tensors, rounded

from diskmoe.engine.model.config import read_config
from diskmoe.engine.model.tensors import tensor_plan
from diskmoe.experts.formats import dequantise, quantise


def with_codes(config: dict[str, Any], tensors: Tensors) -> tuple[dict[str, Any], Stored, Tensors]:
    """A model of fused experts with them as MXFP4: (config, what is stored, what it stands for)."""
    stored: Stored = dict(tensors)
    exact = dict(tensors)
    for layer in tensor_plan(read_config(config, "tiny")).experts:
        for name in (layer.gate, layer.down):
            outputs = np.ascontiguousarray(stored.pop(name).transpose(0, 2, 1))
            experts, rows, cols = outputs.shape
            numbers = quantise(outputs.reshape(-1, cols), "mxfp4")
            codes = numbers.values.reshape(experts, rows, cols // 32, 32)
            stored[name + "_blocks"] = codes[..., 0::2] | codes[..., 1::2] << 4
            stored[name + "_scales"] = numbers.scales.reshape(experts, rows, -1)
            wide = dequantise(*numbers).reshape(outputs.shape)
            exact[name] = np.ascontiguousarray(wide.transpose(0, 2, 1))
    return config | {"quantization_config": {"quant_method": "mxfp4"}}, stored, exact


def with_fp8(config: dict[str, Any], tensors: Tensors) -> tuple[dict[str, Any], Stored, Tensors]:
    """A model with its layers' matrices in FP8 by blocks: (config, what is stored, what it means)."""
    stored: Stored = dict(tensors)
    exact = dict(tensors)
    for name, weights in tensors.items():
        if weights.ndim != 2 or ".layers." not in name or name.endswith("gate.weight"):
            continue
        rows, cols = (-(-n // 128) for n in weights.shape)
        blocks = np.zeros((rows * 128, cols * 128), np.float32)
        blocks[: weights.shape[0], : weights.shape[1]] = weights
        largest = np.abs(blocks).reshape(rows, 128, cols, 128).max(axis=(1, 3))
        scales = (largest / 448).astype(np.float32)
        wide = np.repeat(np.repeat(scales, 128, 0), 128, 1)[: weights.shape[0], : weights.shape[1]]
        codes = _nearest_e4m3(weights / wide)
        stored[name], stored[name + "_scale_inv"] = codes, scales
        exact[name] = _E4M3[codes] * wide
    method = {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}
    method |= {"activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head", "gate"]}
    return config | {"quantization_config": method}, stored, exact


def with_fp8_factors(
    config: dict[str, Any], tensors: Tensors, strategy: str
) -> tuple[dict[str, Any], Stored, Tensors]:
    """The same as compressed-tensors has it: a bf16 factor a row ("channel"), or for all of a matrix
    ("tensor")."""
    stored: Stored = dict(tensors)
    exact = dict(tensors)
    for name, weights in tensors.items():
        if weights.ndim != 2 or ".layers." not in name or name.endswith("gate.weight"):
            continue
        largest = np.abs(weights).max(axis=1 if strategy == "channel" else (0, 1), keepdims=True)
        scales = rounded(largest / 400, "bf16")
        stored[name] = _nearest_e4m3(weights / scales)
        stored[name + "_scale"] = scales if strategy == "channel" else scales.reshape(1)
        exact[name] = _E4M3[stored[name]] * scales
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy}
    group = {"weights": weights, "targets": ["Linear"]}
    method = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    method |= {"config_groups": {"group_0": group}, "ignore": ["lm_head", "re:.*mlp.gate$"]}
    return config | {"quantization_config": method}, stored, exact


def _nearest_e4m3(numbers: npt.NDArray[np.floating]) -> npt.NDArray[np.uint8]:
    between = (_E4M3[1:127] + _E4M3[:126]) / 2
    codes = np.searchsorted(between, np.abs(numbers)).astype(np.uint8)
    return codes | np.where(numbers < 0, np.uint8(128), np.uint8(0))


def with_int4(
    config: dict[str, Any], tensors: Tensors, group: int = 32, scale_bits: int = 8
) -> tuple[dict[str, Any], Stored, Tensors]:
    """A model with its experts in packed int4: (config, what is stored, what it stands for).

    With scales of five bits what it stands for are bf16 numbers, as which others hold them.
    """
    stored: Stored = dict(tensors)
    exact = dict(tensors)
    for name, weights in tensors.items():
        if ".experts." not in name:
            continue
        groups = weights.reshape(len(weights), -1, group)
        fractions, exponents = np.frexp(np.abs(groups).max(axis=2) / 7.5)
        fractions = np.rint(fractions * 2**scale_bits) / 2**scale_bits
        scales = np.ldexp(fractions, exponents).astype(np.float32)
        codes = np.clip(np.rint(groups / scales[:, :, None]), -8, 7)
        exact[name] = (codes * scales[:, :, None]).astype(np.float32).reshape(weights.shape)
        nibbles = (codes + 8).astype(np.uint8).reshape(len(weights), -1)
        pairs = np.ascontiguousarray(nibbles[:, 0::2] | nibbles[:, 1::2] << 4)
        del stored[name]
        stored[name + "_packed"], stored[name + "_scale"] = pairs.view(np.int32), scales
        stored[name + "_shape"] = np.array(weights.shape, np.int32)
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"}
    of_all = {"weights": {**weights, "group_size": group}, "targets": ["Linear"]}
    method = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    plain = ["lm_head", "re:.*self_attn.*", "re:.*gate$", "re:.*shared.*"]
    plain += [f"re:.*layers.{layer}.mlp.[^e].*" for layer in range(config["num_hidden_layers"])]
    method |= {"config_groups": {"group_0": of_all}, "ignore": plain}
    return config | {"quantization_config": method}, stored, exact


def _e4m3() -> npt.NDArray[np.float32]:
    """The number of each code, by the format's definition; those of NaN are never made."""
    codes = np.arange(256)
    exponent, fraction = (codes >> 3) & 15, codes & 7
    size = np.where(exponent > 0, (8 + fraction) * 2.0 ** (exponent - 10), fraction * 2.0**-9)
    return np.where(codes < 128, size, -size).astype(np.float32)


_E4M3 = _e4m3()
