"""A converted model written back as a Hugging Face checkpoint, in the numbers its weights stand for.

The rule of this file: what is written is exactly what the kernels multiply with, so another program
that reads it computes with the same weights, quantisation error included. One tensor is in memory
at a time.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diskmoe.experts.checkpoint import ExpertTensors, TensorPlan
from diskmoe.experts.container import Container
from diskmoe.experts.errors import BadOutput
from diskmoe.experts.safetensors_io import SafetensorsWriter, TensorSpec
from diskmoe.experts.side_files import side_files

FILE_NAME = "model.safetensors"


def export_checkpoint(container: Container, plan: TensorPlan, out: Path) -> int:
    """Write ``out`` (a directory that is new or empty) in f32; returns the bytes of its tensors.

    Raises BadOutput when the directory is in use, and OSError when it cannot be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadOutput(f"{out}: is in use; name a new directory")
    out.mkdir(parents=True, exist_ok=True)
    plain = {"codes": "fused"}  # codes have no place in f32
    experts = tuple(replace(e, form=plain.get(e.form, e.form)) for e in plan.experts)
    plan = replace(plan, experts=experts)
    specs = [TensorSpec(name, "F32", shape) for name, shape, _ in plan.tensors()]
    metadata = {"format": "pt"}
    with closing(SafetensorsWriter(out / FILE_NAME, specs, metadata)) as writer:
        for array in _arrays(container, plan):
            writer.write(array)
        writer.finish(metadata)
    for name in side_files(container.path):
        (out / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(container.path / name, out / name)
    config = {**container.config, "dtype": "float32", "torch_dtype": "float32"}
    config.pop("quantization_config", None)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return sum(spec.nbytes for spec in specs)


def _arrays(container: Container, plan: TensorPlan) -> Iterator[npt.NDArray[np.float32]]:
    for tensor in plan.dense:
        yield container.f32(tensor.name)
    for layer in plan.experts:
        if layer.form == "each":
            for expert in range(plan.n_experts):
                yield from container.expert_f32(layer.layer, expert)
        else:
            yield from _of_all(container, plan, layer)


def _of_all(
    container: Container, plan: TensorPlan, layer: ExpertTensors
) -> Iterator[npt.NDArray[np.float32]]:
    """The tensors of all experts of a layer, expert by expert: gate and up, biases, down, biases."""
    numbers, stacked = range(plan.n_experts), layer.form == "stacked"
    biases = [container.expert_biases(layer.layer, expert) for expert in numbers]
    for expert in numbers:
        gate, up, _ = container.expert_f32(layer.layer, expert)
        # rows one after another; or (hidden, ffn, 2): columns alternate
        yield np.concatenate([gate, up]) if stacked else np.stack([gate.T, up.T], axis=2)
    if plan.biased:
        axis = 0 if stacked else 1
        yield from (np.stack([gate, up], axis) for gate, up, _ in biases)
    for expert in numbers:
        down = container.expert_f32(layer.layer, expert)[2]
        yield down if stacked else np.ascontiguousarray(down.T)
    if plan.biased:
        yield from (down for _, _, down in biases)
