"""Tiny random models for tests: a config.json, tensors that fit it, and the files of a checkpoint.

config = tiny_config("glm4_moe", n_group=2, topk_group=1)
write_checkpoint(tmp_path, config, random_tensors(config, seed=7), dtype="bf16")
    with running(tmp_path, dense_format="q8", expert_format="q4", slots=2) as model:
        model.forward([1, 2, 3], rows="all")
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.engine.kernels.workers import Workers
from diskmoe.engine.model.config import ModelConfig, read_config
from diskmoe.engine.model.forward import Transformer
from diskmoe.engine.model.kvcache import KEPT_ROWS, KvCache
from diskmoe.engine.model.mtp_layer import MtpLayer, mtp_weights
from diskmoe.engine.model.tensors import tensor_plan, verify_container
from diskmoe.engine.model.weights import load_dense
from diskmoe.experts.checkpoint import Checkpoint
from diskmoe.experts.container import Container, is_container
from diskmoe.experts.formats import dequantise, quantise
from diskmoe.experts.records import CheckpointRecords, ContainerRecords, LayerRecords
from diskmoe.experts.store import ExpertStore

Tensors = dict[str, npt.NDArray[np.float32]]
Stored = dict[str, npt.NDArray[Any]]  # f32, or the bytes of codes

_COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "num_experts_per_tok": 3,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# layers 0 and 2 have a delta rule, layer 1 has attention
_HYBRID: dict[str, Any] = {
    # what a random state answers may be near 0, which a norm without this would make rounding of
    "rms_norm_eps": 1e-2,
    "head_dim": 32,
    "num_experts": 8,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 40,
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.25,
}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 40,
    "kv_lora_rank": 48,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 48,
    "intermediate_size": 96,
    "first_k_dense_replace": 1,
}
_FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_next": {**_HYBRID, "norm_topk_prob": True, "intermediate_size": 96},
    "qwen3_5_moe": _HYBRID,
    "qwen3_5_moe_text": _HYBRID,
    "qwen3_moe": {
        "head_dim": 32,
        "num_experts": 8,
        "moe_intermediate_size": 48,
        "intermediate_size": 96,
        "norm_topk_prob": True,
        "rope_theta": 1e6,
    },
    "qwen3": {"head_dim": 32, "intermediate_size": 96, "num_experts_per_tok": None},
    "qwen2": {"intermediate_size": 96, "num_experts_per_tok": None, "attention_bias": None},
    "llama": {"intermediate_size": 96, "num_experts_per_tok": None},
    "olmoe": {"num_experts": 8, "intermediate_size": 48, "norm_topk_prob": False},
    "glm4_moe": {
        "head_dim": 32,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "moe_intermediate_size": 48,
        "intermediate_size": 96,
        "attention_bias": True,
        "use_qk_norm": True,
        "partial_rotary_factor": 0.5,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "num_nextn_predict_layers": 0,
    },
    "gpt_oss": {
        "head_dim": 32,
        "num_local_experts": 8,
        "intermediate_size": 48,
        "attention_bias": True,
        "sliding_window": 4,
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 64,
            "truncate": False,
        },
        "swiglu_limit": 0.5,
    },
    "mixtral": {"num_local_experts": 8, "intermediate_size": 48, "rope_theta": 1e6},
    "qwen2_moe": {
        "num_experts": 8,
        "moe_intermediate_size": 48,
        "intermediate_size": 96,
        "shared_expert_intermediate_size": 40,
        "norm_topk_prob": False,
        "rope_theta": 1e6,
        "attention_bias": None,
    },
    "granitemoe": {
        "num_local_experts": 8,
        "intermediate_size": 48,
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.1,
        "logits_scaling": 6.0,
    },
    "minimax_m2": {
        "head_dim": 32,
        "rotary_dim": 16,
        "num_local_experts": 8,
        "intermediate_size": 48,
        "rope_theta": 1e5,
    },
    "deepseek_v2": {
        **_LATENT,
        "q_lora_rank": None,
        "n_shared_experts": 2,
        "topk_method": "greedy",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
    },
    "deepseek_v3": {
        **_LATENT,
        "num_nextn_predict_layers": 0,
        "rope_interleave": True,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 2.5,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 40.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 64,
        },
    },
    "glm4_moe_lite": {
        **_LATENT,
        "v_head_dim": 48,
        "num_nextn_predict_layers": 0,
        "n_group": 1,
        "topk_group": 1,
        "rms_norm_eps": 1e-5,
        "routed_scaling_factor": 1.8,
        "rope_theta": 1e6,
    },
}
_FAMILIES["glm_moe_dsa"] = {
    **_FAMILIES["glm4_moe_lite"],
    "indexer_types": ["full", "shared", "full"],
    "index_n_heads": 8,  # so many that hardly any score is 0, where all keys would be equal
    "index_head_dim": 24,
    "index_topk": 8,
}
_FAMILIES["deepseek_v32"] = {
    **{k: v for k, v in _FAMILIES["deepseek_v3"].items() if k != "rope_interleave"},
    "index_n_heads": 8,
    "index_head_dim": 24,
    "index_topk": 8,
}
_FAMILIES["granitemoeshared"] = {**_FAMILIES["granitemoe"], "shared_intermediate_size": 80}
_FAMILIES["kimi_k2"] = {**_FAMILIES["deepseek_v3"], "n_group": 1, "topk_group": 1}
_FAMILIES["kimi_k25"] = _FAMILIES["kimi_k2"]


def tiny_config(family: str, **changes: Any) -> dict[str, Any]:
    """A config.json of a tiny model; a change to ``None`` takes a key away."""
    merged = {"model_type": family, **_COMMON, **_FAMILIES[family], **changes}
    config = {k: v for k, v in merged.items() if v is not None or k not in changes}
    if family == "qwen3_5_moe":
        return {"model_type": family, "text_config": config | {"model_type": f"{family}_text"}}
    return config


def random_tensors(config: dict[str, Any], seed: int, mtp: bool = False) -> Tensors:
    """Every tensor of the model, f32: matrices N(0, 0.08), biases about 0, and norms about
    what leaves a vector as it is."""
    plan = tensor_plan(
        read_config(config, "tiny"), (lambda name: "experts" not in name) if mtp else None
    )
    rng = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...], spread: float, centre: float = 0.0):
        return (centre + spread * rng.standard_normal(shape)).astype(np.float32)

    tensors: Tensors = {}
    for tensor in plan.dense:
        if "norm" in tensor.name:
            centre = 0.0 if tensor.form == "plus_one" else 1.0
            tensors[tensor.name] = draw(tensor.shape, 0.1, centre)
        elif tensor.name.endswith(("gate.weight", "router.weight")):
            tensors[tensor.name] = draw(tensor.shape, 0.2)
        elif tensor.name.endswith("conv1d.weight"):
            tensors[tensor.name] = draw(tensor.shape, 0.3)
        elif tensor.name.endswith(("sinks", "A_log", "dt_bias")):
            tensors[tensor.name] = draw(tensor.shape, 1.0)
        else:
            tensors[tensor.name] = draw(tensor.shape, 0.08)
    for name, shape, _ in plan.tensors():
        if name not in tensors:
            tensors[name] = draw(shape, 0.08)
    return tensors


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
        scales = _rounded(largest / 400, "bf16")
        stored[name] = _nearest_e4m3(weights / scales)
        stored[name + "_scale"] = scales if strategy == "channel" else scales.reshape(1)
        exact[name] = _E4M3[stored[name]] * scales
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy}
    group = {"weights": weights, "targets": ["Linear"]}
    method = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    method |= {"config_groups": {"group_0": group}, "ignore": ["lm_head", "re:.*mlp.gate$"]}
    return config | {"quantization_config": method}, stored, exact


def _nearest_e4m3(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
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


def write_checkpoint(
    folder: Path, config: dict[str, Any], tensors: Stored | Tensors, dtype: str = "f32"
) -> Path:
    """Write config.json and model.safetensors, weights as ``f32``, ``f16`` or ``bf16``.

    Bytes are U8, or FP8 where the tensor's name is that of a weight, and words I32.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    header: dict[str, Any] = {}
    body = bytearray()
    for name, tensor in tensors.items():
        kind = dtype.upper()
        if tensor.dtype == np.uint8:
            kind = "F8_E4M3" if name.endswith(".weight") else "U8"
        elif tensor.dtype == np.int32:
            kind = "I32"
        elif name.endswith("_scale_inv"):
            kind = "F32"
        raw = _as_bytes(tensor, dtype) if kind == dtype.upper() else tensor.tobytes()
        header[name] = {
            "dtype": kind,
            "shape": list(tensor.shape),
            "data_offsets": [len(body), len(body) + len(raw)],
        }
        body += raw
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + body)
    return folder


def as_stored(tensors: Tensors, dtype: str) -> Tensors:
    """What a reader gets back, in f32, from a checkpoint written as ``dtype``."""
    return {name: _rounded(tensor, dtype) for name, tensor in tensors.items()}


def _bf16_bits(tensor: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    bits = np.ascontiguousarray(tensor).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _as_bytes(tensor: npt.NDArray[np.float32], dtype: str) -> bytes:
    if dtype == "bf16":
        return _bf16_bits(tensor).tobytes()
    return tensor.astype({"f32": np.float32, "f16": np.float16}[dtype]).tobytes()


def _rounded(tensor: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[np.float32]:
    if dtype == "bf16":
        return (_bf16_bits(tensor).astype(np.uint32) << 16).view(np.float32)
    return tensor.astype({"f32": np.float32, "f16": np.float16}[dtype]).astype(np.float32)


@dataclass(frozen=True)
class Opened:
    """A model's headers, read and found good."""

    source: Checkpoint | Container
    config: ModelConfig
    records: CheckpointRecords | ContainerRecords


def open_tiny(folder: Path, expert_format: str | None = None) -> Opened:
    """A checkpoint or a converted model."""
    if is_container(folder):
        source = Container.open(folder)
        config = read_config(source.config, str(folder))
        verify_container(source, tensor_plan(config, source.has))
        return Opened(source, config, ContainerRecords(source))
    source = Checkpoint.open(folder)
    config = read_config(source.config, str(folder))
    plan = tensor_plan(config, source.has)
    source.verify(plan)
    return Opened(source, config, CheckpointRecords(source, plan, expert_format))


@contextmanager
def running(
    folder: Path,
    *,
    dense_format: str | None = None,
    expert_format: str | None = None,
    slots: int = 64,
    threads: int = 1,
    context: int = 128,
    kv_format: str = "f32",
    kept: int = KEPT_ROWS,
) -> Iterator[Transformer]:
    """A model that runs from ``folder``, a checkpoint or a converted model, by the real store."""
    opened = open_tiny(folder, expert_format)
    with _running(opened, dense_format, slots, threads, context, kv_format, kept) as (model, _):
        yield model


@contextmanager
def running_scarce(folder: Path, family: str) -> Iterator[Transformer]:
    """A random model of a family, written to ``folder``, with its experts in four slots a layer, of
    eight: drafts evict and pass."""
    config = tiny_config(family)
    write_checkpoint(folder, config, random_tensors(config, seed=5))
    with running(folder, expert_format="q4", dense_format="q8", slots=4) as transformer:
        yield transformer


@contextmanager
def running_head(
    folder: Path,
    dense_format: str | None = None,
    expert_format: str | None = None,
    *,
    slots: int = 64,
    threads: int = 1,
    context: int = 128,
    kv_format: str = "f32",
    kept: int = KEPT_ROWS,
) -> Iterator[tuple[Transformer, MtpLayer]]:
    """The same with the model's MTP head, whose layer has as many slots as the others."""
    opened = open_tiny(folder, expert_format)
    config = opened.config
    with _running(opened, dense_format, slots, threads, context, kv_format, kept) as made:
        model, workers = made
        weights = mtp_weights(load_dense(opened.source, config, dense_format, head=True), config)
        records = LayerRecords(opened.records, config.layers)
        store = ExpertStore(records, slots, records.layers, config.experts)
        kv = KvCache(config, context, layers=1, kv_format=kv_format)
        layer = MtpLayer(model, weights, store, kv, workers)
        try:
            yield model, layer
        finally:
            layer.close()


@contextmanager
def _running(
    opened: Opened,
    dense_format: str | None,
    slots: int,
    threads: int,
    context: int,
    kv_format: str,
    kept: int,
) -> Iterator[tuple[Transformer, Workers]]:
    config = opened.config
    weights = load_dense(opened.source, config, dense_format)
    store = ExpertStore(opened.records, slots, config.moe_layers, config.experts)
    try:
        with Workers(threads) as workers:
            kv = KvCache(config, context, kv_format=kv_format, kept=kept)
            yield Transformer(config, weights, store, kv, workers), workers
    finally:
        store.close()
