"""A tiny text model as save_pretrained writes it, rewritten as the hub has Qwen3.5.

There the text model is half of one that sees: its config is a part of another one, its names have a
longer prefix, a layer's experts are one tensor, and beside it are a picture tower and an MTP layer.
"""

import json
from pathlib import Path

import numpy as np

from diskmoe.engine.model.config import read_config
from diskmoe.engine.model.families import FAMILIES
from diskmoe.engine.model.tensors import tensor_plan
from diskmoe.experts.checkpoint import Checkpoint, TensorPlan
from diskmoe.experts.formats import round_to_bf16
from diskmoe.experts.safetensors_io import read_tensor, write_safetensors


def to_hub_layout(folder: Path, mtp: bool = True) -> None:
    """Rewrite config.json and model.safetensors (bf16 or f32) in place; mtp: with an MTP layer."""
    checkpoint = Checkpoint.open(folder)
    config = read_config(checkpoint.config, str(folder))
    plan = tensor_plan(config)
    stored = {name: _stored(checkpoint, name) for name in checkpoint.names}
    for layer in plan.experts:
        names = FAMILIES[config.family].names
        at = names.at(layer.layer, config.layers)
        dtype = stored[layer.names(0)[0]][0]
        gates, ups, downs = (
            np.stack([stored.pop(layer.names(expert)[part])[1] for expert in range(plan.n_experts)])
            for part in range(3)
        )
        stored[at + names.stacked_gate_up] = dtype, np.concatenate([gates, ups], axis=1)
        stored[at + names.stacked_down] = dtype, downs
    tensors = {_long(name): tensor for name, tensor in stored.items()}
    tensors["model.visual.pos_embed.weight"] = "F32", np.ones((2, 2), np.float32)
    rng = np.random.default_rng(0)
    for name, shape in _mtp(tensor_plan(config, lambda name: True)) if mtp else ():
        values = (0.08 * rng.standard_normal(shape)).astype(np.float32)
        tensors[name] = "BF16", round_to_bf16(values)
    write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    outer = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "tie_word_embeddings": False,
        "text_config": checkpoint.config,
    }
    (folder / "config.json").write_text(json.dumps(outer, indent=2) + "\n", encoding="utf-8")


def _stored(checkpoint: Checkpoint, name: str) -> tuple[str, np.ndarray]:
    info = checkpoint.info(name)
    return info.dtype, read_tensor(info)


def _long(name: str) -> str:
    return name.replace("model.", "model.language_model.", 1)


def _mtp(plan: TensorPlan) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of an MTP layer's tensors."""
    return [(name, shape) for name, shape, _ in plan.tensors() if name.startswith("mtp.")]
