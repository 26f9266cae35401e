"""Tiny random models for tests: a config.json, tensors that fit it, and the files of a checkpoint.

config = tiny_config("glm4_moe", n_group=2, topk_group=1)
write_checkpoint(tmp_path, config, random_tensors(config, seed=7), dtype="bf16")
    with running(tmp_path, dense_format="q8", expert_format="q4", slots=2) as model:
        model.forward([1, 2, 3], rows="all")
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.engine.kernels.workers import Workers
from diskmoe.engine.model.config import read_config
from diskmoe.engine.model.forward import Transformer
from diskmoe.engine.model.kvcache import KvCache
from diskmoe.engine.model.tensors import tensor_plan, verify_container
from diskmoe.engine.model.weights import load_dense
from diskmoe.experts.checkpoint import Checkpoint
from diskmoe.experts.container import Container, is_container
from diskmoe.experts.formats import dequantise, quantise
from diskmoe.experts.records import CheckpointRecords, ContainerRecords
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
_FAMILIES: dict[str, dict[str, Any]] = {
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
}


def tiny_config(family: str, **changes: Any) -> dict[str, Any]:
    """A config.json of a tiny model; ``key=None`` takes a key away."""
    merged = {"model_type": family, **_COMMON, **_FAMILIES[family], **changes}
    return {key: value for key, value in merged.items() if value is not None}


def random_tensors(config: dict[str, Any], seed: int, mtp: bool = False) -> Tensors:
    """Every tensor of the model, f32: matrices N(0, 0.08), norms about 1, biases about 0."""
    plan = tensor_plan(read_config(config, "tiny"), (lambda name: True) if mtp else None)
    rng = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...], spread: float, centre: float = 0.0):
        return (centre + spread * rng.standard_normal(shape)).astype(np.float32)

    tensors: Tensors = {}
    for tensor in plan.dense:
        if "norm" in tensor.name:
            tensors[tensor.name] = draw(tensor.shape, 0.1, 1.0)
        elif tensor.name.endswith(("mlp.gate.weight", "mlp.router.weight")):
            tensors[tensor.name] = draw(tensor.shape, 0.2)
        elif tensor.name.endswith("sinks"):
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


def write_checkpoint(
    folder: Path, config: dict[str, Any], tensors: Stored | Tensors, dtype: str = "f32"
) -> Path:
    """Write config.json and model.safetensors, weights as ``f32``, ``f16`` or ``bf16``; bytes as U8."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    header: dict[str, Any] = {}
    body = bytearray()
    for name, tensor in tensors.items():
        codes = tensor.dtype == np.uint8
        raw = tensor.tobytes() if codes else _as_bytes(tensor, dtype)
        header[name] = {
            "dtype": "U8" if codes else dtype.upper(),
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
) -> Iterator[Transformer]:
    """A model that runs from ``folder``, a checkpoint or a converted model, by the real store."""
    if is_container(folder):
        source = Container.open(folder)
        config = read_config(source.config, str(folder))
        plan = tensor_plan(config)
        verify_container(source, plan)
        records = ContainerRecords(source)
    else:
        source = Checkpoint.open(folder)
        config = read_config(source.config, str(folder))
        plan = tensor_plan(config)
        source.verify(plan)
        records = CheckpointRecords(source, plan, expert_format)
    weights = load_dense(source, config, dense_format)
    store = ExpertStore(records, slots, config.moe_layers, config.experts)
    try:
        with Workers(threads) as workers:
            kv = KvCache(config, context, kv_format=kv_format)
            yield Transformer(config, weights, store, kv, workers)
    finally:
        store.close()
