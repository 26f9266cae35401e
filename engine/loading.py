"""From a path to a model that is known to fit: what it is, its text side, its memory plan.

Everything that can be refused is refused here, from headers and numbers, before a weight is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from diskmoe.engine.errors import BadModel, BadRequest, OutOfBudget
from diskmoe.engine.kernels.heads import KV_KIND
from diskmoe.engine.kernels.warm import BLOCKS
from diskmoe.engine.model.config import ModelConfig, read_config
from diskmoe.engine.model.forward import PROGRAM_BYTES, scratch_bytes
from diskmoe.engine.model.kvcache import kv_cache_bytes
from diskmoe.engine.model.mtp_layer import mtp_scratch_bytes
from diskmoe.engine.model.tensors import head_tensors, tensor_plan, verify_container
from diskmoe.engine.model.weights import dense_bytes, loader_bytes, matrix_formats
from diskmoe.engine.stats import peak_rss_bytes
from diskmoe.engine.warmup import blocks_of, ready_kernels
from diskmoe.experts.ahead import AHEAD_SLOTS
from diskmoe.experts.budget import MemoryPlan, available_memory, plan_memory, shown_bytes
from diskmoe.experts.checkpoint import Checkpoint, TensorPlan
from diskmoe.experts.container import Container, is_container
from diskmoe.experts.direct import DirectMode
from diskmoe.experts.footprint import give_back, resident_bytes
from diskmoe.experts.formats import FORMATS, format_for_bits, mtp_format
from diskmoe.experts.pacer import Pacer
from diskmoe.experts.policy import AUTO, POLICIES
from diskmoe.experts.records import CheckpointRecords, ContainerRecords
from diskmoe.experts.stored import experts_of
from diskmoe.grammar_draft.spans import DEFAULT_CAP, MAX_CAP
from diskmoe.mtp.draft_model import DEFAULT_P_MIN
from diskmoe.mtp.head import WAITING_ROWS

Say = Callable[[str], None]
DEFAULT_CONTEXT = 4096
MOST_TIMES_CONTEXT = 8  # beyond the trained positions; more is a slip of the finger
OTHER_BYTES = 16 << 20  # threads, programs, ends of huge pages: 10 to 13 MB were measured
PAGE_CACHE_SHARE = 0.25  # of available memory: experts below it are left to the page cache
LEAST_CHUNK = 256  # prompt rows that go through the model at once, and where memory allows
MOST_CHUNK = 1024
RANKED_BYTES = 512 << 10  # smaller experts are not worth a policy's thinking
CHUNK_SHARE = 0.03  # of the hot store's slots, that chunks twice as long may cost
_LAYER = re.compile(r"\blayers\.(\d{1,6})\.")
_DIRECT: Mapping[str, DirectMode] = {"auto": "auto", "1": "on", "0": "off"}


@dataclass(frozen=True)
class Options:
    """How to run a model. None means: decided from the model or the machine.

    cap: hot-store slots per layer. expert_bits, dense_bits: 4, 8, 16 or 32, for checkpoints that
    are quantised on the way in. ctx: positions of the KV cache. ram_gb: memory budget in GiB.
    kv: format of the KV cache, f32, f16 or q8; all but f32 change the text. disk_bps: the bytes a
    second that reading experts is held down to. verify: compare each expert's checksum once.
    usage: folder of what is learned from runs, of which pin_gb GiB stay in memory; None: nothing is.
    draft_rows: most drafts of a forward, for which memory is planned; 0: none. span: most of
    them in a row that a grammar forces. draft: so many others in each forward; None: as many as
    pay. ngram: draft what followed where the text's end stood before; corpus: where it stands in
    the texts of this directory; draft_model: what the small model of this directory says, for as
    long as it gives it p_min; mtp: what the model's own head says, where it has one; None: and its
    memory can be had. guard: switch drafts off that are mostly wrong.

    Raises:
        BadRequest: a value that is out of its range.
    """

    cap: int | None = None
    expert_bits: int | None = None
    dense_bits: int | None = None
    ctx: int | None = None
    ram_gb: float | None = None
    threads: int | None = None
    io_threads: int = 4
    direct: str = "auto"
    prefill_chunk: int | None = None
    disk_bps: int | None = None
    verify: bool = False
    kv: str = "f32"
    prefetch: str = "0"
    policy: str = "auto"
    trace: Path | None = None
    usage: Path | None = None
    pin_gb: float | None = None
    longest_prompt: int | None = None
    draft_rows: int = DEFAULT_CAP
    span: int = DEFAULT_CAP
    draft: int | None = None
    ngram: bool = True
    corpus: Path | None = None
    draft_model: Path | None = None
    p_min: float = DEFAULT_P_MIN
    guard: bool = True
    mtp: bool | None = None

    def __post_init__(self) -> None:
        for name, least in (
            ("cap", 1),
            ("ctx", 2),
            ("threads", 1),
            ("io_threads", 1),
            ("prefill_chunk", 1),
            ("longest_prompt", 1),
            ("disk_bps", 1),
        ):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least):
                raise BadRequest(f"{name} is {value!r}; it must be a whole number from {least} on")
        for name in ("draft_rows", "span", "draft"):
            value = getattr(self, name)
            if value is None and name == "draft":
                continue
            if type(value) is not int or not 0 <= value <= MAX_CAP:
                raise BadRequest(
                    f"{name} is {value!r}; it must be a whole number from 0 to {MAX_CAP}"
                )
        for name in ("expert_bits", "dense_bits"):
            value = getattr(self, name)
            if value is not None and value not in (4, 8, 16, 32):
                raise BadRequest(f"{name} is {value!r}; it must be 4, 8, 16 or 32")
        for name in ("ram_gb", "pin_gb"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, int | float):
                raise BadRequest(f"{name} is {value!r}; it must be a number")
        for name in ("trace", "usage", "corpus", "draft_model"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Path):
                raise BadRequest(f"{name} is {value!r}; it must be a Path")
        if self.ram_gb is not None and not (0 < self.ram_gb < math.inf):
            raise BadRequest(f"ram_gb is {self.ram_gb!r}; it must be a number above 0")
        if self.pin_gb is not None and not (0 <= self.pin_gb < math.inf):
            raise BadRequest(f"pin_gb is {self.pin_gb!r}; it must be a number from 0 on")
        if not isinstance(self.p_min, int | float) or not 0 <= self.p_min <= 1:
            raise BadRequest(f"p_min is {self.p_min!r}; it must be a number from 0 to 1")
        if self.policy not in ("auto", *POLICIES):
            raise BadRequest(
                f"policy is {self.policy!r}; it must be one of auto, {', '.join(POLICIES)}"
            )
        if self.prefetch not in ("0", "1", "count"):
            raise BadRequest(f"prefetch is {self.prefetch!r}; it must be 0, 1 or count")
        if self.kv not in KV_KIND:
            raise BadRequest(f"kv is {self.kv!r}; it must be one of {', '.join(KV_KIND)}")
        if self.direct not in _DIRECT:
            raise BadRequest(f"direct is {self.direct!r}; it must be auto, 1 or 0")


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
        wanted = {self.records.expert_format, *self.dense_formats}
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
        if bits is not None and format_for_bits(bits) != own:
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
            f"experts are quantised to {expert_format} at every miss; "
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


def ready_model_kernels(models: Sequence[Opened], say: Say) -> None:
    """Compiles the kernels these models need, or loads them from disk."""
    wanted = {name for opened in models for name in opened.kernel_formats}
    # a checkpoint's weights are packed as they are read
    packing = any(isinstance(opened.source, Checkpoint) for opened in models)
    blocks = {name for opened in models for name in blocks_of(opened.config)}
    formats = [name for name in FORMATS if name in wanted]
    ready_kernels(formats, packing, say, [name for name in BLOCKS if name in blocks])


def wave_slots(options: Options, config: ModelConfig) -> int:
    """Slots beside the hot store, for a prompt's experts that pass through.

    Enough that all readers have one to fill while the one before is computed, and for a row's own.
    """
    return max(2 * options.io_threads, config.top_k) if config.moe_layers else 0


def policy_for(options: Options, record_bytes: int) -> tuple[str, str]:
    """(name of the policy, why that one). Ranking residents by more than age takes some tens of
    microseconds a layer: as long as reading an expert of a few hundred KiB (bench/LOG.md)."""
    if options.policy != "auto":
        return options.policy, "as set"
    if record_bytes < RANKED_BYTES:
        return "lru", f"experts of {shown_bytes(record_bytes)} are read as fast as they are ranked"
    return AUTO, "the most hits in recorded routings"


def ahead_slots(options: Options, config: ModelConfig) -> int:
    """Slots beside the hot store, for reads on speculation."""
    return AHEAD_SLOTS if options.prefetch == "1" and config.moe_layers else 0


def _scratch_bytes(opened: Opened, rows: int, drafts: int) -> int:
    """Working memory for prompt chunks of so many rows and forwards of so many drafts; of logits,
    those of one forward, beside the sampler's float64 copies of a row; and what is too small to be
    counted one by one."""
    config, layout = opened.config, opened.records.record_layout
    rows, logit_rows = max(rows, 1 + drafts), 12 + drafts
    formats = opened.dense_formats
    working = scratch_bytes(config, rows, logit_rows, opened.context, layout, formats, 1 + drafts)
    working += drafts * config.layers * PROGRAM_BYTES
    if opened.mtp:
        layout = opened.records.record_layout_of(config.layers)
        formats = {mtp_format(name) for name in opened.dense_formats}
        working += mtp_scratch_bytes(config, max(rows, WAITING_ROWS), layout, formats)
        working += 4 * WAITING_ROWS * config.hidden  # states that wait
    return opened.records.scratch_bytes + working + OTHER_BYTES


def _with_longer_chunks(
    plan: MemoryPlan, most_rows: int, plan_with: Callable[[int], MemoryPlan]
) -> MemoryPlan:
    """The plan with chunks doubled for as long as that takes little from the hot store.

    Each chunk of a prompt reads every expert that is not resident, so fewer chunks read less.
    """
    rows = LEAST_CHUNK
    while rows < min(MOST_CHUNK, most_rows) and plan.slots_per_layer < plan.request.n_experts:
        rows *= 2
        try:
            longer = plan_with(rows)
        except OutOfBudget:
            break
        if longer.slots_per_layer < plan.slots_per_layer * (1 - CHUNK_SHARE):
            break
        plan = longer
    return plan


def _mtp_bytes(opened: Opened, options: Options) -> int:
    """The weights and the KV cache of the MTP layer, 0 where none is to run."""
    if not opened.mtp:
        return 0
    cache = kv_cache_bytes(opened.config, opened.context, 1, options.kv)
    return cache + dense_bytes(opened.source, opened.config, opened.dense_format, head=True)


def plan_for(opened: Opened, options: Options, say: Say, helpers: int = 0) -> MemoryPlan:
    """Where memory will go. Call it when all but weights, cache and store is in memory.

    helpers: bytes of what drafts beside the model.

    What is resident then (interpreter, compiled kernels, tokenizer) is the plan's base. What is
    held for nothing is given back first.

    Raises:
        OutOfBudget: not even one slot per layer fits; the message has all numbers.
    """
    give_back()
    held = resident_bytes()
    available = available_memory()
    # the budget is for the whole process, so what it holds already counts as available
    available = replace(available, nbytes=available.nbytes + held)
    config, most_rows = opened.config, min(options.longest_prompt or opened.context, opened.context)

    def plan_with(rows: int) -> MemoryPlan:
        rows = min(rows, most_rows)
        return plan_memory(
            None if options.ram_gb is None else int(options.ram_gb * 2**30),
            base_bytes=held,
            dense_bytes=dense_bytes(opened.source, config, opened.dense_format),
            kv_bytes=kv_cache_bytes(
                config, opened.context, kv_format=options.kv, kept=1 + options.draft_rows
            ),
            scratch_bytes=_scratch_bytes(opened, rows, options.draft_rows) + helpers,
            loader_bytes=loader_bytes(opened.source, config),
            slot_bytes=opened.records.record_layout.nbytes,
            n_moe_layers=len(config.moe_layers),
            n_experts=config.experts,
            wave_slots=wave_slots(options, config) + ahead_slots(options, config),
            wanted_cap=options.cap,
            context=opened.context,
            prompt_rows=rows,
            mtp_bytes=_mtp_bytes(opened, options),
            mtp_slot_bytes=(
                opened.records.record_layout_of(config.layers).nbytes if opened.mtp else 0
            ),
            available=available,
        )

    try:
        plan = plan_with(options.prefill_chunk or LEAST_CHUNK)
    except OutOfBudget:
        if not opened.mtp:
            raise
        plan = plan_for(replace(opened, mtp=False), options, say, helpers)
        say("note      the MTP head is left out: there is no room for it in the budget")
        return plan
    if options.prefill_chunk is None:
        plan = _with_longer_chunks(plan, most_rows, plan_with)
    if peak_rss_bytes() > plan.budget_bytes:
        say(
            f"note      the start took {shown_bytes(peak_rss_bytes())}, more than the budget; kernels "
            "that were compiled are loaded from the cache next time, in less memory"
        )
    return plan
