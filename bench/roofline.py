"""``diskmoe bench roofline``: how far a model is from what memory and disk allow here, and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diskmoe.bench.words import Words, understood
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.places import as_path

if TYPE_CHECKING:
    from diskmoe.bench.ceilings import Compute
    from diskmoe.bench.knobs import Knob, Reading
    from diskmoe.bench.trace import Recording
    from diskmoe.engine.api import Model
    from diskmoe.engine.predict import Speeds, TokenWork
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
SETTINGS = (
    "MODEL",
    "CACHE_DIR",
    "THREADS",
    "CAP",
    "RAM_GB",
    "CTX",
    "KV",
    "IO_THREADS",
    "DIRECT",
    "DISK_BPS",
    "POLICY",
    "PREFILL_CHUNK",
    "EXPERT_BITS",
    "DENSE_BITS",
    "JSON",
    "DEBUG",
    "VERBOSE",
)
HIT_RATES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
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
    from diskmoe.engine.run import model_path

    path = as_path(line.places[0]) if line.places else model_path(line.values, say)
    found = _measure(line, path, tokens, say)
    if line.values["JSON"].value:
        print(json.dumps(found.as_json(), ensure_ascii=False))
    else:
        print("\n".join(found.lines()))
    return 0


@dataclass(frozen=True)
class Roofline:
    """What was measured of a model, and what follows from it."""

    model: str
    context: int  # positions that attention reads, in the middle of the run
    threads: int
    compute: Compute
    read: float | None  # bytes per second that misses are read with
    read_how: str
    readings: Sequence[Reading]  # cold, in other ways
    work: TokenWork  # dense weights without the KV cache
    kv_bytes: int
    stats: RunStats
    slots: int
    experts: int
    knobs: Sequence[Knob]

    @property
    def hit_rate(self) -> float:
        """That of the run; 1 where there are no experts to miss."""
        rate = self.stats.decode.hit_rate
        return 1.0 if rate is None else rate

    @property
    def tok_per_s(self) -> float:
        return self.stats.tok_per_s or 0.0

    @property
    def achieved(self) -> float | None:
        """The run's speed, of the ceiling at its hit rate."""
        ceiling = self.ceiling(self.hit_rate)
        return None if ceiling is None else self.tok_per_s / ceiling

    def ceiling(self, hit_rate: float) -> float | None:
        """Tokens per second that memory and disk allow."""
        seconds = self._seconds(hit_rate)
        return None if seconds is None else 1 / seconds

    def limit(self, hit_rate: float) -> str:
        """What the ceiling at a hit rate is made of, for the most part."""
        whole, without = self._seconds(hit_rate), self._seconds(1.0)
        if whole is None or without is None:
            return "disk, not measured"
        return "disk" if whole - without > without else "memory"

    def _seconds(self, hit_rate: float) -> float | None:
        from diskmoe.engine.predict import Speeds, token_seconds

        memory = self.compute.memory
        work = replace(self.work, dense_bytes=self.work.dense_bytes + self.kv_bytes)
        return token_seconds(work, Speeds(memory, memory, self.read, self.read_how), hit_rate)

    @property
    def bytes_per_token(self) -> dict[str, int]:
        """By part; from disk as in the run, and when nothing is resident."""
        work = self.work
        used = work.moe_layers * work.top_k
        return {
            "dense": work.dense_bytes,
            "kv_cache": self.kv_bytes,
            "experts_from_ram": used * work.expert_bytes,
            "experts_from_disk": round(self.stats.bytes_per_token or 0),
            "experts_from_disk_cold": used * work.read_bytes,
        }

    @property
    def rates(self) -> list[float]:
        """The table's hit rates: round ones, and that of the run."""
        if not self.work.moe_layers:
            return [1.0]
        return sorted({*HIT_RATES, round(self.hit_rate, 4)})

    @property
    def shares(self) -> dict[str, float]:
        """What the time of decoding went into."""
        decode = self.stats.decode
        wait, compute = decode.read_wait_seconds, decode.compute_seconds
        whole = max(decode.seconds, wait + compute)
        return {
            "read_wait": wait / whole,
            "compute": compute / whole,
            "other": (whole - wait - compute) / whole,
        }

    @property
    def knob(self) -> Knob | None:
        """The one to turn; None where there is none that the machine allows whatever the text."""
        return next((knob for knob in self.knobs if knob.within and knob.certain), None)

    def verdict(self) -> str:
        """The one knob, or why there is none."""
        if self.knob is not None:
            return f"turn {self.knob.line()} (now {self.tok_per_s:.3g})"
        achieved = "" if self.achieved is None else f", {100 * self.achieved:.0f} % of the ceiling"
        begin = f"no setting is worth 5 %{achieved}"
        if self.knobs:
            return f"{begin}; beyond that, {self.knobs[0].line()}"
        return begin + "; what is left is " + _largest(self.shares)

    def lines(self) -> list[str]:
        from diskmoe.experts.budget import shown_bytes

        compute, parts = self.compute, self.bytes_per_token
        disk = "not measured" if self.read is None else f"{self.read / 1e9:.2f} GB/s"
        cold = ", ".join(
            f"{r.speed / 1e9:.2f} GB/s {_way(r.direct)} with {r.threads}" for r in self.readings
        )
        lines = [
            f"model     {self.model}",
            (
                f"memory    read with {compute.memory / 1e9:.1f} GB/s by {compute.threads} threads; "
                f"dense weights go through kernels with {compute.dense / 1e9:.1f} "
                f"({100 * compute.dense / compute.memory:.0f} %), experts with "
                f"{compute.expert / 1e9:.1f} ({100 * compute.expert / compute.memory:.0f} %)"
            ),
            f"misses    {disk}: {self.read_how}",
        ]
        if cold:
            lines.append(f"disk      cold: {cold} reads at a time")
        lines += [
            (
                f"a token   dense weights {shown_bytes(parts['dense'])}, KV cache "
                f"{shown_bytes(parts['kv_cache'])} at {self.context} positions, experts "
                f"{shown_bytes(parts['experts_from_ram'])}; of these from disk "
                f"{shown_bytes(parts['experts_from_disk'])} in the run, "
                f"{shown_bytes(parts['experts_from_disk_cold'])} when none is resident"
            ),
            "hit rate   ceiling tok/s   limited by",
        ]
        for rate in self.rates:
            speed = self.ceiling(rate)
            told = "" if rate != round(self.hit_rate, 4) else "   <- the run's hit rate"
            shown = "-" if speed is None else f"{speed:.2f}"
            lines.append(f"{100 * rate:>6.1f} %   {shown:>13}   {self.limit(rate)}{told}")
        achieved = "" if self.achieved is None else f", {100 * self.achieved:.0f} % of the ceiling"
        shares = ", ".join(f"{k.replace('_', ' ')} {100 * v:.0f} %" for k, v in self.shares.items())
        lines += [
            (
                f"measured  {self.stats.tokens} tokens, {self.tok_per_s:.2f} tok/s, hit rate "
                f"{100 * self.hit_rate:.1f} % with {self.slots} of {self.experts} slots{achieved}; {shares}"
            ),
            f"knob      {self.verdict()}",
        ]
        others = [knob for knob in self.knobs if knob is not self.knob]
        return lines + [f"also      {knob.line()}" for knob in others]

    def as_json(self) -> dict[str, Any]:
        """The keys are told in the README."""
        return {
            "model": self.model,
            "threads": self.threads,
            "memory_bytes_per_second": self.compute.memory,
            "dense_bytes_per_second": self.compute.dense,
            "expert_bytes_per_second": self.compute.expert,
            "read_bytes_per_second": self.read,
            "read_how": self.read_how,
            "disk": [asdict(reading) for reading in self.readings],
            "context": self.context,
            "bytes_per_token": self.bytes_per_token,
            "ceiling": [
                {"hit_rate": rate, "tok_per_s": self.ceiling(rate), "limit": self.limit(rate)}
                for rate in self.rates
            ],
            "tokens": self.stats.tokens,
            "tok_per_s": self.tok_per_s,
            "hit_rate": self.stats.decode.hit_rate,
            "slots_per_layer": self.slots,
            "experts": self.experts,
            "achieved": self.achieved,
            "time": self.shares,
            "knob": None if self.knob is None else asdict(self.knob),
            "verdict": self.verdict(),
            "knobs": [asdict(knob) for knob in self.knobs],
        }


def _way(direct: bool) -> str:
    return "past the page cache" if direct else "through it"


def _largest(shares: Mapping[str, float]) -> str:
    name = max(shares, key=lambda share: shares[share])
    return f"{name.replace('_', ' ')}, {100 * shares[name]:.0f} % of the time"


def _measure(line: Words, path: Path, tokens: int, say: Say) -> Roofline:
    from diskmoe.bench.ceilings import compute_speeds, disk_speeds, found_speed
    from diskmoe.engine.api import Model
    from diskmoe.engine.cores import usable_cores
    from diskmoe.engine.prepared import prepare
    from diskmoe.engine.run import options_from
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
        stats = _run(model, ids, tokens)
        read, how, cached = found_speed(prepared)
        if read is not None and options.disk_bps and options.disk_bps < read:
            read, how = float(options.disk_bps), f"DISK_BPS; unpaced {read / 1e9:.2f} GB/s: {how}"
        recording = recorder.recording(model)
        work, kv_bytes = _work(model, len(ids) + tokens // 2)
        return Roofline(
            model=model.describe(),
            context=len(ids) + tokens // 2,
            threads=threads,
            compute=compute,
            read=read,
            read_how=how,
            readings=readings,
            work=work,
            kv_bytes=kv_bytes,
            stats=stats,
            slots=model.memory.slots_per_layer,
            experts=model.config.experts,
            knobs=_knobs(
                model, stats, work, kv_bytes, compute, on_cores, cores,
                read, how, () if cached else readings, most_bytes, filled, recording,
            ),
        )  # fmt: skip


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


def _work(model: Model, positions: int) -> tuple[TokenWork, int]:
    """(weights that a token asks for, bytes of the KV cache that its attention reads)."""
    from diskmoe.engine.model.kvcache import kv_cache_bytes
    from diskmoe.engine.predict import TokenWork

    config, records = model.config, model.opened.records
    layers = config.moe_layers
    work = TokenWork(
        dense_bytes=model.memory.request.dense_bytes,
        expert_bytes=records.record_layout.nbytes if layers else 0,
        read_bytes=records.disk_bytes(layers[0], 0) if layers else 0,
        top_k=config.top_k if layers else 0,
        moe_layers=len(layers),
    )
    return work, kv_cache_bytes(config, positions, kv_format=model.options.kv, kept=1)


def _knobs(
    model: Model,
    stats: RunStats,
    work: TokenWork,
    kv_bytes: int,
    compute: Compute,
    on_cores: Compute | None,
    cores: int,
    read: float | None,
    how: str,
    readings: Sequence[Reading],
    most_bytes: int,
    filled: Recording,
    recording: Recording,
) -> list[Knob]:
    from diskmoe.bench.ceilings import is_direct
    from diskmoe.bench.knobs import ROWS, Situation, knobs
    from diskmoe.bench.replay import union_of
    from diskmoe.engine.memory import policy_for
    from diskmoe.engine.predict import Speeds

    memory, options = model.memory, model.options
    slots, experts = memory.slots_per_layer, model.config.experts
    replayed, unique, fewer = {slots: 1.0}, 0.0, 1.0
    if work.moe_layers:
        policy = policy_for(options, work.expert_bytes)[0]
        counts = {min(experts, round(slots * times)) for times in (1, *SLOTS)} | {experts}
        replayed = {n: _replayed(filled, recording, n, policy) for n in sorted(counts)}
        several = union_of(recording, ROWS, [slots], policy)
        alone = union_of(recording, 1, [slots], policy).misses_per_row[slots]
        unique = several.unique
        fewer = several.misses_per_row[slots] / alone if alone else 1.0
    own = [
        reading
        for reading in readings
        if reading.direct == is_direct(model.opened) and reading.threads == options.io_threads
    ]

    def speeds(found: Compute) -> Speeds:
        return Speeds(found.dense, found.expert, read, how)

    return knobs(
        Situation(
            work=replace(work, dense_bytes=work.dense_bytes + kv_bytes),
            speeds=speeds(compute),
            tok_per_s=stats.tok_per_s or 0.0,
            wait_seconds=stats.decode.read_wait_seconds / stats.tokens,
            hit_rate=1.0 if stats.decode.hit_rate is None else stats.decode.hit_rate,
            slots=slots,
            replayed=replayed,
            budget_bytes=memory.budget_bytes,
            fixed_bytes=memory.request.fixed_bytes,
            set_bytes=memory.request.set_bytes,
            most_bytes=most_bytes,
            threads=compute.threads,
            cores=cores,
            speeds_on_cores=None if on_cores is None else speeds(on_cores),
            readings=tuple(readings),
            reading=own[0] if own else None,
            smaller=_smaller(model),
            unique=unique,
            fewer_misses=fewer,
        )
    )


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
    from diskmoe.experts.formats import FORMATS
    from diskmoe.experts.tiles import record_layout

    config, records = model.config, model.opened.records
    if not config.moe_layers or FORMATS[records.expert_format].weight_bits <= 4:
        return None
    plan = model.opened.plan
    return "q4", record_layout("q4", plan.hidden, plan.ffn, plan.biased).nbytes
