"""``diskmoe bench ppl``: the perplexity of a text, resumable, and in bits per byte.

Bits per byte compare models of different tokenizers; perplexities only compare models of one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from diskmoe.bench.perplexity import RULES, Sums, Window, score, unscored, windows
from diskmoe.bench.ppl_sums import Kept
from diskmoe.bench.ppl_text import Text, read_bytes, spelled_bytes
from diskmoe.bench.words import OF_A_RUN, Words, understood
from diskmoe.engine.errors import BadModel, BadRequest
from diskmoe.engine.places import as_path
from diskmoe.engine.stats import Phase, snapshot
from diskmoe.experts.budget import shown_bytes
from diskmoe.experts.usage import model_fingerprint

if TYPE_CHECKING:
    from diskmoe.engine.api import Prepared

Say = Callable[[str], None]

USAGE = """\
usage: diskmoe bench ppl MODEL FILE [options]

How well a model predicts a text: perplexity, and bits per byte, which compare models of different
tokenizers. The text goes through the model in windows of --ctx tokens. Where the model wants a BOS,
each window begins with one; where it wants none, the text's first token is not scored. What looks
like a special token in the text is taken as one.

  --stride N         tokens from one window to the next (default: half a window). A token is scored
                     once, in the first window that has it, so all but those of the first window
                     have at least --ctx less --stride tokens before them
  --rule RULE        sliding (default), or llama.cpp: windows that do not overlap, of which the second
                     half is scored, as llama-perplexity does
  --tokens N         the first N tokens of the text only
  --out FILE         keep the sums here after each window, and go on from there the next time
  --json             one JSON object

Settings of a run that apply: --threads, --cap, --ram-gb, --ctx (default 512), --kv, --policy,
--io-threads, --direct, --disk-bps, --verify, --prefill-chunk, --expert-bits, --dense-bits.
"""
FLAGS = {"--stride": True, "--rule": True, "--tokens": True, "--out": True}
SETTINGS = (*OF_A_RUN, "POLICY", "VERIFY")
CONTEXT = 512
_SECONDS = 5.0  # between two lines of progress


@dataclass(frozen=True)
class Task:
    """What is to be scored, and how."""

    text: Text
    windows: Sequence[Window]
    settings: Mapping[str, Any]  # what the figures depend on, beside model and text


def command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """Runs ``bench ppl``; returns the exit code."""
    line = understood("ppl", words, env, FLAGS, SETTINGS)
    if len(line.places) != 2:
        raise BadRequest(
            f"bench ppl takes a MODEL and a text FILE, not {len(line.places)} names; see diskmoe "
            "bench ppl --help"
        )
    path, text_path = map(as_path, line.places)
    raw = read_bytes(text_path)

    from diskmoe.engine.api import prepare  # imports Numba
    from diskmoe.engine.opening import options_from

    context = line.values["CTX"].value or CONTEXT
    options = replace(options_from(line.values), ctx=context, draft_rows=0, longest_prompt=context)
    prepared = prepare(path, options, say)
    try:
        text = Text.of(text_path, raw, prepared.text, line.whole("--tokens", 2, 1 << 30, 1 << 30))
        task = _task(line, text, context, say)
        kept = _kept(line, prepared, task)
        sums = kept.read(len(task.windows)) if kept else Sums()
        if kept and sums.windows:
            say(f"ppl       goes on behind {sums.windows} of {len(task.windows)} windows")
        elif kept:
            kept.write(sums)
    except BaseException:
        prepared.close()
        raise
    resumed, cost = sums.windows, Phase()
    if resumed < len(task.windows):
        sums = _run(prepared, task, sums, kept, cost, say)
    else:
        prepared.close()
    assert prepared.text.tokenizer is not None  # or there were no text
    scored = text.nbytes - sum(
        spelled_bytes(prepared.text.tokenizer, text.ids[begin:end])
        for begin, end in unscored(task.windows, len(text.ids))
    )
    if line.values["JSON"].value:
        report = _as_json(task, sums, scored, cost)
        print(json.dumps({"model": prepared.opened.name, **report, "resumed_windows": resumed}))
    else:
        print("\n".join(_lines(task, sums, scored)))
        if cost.hit_rate is not None:
            say(
                f"report    {cost.forward_seconds:.1f} s, {cost.read_wait_seconds:.1f} s of it read "
                f"wait; hit rate {100 * cost.hit_rate:.1f} %, read {shown_bytes(cost.miss_bytes)}"
            )
    return 0


def _task(line: Words, text: Text, context: int, say: Say) -> Task:
    """The windows. Raises BadRequest where there are none."""
    rule = line.one_of("--rule", RULES, RULES[0])
    most = context - len(text.prefix)
    if most < 2:
        raise BadRequest(f"CTX={context} leaves no room for a text: use {len(text.prefix) + 2}")
    if rule == "sliding":
        stride = line.whole("--stride", 1, most, max(1, context // 2))
    elif "--stride" in line.flags:
        raise BadRequest(f"--stride has no effect with --rule {rule}: its windows do not overlap")
    else:
        stride = context
    found = windows(len(text.ids), len(text.prefix), context, stride, rule)
    if not found:
        raise BadRequest(
            f"{text.path} has {len(text.ids)} tokens, and --rule {rule} needs a whole window of "
            f"{context}: set --ctx to less, or use --rule sliding"
        )
    if rule == "sliding" and len(found) == 1:
        say(
            f"note      {text.path} has {len(text.ids)} tokens and fits one window of {context}: "
            "they have less before them than those of a longer text"
        )
    settings = {
        "ctx": context,
        "stride": stride,
        "rule": rule,
        "bos": list(text.prefix),
        "tokens": len(text.ids),
        **{name: line.values[name].value for name in ("KV", "EXPERT_BITS", "DENSE_BITS")},
    }
    return Task(text, found, settings)


def _kept(line: Words, prepared: Prepared, task: Task) -> Kept | None:
    if "--out" not in line.flags:
        return None
    opened = prepared.opened
    try:
        files = sorted(opened.path.glob("*.safetensors"))
        fingerprint = model_fingerprint(opened.source.config, files)
    except OSError as error:
        raise BadRequest(f"{opened.path} cannot be read: {error}") from None
    of = {"model": fingerprint, "text": task.text.sha256, "settings": task.settings}
    return Kept(as_path(line.flags["--out"]), of)


def _run(
    prepared: Prepared, task: Task, sums: Sums, kept: Kept | None, cost: Phase, say: Say
) -> Sums:
    """Scores the windows that are left, and books what that cost."""
    from diskmoe.engine.api import Model

    with Model.finish(prepared, say) as model:
        target = model.transformer
        before, started = snapshot(target.counters, target.selections), time.perf_counter()
        progress = _Progress(len(task.windows), sums, say)
        for window in task.windows[sums.windows :]:
            ids, prefix = task.text.ids, task.text.prefix
            scores = score(target, ids, prefix, window, model.prefill_chunk, progress.look)
            if not np.isfinite(scores).all():
                raise BadModel(
                    f"{prepared.opened.path}: its logits are no numbers in window {sums.windows + 1} "
                    f"of {len(task.windows)}: damaged weights? see diskmoe verify"
                )
            sums = progress.sums = sums.plus(scores)
            if kept:
                kept.write(sums)
        seconds = time.perf_counter() - started
        cost.add(before, snapshot(target.counters, target.selections), 0, seconds)
    return sums


class _Progress:
    """A line now and then: how far, how it looks, how long it will take."""

    def __init__(self, windows: int, sums: Sums, say: Say) -> None:
        self.sums = sums  # of what is done
        self._of, self._begun, self._say = windows, sums.windows, say
        self._started = self._told = time.perf_counter()

    def look(self, share: float) -> None:
        """share: of the window at hand that is done."""
        now = time.perf_counter()
        if now - self._told < _SECONDS:
            return
        self._told = now
        done = self.sums.windows + share
        left = (now - self._started) * (self._of - done) / max(done - self._begun, 1e-9)
        so_far = f", perplexity {self.sums.perplexity:.4f} so far" if self.sums.tokens else ""
        self._say(f"ppl       {done:.1f} of {self._of} windows{so_far}, {_shown_time(left)} left")


def _shown_time(seconds: float) -> str:
    hours, minutes = divmod(int(seconds) // 60, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"


def _lines(task: Task, sums: Sums, scored: int) -> list[str]:
    """scored: bytes of the tokens that were scored; 0 where all are special."""
    settings, prefix = task.settings, task.text.prefix
    bits = f"{sums.bits_per_byte(scored):.4f}" if scored else "-"
    return [
        f"perplexity {sums.perplexity:.4f} +- {sums.spread:.4f}",
        f"bits/byte  {bits}",
        (
            f"scored     {sums.tokens} tokens, {scored} bytes of {task.text.path.name}, "
            f"{sums.windows} windows of {settings['ctx']} every {settings['stride']} "
            f"({settings['rule']}), {'BOS ' + ','.join(map(str, prefix)) if prefix else 'no BOS'}"
        ),
    ]


def _as_json(task: Task, sums: Sums, scored: int, cost: Phase) -> dict[str, Any]:
    text = task.text
    return {
        "perplexity": sums.perplexity,
        "standard_error": sums.spread,
        "bits_per_byte": sums.bits_per_byte(scored) if scored else None,
        "nll": sums.mean,
        "tokens": sums.tokens,
        "bytes": scored,
        "windows": sums.windows,
        "seconds": cost.forward_seconds,
        "hit_rate": cost.hit_rate,
        "miss_bytes": cost.miss_bytes,
        "read_wait_seconds": cost.read_wait_seconds,
        "settings": task.settings,
        "text": {"path": str(text.path), "sha256": text.sha256, "tokens": len(text.ids)},
    }
