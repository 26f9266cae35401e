"""Where a model's memory will go, and what follows from it: chunks of a prompt, slots, the policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from diskmoe.engine.errors import OutOfBudget
from diskmoe.engine.loading import Opened
from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.forward import scratch_bytes
from diskmoe.engine.model.kvcache import kv_cache_bytes
from diskmoe.engine.model.mtp_layer import mtp_scratch_bytes
from diskmoe.engine.model.programs import KEPT, PROGRAM_BYTES
from diskmoe.engine.model.together import decode_scratch_bytes
from diskmoe.engine.model.weights import dense_bytes, loader_bytes
from diskmoe.engine.options import Options
from diskmoe.engine.stats import peak_rss_bytes
from diskmoe.experts.ahead import AHEAD_SLOTS
from diskmoe.experts.budget import MemoryPlan, available_memory, plan_memory, shown_bytes
from diskmoe.experts.footprint import give_back, resident_bytes
from diskmoe.experts.formats import mtp_format
from diskmoe.experts.policy import AUTO
from diskmoe.mtp.head import WAITING_ROWS

Say = Callable[[str], None]
OTHER_BYTES = 16 << 20  # threads, programs, ends of huge pages: 10 to 13 MB were measured
# of requests with grammars: tables and states that are kept, and what compiling one takes beside
# them; 45 MB were measured behind forty hostile ones
GRAMMAR_BYTES = 48 << 20
LEAST_CHUNK = 256  # prompt rows that go through the model at once, and where memory allows
MOST_CHUNK = 1024
RANKED_BYTES = 512 << 10  # smaller experts are not worth a policy's thinking
CHUNK_SHARE = 0.03  # of the hot store's slots, that chunks twice as long may cost


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


def _scratch_bytes(opened: Opened, rows: int, drafts: int, texts: int) -> int:
    """Working memory for prompt chunks of so many rows and forwards of so many texts with so many
    drafts each; of logits,
    those of one forward, beside the sampler's float64 copies of a row; and what is too small to be
    counted one by one."""
    config, layout = opened.config, opened.records.record_layout
    together = texts * (1 + drafts)
    rows, logit_rows = max(rows, together), 11 + together
    formats = opened.dense_formats
    working = scratch_bytes(config, rows, logit_rows, opened.context, layout, formats, 1 + drafts)
    # texts that share forwards have rows at many places of them
    working += (drafts if texts == 1 else KEPT) * config.layers * PROGRAM_BYTES
    working += decode_scratch_bytes(config, together)
    if opened.mtp:
        layout = opened.records.record_layout_of(config.layers)
        formats = {mtp_format(name) for name in opened.dense_formats}
        working += mtp_scratch_bytes(config, max(rows, WAITING_ROWS), layout, formats)
        # of each text: states that wait for the head, and those of its latest forward
        waiting = WAITING_ROWS + (rows if texts > 1 else 0)
        working += 4 * texts * waiting * config.hidden
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
    return options.parallel * cache + dense_bytes(
        opened.source, opened.config, opened.dense_format, head=True
    )


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
            kv_bytes=options.parallel
            * kv_cache_bytes(
                config, opened.context, kv_format=options.kv, kept=1 + options.draft_rows
            ),
            scratch_bytes=_scratch_bytes(opened, rows, options.draft_rows, options.parallel)
            + helpers,
            loader_bytes=loader_bytes(opened.source, config),
            slot_bytes=opened.records.record_layout.nbytes,
            n_moe_layers=len(config.moe_layers),
            n_experts=config.experts,
            wave_slots=wave_slots(options, config) + ahead_slots(options, config),
            wanted_cap=options.cap,
            context=opened.context,
            prompt_rows=rows,
            mtp_bytes=_mtp_bytes(opened, options),
            grammar_bytes=GRAMMAR_BYTES if options.parallel > 1 else 0,  # a server's
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
