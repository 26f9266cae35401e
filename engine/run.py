"""The bare command and ``plan``: settings in, text on stdout, everything else on stderr."""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.places import demo_dir
from diskmoe.engine.report import report_json, report_lines, settings_lines
from diskmoe.engine.settings import Value

Say = Callable[[str], None]


def run(values: Mapping[str, Value], notes: list[str], say: Say, write: Say) -> int:
    """One prompt, one answer. Returns the exit code.

    Raises:
        DiskMoeError: whatever makes the run impossible, before any text is written.
    """
    verbose = values["VERBOSE"].value
    for note in notes:
        if verbose or "was ignored" not in note:
            say(f"note      {note}")
    prompt = _prompt(values)
    path = _model_path(values, say)
    values = {**values, "MODEL": Value(str(path), values["MODEL"].source)}
    for line in settings_lines(values, verbose):
        say(line)
    from diskmoe.engine.api import Model  # after the cheap refusals: it imports Numba

    with Model.load(path, options_from(values), say) as model:
        sampling = _sampling(values, model.sampling_defaults, say)
        if isinstance(prompt, str):
            prompt = model.encode_prompt(
                prompt, chat=values["CHAT"].value, system=values["SYSTEM"].value
            )
            say(f"prompt    {len(prompt.ids)} tokens, {prompt.how}")
        else:
            say(f"prompt    {len(prompt)} tokens, given as token ids")
        result = model.generate(
            prompt,
            sampling=sampling,
            limit=values["NGEN"].value,
            stop=_stop_strings(values),
            ignore_eos=values["IGNORE_EOS"].value,
            on_prefill=_prefill_progress(say),
        )
        interrupted = False
        as_json = values["JSON"].value
        try:
            for piece in result:
                if not as_json:
                    write(piece)
        except KeyboardInterrupt:
            interrupted = True
            result.stats.stop_reason = "interrupted"
        has_text = model.tokenizer is not None
        if as_json:
            text = result.text if has_text else None
            report = report_json(result.stats, model.facts, values, result.token_ids, text)
            write(json.dumps(report, ensure_ascii=False) + "\n")
        elif not has_text:
            write(",".join(str(token) for token in result.token_ids) + "\n")
        elif sys.stdout.isatty():
            write("\n")
        if values["STATS"].value:
            for line in report_lines(result.stats, model.facts):
                say(line)
    return 130 if interrupted else 0


def plan(values: Mapping[str, Value], notes: list[str], say: Say) -> int:
    """Prints what a run would put where in memory; reads headers only."""
    from diskmoe.engine.api import plan_model

    for note in notes:
        say(f"note      {note}")
    path = _model_path(values, say)
    report = plan_model(path, options_from(values))
    if values["JSON"].value:
        print(json.dumps(report.as_json(), ensure_ascii=False))
    else:
        print("\n".join(report.lines()))
    return 0


def options_from(values: Mapping[str, Value]) -> Any:
    """The ``Options`` that a set of resolved settings asks for."""
    from diskmoe.engine.api import Options

    return Options(
        cap=values["CAP"].value,
        expert_bits=values["EXPERT_BITS"].value,
        dense_bits=values["DENSE_BITS"].value,
        ctx=values["CTX"].value,
        ram_gb=values["RAM_GB"].value,
        threads=values["THREADS"].value,
        io_threads=values["IO_THREADS"].value,
        direct=values["DIRECT"].value,
        prefill_chunk=values["PREFILL_CHUNK"].value,
    )


def _prompt(values: Mapping[str, Value]) -> str | tuple[int, ...]:
    ids = values["PROMPT_IDS"].value
    text = values["PROMPT"].value
    if ids is not None:
        if text is not None and values["PROMPT"].source != "env PROMPT":
            raise BadRequest("give PROMPT or PROMPT_IDS, not both")
        return ids
    if text is not None:
        return text
    if sys.stdin is None or sys.stdin.isatty():
        raise BadRequest(
            'no prompt: diskmoe "your question", PROMPT="..." or text on stdin; see diskmoe --help'
        )
    raw = sys.stdin.buffer.read()
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(f"stdin is not UTF-8 text: byte {error.start} of {len(raw)}") from None
    if not text.strip():
        raise BadRequest("the prompt on stdin is empty")
    return text


def _model_path(values: Mapping[str, Value], say: Say) -> Path:
    given = values["MODEL"].value
    if given:
        return Path(given).expanduser()
    demo = demo_dir(values["CACHE_DIR"].value)
    if demo.is_dir():
        return demo
    if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        say("No model was given and the demo model is not here yet.")
        print("Fetch it now, about 93 MB? [Y/n] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("", "y", "yes"):
            from diskmoe.engine.demo import install_demo

            return install_demo(demo, say=say)
    raise BadRequest(
        f"no MODEL was given and the demo model is not at {demo}: "
        "run 'diskmoe demo-model' once while online, or give MODEL=DIR"
    )


def _sampling(values: Mapping[str, Value], defaults: Mapping[str, Any], say: Say) -> Any:
    from diskmoe.engine.sampling import Sampling

    chosen = {}
    for setting, key in (
        ("TEMP", "temperature"),
        ("TOP_K", "top_k"),
        ("TOP_P", "top_p"),
        ("MIN_P", "min_p"),
    ):
        value = values[setting].value
        if value is not None:
            chosen[key] = value
        elif key in defaults and values["TEMP"].value is None:
            chosen[key] = defaults[key]
    seed = values["SEED"].value
    if seed is None:
        seed = secrets.randbits(32)  # drawn here so that it can be told
    sampling = Sampling(**chosen, seed=seed)
    origin = (
        "as set"
        if values["TEMP"].value is not None
        else ("the model's own defaults" if defaults else "default")
    )
    say(f"sampling  {_describe(sampling)} ({origin})")
    if sampling.temperature == 0:
        given = [
            name for name in ("TOP_K", "TOP_P", "MIN_P", "SEED") if values[name].source != "default"
        ]
        if given:
            say(f"note      {', '.join(given)} has no effect: greedy takes the likeliest token")
    return sampling


def _describe(sampling: Any) -> str:
    if sampling.temperature == 0:
        return "greedy"
    parts = [f"temperature {sampling.temperature:g}"]
    if sampling.top_k:
        parts.append(f"top-k {sampling.top_k}")
    if sampling.top_p < 1:
        parts.append(f"top-p {sampling.top_p:g}")
    if sampling.min_p > 0:
        parts.append(f"min-p {sampling.min_p:g}")
    parts.append(f"seed {sampling.seed}")
    return ", ".join(parts)


def _stop_strings(values: Mapping[str, Value]) -> tuple[str, ...]:
    text = values["STOP"].value
    return (text.replace("\\n", "\n").replace("\\t", "\t"),) if text else ()


def _prefill_progress(say: Say) -> Callable[[int, int], None]:
    """A line per chunk at most every two seconds, with the time still to go; one at the end."""
    started = time.perf_counter()
    last = started

    def tell(done: int, rows: int) -> None:
        nonlocal last
        now = time.perf_counter()
        spent = now - started
        if done == rows:
            say(f"prefill   {rows} of {rows} tokens in {spent:.2f} s")
        elif now - last >= 2:
            last = now
            say(
                f"prefill   {done} of {rows} tokens, about {spent * (rows - done) / done:.0f} s left"
            )

    return tell
