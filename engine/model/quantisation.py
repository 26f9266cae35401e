"""``quantization_config`` of a config.json: how a checkpoint's weights are coded, if they are.

The rule of this file: a way that is not carried out exactly is refused, by name and with what is
supported. Where the codes are, and of which tensors, is told by the tensors themselves
(``diskmoe.experts.matrices``).
"""

from collections.abc import Mapping
from typing import Any

from diskmoe.experts.errors import BadModel
from diskmoe.experts.formats import GROUP

SUPPORTED = (
    "supported are fp8 in blocks of 128 x 128, mxfp4 experts of gpt_oss, and compressed-tensors"
    " pack-quantized int4, symmetric, in groups of a multiple of 32 columns or a row"
)
_BLOCK = [128, 128]
_INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "actorder": None}


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
        _expect(found, {"weight_block_size": _BLOCK}, method, where)
        return "fp8"
    if method == "compressed-tensors":
        _expect(found, {"format": "pack-quantized"}, method, where)
        groups = found.get("config_groups")
        if not isinstance(groups, Mapping) or not groups:
            raise BadModel(f"{where}: {method} without config_groups; {SUPPORTED}")
        for group in groups.values():
            weights = group.get("weights") if isinstance(group, Mapping) else None
            if not isinstance(weights, Mapping):
                raise BadModel(f"{where}: a config_group of {method} has no weights; {SUPPORTED}")
            _expect(weights, _INT4, method, where)
            if weights.get("strategy") == "channel":
                continue  # a scale for each row
            _expect(weights, {"strategy": "group"}, method, where)
            size = weights.get("group_size")
            if type(size) is not int or size < GROUP or size % GROUP:
                raise BadModel(
                    f"{where}: {method} with group_size {str(size)[:40]}, allowed: a multiple of"
                    f" {GROUP}; {SUPPORTED}"
                )
        return "int4"
    raise BadModel(
        f"{where}: the weights are quantised already (quantization_config:"
        f" {str(method)[:40]}); {SUPPORTED}"
    )


def _expect(found: Mapping[str, Any], values: Mapping[str, Any], method: str, where: str) -> None:
    for key, value in values.items():
        if found.get(key) != value:
            raise BadModel(
                f"{where}: {method} with {key} {str(found.get(key))[:40]}, allowed: {value};"
                f" {SUPPORTED}"
            )
