"""``diskmoe bench roofline``: how far a model is from what memory and disk allow here, and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from diskmoe.bench.words import OF_A_RUN, Words, understood
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.places import as_path

if TYPE_CHECKING:
    from diskmoe.bench.ceilings import Compute
    from diskmoe.bench.knobs import Situation
    from diskmoe.bench.roof import Roofline
    from diskmoe.bench.trace import Recording
    from diskmoe.engine.api import Model
    from diskmoe.engine.predict import Speeds
    from diskmoe.engine.prepared import Prepared
    from diskmoe.engine.stats import RunStats

Say = Callable[[str], None]

USAGE = """\
usage: diskmoe bench roofline [MODEL] [options]     without MODEL: the demo model

Measures how fast this machine reads memory and how fast the model's misses are read, and says what
tokens per second these allow at each hit rate, for plain decoding (no drafts). Then it decodes, twice
the same, and says how much of the ceiling the second run reached, what a token's time went into,
and which one setting to change, with what that would give.

The ceiling is engine/predict.py's formula with the speed of memory in place of the kernels': a layer
reads its misses while it computes its hits, and nothing else overlaps.

  --tokens N         tokens to decode, each time (default 64)
  --json             one JSON object

Settings of a run that apply: --threads, --cap, --ram-gb, --ctx, --kv, --io-threads, --direct,
--disk-bps, --policy, --prefill-chunk, --expert-bits, --dense-bits (see diskmoe --help). Reads are
measured with the page cache emptied of the model's files.
"""
FLAGS = {"--tokens": True}
SETTINGS = (*OF_A_RUN, "MODEL", "CACHE_DIR", "POLICY")
PROMPT = "Write a letter to a friend about a long walk in the mountains."
PROMPT_TOKENS = 32  # of a model whose text means nothing
MORE_READS = 8  # at a time, to compare with
SLOTS = (1.25, 1.5, 2, 3, 4)  # times those that there are, to replay with


def command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """Runs ``bench roofline``; returns the exit code."""
    line = understood("roofline", words, env, FLAGS, SETTINGS)
    if len(line.places) > 1:
        raise BadRequest(f"bench roofline takes one MODEL, and {line.places[1]!r} is one too many")
    tokens = line.whole("--tokens", 8, 100_000, 64)
    from diskmoe.engine.opening import model_path

    path = as_path(line.places[0]) if line.places else model_path(line.values, say)
    found = _measure(line, path, tokens, say)
    if line.values["JSON"].value:
        print(json.dumps(found.as_json(), ensure_ascii=False))
    else:
        print("\n".join(found.lines()))
    return 0


def _measure(line: Words, path: Path, tokens: int, say: Say) -> Roofline:
    from diskmoe.bench.ceilings import compute_speeds, disk_speeds, found_speed
    from diskmoe.bench.knobs import knobs
    from diskmoe.bench.machine import Meter
    from diskmoe.bench.roof import Roofline
    from diskmoe.engine.api import Model
    from diskmoe.engine.cores import usable_cores
    from diskmoe.engine.model.kvcache import kv_cache_bytes
    from diskmoe.engine.opening import options_from
    from diskmoe.engine.plan import PlanReport
    from diskmoe.engine.predict import Speeds
    from diskmoe.engine.prepared import prepare
    from diskmoe.experts.budget import auto_budget, available_memory

    options = replace(options_from(line.values), draft_rows=0, mtp=False)
    prepared = prepare(path, options, say)
    try:
        ids = _prompt_ids(prepared, tokens)
        prepared = prepared.for_run(len(ids), tokens)
        prepared.plan(say)  # compiles what is measured next
        cores = usable_cores()[0]
        threads = options.threads or cores
        compute = compute_speeds(prepared, threads)
        on_cores = compute_speeds(prepared, cores) if threads != cores else None
        counts = sorted({options.io_threads, MORE_READS})
        readings = () if options.disk_bps else disk_speeds(prepared, counts)
        most_bytes = auto_budget(available_memory())[0]
    except BaseException:
        prepared.close()
        raise
    with Model.finish(prepared, say) as model:
        recorder = _Recorder()
        say(f"run       {tokens} tokens to fill the hot store, then {tokens} that count")
        recorder.attach(model)
        _run(model, ids, tokens)
        filled = recorder.recording(model)
        meter = Meter()
        stats = _run(model, ids, tokens)
        others_cpu = meter.others_share()
        read, how, cached = found_speed(prepared)
        if read is not None and options.disk_bps and options.disk_bps < read:
            read, how = float(options.disk_bps), f"DISK_BPS; unpaced {read / 1e9:.2f} GB/s: {how}"
        work = PlanReport(prepared, model.memory, Speeds(0, 0, read, how)).work
        positions = len(ids) + tokens // 2
        kv_bytes = kv_cache_bytes(model.config, positions, kv_format=options.kv, kept=1)
        roof = Roofline(
            model=model.describe(),
            context=positions,
            threads=threads,
            compute=compute,
            read=read,
            read_how=how,
            readings=readings,
            work=work,
            kv_bytes=kv_bytes,
            stats=stats,
            others_cpu=others_cpu,
            slots=model.memory.slots_per_layer,
            experts=model.config.experts,
            knobs=(),
        )
        now = _situation(model, roof, filled, recorder.recording(model))
        now = replace(
            now,
            most_bytes=most_bytes,
            cores=cores,
            speeds_on_cores=None if on_cores is None else _speeds(on_cores, roof),
            readings=() if cached else readings,
        )
        return replace(roof, knobs=knobs(now))


def _prompt_ids(prepared: Prepared, tokens: int) -> list[int]:
    """A prompt to go on from. BadRequest where the context is too short for it and the tokens."""
    from diskmoe.bench.decode import token_ids
    from diskmoe.bench.model import MARK

    config, raw = prepared.opened.config, prepared.opened.source.config
    if prepared.text.tokenizer is None or MARK in raw:
        ids = token_ids(raw, config.vocab, 0, PROMPT_TOKENS)
    else:
        ids = list(prepared.text.encode_prompt(PROMPT).ids)
    needed = len(ids) + tokens
    if needed > prepared.opened.context:
        raise BadRequest(
            f"--tokens {tokens} after a prompt of {len(ids)} need CTX={needed}, and CTX is "
            f"{prepared.opened.context}"
        )
    return ids


class _Recorder:
    """What every layer's rows choose, forward by forward."""

    def __init__(self) -> None:
        self._layers: dict[int, list[tuple[int, list[tuple[int, ...]]]]] = {}

    def attach(self, model: Model) -> None:
        """Listen to a model from now on."""
        model.transformer.record_with(self._record)

    def _record(self, layer: int, ids: np.ndarray, phase: int) -> None:
        rows = [tuple(row) for row in ids.tolist()]
        self._layers.setdefault(layer, []).append((phase, rows))

    def recording(self, model: Model) -> Recording:
        """What was recorded so far."""
        from diskmoe.bench.trace import Forward, Recording

        return Recording(
            model.opened.path,
            model.config.top_k,
            {
                layer: [Forward(phase, rows) for phase, rows in forwards]
                for layer, forwards in sorted(self._layers.items())
            },
            by_forward=True,
        )


def _run(model: Model, ids: Sequence[int], tokens: int) -> RunStats:
    """Decodes after a prompt: text, or, where a model's text means nothing, ids in order."""
    from diskmoe.bench.decode import measure
    from diskmoe.bench.model import MARK

    if MARK in model.opened.source.config:
        return measure(model, len(ids) - 1, tokens)[0]
    run = model.generate(list(ids), limit=tokens, ignore_eos=True, reuse=False)
    for _ in run:
        pass
    return run.stats


def _situation(model: Model, roof: Roofline, filled: Recording, recording: Recording) -> Situation:
    """The run as it was, with what a replay of its routing says."""
    from diskmoe.bench.ceilings import is_direct
    from diskmoe.bench.knobs import ROWS, Situation
    from diskmoe.bench.replay import union_of
    from diskmoe.engine.memory import policy_for

    memory, options, work = model.memory, model.options, roof.work
    slots, experts = roof.slots, roof.experts
    replayed, unique, fewer = {slots: 1.0}, 0.0, 1.0
    if work.moe_layers:
        policy = policy_for(options, work.expert_bytes)[0]
        counts = {min(experts, round(slots * times)) for times in (1, *SLOTS)} | {experts}
        replayed = {n: _replayed(filled, recording, n, policy) for n in sorted(counts)}
        several = union_of(recording, ROWS, [slots], policy)
        alone = union_of(recording, 1, [slots], policy).misses_per_row[slots]
        unique = several.unique
        fewer = several.misses_per_row[slots] / alone if alone else 1.0
    own = (is_direct(model.opened), options.io_threads)
    return Situation(
        work=replace(work, dense_bytes=work.dense_bytes + roof.kv_bytes),
        speeds=_speeds(roof.compute, roof),
        tok_per_s=roof.tok_per_s,
        wait_seconds=roof.stats.decode.read_wait_seconds / roof.stats.tokens,
        hit_rate=roof.hit_rate,
        slots=slots,
        replayed=replayed,
        budget_bytes=memory.budget_bytes,
        fixed_bytes=memory.request.fixed_bytes,
        set_bytes=memory.request.set_bytes,
        threads=roof.threads,
        reading=next((r for r in roof.readings if (r.direct, r.threads) == own), None),
        smaller=_smaller(model),
        unique=unique,
        fewer_misses=fewer,
    )


def _speeds(compute: Compute, roof: Roofline) -> Speeds:
    from diskmoe.engine.predict import Speeds

    return Speeds(compute.dense, compute.expert, roof.read, roof.read_how)


def _replayed(filled: Recording, recording: Recording, n_slots: int, policy: str) -> float:
    """Hit rate of what was recorded behind `filled`, with so many slots that it had filled."""
    from diskmoe.bench.replay import replay
    from diskmoe.experts.policy import POLICIES
    from diskmoe.experts.trace import DECODE

    before, after = (
        replay(part, n_slots, POLICIES[policy])[DECODE] for part in (filled, recording)
    )
    hits, misses = after.hits - before.hits, after.misses - before.misses
    return hits / max(1, hits + misses)


def _smaller(model: Model) -> tuple[str, int] | None:
    """(format, bytes of a record) of experts in 4 bits, where they have more."""
    from diskmoe.experts.formats import FORMATS, expert_formats
    from diskmoe.experts.tiles import record_layout

    plan = model.opened.plan
    bits = [FORMATS[fmt].weight_bits for fmt in expert_formats(model.opened.records.expert_format)]
    if not model.config.moe_layers or max(bits) <= 4:
        return None
    return "q4", record_layout("q4", plan.hidden, plan.ffn, plan.biased).nbytes
