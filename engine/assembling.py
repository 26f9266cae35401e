"""A prepared model put together: threads, weights, hot store, caches, lanes.

The rule of this file: what was begun is ended when the rest cannot be had.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from diskmoe.engine.cores import usable_cores
from diskmoe.engine.draft_head import load_head
from diskmoe.engine.kernels.workers import Workers
from diskmoe.engine.lanes import Lanes
from diskmoe.engine.learning import history_of, pin, tell_accepted
from diskmoe.engine.loading import Opened
from diskmoe.engine.memory import ahead_slots, policy_for, wave_slots
from diskmoe.engine.model.forward import Transformer
from diskmoe.engine.model.kvcache import KvCache
from diskmoe.engine.model.mtp_layer import MtpLayer
from diskmoe.engine.model.weights import load_dense
from diskmoe.engine.prepared import Prepared, Say
from diskmoe.experts.budget import MemoryPlan, shown_bytes
from diskmoe.experts.pagecache import cached_share
from diskmoe.experts.policy import POLICIES
from diskmoe.experts.store import ExpertStore
from diskmoe.experts.trace import TraceRecorder
from diskmoe.experts.usage import UsageHistory
from diskmoe.experts.watch import MemoryWatch


@dataclass(frozen=True)
class Parts:
    """What a loaded model is made of.

    cached_share: of the expert files in the page cache, before a weight was read; None: not known.
    """

    memory: MemoryPlan
    transformer: Transformer
    store: ExpertStore
    lanes: Lanes
    workers: Workers
    cached_share: float | None
    history: UsageHistory | None
    trace: TraceRecorder | None


def assemble(prepared: Prepared, say: Say) -> Parts:
    """Plans the memory, then loads. Closes `prepared` when it cannot.

    Raises:
        OutOfBudget, BadModel: one line each.
    """
    opened, options = prepared.opened, prepared.options
    workers: Workers | None = None
    store: ExpertStore | None = None
    heads: list[MtpLayer] = []
    try:
        # first, as it may be refused
        trace = None if options.trace is None else TraceRecorder(options.trace, say)
        memory = prepared.plan(say)
        for line in memory.lines():
            say(f"memory    {line.removeprefix('memory ')}")
        policy, why = policy_for(options, opened.records.record_layout.nbytes)
        if options.policy != "auto" and memory.slots_per_layer >= opened.config.experts:
            say(f"note      POLICY={options.policy} has no effect: all experts fit")
        threads, reason = usable_cores()
        if options.threads is not None:
            if options.threads > threads:
                say(
                    f"note      THREADS={options.threads} where {threads} can be had ({reason}): "
                    "threads that share a core wait for each other"
                )
            threads, reason = options.threads, "as set"
        workers = Workers(threads)
        share = cached_share(opened.records.files)
        weights = load_dense(opened.source, opened.config, opened.dense_format)
        store = ExpertStore(
            opened.records,
            memory.slots_of(opened.config.moe_layers),
            opened.config.moe_layers,
            opened.config.experts,
            options.io_threads,
            POLICIES[policy],
            wave_slots(options, opened.config),
            ahead_slots(options, opened.config),
        )
        history = history_of(opened, options, say)
        pin(store, history, options, say)
        caches = [
            KvCache(
                opened.config,
                opened.context,
                kv_format=options.kv,
                kept=1 + options.draft_rows,
            )
            for _ in range(options.parallel)
        ]
        transformer = Transformer(
            opened.config,
            weights,
            store,
            caches[0],
            workers,
            look_ahead=options.prefetch != "0",
            prefetch=options.prefetch == "1",
        )
        prepared.helpers.load(workers, opened.context, options)
        heads = load_head(opened, options, memory, transformer, workers)
        lanes = Lanes(
            transformer,
            caches,
            heads or [None] * options.parallel,
            MemoryWatch(memory.budget_bytes, store.shrink, say).look,
            partial(tell_accepted, trace, history),
        )
    except BaseException:
        if workers is not None:
            workers.close()
        if heads:
            heads[0].close()
        if store is not None:
            store.close()
        prepared.close()
        raise
    say(f"model     {described(opened)}")
    say(f"threads   {threads} compute ({reason}), {options.io_threads} reading")
    say(f"disk      {opened.io_mode}")
    if memory.slots_per_layer < opened.config.experts:
        say(f"policy    {policy}: {why}")
    for line in prepared.helpers.describe(opened.context, options):
        say(line)
    say(f"stops     {prepared.text.describe_stops()}")
    return Parts(memory, transformer, store, lanes, workers, share, history, trace)


def described(opened: Opened) -> str:
    """What a model is, in a line."""
    config, records = opened.config, opened.records
    head = f"{opened.name}: {config.family}, {config.layers} layers"
    if not config.moe_layers:
        return f"{head}, no experts"
    return (
        f"{head}, {config.experts} experts, top-{config.top_k}; experts "
        f"{records.expert_format}, {shown_bytes(records.record_layout.nbytes)} each"
    )
