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
from tiny_configs import tiny_config

from diskmoe.engine.kernels.workers import Workers
from diskmoe.engine.model.config import ModelConfig, read_config
from diskmoe.engine.model.forward import Transformer
from diskmoe.engine.model.kvcache import KEPT_ROWS, KvCache
from diskmoe.engine.model.mtp_layer import MtpLayer, mtp_weights
from diskmoe.engine.model.tensors import tensor_plan, verify_container
from diskmoe.engine.model.weights import load_dense
from diskmoe.experts.checkpoint import Checkpoint
from diskmoe.experts.container import Container, is_container
from diskmoe.experts.records import CheckpointRecords, ContainerRecords, LayerRecords
from diskmoe.experts.store import ExpertStore

Tensors = dict[str, npt.NDArray[np.float32]]
Stored = dict[str, npt.NDArray[Any]]  # f32, or the bytes of codes


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
    return {name: rounded(tensor, dtype) for name, tensor in tensors.items()}


def _bf16_bits(tensor: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    bits = np.ascontiguousarray(tensor).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _as_bytes(tensor: npt.NDArray[np.float32], dtype: str) -> bytes:
    if dtype == "bf16":
        return _bf16_bits(tensor).tobytes()
    return tensor.astype({"f32": np.float32, "f16": np.float16}[dtype]).tobytes()


def rounded(tensor: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[np.float32]:
    """What is left of numbers that are stored as ``dtype``."""
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
