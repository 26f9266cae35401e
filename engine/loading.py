"""From a path to a model ready to run: what it is, what it will need, then its weights.

Everything that can be refused is refused from headers and numbers, before a weight is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numba.core.event import Event, Listener, install_listener

from diskmoe.engine.errors import BadModel, BadRequest
from diskmoe.engine.kernels.warm import compile_kernels
from diskmoe.engine.model.config import ModelConfig, read_config
from diskmoe.engine.model.forward import scratch_bytes
from diskmoe.engine.model.kvcache import kv_cache_bytes
from diskmoe.engine.model.tensors import tensor_plan, verify_container
from diskmoe.engine.model.union import union_of
from diskmoe.engine.model.weights import dense_bytes
from diskmoe.engine.stats import current_rss_bytes, peak_rss_bytes
from diskmoe.experts.budget import MemoryPlan, available_memory, plan_memory, shown_bytes
from diskmoe.experts.checkpoint import ROW_BLOCK_BYTES, Checkpoint, TensorPlan
from diskmoe.experts.container import Container, is_container
from diskmoe.experts.formats import FORMATS, format_for_bits
from diskmoe.experts.reader import DirectMode
from diskmoe.experts.records import CheckpointRecords, ContainerRecords

Say = Callable[[str], None]
PAGE_CACHE_SHARE = 0.25  # of available memory: experts below it are left to the page cache
_DIRECT: Mapping[str, DirectMode] = {"auto": "auto", "1": "on", "0": "off"}


@dataclass(frozen=True)
class Options:
    """How to run a model. None means: decided from the model or the machine.

    cap: hot-store slots per layer. expert_bits, dense_bits: 4, 8, 16 or 32, for checkpoints that
    are quantised on the way in. ctx: positions of the KV cache. ram_gb: memory budget in GiB.
    """

    cap: int | None = None
    expert_bits: int | None = None
    dense_bits: int | None = None
    ctx: int = 4096
    ram_gb: float | None = None
    threads: int | None = None
    io_threads: int = 4
    direct: str = "auto"
    prefill_chunk: int = 256


@dataclass(frozen=True)
class Opened:
    """A model whose headers were read and found good; no weight is in memory yet."""

    path: Path
    source: Checkpoint | Container
    config: ModelConfig
    plan: TensorPlan
    dense_format: str | None  # None: each matrix keeps its own
    records: ContainerRecords | CheckpointRecords
    notes: tuple[str, ...]

    @property
    def kernel_formats(self) -> tuple[str, ...]:
        """The weight formats whose kernels a run needs."""
        wanted = {self.records.expert_format, "f32"}  # the router is f32 always
        wanted |= {self.dense_format} if self.dense_format else {"bf16"}
        return tuple(name for name in FORMATS if name in wanted)


def open_model(path: Path, options: Options) -> Opened:
    """Reads the headers of a model directory and decides its formats.

    Raises:
        BadModel: not a model, damaged, or of a family that is not supported.
        BadRequest: bits that no format has.
    """
    notes: list[str] = []
    if path.suffix == ".gguf" and path.is_file():
        raise BadModel(
            f"{path}: GGUF files are not read by this version; "
            "give a Hugging Face directory with safetensors, or a converted model"
        )
    if is_container(path):
        container = Container.open(path)
        config = read_config(container.config, str(path / "config.json"))
        plan = tensor_plan(config, container.has)
        verify_container(container, plan)
        notes += _overruled(container, options)
        direct, why = _direct_mode(container, options)
        records = ContainerRecords(container, direct)
        if why:
            records.io_mode = f"plain reads: {why}"
        return Opened(path, container, config, plan, container.dense_format, records, tuple(notes))
    checkpoint = Checkpoint.open(path)
    config = read_config(checkpoint.config, str(path / "config.json"))
    plan = tensor_plan(config, checkpoint.has)
    checkpoint.verify(plan)
    expert_format = format_for_bits(options.expert_bits) if options.expert_bits else None
    dense_format = format_for_bits(options.dense_bits) if options.dense_bits else None
    source = CheckpointRecords(checkpoint, plan, expert_format, options.io_threads)
    if expert_format in ("q4", "q8"):
        notes.append(
            f"experts are quantised to {expert_format} at every miss; "
            "'diskmoe convert' does it once and makes each expert one read"
        )
    if options.direct == "1":
        notes.append("DIRECT=1 has no effect on a checkpoint that is not converted")
    return Opened(path, checkpoint, config, plan, dense_format, source, tuple(notes))


def _direct_mode(container: Container, options: Options) -> tuple[DirectMode, str]:
    """Whether to read past the page cache, and why not when that was decided here.

    O_DIRECT wins where reads are large and the page cache could not hold the experts anyway; a
    small model is better served by the page cache.
    """
    if options.direct != "auto":
        return _DIRECT[options.direct], ""
    experts = len(container.layers) * container.n_experts * container.record_layout.nbytes
    available, _ = available_memory()
    if experts < available * PAGE_CACHE_SHARE:
        return "off", f"all experts, {shown_bytes(experts)}, fit in the page cache"
    return "auto", ""


def _overruled(container: Container, options: Options) -> list[str]:
    notes = []
    for name, bits, own in (
        ("EXPERT_BITS", options.expert_bits, container.expert_format),
        ("DENSE_BITS", options.dense_bits, container.dense_format),
    ):
        if bits is not None and format_for_bits(bits) != own:
            notes.append(f"{name}={bits} has no effect: the converted model is {own}")
    return notes


class _FirstCompile(Listener):
    """Says one line when Numba really compiles; loading from its cache stays silent."""

    def __init__(self, say: Say) -> None:
        self._say: Say | None = say

    def on_start(self, event: Event) -> None:
        if self._say is not None:
            say, self._say = self._say, None
            say("kernels   being compiled for this processor, once; this takes half a minute")

    def on_end(self, event: Event) -> None:
        """Nothing to say."""


def ready_kernels(opened: Opened, say: Say) -> None:
    """Compiles the kernels this model needs, or loads them from Numba's cache on disk."""
    with install_listener("numba:compile", _FirstCompile(say)):
        compile_kernels(opened.kernel_formats)
        ids = np.zeros((1, 1), np.int32)
        union_of(ids, 1).selections(ids[0])


def memory_plan(opened: Opened, options: Options) -> MemoryPlan:
    """Where memory will go. Call after ``ready_kernels``: what is resident then is the base.

    Raises:
        OutOfBudget: not even one slot per layer fits; the message has all numbers.
    """
    config = opened.config
    chunk = min(options.prefill_chunk, options.ctx)
    layout = opened.records.record_layout
    free, where = available_memory()
    return plan_memory(
        None if options.ram_gb is None else int(options.ram_gb * 2**30),
        base_bytes=peak_rss_bytes(),
        dense_bytes=dense_bytes(opened.source, config, opened.dense_format),
        kv_bytes=kv_cache_bytes(config, options.ctx),
        scratch_bytes=scratch_bytes(config, chunk, 1, options.ctx, layout),
        loader_bytes=2 * ROW_BLOCK_BYTES + opened.records.scratch_bytes,
        slot_bytes=layout.nbytes,
        n_moe_layers=len(config.moe_layers),
        n_experts=config.experts,
        wanted_cap=options.cap,
        context=options.ctx,
        # the budget is for the whole process, so what it holds already counts as available
        available=(free + current_rss_bytes(), where),
    )


def json_file(path: Path) -> dict[str, Any] | None:
    """A small JSON object beside the model, None when there is none."""
    from diskmoe.engine.text.files import read_json_object

    return read_json_object(path)


def check_options(options: Options, config: ModelConfig) -> list[str]:
    """Notes about options against the model and the machine; BadRequest for what cannot be.

    A context beyond what the model was trained for runs, but its text gets worse; a budget beyond
    what the machine has free may get the process killed. Both are said once.
    """
    if options.ctx < 2:
        raise BadRequest(f"CTX is {options.ctx}; at least 2 positions are needed")
    notes = []
    if config.context and options.ctx > config.context:
        notes.append(f"CTX={options.ctx} is beyond the {config.context} positions of the model")
    free, where = available_memory()
    free += current_rss_bytes()
    if options.ram_gb is not None and options.ram_gb * 2**30 > free:
        notes.append(
            f"RAM_GB={options.ram_gb:g} is more than the {shown_bytes(free)} {where}: "
            "the system may run out of memory"
        )
    return notes
