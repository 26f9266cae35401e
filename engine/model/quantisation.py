"""``quantization_config`` of a config.json: how a checkpoint's weights are coded, if they are.

The rule of this file: a way that is not carried out exactly is refused, by name and with what is
supported. Where the codes are, of which tensors, and what shares a factor, is told by the tensors
themselves (``diskmoe.experts.matrices``). Activations are not coded, whatever the file says of them:
that is a shortcut of other machines, not what the weights were made for.
"""

from collections.abc import Mapping
from typing import Any

from diskmoe.experts.errors import BadModel
from diskmoe.experts.formats import GROUP

SUPPORTED = (
    "supported are fp8 with factors for blocks of 128 x 128, rows or whole tensors, mxfp4 experts of"
    " gpt_oss, and compressed-tensors pack-quantized int4, symmetric, in groups of a multiple of 32"
    " columns or a row"
)
_BLOCK = [128, 128]
_INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "actorder": None}
_FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
# formats of compressed-tensors: what we call them, what their weights must say, and what may have a
# factor in common
_FORMATS: Mapping[str, tuple[str, Mapping[str, Any], tuple[str, ...]]] = {
    "pack-quantized": ("int4", _INT4, ("group", "channel")),
    "float-quantized": ("fp8", _FP8, ("tensor", "channel", "block")),
}


def quantisation_of(config: Mapping[str, Any], fused_experts: bool, where: str) -> str | None:
    """The name of the method, None for plain weights; BadModel for all that is not supported."""
    found = config.get("quantization_config")
    if found is None:
        return None
    if not isinstance(found, Mapping):
        raise BadModel(f"{where}: quantization_config is {str(found)[:40]!r}; {SUPPORTED}")
    method = found.get("quant_method")
    if method == "mxfp4" and fused_experts:
        return "mxfp4"
    if method == "fp8":
        if found.get("weight_block_size") is not None:
            _expect(found, {"weight_block_size": _BLOCK}, method, where)
        return "fp8"
    if method == "compressed-tensors":
        return _compressed(found, where)
    raise BadModel(
        f"{where}: the weights are quantised already (quantization_config:"
        f" {str(method)[:40]}); {SUPPORTED}"
    )


def _compressed(found: Mapping[str, Any], where: str) -> str:
    method = "compressed-tensors"
    name = str(found.get("format"))
    if name not in _FORMATS:
        raise BadModel(f"{where}: {method} with format {name[:40]}; {SUPPORTED}")
    coding, expected, strategies = _FORMATS[name]
    groups = found.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise BadModel(f"{where}: {method} without config_groups; {SUPPORTED}")
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            raise BadModel(f"{where}: a config_group of {method} has no weights; {SUPPORTED}")
        if group.get("format") is not None:
            _expect(group, {"format": name}, method, where)
        _expect(weights, expected, method, where)
        strategy, size = weights.get("strategy"), weights.get("group_size")
        if strategy not in strategies:
            raise _wrong("strategy", strategy, " or ".join(strategies), method, where)
        if strategy == "block":
            _expect(weights, {"block_structure": _BLOCK}, method, where)
        if strategy == "group" and (type(size) is not int or size < GROUP or size % GROUP):
            raise _wrong("group_size", size, f"a multiple of {GROUP}", method, where)
    return coding


def _expect(found: Mapping[str, Any], values: Mapping[str, Any], method: str, where: str) -> None:
    for key, value in values.items():
        if found.get(key) != value:
            raise _wrong(key, found.get(key), str(value), method, where)


def _wrong(key: str, found: object, allowed: str, method: str, where: str) -> BadModel:
    return BadModel(
        f"{where}: {method} with {key} {str(found)[:40]}, allowed: {allowed}; {SUPPORTED}"
    )
