"""What a checkpoint on the hub calls the tensors of a GGUF, and how they come out of them.

The rule of this file: every tensor of a file has a name in the checkpoint or is one of experts; the
others are left over, and `gguf_in` refuses them, since what is not used would change the result
without a word.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.experts.safetensors_io import TensorInfo
from diskmoe.experts.tiles import Floats

Tensors = Mapping[str, TensorInfo]
Config = Mapping[str, Any]
Order = npt.NDArray[np.intp]
_LAYER = re.compile(r"blk\.(\d{1,4})\.(.+)")

OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_ATTENTION = {
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    **{f"attn_{part}.weight": f"self_attn.{part}_proj.weight" for part in "qkv"},
    **{f"attn_{part}.bias": f"self_attn.{part}_proj.bias" for part in "qkv"},
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_output.bias": "self_attn.o_proj.bias",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
}
_DENSE = {f"ffn_{part}.weight": f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
_SHARED = {
    f"ffn_{part}_shexp.weight": f"mlp.shared_experts.{part}_proj.weight"
    for part in ("gate", "up", "down")
}
_ROUTER = {"ffn_gate_inp.weight": "mlp.gate.weight"}
_CORRECTION = {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"}
_MTP = {
    "nextn.eh_proj.weight": "eh_proj.weight",
    "nextn.enorm.weight": "enorm.weight",
    "nextn.hnorm.weight": "hnorm.weight",
    "nextn.shared_head_norm.weight": "shared_head.norm.weight",
    # copies of the model's own, which an MTP layer is run with
    "nextn.embed_tokens.weight": "embed_tokens.weight",
    "nextn.shared_head_head.weight": "shared_head.head.weight",
}
_SECOND_NORM = {"post_attention_norm.weight": "post_attention_layernorm.weight"}


@dataclass(frozen=True)
class Recipe:
    """How a tensor of the checkpoint comes out of the file: the rows of one tensor, or, with
    `make`, what that gives for the whole of its sources in f32."""

    sources: tuple[TensorInfo, ...]
    shape: tuple[int, ...]
    order: Order | None = None  # row i is the source's row order[i]; None: as they are
    make: Callable[..., Floats] | None = None


@dataclass(frozen=True)
class Architecture:
    """The tensors within a layer. `remade` has recipes for what is more than another name."""

    names: Mapping[str, str]
    remade: Callable[[Config, Tensors, str], Iterator[tuple[str, Recipe]]] | None = None
    taken: frozenset[str] = field(default_factory=frozenset)  # names that `remade` accounts for


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "qwen3moe": Architecture({**_ATTENTION, **_DENSE, **_ROUTER}),
        "olmoe": Architecture({**_ATTENTION, **_ROUTER}),
        "glm4moe": Architecture(
            {
                **_ATTENTION,
                **_SECOND_NORM,
                **_DENSE,
                **_SHARED,
                **_ROUTER,
                **_CORRECTION,
                **_MTP,
            }
        ),
        "gpt-oss": Architecture(
            {
                **_ATTENTION,
                **_SECOND_NORM,
                "attn_sinks.weight": "self_attn.sinks",
                "ffn_gate_inp.weight": "mlp.router.weight",
                "ffn_gate_inp.bias": "mlp.router.bias",
            }
        ),
    }
)

# of the experts, (experts, rows, columns); the last has gate's rows before those of up
EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_up_exps")


def recipes_of(
    architecture: Architecture, config: Config, tensors: Tensors
) -> tuple[dict[str, Recipe], list[TensorInfo]]:
    """({checkpoint's name: recipe}, the tensors that are neither in it nor of experts)."""
    recipes: dict[str, Recipe] = {}
    left: list[TensorInfo] = []
    layers: dict[str, None] = {}
    for name, info in tensors.items():
        match = _LAYER.fullmatch(name)
        if match is None:
            ours = OUTER.get(name)
        else:
            layers[match[1]] = None
            ending = match[2]
            ours = architecture.names.get(ending)
            ours = ours and f"model.layers.{int(match[1])}.{ours}"
            if ending.rpartition(".")[0] in EXPERTS or ending in architecture.taken:
                continue
        if ours is None:
            left.append(info)
        else:
            recipes[ours] = Recipe((info,), info.shape)
    if architecture.remade is not None:
        for layer in layers:
            recipes.update(architecture.remade(config, tensors, layer))
    return recipes, left


def layer_number(name: str) -> int:
    """The layer of a tensor by the file's own name for it, -1 for one outside the layers."""
    match = _LAYER.fullmatch(name)
    return int(match[1]) if match else -1


def experts_beside(layers: set[int], tensors: Tensors) -> list[TensorInfo]:
    """The tensors of experts that are in none of these layers."""
    return [
        info
        for name, info in tensors.items()
        if any(f".{part}." in name for part in EXPERTS) and layer_number(name) not in layers
    ]
