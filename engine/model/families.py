"""The table of model families: a family is a row here, never a file and never a branch elsewhere.

A row says how ``config.json`` of that family is read (which keys exist, what a missing key means)
and how its tensors are called. ``config.read_config`` turns row + file into a ``ModelConfig``; the
forward looks at the ``ModelConfig`` only. The meaning of each column follows the published model
code of the family (Hugging Face ``transformers``), restated, not copied.

To add a family whose blocks exist already, add a row. A new kind of block (another router score,
another rope layout) is one more allowed value of a column and one more case in its kernel.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

QkNorm = Literal["none", "per_head", "full_vector"]
RopeLayout = Literal["half", "interleaved"]
Score = Literal["softmax", "sigmoid"]
DenseRule = Literal["none", "first_k", "sparse_step", "all"]
MtpLayout = Literal["none", "extra_layer"]


@dataclass(frozen=True)
class Names:
    """Tensor names of one family. ``{L}`` is the layer, ``{e}`` the expert (filled in later).

    The defaults are the Llama-like names that most families share; names below ``layer`` are
    relative to it. Where gate and up have the same name they are fused in one tensor.
    """

    embedding: str = "model.embed_tokens.weight"
    final_norm: str = "model.norm.weight"
    head: str = "lm_head.weight"
    layer: str = "model.layers.{L}."
    attention_norm: str = "input_layernorm.weight"
    ffn_norm: str = "post_attention_layernorm.weight"
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    o: str = "self_attn.o_proj"
    sinks: str = "self_attn.sinks"
    q_norm: str = "self_attn.q_norm.weight"
    k_norm: str = "self_attn.k_norm.weight"
    router: str = "mlp.gate.weight"
    router_bias: str = "mlp.gate.bias"
    correction_bias: str = "mlp.gate.e_score_correction_bias"
    dense_gate: str = "mlp.gate_proj.weight"
    dense_up: str = "mlp.up_proj.weight"
    dense_down: str = "mlp.down_proj.weight"
    expert_gate: str = "mlp.experts.{e}.gate_proj.weight"
    expert_up: str = "mlp.experts.{e}.up_proj.weight"
    expert_down: str = "mlp.experts.{e}.down_proj.weight"
    shared_gate: str = "mlp.shared_experts.gate_proj.weight"
    shared_up: str = "mlp.shared_experts.up_proj.weight"
    shared_down: str = "mlp.shared_experts.down_proj.weight"
    mtp_embedding_norm: str = "enorm.weight"
    mtp_hidden_norm: str = "hnorm.weight"
    mtp_projection: str = "eh_proj.weight"
    mtp_final_norm: str = "shared_head.norm.weight"

    @property
    def fused(self) -> bool:
        """Whether the experts of a layer are in tensors of all of them."""
        return self.expert_gate == self.expert_up


@dataclass(frozen=True)
class Family:
    """One row. Columns that end in ``_key`` name a key of config.json; None: it has no such key."""

    names: Names = Names()
    fixed: tuple[tuple[str, Any], ...] = ()  # keys and the value they must have where they are
    # attention
    qk_norm: QkNorm = "none"  # RMS norm of queries and keys, before rope
    qk_norm_key: str | None = None  # the switch that turns it on (None: always on)
    bias_default: bool = False  # attention_bias where the file does not say
    output_bias: bool = False  # attention_bias adds a bias to o_proj too, not to q, k, v only
    clip_key: str | None = None  # clamp of q, k, v after their norm
    sinks: bool = False  # a logit per head that takes part in the softmax and has no value
    window_key: str | None = None  # a switch that would turn on sliding windows: refused if true
    windows: bool = False  # sliding_window and layer_types say which layers see how many keys
    # rope
    rope_layout: RopeLayout = "half"
    rope_partial: float | None = None  # share of a head that turns, by default; None: all, always
    theta_default: float = 10_000.0
    yarn_default: Mapping[str, Any] | None = None  # rope_parameters where the file has none
    # router
    score: Score = "softmax"
    router_bias: bool = False  # added to the logits
    correction_bias: bool = False  # added to the scores for the choice, not for the weights
    grouped: bool = False  # n_group / topk_group: a group's score is the sum of its two best
    renorm_default: bool = False  # norm_topk_prob where the file does not say
    scale_key: str | None = None
    # feed-forward
    expert_width_key: str = "moe_intermediate_size"
    shared_count_key: str | None = None  # shared experts; their width is count x expert width
    shared_count_default: int = 0
    dense_rule: DenseRule = "none"  # which layers have an ordinary FFN instead of experts
    expert_bias: bool = False  # of gate, up and down
    clamped: bool = False  # gate and up are clamped to swiglu_limit, and (up + 1) is what counts
    # rest
    norm_epsilon_default: float = 1e-6
    mtp: MtpLayout = "none"  # extra_layer: model.layers.{number of layers} and four more tensors


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "qwen3_moe": Family(
            qk_norm="per_head",
            output_bias=True,
            window_key="use_sliding_window",
            dense_rule="sparse_step",
        ),
        "olmoe": Family(
            qk_norm="full_vector",
            output_bias=True,
            clip_key="clip_qkv",
            expert_width_key="intermediate_size",
            norm_epsilon_default=1e-5,
        ),
        "glm4_moe": Family(
            qk_norm="per_head",
            qk_norm_key="use_qk_norm",
            rope_partial=0.5,
            score="sigmoid",
            correction_bias=True,
            grouped=True,
            renorm_default=True,
            scale_key="routed_scaling_factor",
            shared_count_key="n_shared_experts",
            shared_count_default=1,
            dense_rule="first_k",
            norm_epsilon_default=1e-5,
            mtp="extra_layer",
        ),
        "gpt_oss": Family(
            names=Names(
                router="mlp.router.weight",
                router_bias="mlp.router.bias",
                expert_gate="mlp.experts.gate_up_proj",
                expert_up="mlp.experts.gate_up_proj",
                expert_down="mlp.experts.down_proj",
            ),
            bias_default=True,
            output_bias=True,
            sinks=True,
            windows=True,
            theta_default=150_000.0,
            yarn_default=MappingProxyType(
                {
                    "rope_type": "yarn",
                    "factor": 32.0,
                    "truncate": False,
                    "original_max_position_embeddings": 4096,
                }
            ),
            router_bias=True,
            renorm_default=True,  # the softmax is over the chosen: the same number
            expert_width_key="intermediate_size",
            expert_bias=True,
            clamped=True,
            norm_epsilon_default=1e-5,
        ),
        # without experts: small models that draft for others of their vocabulary
        "qwen3": Family(
            qk_norm="per_head",
            output_bias=True,
            window_key="use_sliding_window",
            dense_rule="all",
        ),
        "qwen2": Family(
            bias_default=True,
            window_key="use_sliding_window",
            dense_rule="all",
        ),
        "llama": Family(
            fixed=(("mlp_bias", False),),
            output_bias=True,
            dense_rule="all",
        ),
    }
)
