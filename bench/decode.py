"""``diskmoe bench decode``: decode and prompt speed with token ids that are given beforehand.

The model computes every logit, and the next token is the next of the given ids whatever they say:
so each run does the same work, on any machine and against any other program.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diskmoe.bench.words import OF_A_RUN, Words, understood
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.places import as_path
from diskmoe.engine.setting_sources import Value

if TYPE_CHECKING:
    from diskmoe.bench.trace import Trace
    from diskmoe.engine.api import Model, Prepared
    from diskmoe.engine.stats import RunStats

Say = Callable[[str], None]

USAGE = """\
usage: diskmoe bench decode MODEL [options]

Feeds a model token ids that are given beforehand and measures the speed of its prompt and of its
decoding. A synthetic model gets the ids in order, which is what its routing is made for; any other
model gets random ones, the same in every run. Where all experts fit in memory they are all read
before the clock starts.

  --tokens N         tokens to decode (default 64)
  --prompt N         prompt tokens before them (default 128; 0 for none)
  --warm N           tokens to run before the clock starts (default 0, or all experts if they fit)
  --routing FILE     a recorded trace (phase,step,layer,experts) in place of the router's choice;
                     the model then runs with as many experts per token as the trace has
  --json             one JSON object: the keys of a run's report, and prompt_tok_per_s

Settings of a run that apply: --threads, --cap, --ram-gb, --ctx, --io-threads, --direct,
--disk-bps, --verify, --prefill-chunk, --expert-bits, --dense-bits (see diskmoe --help).
"""
FLAGS = {"--tokens": True, "--prompt": True, "--warm": True, "--routing": True}
SETTINGS = (*OF_A_RUN, "MODEL", "VERIFY", "PREFETCH")
WARM_TOKENS = 4096  # at most; a popular routing may never ask for some experts
LEAST_CONTEXT = 256
LEAST_PROMPT = 64  # memory for so many rows at a time, for the warm-up


class GivenIds:
    """Takes the place of a sampler: the next of the given ids, whatever the logits say."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = iter(ids)

    def pick(self, logits: np.ndarray) -> int:
        return next(self._ids)

    @property
    def done(self) -> bool:
        return False


def token_ids(config: Mapping[str, Any], vocab: int, first: int, count: int) -> list[int]:
    """`count` ids from place `first` of a model's benchmark text on; config: its config.json."""
    from diskmoe.bench.model import MARK

    if MARK in config:
        return [(first + i) % vocab for i in range(count)]
    rng = np.random.Generator(np.random.SFC64([6, first]))
    return [int(token) for token in rng.integers(0, vocab, count)]


def command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """Runs ``bench decode``; returns the exit code."""
    line = understood("decode", words, env, FLAGS, SETTINGS)
    path = _model_path(line)
    trace_path = as_path(line.flags["--routing"]) if "--routing" in line.flags else None
    if trace_path is not None and not (line.flags["--routing"] and trace_path.exists()):
        raise BadRequest(
            f"--routing {line.flags['--routing']!r}: there is no such file; bench decode takes a recorded trace "
            "(the routing of a synthetic model was chosen by bench synth)"
        )
    tokens = line.whole("--tokens", 1, 1_000_000, 64)
    prompt = line.whole("--prompt", 0, 1_000_000, 128)
    warm = line.whole("--warm", 0, 1_000_000, 0)

    from diskmoe.engine.api import Model, prepare  # these import Numba
    from diskmoe.engine.opening import options_from

    context = _context(line, tokens, prompt)
    try:
        prepared = prepare(path, replace(options_from(line.values), ctx=context, draft_rows=0), say)
    except BadRequest as error:
        if line.values["CTX"].value is None and str(error).startswith("CTX="):
            asked = f"--prompt {prompt} and --tokens {tokens} need CTX={context}"
            raise BadRequest(f"{asked}: {error}") from None
        raise
    trace = None
    if trace_path is not None:
        try:
            prepared, trace = _with_trace(prepared, trace_path, say)
            tokens, prompt = _steps(trace, line, tokens, prompt)
            prepared = _with_context(prepared, _context(line, tokens, prompt))
        except BaseException:
            prepared.close()
            raise
    with Model.finish(prepared.for_run(max(prompt, LEAST_PROMPT), tokens), say) as model:
        warmed = _warm_up(model, warm, say)
        stats, ids = measure(model, prompt, tokens, trace, warmed)
        _report(model, stats, ids, line, trace, say)
    return 0


def _model_path(line: Words) -> Path:
    setting = line.values["MODEL"]
    given = [*line.places]
    if setting.value and (not given or setting.source.startswith("flag")):
        given.append(setting.value)
    if len(given) > 1:
        raise BadRequest(f"bench decode takes one model, and {given[1]!r} is one too many")
    if not given or not given[0]:
        raise BadRequest("bench decode needs a MODEL directory; see diskmoe bench decode --help")
    return as_path(given[0])


def _context(line: Words, tokens: int, prompt: int) -> int:
    """Positions of the KV cache: as given, or what these tokens need. BadRequest if too few."""
    given, needed = line.values["CTX"].value, prompt + tokens + 1
    if given is None:
        return max(needed, LEAST_CONTEXT)
    if needed > given:
        raise BadRequest(f"--prompt {prompt} and --tokens {tokens} need CTX={needed}, not {given}")
    return given


def _with_context(prepared: Prepared, context: int) -> Prepared:
    return replace(
        prepared,
        opened=replace(prepared.opened, context=context),
        options=replace(prepared.options, ctx=context),
    )


def _with_trace(prepared: Prepared, path: Path, say: Say) -> tuple[Prepared, Trace]:
    """The model as the trace was recorded (its own top-k), and the trace."""
    from diskmoe.bench.trace import read_trace

    opened = prepared.opened
    trace = read_trace(path, opened.config.moe_layers, opened.config.experts)
    if trace.top_k != opened.config.top_k:
        say(
            f"note      the trace has {trace.top_k} experts per token, the model chooses "
            f"{opened.config.top_k}: it runs with {trace.top_k}"
        )
        config = replace(opened.config, top_k=trace.top_k)
        prepared = replace(prepared, opened=replace(opened, config=config))
    return prepared, trace


def _steps(trace: Trace, line: Words, tokens: int, prompt: int) -> tuple[int, int]:
    """(tokens, prompt tokens): what was asked for, else what the trace has. BadRequest if more."""
    tokens = tokens if "--tokens" in line.flags else trace.decode_steps
    prompt = prompt if "--prompt" in line.flags else trace.prompt_steps
    for flag, asked, there in (
        ("--tokens", tokens, trace.decode_steps),
        ("--prompt", prompt, trace.prompt_steps),
    ):
        if asked > there:
            raise BadRequest(f"{flag} is {asked}; the trace {trace.path} has {there} such steps")
    return tokens, prompt


def _warm_up(model: Model, rows: int, say: Say) -> bool:
    """Runs tokens that are not measured; whether there were any.

    So many rows as decoding would; without a number, prompts until every expert has been read.
    """
    target, config = model.transformer, model.config
    resident = model.memory.slots_per_layer >= config.experts
    if not rows and not resident:
        return False
    first = config.vocab // 2  # not the ids that are measured, unless the vocabulary is small
    ids = token_ids(model.opened.source.config, config.vocab, first, rows or WARM_TOKENS)
    step = 1 if rows else min(model.prefill_chunk, target.kv.capacity)
    done = 0
    while done < len(ids):
        if target.kv.length + step > target.kv.capacity or not rows:
            target.kv.trim(0)
        before = target.counters.misses
        part = np.asarray(ids[done : done + step], np.int32)
        target.forward(part, "last" if rows else "none")
        done += len(part)
        if not rows and target.counters.misses == before:
            break
    target.kv.trim(0)
    target.forward(np.asarray([first % config.vocab], np.int32), "last")
    target.kv.trim(0)
    say(f"warm      {done + 1} tokens before the clock starts")
    return True


def measure(
    model: Model, prompt: int, tokens: int, trace: Trace | None = None, warmed: bool = False
) -> tuple[RunStats, list[int]]:
    """Runs `prompt` tokens and decodes `tokens` more; the ids that decoding was given."""
    from diskmoe.bench.trace import Replay
    from diskmoe.engine.decode import decode
    from diskmoe.engine.stats import RunStats

    stats = RunStats(cache_state=_cache_state(model, warmed), recall=model.transformer.new_recall())
    ids = token_ids(model.opened.source.config, model.config.vocab, 0, prompt + tokens + 1)
    if trace is not None:
        model.transformer.choose_with(Replay(trace, prompt))
    try:
        run = decode(
            model.transformer,
            ids[: prompt + 1],
            GivenIds(ids[prompt + 1 :]),
            limit=tokens,
            prefill_chunk=model.prefill_chunk,
            stats=stats,
        )
        picked = list(run)
    finally:
        if trace is not None:
            model.transformer.choose_with(None)
    return stats, picked


def _cache_state(model: Model, warmed: bool) -> str:
    """``cold`` only where neither the store nor, as far as is known, the page cache has experts."""
    from diskmoe.engine.api import WARM_SHARE
    from diskmoe.experts.pagecache import cached_share

    if warmed:
        return "warm"
    if model.opened.io_mode.startswith("O_DIRECT"):
        return "cold"
    share = cached_share(model.opened.records.files)
    return "cold" if share is not None and share < WARM_SHARE else "warm"


def _report(
    model: Model, stats: RunStats, ids: list[int], line: Words, trace: Trace | None, say: Say
) -> None:
    from diskmoe.engine.report import report_json, report_lines

    speed = stats.prefill.rows / stats.prefill.seconds if stats.prefill.seconds else None
    if line.values["JSON"].value:
        decided = {
            "MODEL": str(model.opened.path),
            "CTX": model.opened.context,
            "CAP": model.memory.slots_per_layer,
            "RAM_GB": round(model.memory.budget_bytes / 2**30, 3),
            "THREADS": model.workers.n_threads,
            "PREFILL_CHUNK": model.prefill_chunk,
        }
        values = {
            name: Value(decided[name], "auto") if value.value is None and name in decided else value
            for name, value in line.values.items()
        }
        report = report_json(stats, model.facts, values, ids, None)
        report["prompt_tok_per_s"] = speed
        report["routing"] = None if trace is None else str(trace.path)
        print(json.dumps(report))
        return
    if speed is not None:
        print(f"prompt    {stats.prefill.rows} tokens, {speed:.2f} tok/s")
    print(f"decode    {stats.tokens} tokens, {stats.tok_per_s or 0:.2f} tok/s")
    for text in report_lines(stats, model.facts):
        say(text)
