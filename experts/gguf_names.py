"""What a checkpoint on the hub calls the tensors of a GGUF, and how they come out of them.

The rule of this file: every tensor of a file has a name in the checkpoint or is one of experts; the
others are left over, and `gguf_in` refuses them, since what is not used would change the result
without a word.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from diskmoe.experts.gguf_recipes import (
    Config,
    Recipe,
    Tensors,
    delta_recipes,
    joined_recipes,
    latent_recipes,
    less_one,
    paired_rows,
    switch_recipe,
    tiled_delta_recipes,
)
from diskmoe.experts.safetensors_io import TensorInfo

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
_LATENT = {
    "attn_q_a.weight": "self_attn.q_a_proj.weight",
    "attn_q_a_norm.weight": "self_attn.q_a_layernorm.weight",
    "attn_q_b.weight": "self_attn.q_b_proj.weight",
    "attn_kv_a_mqa.weight": "self_attn.kv_a_proj_with_mqa.weight",
    "attn_kv_a_norm.weight": "self_attn.kv_a_layernorm.weight",
    "attn_kv_b.weight": "self_attn.kv_b_proj.weight",
}
_INDEXER = {
    "indexer.attn_q_b.weight": "self_attn.indexer.wq_b.weight",
    "indexer.attn_k.weight": "self_attn.indexer.wk.weight",
    "indexer.k_norm.weight": "self_attn.indexer.k_norm.weight",
    "indexer.k_norm.bias": "self_attn.indexer.k_norm.bias",
    "indexer.proj.weight": "self_attn.indexer.weights_proj.weight",
}
_JOINED = {  # q, k and v in one tensor
    "attn_qkv.weight": "self_attn.{part}_proj.weight",
    "attn_qkv.bias": "self_attn.{part}_proj.bias",
}
_DENSE = {f"ffn_{part}.weight": f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
_SHARED = {
    f"ffn_{part}_shexp.weight": f"mlp.shared_experts.{part}_proj.weight"
    for part in ("gate", "up", "down")
}
_SHARED_ONE = {name: ours.replace("experts", "expert") for name, ours in _SHARED.items()}
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
class Architecture:
    """The tensors within a layer: the file's names for them, and the checkpoint's.

    paired: rows of q and k that rope turns together are neighbours, and lie half a head apart in
    the checkpoint. zero_centred: norms have 1 added. remade: recipes for what is more than another
    name, from the config, the file's tensors and a layer's ``blk.N.``; taken: the names that these
    account for. mtp: names of an MTP layer that are no names within a layer.
    """

    names: Mapping[str, str]
    paired: bool = False
    zero_centred: bool = False
    remade: Callable[[Config, Tensors, str], Iterator[tuple[str, Recipe]]] | None = None
    taken: frozenset[str] = frozenset()
    mtp: Mapping[str, str] = field(default_factory=dict)
    mtp_layer: str = "model.layers.{L}."  # {M}: from 0 for the first


_LATENT_PARTS = frozenset({"attn_k_b.weight", "attn_v_b.weight"})
_DELTA = {
    "ssm_ba.weight": "linear_attn.in_proj_ba.weight",
    "ssm_in.weight": "linear_attn.in_proj_qkvz.weight",
    "ssm_norm.weight": "linear_attn.norm.weight",
    "ssm_out.weight": "linear_attn.out_proj.weight",
    "ssm_dt.bias": "linear_attn.dt_bias",
}
_HYBRID_MTP = {
    "nextn.eh_proj.weight": "mtp.fc.weight",
    "nextn.enorm.weight": "mtp.pre_fc_norm_embedding.weight",
    "nextn.hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
    "nextn.shared_head_norm.weight": "mtp.norm.weight",
    # copies of the model's own, which an MTP layer is run with
    "nextn.embed_tokens.weight": "mtp.embed_tokens.weight",
    "nextn.shared_head_head.weight": "mtp.shared_head.head.weight",
}
_HYBRID = Architecture(
    {**_ATTENTION, **_SECOND_NORM, **_ROUTER, **_SHARED_ONE, **_DELTA},
    zero_centred=True,
    remade=delta_recipes,
    taken=frozenset(
        {
            "attn_qkv.weight",
            "attn_gate.weight",
            "ssm_a",
            "ssm_conv1d.weight",
            "ffn_gate_inp_shexp.weight",
        }
    ),
    mtp=_HYBRID_MTP,
    mtp_layer="mtp.layers.{M}.",
)
_DEEPSEEK = Architecture(
    {**_ATTENTION, **_LATENT, **_DENSE, **_SHARED, **_ROUTER, **_CORRECTION, **_MTP},
    remade=latent_recipes,
    taken=_LATENT_PARTS,
)

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
        "llama": Architecture(
            {**_ATTENTION, **_DENSE, "ffn_gate_inp.weight": "block_sparse_moe.gate.weight"},
            paired=True,
        ),
        "qwen2": Architecture({**_ATTENTION, **_DENSE}),
        "qwen3": Architecture({**_ATTENTION, **_DENSE}),
        "qwen2moe": Architecture(
            {**_ATTENTION, **_DENSE, **_ROUTER, **_SHARED_ONE},
            remade=switch_recipe,
            taken=frozenset({"ffn_gate_inp_shexp.weight"}),
        ),
        "minimax-m2": Architecture(
            {
                **_ATTENTION,
                "ffn_gate_inp.weight": "block_sparse_moe.gate.weight",
                "exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias",
            }
        ),
        "granitemoe": Architecture(
            {**_ATTENTION, "ffn_gate_inp.weight": "block_sparse_moe.router.layer.weight"},
            paired=True,
        ),
        "deepseek2": _DEEPSEEK,
        "glm-dsa": replace(_DEEPSEEK, names={**_DEEPSEEK.names, **_INDEXER}),
        "qwen3next": _HYBRID,
        "qwen35moe": replace(
            _HYBRID,
            remade=tiled_delta_recipes,
            taken=_HYBRID.taken
            | {"ssm_alpha.weight", "ssm_beta.weight", "ssm_out.weight", "ssm_dt.bias"},
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
    layers: set[int] = set()
    for name, info in tensors.items():
        match = _LAYER.fullmatch(name)
        if match is None:
            ours = OUTER.get(name)
            ending = name
        else:
            layer, ending = int(match[1]), match[2]
            layers.add(layer)
            if ending.rpartition(".")[0] in EXPERTS or ending in architecture.taken:
                continue
            if ending in _JOINED:
                at = _prefix(architecture, config, layer)
                for part, recipe in joined_recipes(config, info, architecture.paired).items():
                    recipes[at + _JOINED[ending].format(part=part)] = recipe
                continue
            ours = architecture.mtp.get(ending)
            if ours is None and ending in architecture.names:
                ours = _prefix(architecture, config, layer) + architecture.names[ending]
        if ours is None:
            left.append(info)
        else:
            recipes[ours] = _recipe(architecture, config, ending, info)
    remade = architecture.remade
    if remade is not None:
        for layer in sorted(layers):
            prefix = _prefix(architecture, config, layer)
            for ours, recipe in remade(config, tensors, f"blk.{layer}."):
                recipes[prefix + ours] = recipe
    return recipes, left


def _prefix(architecture: Architecture, config: Config, layer: int) -> str:
    """What the names of a layer's tensors begin with in the checkpoint."""
    first = config["num_hidden_layers"]
    template = "model.layers.{L}." if layer < first else architecture.mtp_layer
    return template.format(L=layer, M=layer - first)


def _recipe(architecture: Architecture, config: Config, ending: str, info: TensorInfo) -> Recipe:
    """Of a tensor that has another name, and whose rows or numbers may lie otherwise."""
    if architecture.paired and ending.startswith(("attn_q.", "attn_k.")):
        key = "num_attention_heads" if ending[5] == "q" else "num_key_value_heads"
        return Recipe((info,), info.shape, order=paired_rows(info, config[key]))
    if architecture.zero_centred and ending.endswith("norm.weight") and ending[:4] != "ssm_":
        return Recipe((info,), info.shape, make=less_one)
    return Recipe((info,), info.shape)


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
