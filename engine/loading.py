"""From a path to a model whose headers are known: what it is, its formats, how it is read.

What its files can be refused for is refused here, before a weight is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from diskmoe.engine.errors import BadModel, BadRequest
from diskmoe.engine.kernels.warm import BLOCKS
from diskmoe.engine.model.config import ModelConfig, read_config
from diskmoe.engine.model.tensors import head_tensors, tensor_plan, verify_container
from diskmoe.engine.model.weights import matrix_formats
from diskmoe.engine.options import Options
from diskmoe.engine.warmup import GRAMMARS, blocks_of, ready_kernels
from diskmoe.experts.budget import available_memory, shown_bytes
from diskmoe.experts.checkpoint import Checkpoint, TensorPlan
from diskmoe.experts.container import Container, is_container
from diskmoe.experts.direct import DirectMode
from diskmoe.experts.formats import FORMATS, expert_formats, format_for_bits, mtp_format
from diskmoe.experts.pacer import Pacer
from diskmoe.experts.records import CheckpointRecords, ContainerRecords
from diskmoe.experts.stored import experts_of

Say = Callable[[str], None]
DEFAULT_CONTEXT = 4096
MOST_TIMES_CONTEXT = 8  # beyond the trained positions; more is a slip of the finger
PAGE_CACHE_SHARE = 0.25  # of available memory: experts below it are left to the page cache
_LAYER = re.compile(r"\blayers\.(\d{1,6})\.")
_DIRECT: Mapping[str, DirectMode] = {"auto": "auto", "1": "on", "0": "off"}


@dataclass(frozen=True)
class Opened:
    """A model whose headers were read and found good; no weight is in memory yet."""

    path: Path
    source: Checkpoint | Container
    config: ModelConfig
    plan: TensorPlan
    dense_format: str | None  # None: each matrix keeps its own
    records: ContainerRecords | CheckpointRecords
    context: int  # positions of the KV cache
    notes: tuple[str, ...]
    mtp: bool = False  # whether its MTP head is to draft

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def io_mode(self) -> str:
        """How experts are read, and why so."""
        return self.records.io_mode

    @cached_property
    def dense_formats(self) -> tuple[str, ...]:
        """The formats of dense weights, that of most bytes last; the router is f32 always."""
        found = matrix_formats(self.source, self.config, self.dense_format)
        return ("f32", *(fmt for fmt in found if fmt != "f32"))

    @property
    def kernel_formats(self) -> tuple[str, ...]:
        """The weight formats whose kernels a run needs."""
        wanted = {*expert_formats(self.records.expert_format), *self.dense_formats}
        if self.mtp:
            wanted |= {mtp_format(name) for name in wanted}
        return tuple(name for name in FORMATS if name in wanted)


def open_model(path: Path, options: Options) -> Opened:
    """Reads the headers of a model directory and decides its formats.

    Raises:
        BadModel: not a model, damaged, or of a family that is not supported.
    """
    if is_container(path):
        return _open_container(path, options)
    return _open_checkpoint(path, options)


def _open_container(path: Path, options: Options) -> Opened:
    container = Container.open(path)
    config = read_config(container.config, str(path / "config.json"))
    plan = tensor_plan(config, container.has)
    verify_container(container, plan)
    each = container.record_layout.nbytes
    direct, why = _direct_mode(len(container.layers) * container.n_experts * each, options)
    records = ContainerRecords(container, direct, options.verify, _pacer(options), why)
    context, notes = _context(config, options)
    for name, bits, own in (
        ("EXPERT_BITS", options.expert_bits, container.expert_format),
        ("DENSE_BITS", options.dense_bits, container.dense_format),
    ):
        held = {FORMATS[fmt].weight_bits for fmt in expert_formats(own)}
        if bits is not None and held != {bits}:
            notes.append(f"{name}={bits} has no effect: the converted model is {own}")
    mtp = _wants_head(container, config, options, notes)
    return Opened(
        path,
        container,
        config,
        plan,
        container.dense_format,
        records,
        context,
        tuple(notes),
        mtp,
    )


def _open_checkpoint(path: Path, options: Options) -> Opened:
    checkpoint = Checkpoint.open(path)
    config = read_config(checkpoint.config, str(path / "config.json"))
    plan = tensor_plan(config, checkpoint.has)
    checkpoint.verify(plan)
    _refuse_surplus_layers(checkpoint, config)
    context, notes = _context(config, options)
    expert_format = format_for_bits(options.expert_bits) if options.expert_bits else None
    dense_format = format_for_bits(options.dense_bits) if options.dense_bits else None
    stored = [experts_of(checkpoint, plan, layer) for layer in plan.experts]
    each = sum(piece.nbytes for layer in stored for piece in layer.pieces(0))
    direct, why = _direct_mode(plan.n_experts * each, options)
    records = CheckpointRecords(
        checkpoint, plan, expert_format, options.io_threads, direct, _pacer(options), why
    )
    if expert_format is not None and FORMATS[expert_format].quantised:
        notes.append(
            f"experts are put into {records.expert_format} at every miss; "
            "'diskmoe convert' does it once and makes each expert one read"
        )
    if options.verify:
        notes.append("VERIFY has no effect on a checkpoint that is not converted: no checksums")
    mtp = _wants_head(checkpoint, config, options, notes)
    return Opened(
        path,
        checkpoint,
        config,
        plan,
        dense_format,
        records,
        context,
        tuple(notes),
        mtp,
    )


def _wants_head(
    source: Checkpoint | Container, config: ModelConfig, options: Options, notes: list[str]
) -> bool:
    """Whether the model's MTP head is to draft; a note where it was asked for and is not there."""
    if options.mtp is False or not options.draft_rows or options.draft == 0:
        return False
    found = bool(head_tensors(config, source.has))
    if options.mtp and not found:
        notes.append("MTP=1 has no effect: the model has no MTP head")
    return found


def _refuse_surplus_layers(checkpoint: Checkpoint, config: ModelConfig) -> None:
    """Weights of layers that config.json does not know: it is another model's, or was cut."""
    known = config.layers + config.mtp_layers
    for name in checkpoint.names:
        found = _LAYER.search(name)
        if found and int(found[1]) >= known:
            raise BadModel(
                f"{checkpoint.path}: tensor {name} is of layer {found[1]}, config.json has "
                f"{config.layers} layers: one of the two is of another model"
            )


def _context(config: ModelConfig, options: Options) -> tuple[int, list[str]]:
    """Positions of the KV cache, with a note where they are more than the model was trained for."""
    if options.ctx is None:
        return max(2, min(DEFAULT_CONTEXT, config.context or DEFAULT_CONTEXT)), []
    if config.context and options.ctx > MOST_TIMES_CONTEXT * config.context:
        raise BadRequest(
            f"CTX={options.ctx} is over {MOST_TIMES_CONTEXT} times the {config.context} positions of "
            "the model: its text would be noise; set a smaller CTX"
        )
    if config.context and options.ctx > config.context:
        note = f"CTX={options.ctx} is beyond the {config.context} positions of the model"
        return options.ctx, [note]
    return options.ctx, []


def _pacer(options: Options) -> Pacer | None:
    return Pacer(options.disk_bps) if options.disk_bps else None


def _direct_mode(experts: int, options: Options) -> tuple[DirectMode, str]:
    """Whether to read `experts` bytes past the page cache, and why not when it was decided here.

    O_DIRECT wins where reads are large and the page cache could not hold the experts anyway; a
    small model is better served by the page cache (bench/LOG.md).
    """
    if options.direct != "auto":
        return _DIRECT[options.direct], ""
    if experts < available_memory().nbytes * PAGE_CACHE_SHARE:
        return "off", f"all experts, {shown_bytes(experts)}, fit in the page cache"
    return "auto", ""


def ready_model_kernels(models: Sequence[Opened], say: Say, constrains: bool) -> None:
    """Compiles the kernels these models need, or loads them from disk. constrains: also what grammars
    need that texts must follow."""
    wanted = {name for opened in models for name in opened.kernel_formats}
    # a checkpoint's weights are packed as they are read
    packing = any(isinstance(opened.source, Checkpoint) for opened in models)
    blocks = {name for opened in models for name in blocks_of(opened.config)}
    formats = [name for name in FORMATS if name in wanted]
    needed = [name for name in BLOCKS if name in blocks] + [GRAMMARS] * constrains
    ready_kernels(formats, packing, say, needed)
