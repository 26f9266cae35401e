"""Tiny models drawn in the test: a Hugging Face directory of a few kilobytes, and its plan."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from diskmoe.experts.checkpoint import Checkpoint, DenseTensor, ExpertTensors, TensorPlan
from diskmoe.experts.formats import round_to_bf16, widen_bf16


@dataclass
class TinyModel:
    """A model directory, its plan, and the weights that a reader must see."""

    path: Path
    plan: TensorPlan
    weights: dict[str, np.ndarray]

    def open(self) -> Checkpoint:
        return Checkpoint.open(self.path)


def write_shard(path: Path, tensors: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """Write a safetensors file; the numbers that were stored, in f32."""
    if dtype != "BF16":  # which the package's NumPy door does not know
        narrow = np.float16 if dtype == "F16" else np.float32
        save_file({name: array.astype(narrow) for name, array in tensors.items()}, path)
        return {name: array.astype(narrow).astype(np.float32) for name, array in tensors.items()}
    bits = {name: round_to_bf16(array) for name, array in tensors.items()}
    table, end = {}, 0
    for name, array in bits.items():
        place = [end, end + array.nbytes]
        table[name] = {"dtype": "BF16", "shape": list(array.shape), "data_offsets": place}
        end += array.nbytes
    header = json.dumps(table).encode()
    data = b"".join(array.tobytes() for array in bits.values())
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return {name: widen_bf16(array) for name, array in bits.items()}


@pytest.fixture
def tiny_model(tmp_path: Path) -> Callable[..., TinyModel]:
    """tiny_model(dtype=, shards=, experts=, layers=, hidden=, ffn=) -> TinyModel."""

    def make(
        dtype: str = "F32",
        shards: int = 1,
        experts: int = 3,
        layers: int = 2,
        hidden: int = 40,
        ffn: int = 24,
        name: str = "model",
    ) -> TinyModel:
        path = tmp_path / name
        path.mkdir()
        random = np.random.default_rng(7)

        def draw(*shape: int) -> np.ndarray:
            return random.standard_normal(shape).astype(np.float32)

        tensors = {
            "model.embed_tokens.weight": draw(50, hidden),
            "model.norm.weight": draw(hidden),
        }
        dense = [
            DenseTensor("model.embed_tokens.weight", (50, hidden), "matrix"),
            DenseTensor("model.norm.weight", (hidden,), "vector"),
        ]
        templates = []
        for layer in range(layers):
            at = f"model.layers.{layer}"
            tensors[f"{at}.mlp.gate.weight"] = draw(experts, hidden)
            dense.append(DenseTensor(f"{at}.mlp.gate.weight", (experts, hidden), "vector"))
            expert_at = f"{at}.mlp.experts.{{e}}"
            templates.append(
                ExpertTensors(
                    layer,
                    gate=f"{expert_at}.gate_proj.weight",
                    up=f"{expert_at}.up_proj.weight",
                    down=f"{expert_at}.down_proj.weight",
                )
            )
            for expert in range(experts):
                gate, up, down = templates[-1].names(expert)
                tensors[gate], tensors[up] = draw(ffn, hidden), draw(ffn, hidden)
                tensors[down] = draw(hidden, ffn)
        weights: dict[str, np.ndarray] = {}
        names = list(tensors)
        weight_map = {}
        for shard in range(shards):
            file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
            part = names[shard::shards]
            weights |= write_shard(path / file, {n: tensors[n] for n in part}, dtype)
            weight_map |= dict.fromkeys(part, file)
        if shards > 1:
            index = {"metadata": {}, "weight_map": weight_map}
            (path / "model.safetensors.index.json").write_text(json.dumps(index))
        else:
            (path / "model-00001-of-00001.safetensors").rename(path / "model.safetensors")
        (path / "config.json").write_text(json.dumps({"model_type": "tiny", "hidden": hidden}))
        (path / "tokenizer.json").write_text("{}")
        plan = TensorPlan(layers, experts, hidden, ffn, tuple(dense), tuple(templates))
        return TinyModel(path, plan, weights)

    return make


@pytest.fixture
def model(tiny_model: Callable[..., TinyModel]) -> TinyModel:
    """In two shards of bf16."""
    return tiny_model(dtype="BF16", shards=2)


@pytest.fixture
def out(model: TinyModel) -> Path:
    """Where it is to be converted to."""
    return model.path.parent / "converted" / "out"
