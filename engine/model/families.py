"""The table of model families: a family is a row here, never a file and never a branch elsewhere.

``family.py`` says what the columns mean. ``config.read_config`` turns row + file into a
``ModelConfig``; the forward looks at the ``ModelConfig`` only.

To add a family whose blocks exist already, add a row. A new kind of block (another router score,
another rope layout) is one more allowed value of a column and one more case in its kernel.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from diskmoe.engine.model.family import Family, Names

_DEEPSEEK_V2 = Family(
    fixed=(
        ("scoring_func", "softmax"),
        ("norm_topk_prob", False),
        ("moe_layer_freq", 1),
        ("mlp_bias", False),
    ),
    latent=True,
    output_bias=True,
    rope_layout="interleaved",
    grouped=True,
    group_method_key="topk_method",
    group_score="max",
    scale_key="routed_scaling_factor",
    shared_count_key="n_shared_experts",
    shared_count_default=2,
    dense_rule="first_k",
    first_dense_default=0,
)
_DEEPSEEK_V3 = replace(
    _DEEPSEEK_V2,
    fixed=(("scoring_func", "sigmoid"), ("topk_method", "noaux_tc"), ("moe_layer_freq", 1)),
    rope_layout_key="rope_interleave",
    score="sigmoid",
    correction_bias=True,
    groups_default=(8, 4),
    group_method_key=None,
    group_score="top2",
    renorm_default=True,
    scale_default=2.5,
    shared_count_default=1,
    first_dense_default=3,
    mtp="extra_layer",
)
_SPARSE_BLOCK = Names(
    router="block_sparse_moe.gate.weight",
    correction_bias="block_sparse_moe.e_score_correction_bias",
    expert_gate="block_sparse_moe.experts.{e}.w1.weight",
    expert_up="block_sparse_moe.experts.{e}.w3.weight",
    expert_down="block_sparse_moe.experts.{e}.w2.weight",
)
_SHARED_EXPERT = Names(
    shared_gate="mlp.shared_expert.gate_proj.weight",
    shared_up="mlp.shared_expert.up_proj.weight",
    shared_down="mlp.shared_expert.down_proj.weight",
)
_HYBRID_NAMES = replace(
    _SHARED_EXPERT,
    mtp_layer="mtp.layers.{M}.",
    mtp_embedding_norm="mtp.pre_fc_norm_embedding.weight",
    mtp_hidden_norm="mtp.pre_fc_norm_hidden.weight",
    mtp_projection="mtp.fc.weight",
    mtp_final_norm="mtp.norm.weight",
)
_GRANITE = Family(
    names=Names(
        router="block_sparse_moe.router.layer.weight",
        only_stacked=True,
        stacked_gate_up="block_sparse_moe.input_linear.weight",
        stacked_down="block_sparse_moe.output_linear.weight",
    ),
    multipliers=True,
    output_bias=True,
    renorm_key=None,  # the softmax is over the chosen: the same numbers
    expert_width_key="intermediate_size",
)
# layers with a gated delta rule and layers with gated attention, three to one
_HYBRID = Family(
    names=_HYBRID_NAMES,
    qk_norm="per_head",
    output_bias=True,
    q_gate=True,
    delta=True,
    rope_partial=0.25,
    renorm_key=None,
    shared_width_key="shared_expert_intermediate_size",
    shared_gated=True,
    zero_centred=True,
    mtp="own_layers",
)

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
            windows="listed",
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
        "mixtral": Family(
            names=_SPARSE_BLOCK,
            windows="all",
            theta_default=1e6,
            renorm_key=None,
            expert_width_key="intermediate_size",
            norm_epsilon_default=1e-5,
        ),
        "minimax_m2": Family(
            names=_SPARSE_BLOCK,
            fixed=(
                ("scoring_func", "sigmoid"),
                ("use_qk_norm", True),
                ("qk_norm_type", "per_layer"),
            ),
            qk_norm="full_vector",
            rope_partial=1.0,
            rope_dims_key="rotary_dim",
            theta_default=5e6,
            score="sigmoid",
            correction_bias=True,
            renorm_key=None,
            expert_width_key="intermediate_size",
        ),
        "qwen2_moe": Family(
            names=_SHARED_EXPERT,
            bias_key="qkv_bias",
            bias_default=True,
            window_key="use_sliding_window",
            dense_rule="sparse_step",
            shared_width_key="shared_expert_intermediate_size",
            shared_gated=True,
        ),
        "granitemoe": _GRANITE,
        "granitemoeshared": replace(
            _GRANITE,
            names=replace(
                _GRANITE.names,
                shared_gate="shared_mlp.input_linear.weight",
                shared_up="shared_mlp.input_linear.weight",
                shared_down="shared_mlp.output_linear.weight",
            ),
            shared_width_key="shared_intermediate_size",
        ),
        "qwen3_next": replace(
            _HYBRID,
            names=replace(
                _HYBRID_NAMES,
                delta_qkv="linear_attn.in_proj_qkvz.weight",
                delta_z="linear_attn.in_proj_qkvz.weight",
                delta_b="linear_attn.in_proj_ba.weight",
                delta_a="linear_attn.in_proj_ba.weight",
            ),
            renorm_key="norm_topk_prob",
            renorm_default=True,
            dense_rule="sparse_step",
        ),
        "qwen3_5_moe": _HYBRID,  # the text half of a model that sees, too
        "qwen3_5_moe_text": _HYBRID,
        "deepseek_v2": _DEEPSEEK_V2,
        "deepseek_v3": _DEEPSEEK_V3,
        "deepseek_v32": replace(
            _DEEPSEEK_V3,
            fixed=(*_DEEPSEEK_V3.fixed, ("rope_interleave", True), ("mlp_bias", False)),
            indexer="half",
            index_heads_default=64,
            rope_layout_key=None,
            dense_rule="listed",
        ),
        "kimi_k2": _DEEPSEEK_V3,
        "kimi_k25": _DEEPSEEK_V3,
        "glm4_moe_lite": replace(
            _DEEPSEEK_V3,
            fixed=(*_DEEPSEEK_V3.fixed, ("partial_rotary_factor", 1.0)),
            groups_default=(1, 1),
            scale_default=1.8,
            dense_rule="listed",
            first_dense_default=1,
            norm_epsilon_default=1e-5,
        ),
        "glm_moe_dsa": replace(
            _DEEPSEEK_V3,
            fixed=(
                *_DEEPSEEK_V3.fixed,
                ("rope_interleave", True),
                ("indexer_rope_interleave", True),
                ("mlp_bias", False),
            ),
            indexer="interleaved",
            rope_layout_key=None,
            groups_default=(1, 1),
            dense_rule="listed",
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
