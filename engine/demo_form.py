"""The form of the demonstration model: the parts file and how a dense layer becomes experts.

NumPy only, so that the installer needs nothing else. The parts file (`demo_parts.safetensors`)
holds what cannot be had from the dense SmolLM2 weights:

    layers.L.order        int16 [1536]      neuron order: 768 shared, then 16 experts x 48
    layers.L.router       f16   [16, 576]   router weight (scores = sigmoid(W x))
    layers.L.router_bias  f32   [16]        e_score_correction_bias (for the choice only)
    layers.L.down.q       uint8 [576, 768]  int4 deltas, two a byte, low nibble = even neuron;
                                            value = nibble - 8
    layers.L.down.scale   f16   [576, 48]   one scale per 32 neurons, in the new neuron order
    layers.L.fine.q       uint8 [576, 384]  a second, finer delta in 2 bits, four a byte, lowest
                                            bits first; value = code - 1.5
    layers.L.fine.scale   f16   [576, 24]   one scale per 64 neurons
    mtp.<suffix>          f16               one tensor of model.layers.30.<suffix>, or
    mtp.<suffix>.q        int8 [R, C]       the same in int8 with
    mtp.<suffix>.scale    f16  [R, C / 32]  one scale per 32 columns; here the FFN is whole:
                                            mtp.mlp.{gate,up}_proj.weight [1536, 576] and
                                            mtp.mlp.down_proj.weight [576, 1536], neurons in the
                                            same order (768 shared, then 16 experts x 48)

and in `__metadata__`: `format`, `top_k`, the source wheel and GGUF with their SHA-256, the seed
and the measured figures as JSON. Both deltas are added to the dense down_proj after its columns
were put into the new order. (The coarse delta comes from a least-squares refit of each layer, the
fine one from tuning the whole model; the latter is much smaller than a step of the former.)
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = "diskmoe-demo-parts-2"
HIDDEN, LAYERS, VOCAB = 576, 30, 49152
HEADS, KV_HEADS, HEAD_DIM = 9, 3, 64
FFN, SHARED, EXPERTS, WIDTH = 1536, 768, 16, 48
GROUP = 32
FINE_GROUP = 64
MTP_LAYER = LAYERS
_DTYPES = {
    "F32": np.float32,
    "F16": np.float16,
    "I8": np.int8,
    "U8": np.uint8,
    "I16": np.int16,
    "I32": np.int32,
}


class Parts:
    """The tensors of a parts file by name, with its metadata."""

    def __init__(self, tensors: dict[str, np.ndarray], meta: dict[str, str]) -> None:
        self.tensors = tensors
        self.meta = meta

    @property
    def top_k(self) -> int:
        return int(self.meta["top_k"])


def read_parts(path: str | Path) -> Parts:
    """Read a parts file; raises ValueError when it is not one or is damaged."""
    data = Path(path).read_bytes()
    if len(data) < 8:
        raise ValueError(f"{path}: too short for a parts file")
    (size,) = struct.unpack("<Q", data[:8])
    if size > len(data) - 8:
        raise ValueError(f"{path}: header of {size} bytes in a file of {len(data)}")
    header: dict[str, Any] = json.loads(data[8 : 8 + size])
    meta = header.pop("__metadata__", {})
    if meta.get("format") != FORMAT:
        raise ValueError(f"{path}: format {meta.get('format')!r}, expected {FORMAT!r}")
    body = memoryview(data)[8 + size :]
    tensors = {}
    for name, info in header.items():
        begin, end = info["data_offsets"]
        dtype = np.dtype(_DTYPES[info["dtype"]])
        count = int(np.prod(info["shape"], dtype=np.int64))
        if begin < 0 or end > len(body) or end - begin != count * dtype.itemsize:
            raise ValueError(f"{path}: tensor {name} does not fit the file")
        tensors[name] = np.frombuffer(body[begin:end], dtype=dtype).reshape(info["shape"])
    return Parts(tensors, meta)


def pack_int4(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """f32 [R, C] -> (uint8 [R, C / 2], f16 scale [R, C / 32])."""
    rows, cols = weight.shape
    groups = weight.reshape(rows, cols // GROUP, GROUP).astype(np.float32)
    top = np.abs(groups).max(axis=2)
    best_scale = np.zeros_like(top, dtype=np.float16)
    best_err = np.full(top.shape, np.inf, dtype=np.float32)
    # clipping the largest value a little often costs less than a coarser step for all the others
    for divisor in (7.0, 7.5, 8.0, 8.7, 9.5):
        scale = (top / divisor).astype(np.float16)
        step = np.where(scale > 0, scale, 1).astype(np.float32)[..., None]
        err = ((np.clip(np.rint(groups / step), -8, 7) * step - groups) ** 2).sum(axis=2)
        better = err < best_err
        best_err = np.where(better, err, best_err)
        best_scale = np.where(better, scale, best_scale)
    step = np.where(best_scale > 0, best_scale, 1).astype(np.float32)[..., None]
    nibble = (np.clip(np.rint(groups / step), -8, 7) + 8).astype(np.uint8).reshape(rows, cols)
    return nibble[:, 0::2] | (nibble[:, 1::2] << 4), best_scale


def unpack_int4(packed: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The f32 [R, C] that `pack_int4` stored."""
    rows, half = packed.shape
    value = np.empty((rows, half * 2), dtype=np.float32)
    value[:, 0::2] = (packed & 15).astype(np.float32) - 8
    value[:, 1::2] = (packed >> 4).astype(np.float32) - 8
    return value * np.repeat(scale.astype(np.float32), GROUP, axis=1)


def pack_fine(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """f32 [R, C] -> (uint8 [R, C / 4], f16 scale [R, C / 64])."""
    rows, cols = weight.shape
    groups = weight.reshape(rows, cols // FINE_GROUP, FINE_GROUP).astype(np.float32)
    size = np.sqrt((groups**2).mean(axis=2))
    best_scale = np.zeros_like(size, dtype=np.float16)
    best_err = np.full(size.shape, np.inf, dtype=np.float32)
    for factor in (0.6, 0.75, 0.9, 1.0, 1.15):
        scale = (size * factor).astype(np.float16)
        step = np.where(scale > 0, scale, 1).astype(np.float32)[..., None]
        code = np.clip(np.rint(groups / step + 1.5), 0, 3)
        err = (((code - 1.5) * scale.astype(np.float32)[..., None] - groups) ** 2).sum(axis=2)
        better = err < best_err
        best_err = np.where(better, err, best_err)
        best_scale = np.where(better, scale, best_scale)
    step = np.where(best_scale > 0, best_scale, 1).astype(np.float32)[..., None]
    code = np.clip(np.rint(groups / step + 1.5), 0, 3).astype(np.uint8).reshape(rows, cols)
    packed = code[:, 0::4] | code[:, 1::4] << 2 | code[:, 2::4] << 4 | code[:, 3::4] << 6
    return packed, best_scale


def unpack_fine(packed: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The f32 [R, C] that `pack_fine` stored."""
    rows, quarter = packed.shape
    value = np.empty((rows, quarter * 4), dtype=np.float32)
    for place in range(4):
        value[:, place::4] = (packed >> (2 * place) & 3).astype(np.float32) - 1.5
    return value * np.repeat(scale.astype(np.float32), FINE_GROUP, axis=1)


def down_delta(tensors: dict[str, np.ndarray], layer: int, fine: bool = True) -> np.ndarray:
    """What is added to the ordered dense down_proj of a layer, f32 [576, 1536]."""
    key = f"layers.{layer}."
    delta = unpack_int4(tensors[f"{key}down.q"], tensors[f"{key}down.scale"])
    if fine and f"{key}fine.q" in tensors:
        delta += unpack_fine(tensors[f"{key}fine.q"], tensors[f"{key}fine.scale"])
    return delta


def pack_int8(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """f32 [R, C] -> (int8 [R, C], f16 scale [R, C / 32])."""
    rows, cols = weight.shape
    groups = weight.reshape(rows, cols // GROUP, GROUP).astype(np.float32)
    scale = (np.abs(groups).max(axis=2) / 127).astype(np.float16)
    step = np.where(scale > 0, scale, 1).astype(np.float32)[..., None]
    return np.clip(np.rint(groups / step), -127, 127).astype(np.int8).reshape(rows, cols), scale


def unpack_int8(value: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The f32 [R, C] that `pack_int8` stored."""
    return value.astype(np.float32) * np.repeat(scale.astype(np.float32), GROUP, axis=1)


def split_ffn(
    gate: np.ndarray, up: np.ndarray, down: np.ndarray, layer: int
) -> dict[str, np.ndarray]:
    """Cut an FFN, neurons already in order, into hub-named shared and routed experts."""
    prefix = f"model.layers.{layer}.mlp."
    spans = {"shared_experts.": slice(0, SHARED)}
    for expert in range(EXPERTS):
        begin = SHARED + expert * WIDTH
        spans[f"experts.{expert}."] = slice(begin, begin + WIDTH)
    out = {}
    for name, span in spans.items():
        out[f"{prefix}{name}gate_proj.weight"] = np.ascontiguousarray(gate[span])
        out[f"{prefix}{name}up_proj.weight"] = np.ascontiguousarray(up[span])
        out[f"{prefix}{name}down_proj.weight"] = np.ascontiguousarray(down[:, span])
    return out


def moe_tensors(
    dense_layer: dict[str, np.ndarray], parts: Parts, layer: int, sparse: bool = True
) -> dict[str, np.ndarray]:
    """The FFN of one layer as hub-named f32 tensors.

    `dense_layer` holds the dense `gate_proj` [1536, 576], `up_proj` and `down_proj` [576, 1536]
    (other keys are ignored). With `sparse=False` there are no deltas and the router is zero: with
    top_k 16 that is exactly the dense model.
    """
    tensors = parts.tensors
    order = tensors[f"layers.{layer}.order"].astype(np.int64)
    gate, up = (dense_layer[f"{n}_proj"].astype(np.float32)[order] for n in ("gate", "up"))
    down = dense_layer["down_proj"].astype(np.float32)[:, order]
    router = np.zeros((EXPERTS, HIDDEN), dtype=np.float32)
    bias = np.zeros(EXPERTS, dtype=np.float32)
    if sparse:
        key = f"layers.{layer}."
        down = down + down_delta(tensors, layer)
        router = tensors[f"{key}router"].astype(np.float32)
        bias = tensors[f"{key}router_bias"].astype(np.float32)
    out = split_ffn(gate, up, down, layer)
    out[f"model.layers.{layer}.mlp.gate.weight"] = router
    out[f"model.layers.{layer}.mlp.gate.e_score_correction_bias"] = bias
    return out


def mtp_tensors(parts: Parts) -> dict[str, np.ndarray]:
    """The MTP layer as hub-named f32 tensors under model.layers.30.; empty when there is none."""
    plain: dict[str, np.ndarray] = {}
    for name, value in parts.tensors.items():
        if not name.startswith("mtp."):
            continue
        key = name[len("mtp.") :]
        if key.endswith(".q"):
            plain[key[:-2]] = unpack_int8(value, parts.tensors[f"mtp.{key[:-2]}.scale"])
        elif not key.endswith(".scale"):
            plain[key] = value.astype(np.float32)
    if not plain:
        return {}
    gate, up, down = (plain.pop(f"mlp.{n}_proj.weight") for n in ("gate", "up", "down"))
    out = split_ffn(gate, up, down, MTP_LAYER)
    out.update({f"model.layers.{MTP_LAYER}.{key}": value for key, value in plain.items()})
    return out


def config_dict(sparse: bool, top_k: int = 8) -> dict[str, Any]:
    """config.json of the glm4_moe model; `top_k` (from the parts) is used by the sparse form."""
    active = top_k if sparse else EXPERTS
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCAB,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": FFN,
        "first_k_dense_replace": 0,
        "moe_intermediate_size": WIDTH,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": SHARED // WIDTH,
        "num_experts_per_tok": active,
        "norm_topk_prob": True,
        "routed_scaling_factor": float(active),
        "n_group": 1,
        "topk_group": 1,
        "use_qk_norm": False,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "rope_theta": 100000.0,
        "partial_rotary_factor": 1.0,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 100000.0,
            "partial_rotary_factor": 1.0,
        },
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "num_nextn_predict_layers": 1,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "torch_dtype": "float32",
        "use_cache": True,
    }
