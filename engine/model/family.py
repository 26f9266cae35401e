"""The columns of the table of model families, and what each means.

A row says how ``config.json`` of that family is read (which keys exist, what a missing key means)
and how its tensors are called. The meaning of each column follows the published model code of the
family (Hugging Face ``transformers``), restated, not copied.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

QkNorm = Literal["none", "per_head", "full_vector"]
RopeLayout = Literal["half", "interleaved"]
Score = Literal["softmax", "sigmoid"]
GroupScore = Literal["top2", "max"]
DenseRule = Literal["none", "first_k", "listed", "sparse_step", "all"]
MtpLayout = Literal["none", "extra_layer", "own_layers"]
WindowRule = Literal["none", "listed", "all"]


@dataclass(frozen=True)
class Names:
    """Tensor names of one family. ``{L}`` is the layer, ``{e}`` the expert (filled in later).

    The defaults are the Llama-like names that most families share; names below ``layer`` are
    relative to it. Where gate and up have the same name they are fused in one tensor, and so are
    the parts of a delta layer's input.
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
    delta_qkv: str = "linear_attn.in_proj_qkv.weight"
    delta_z: str = "linear_attn.in_proj_z.weight"
    delta_b: str = "linear_attn.in_proj_b.weight"
    delta_a: str = "linear_attn.in_proj_a.weight"
    delta_conv: str = "linear_attn.conv1d.weight"
    delta_log: str = "linear_attn.A_log"
    delta_bias: str = "linear_attn.dt_bias"
    delta_norm: str = "linear_attn.norm.weight"
    delta_out: str = "linear_attn.out_proj.weight"
    q_a: str = "self_attn.q_a_proj"  # of latent attention: down to the latent of queries,
    q_a_norm: str = "self_attn.q_a_layernorm.weight"
    q_b: str = "self_attn.q_b_proj"  # up to their heads;
    kv_a: str = "self_attn.kv_a_proj_with_mqa"  # down to the latent of keys and values,
    kv_a_norm: str = "self_attn.kv_a_layernorm.weight"
    kv_b: str = "self_attn.kv_b_proj"  # up to theirs
    index_q: str = "self_attn.indexer.wq_b"  # of the choice of keys
    index_k: str = "self_attn.indexer.wk"
    index_k_norm: str = "self_attn.indexer.k_norm"
    index_shares: str = "self_attn.indexer.weights_proj"
    router: str = "mlp.gate.weight"
    router_bias: str = "mlp.gate.bias"
    correction_bias: str = "mlp.gate.e_score_correction_bias"
    dense_gate: str = "mlp.gate_proj.weight"
    dense_up: str = "mlp.up_proj.weight"
    dense_down: str = "mlp.down_proj.weight"
    expert_gate: str = "mlp.experts.{e}.gate_proj.weight"
    expert_up: str = "mlp.experts.{e}.up_proj.weight"
    expert_down: str = "mlp.experts.{e}.down_proj.weight"
    # where the files have them instead: all experts, one behind the other
    only_stacked: bool = False  # they never have a matrix for each
    stacked_gate_up: str = "mlp.experts.gate_up_proj"
    stacked_down: str = "mlp.experts.down_proj"
    # gate and up may be one matrix here, too, with the rows of gate first
    shared_gate: str = "mlp.shared_experts.gate_proj.weight"
    shared_up: str = "mlp.shared_experts.up_proj.weight"
    shared_down: str = "mlp.shared_experts.down_proj.weight"
    shared_switch: str = "mlp.shared_expert_gate.weight"
    # of an MTP layer: {L} as one behind the model's layers, {M} from 0
    mtp_layer: str = "model.layers.{L}."
    mtp_embedding_norm: str = "model.layers.{L}.enorm.weight"
    mtp_hidden_norm: str = "model.layers.{L}.hnorm.weight"
    mtp_projection: str = "model.layers.{L}.eh_proj.weight"
    mtp_final_norm: str = "model.layers.{L}.shared_head.norm.weight"

    @property
    def fused(self) -> bool:
        """Whether the experts of a layer are in tensors of all of them."""
        return self.expert_gate == self.expert_up

    @property
    def shared_fused(self) -> bool:
        """Whether gate and up of the shared expert are one matrix."""
        return self.shared_gate == self.shared_up

    def at(self, layer: int, layers: int) -> str:
        """What the names of a layer's tensors begin with, in a model of so many `layers`; an MTP
        layer's number is one of those behind them."""
        template = self.layer if layer < layers else self.mtp_layer
        return template.format(L=layer, M=layer - layers)

    @property
    def delta_fused(self) -> bool:
        """Whether q, k, v and z of delta layers are in one tensor, and b and a in another."""
        return self.delta_qkv == self.delta_z


@dataclass(frozen=True)
class Family:
    """One row. Columns that end in ``_key`` name a key of config.json; None: it has no such key."""

    names: Names = Names()
    fixed: tuple[tuple[str, Any], ...] = ()  # keys and the value they must have where they are
    multipliers: bool = False  # of embedding, residual and attention; logits_scaling divides
    # attention
    latent: bool = False  # keys and values are made of one latent (MLA)
    # which keys a row attends to is chosen, by some layers (DSA); what turns in its queries and keys
    indexer: RopeLayout | None = None
    index_heads_default: int = 32
    qk_norm: QkNorm = "none"  # RMS norm of queries and keys, before rope
    qk_norm_key: str | None = None  # the switch that turns it on (None: always on)
    bias_key: str = "attention_bias"  # the switch of biases of q, k and v
    bias_default: bool = False
    output_bias: bool = False  # it adds a bias to o_proj too
    clip_key: str | None = None  # clamp of q, k, v after their norm
    sinks: bool = False  # a logit per head that takes part in the softmax and has no value
    window_key: str | None = None  # a switch that would turn on sliding windows: refused if true
    # which layers see sliding_window keys: those that layer_types lists, or all where it is a number
    windows: WindowRule = "none"
    q_gate: bool = False  # q_proj is twice as wide: a head's queries, then the gates of its output
    delta: bool = False  # layer_types says which layers have a gated delta rule instead
    # rope
    rope_layout: RopeLayout = "half"
    rope_layout_key: str | None = None  # a switch: true is interleaved
    rope_partial: float | None = None  # share of a head that turns, by default; None: all, always
    rope_dims_key: str | None = None  # the same as a number of dims
    theta_default: float = 10_000.0
    yarn_default: Mapping[str, Any] | None = None  # rope_parameters where the file has none
    # router
    score: Score = "softmax"
    router_bias: bool = False  # added to the logits
    correction_bias: bool = False  # added to the scores for the choice, not for the weights
    grouped: bool = False  # n_group / topk_group: only experts of the best groups are chosen
    groups_default: tuple[int, int] = (1, 1)
    group_method_key: str | None = None  # a key that says whether groups count
    group_score: GroupScore = "top2"  # of a group: the sum of its two best, or its best
    renorm_key: str | None = "norm_topk_prob"  # None: shares always have the sum 1
    renorm_default: bool = False  # where the file does not say
    scale_key: str | None = None
    scale_default: float = 1.0
    # feed-forward
    expert_width_key: str = "moe_intermediate_size"
    shared_count_key: str | None = None  # shared experts; their width is count x expert width
    shared_count_default: int = 0
    shared_width_key: str | None = None  # the width of the only shared expert; 0: there is none
    shared_gated: bool = False  # its result times sigmoid of a row's own number
    dense_rule: DenseRule = "none"  # which layers have an ordinary FFN instead of experts
    first_dense_default: int = 1  # first_k, and listed where nothing is listed: so many
    expert_bias: bool = False  # of gate, up and down
    clamped: bool = False  # gate and up are clamped to swiglu_limit, and (up + 1) is what counts
    # rest
    norm_epsilon_default: float = 1e-6
    zero_centred: bool = False  # norms are x * (1 + weight), but those within delta layers
    # extra_layer: model.layers.{number of layers} and four more tensors; own_layers: mtp.layers.0
    mtp: MtpLayout = "none"
