"""The bare command and ``plan``: settings in, text on stdout, everything else on stderr."""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.opening import model_path, opening, options_from, say_notes
from diskmoe.engine.report import report_json, report_lines, shown
from diskmoe.engine.setting_sources import Value
from diskmoe.engine.settings import SETTINGS

Say = Callable[[str], None]
_SAMPLING_NAMES = (
    ("TEMP", "temperature"),
    ("TOP_K", "top_k"),
    ("TOP_P", "top_p"),
    ("MIN_P", "min_p"),
)

MOST_TEXT = 64 << 20  # bytes of a prompt on stdin; a pipe may have no end


def run(values: Mapping[str, Value], notes: list[str], say: Say, write: Say) -> int:
    """One prompt, one answer. Returns the exit code.

    Raises:
        DiskMoeError: whatever makes the run impossible, before any text is written.
    """
    say_notes(values, notes, say)
    say_without_effect(values, say)
    prompt = _prompt(values)
    if not isinstance(prompt, str):
        unused = [
            name
            for name in ("PROMPT", "CHAT", "SYSTEM")
            if values[name].value is not None and values[name].source != "default"
        ]
        if unused:
            say(f"note      {', '.join(unused)} has no effect beside PROMPT_IDS")
    with opening(values, say) as prepared:
        sampling, values = sampling_from(values, prepared.text.sampling_defaults, say)
        if isinstance(prompt, str):
            prompt = prepared.text.encode_prompt(
                prompt, chat=values["CHAT"].value, system=values["SYSTEM"].value
            )
            say(f"prompt    {len(prompt.ids)} tokens, {prompt.how}")
            ids = prompt.ids
        else:
            say(f"prompt    {len(prompt)} tokens, given as token ids")
            ids = prompt
        prepared.check_prompt(ids)
        form = form_from(values, prepared.text, say)
        fitting = prepared.for_run(len(ids), values["NGEN"].value)
    from diskmoe.engine.api import Model

    with Model.finish(fitting, say) as model:
        values = as_decided(values, model)
        result = model.generate(
            prompt,
            sampling=sampling,
            limit=values["NGEN"].value,
            stop=stop_strings(values),
            ignore_eos=values["IGNORE_EOS"].value,
            on_prefill=prefill_progress(say),
            **form,
        )
        interrupted = not _stream(result, None if values["JSON"].value else write)
        _finish(model, result, values, say, write)
    return 130 if interrupted else 0


def form_from(values: Mapping[str, Value], text: Any, say: Say) -> dict[str, Any]:
    """What answers follow: arguments of ``Model.generate``. text: the model's ``TextSide``.

    Raises:
        BadGrammar, BadRequest: see ``grammar_of``; a trigger of nothing.
    """
    from diskmoe.engine.constraining import ThinkBudget
    from diskmoe.engine.drafting import grammar_of

    constrain, trigger = values["CONSTRAIN"].value, values["TRIGGER"].value
    grammar = grammar_of(
        values["GRAMMAR"].value,
        values["SCHEMA"].value,
        constrain,
        text,
        say,
        blanks=values["SCHEMA_BLANKS"].value,
        lax=values["SCHEMA_LAX"].value,
    )
    if trigger is not None and constrain == "0":
        raise BadRequest("TRIGGER says where a grammar begins that is enforced: set CONSTRAIN=1")
    budget, message = values["THINK_BUDGET"].value, values["THINK_MESSAGE"].value
    if message is not None and budget is None:
        say("note      THINK_MESSAGE has no effect without THINK_BUDGET")
    return {
        "grammar": grammar,
        "triggers": () if trigger is None else (trigger,),
        "thinking": None if budget is None else ThinkBudget(budget, message or ""),
    }


def say_without_effect(values: Mapping[str, Value], say: Say) -> None:
    """A line for settings of the server that were given where there is none."""
    unused = [
        setting.name
        for setting in SETTINGS
        if setting.group == "serve" and values[setting.name].source != "default"
    ]
    if unused:
        say(f"note      {', '.join(unused)} has no effect but on diskmoe serve")


def _stream(result: Any, write: Say | None) -> bool:
    """Writes the text as it comes; False when Ctrl-C ended it, with all that was made kept."""
    try:
        for piece in result:
            if write:
                write(piece)
    except KeyboardInterrupt:
        result.stop("interrupted")
        held = result.rest()
        if held and write:
            write(held)
        return False
    return True


def _finish(model: Any, result: Any, values: Mapping[str, Value], say: Say, write: Say) -> None:
    """What stands on stdout behind the text, and the report."""
    has_text = model.text.tokenizer is not None
    if values["JSON"].value:
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


def as_decided(values: Mapping[str, Value], model: Any) -> dict[str, Value]:
    """The settings with what was decided for those that nobody gave."""
    decided = {
        "CTX": model.opened.context,
        "CAP": model.memory.slots_per_layer,
        "RAM_GB": round(model.memory.budget_bytes / 2**30, 3),
        "THREADS": model.workers.n_threads,
        "PREFILL_CHUNK": model.prefill_chunk,
    }
    path = str(model.opened.path)
    filled = {**values, "MODEL": Value(path, values["MODEL"].source)}
    for name, value in decided.items():
        if values[name].value is None:
            filled[name] = Value(value, "auto")
    return filled


def plan(values: Mapping[str, Value], notes: list[str], say: Say) -> int:
    """Prints what a run would put where in memory, and how fast it would be; loads no weights."""
    path = model_path(values, say)
    from diskmoe.engine.api import prepare
    from diskmoe.engine.plan import PlanReport

    say_notes(values, notes, say)
    prepared = prepare(path, options_from(values), say)
    try:
        report = PlanReport.measure(prepared, prepared.plan(say))
    finally:
        prepared.close()
    if values["JSON"].value:
        print(json.dumps(report.as_json(), ensure_ascii=False))
    else:
        print("\n".join(report.lines()))
    return 0


def _prompt(values: Mapping[str, Value]) -> str | tuple[int, ...]:
    ids = values["PROMPT_IDS"].value
    text = values["PROMPT"].value
    if ids is not None:
        if text is not None and values["PROMPT"].source != "env PROMPT":
            raise BadRequest("give PROMPT or PROMPT_IDS, not both")
        return ids
    if text is not None:
        if not text.strip():
            raise BadRequest(f"the prompt ({values['PROMPT'].source}) is empty")
        return text
    if sys.stdin is None or sys.stdin.isatty():
        raise BadRequest(
            'no prompt: diskmoe "your question", PROMPT="..." or text on stdin; see diskmoe --help'
        )
    raw = sys.stdin.buffer.read(MOST_TEXT + 1)
    if len(raw) > MOST_TEXT:
        raise BadRequest(f"stdin has more than {MOST_TEXT} bytes: no prompt is as long")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(f"stdin is not UTF-8 text: byte {error.start} of {len(raw)}") from None
    if not text.strip():
        raise BadRequest("the prompt on stdin is empty")
    return text.removesuffix("\n").removesuffix("\r")  # echo's newline is no part of a question


def sampling_from(
    values: Mapping[str, Value], defaults: Mapping[str, Any], say: Say, draw_seed: bool = True
) -> tuple[Any, dict[str, Value]]:
    """How to sample, and the settings with what the model or we decided; without `draw_seed` each
    answer draws one of its own, where none was given."""
    from diskmoe.engine.sampling import Sampling

    filled = dict(values)
    for name, key in _SAMPLING_NAMES:
        if values[name].value is None and key in defaults:
            filled[name] = Value(defaults[key], "generation_config.json")
    if filled["TEMP"].value is None:
        filled["TEMP"] = Value(0.0, "auto")
    greedy = filled["TEMP"].value == 0
    if filled["SEED"].value is None and not greedy and draw_seed:
        filled["SEED"] = Value(secrets.randbits(32), "auto")  # drawn here so that it can be told
    chosen = {
        key: filled[name].value for name, key in _SAMPLING_NAMES if filled[name].value is not None
    }
    sampling = Sampling(**chosen, seed=filled["SEED"].value)
    given = [name for name in ("TOP_K", "TOP_P", "MIN_P", "SEED") if values[name].value is not None]
    if greedy and given:
        say(f"note      {', '.join(given)} has no effect: greedy takes the likeliest token")
    parts = [
        f"{name}={shown(filled[name].value)} ({filled[name].source})"
        for name in ("TEMP", "TOP_K", "TOP_P", "MIN_P", "SEED")
        if filled[name].value is not None and not (greedy and name != "TEMP")
    ]
    say("sampling  " + ("greedy, " if greedy else "") + ", ".join(parts))
    return sampling, filled


def stop_strings(values: Mapping[str, Value]) -> tuple[str, ...]:
    text = values["STOP"].value
    return (text.replace("\\n", "\n").replace("\\t", "\t"),) if text else ()


def prefill_progress(say: Say) -> Callable[[int, int], None]:
    """A line per chunk at most every two seconds, with the time still to go; one at the end."""
    started = time.perf_counter()
    last = started

    def tell(done: int, rows: int) -> None:
        nonlocal last
        now = time.perf_counter()
        spent = now - started
        if done == rows:
            say(f"prefill   {rows} of {rows} tokens in {spent:.2f} s")
        elif done and now - last >= 2:
            last = now
            say(
                f"prefill   {done} of {rows} tokens, about {spent * (rows - done) / done:.0f} s left"
            )

    return tell
