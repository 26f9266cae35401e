"""Results of benchmarks without benchmarks: values for every key, experiments and runs."""

import types
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from diskmoe.bench import results
from diskmoe.bench.results import Acceptance, Arm, Experiment, Figures, Prompt, Run, Setting
from diskmoe.engine.report import REPORT_KEYS


def example(kind: Any, full: bool) -> Any:
    """A value of a type: everything there, or nothing that need not be."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return example(parts[0], full)
    if kind is Any:
        return {"any": ["thing", 1]} if full else None
    if origin in (Union, types.UnionType):
        (one,) = [part for part in parts if part is not type(None)]
        return example(one, full) if full else None
    if origin is Literal:
        return parts[-1]
    if is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        made = {field.name: example(hints[field.name], full) for field in fields(kind)}
        if "version" in made:
            made["version"] = results.VERSION
        return kind(**made)  # type: ignore[operator]
    if origin is tuple:
        return (example(parts[0], full),) if full else ()
    if origin is not None:
        return {"näme": example(parts[1], full)} if full else {}
    return {int: 7, float: 0.25, str: "täxt", bool: True}[kind]


def experiment(**changes: Any) -> Experiment:
    made = replace(
        example(Experiment, full=True),
        arms=(Arm("a", "diskmoe", ""), Arm("b", "diskmoe", "CAP=4")),
        prompts=(Prompt("one", "1", 0.5), Prompt("two", "2", None)),
        rungs=("CAP=4", "CAP=8"),
    )
    return replace(made, **changes)


def run(**changes: Any) -> Run:
    made = replace(example(Run, full=True), arm="a", rung=0, prompt=0, repeat=0, order=0)
    return replace(made, **changes)


def figures(**changes: Any) -> Figures:
    return replace(example(Figures, full=False), **changes)


def timed(arm: str, tok_per_s: float | None, place: tuple[int, int, int], **changes: Any) -> Run:
    """A run of an arm at a speed; place: (repeat, rung, prompt)."""
    repeat, rung, prompt = place
    numbers = {"tok_per_s": tok_per_s, "hit_rate": 0.75, "peak_rss_bytes": 1 << 20}
    more = {
        "token_ids": (1, 2),
        "settings": {"CAP": Setting(8, "auto"), "GRAMMAR": Setting(None, "default")},
        "figures": figures(**numbers, acceptance={"ngram": Acceptance(4, 3, ((4, 3),))}),
        "others_cpu": 0.01,
        "cached_share": 0.0,
    }
    here = {"arm": arm, "rung": rung, "prompt": prompt, "repeat": repeat}
    return run(**{**more, **here, **changes})


def report(tok_per_s: float, ids: Sequence[int], settings: dict[str, Any]) -> dict[str, Any]:
    """What a run of diskmoe's says with --json: so many tokens at that speed."""
    told = dict.fromkeys(REPORT_KEYS)
    seconds = len(ids) / tok_per_s
    return told | {
        "text": "text",
        "token_ids": list(ids),
        "prompt_tokens": 5,
        "tokens": len(ids),
        "tokens_per_forward": 1.0,
        "decode_seconds": seconds,
        "ttft_seconds": 0.1,
        "tok_per_s": tok_per_s,
        "hits": 3,
        "misses": 1,
        "hit_rate": 0.75,
        "bytes_per_token": 4096.0,
        "read_wait_seconds": seconds / 4,
        "compute_seconds": seconds / 2,
        "peak_rss_bytes": 1 << 20,
        "drafts": {"ngram": {"judged": 4, "accepted": 3, "by_position": [[4, 3]]}},
        "settings": {k: {"value": v, "source": "flag"} for k, v in settings.items()},
        "prefill": {"rows": 4, "seconds": 0.5},
    }
