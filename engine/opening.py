"""The door to a model for programs that run one: settings in, a model out that was found good.

What is worth knowing is said on the way: what was ignored, the settings in force, what the model's
files say of themselves.

    say_notes(values, notes, say)
    with opening(values, say) as prepared:  # closes it when what is asked for cannot be done
        ids = prepared.text.encode_prompt(...)
    with Model.finish(prepared, say) as model: ...
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from diskmoe.engine.errors import BadModel, BadRequest
from diskmoe.engine.places import as_path, demo_dir, state_dir
from diskmoe.engine.report import settings_lines
from diskmoe.engine.setting_sources import Value

if TYPE_CHECKING:
    from diskmoe.engine.options import Options
    from diskmoe.engine.prepared import Prepared

Say = Callable[[str], None]
GUESSES = 16  # most drafts of a forward where neither a grammar nor DRAFT says it


def say_notes(values: Mapping[str, Value], notes: Sequence[str], say: Say) -> None:
    """What was found on the way to the settings; values that were meant for others only if verbose."""
    for note in notes:
        if values["VERBOSE"].value or "was ignored" not in note:
            say(f"note      {note}")


@contextmanager
def opening(
    values: Mapping[str, Value],
    say: Say,
    fitted: Callable[[Options], Options] = lambda options: options,
) -> Iterator[Prepared]:
    """The model that settings name, with its notes said. An error inside closes it.

    fitted: what the program asks beside the settings.

    Raises:
        DiskMoeError: no such model, or it cannot be run in this way.
    """
    path = model_path(values, say)
    shown = {**values, "MODEL": Value(str(path), values["MODEL"].source)}
    for line in settings_lines(shown, values["VERBOSE"].value):
        say(line)
    from diskmoe.engine.prepared import prepare  # after the cheap refusals: it imports Numba

    options = replace(options_from(values), usage=usage_folder(values, say))
    prepared = prepare(path, fitted(options), say)
    try:
        for note in prepared.text.notes:
            say(f"note      {note}")
        yield prepared
    except BaseException:
        prepared.close()
        raise


def model_path(values: Mapping[str, Value], say: Say) -> Path:
    given = values["MODEL"].value
    if given:
        return as_path(given)
    demo = demo_dir(values["CACHE_DIR"].value)
    if demo.is_dir():
        from diskmoe.engine.demo_stamp import is_current, is_readable

        if not is_readable(demo):
            raise BadModel(
                f"{demo}: the demo model was made by another version of diskmoe: run "
                "'diskmoe demo-model' to renew it"
            )
        if not is_current(demo):
            say("note      the demo model is of another version; 'diskmoe demo-model' renews it")
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


def options_from(values: Mapping[str, Value]) -> Options:
    """What a set of resolved settings asks for."""
    from diskmoe.engine.options import Options

    span, draft = values["GRAMMAR_DRAFT"].value, values["DRAFT"].value
    if values["GRAMMAR"].value is None and values["SCHEMA"].value is None:
        span = 0
    kept = values["GRAMMAR_CACHE"].value
    ngram, corpus, mtp = values["NGRAM"].value, values["CORPUS"].value, values["MTP"].value
    small = values["DRAFT_MODEL"].value
    drafts = ngram or corpus or small or mtp is not False
    others = (GUESSES if draft is None else draft) if drafts else 0
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
        disk_bps=values["DISK_BPS"].value,
        verify=values["VERIFY"].value,
        kv=values["KV"].value,
        prefetch=values["PREFETCH"].value,
        policy=values["POLICY"].value,
        trace=as_path(values["TRACE"].value) if values["TRACE"].value else None,
        pin_gb=values["PIN_GB"].value,
        draft_rows=max(span, others),
        span=span,
        draft=draft,
        ngram=ngram,
        corpus=as_path(corpus) if corpus else None,
        draft_model=as_path(small) if small else None,
        grammar_cache=as_path(kept) if kept else None,
        p_min=values["P_MIN"].value,
        guard=values["GUARD"].value,
        mtp=mtp,
        constrain=values["CONSTRAIN"].value,
    )


def usage_folder(values: Mapping[str, Value], say: Say) -> Path | None:
    """Where runs are learned from; of benchmarks nothing is, so ``options_from`` has it not."""
    if not values["USAGE"].value:
        return None
    try:
        return state_dir(values["STATE_DIR"].value) / "usage"
    except BadRequest as error:
        say(f"note      no usage history: {error}")
        return None
