"""What the server has done so far, in Prometheus' text form."""

from __future__ import annotations

from collections.abc import Iterator

from diskmoe.engine.server.desk import Desk
from diskmoe.experts.footprint import resident_bytes


def metrics(desk: Desk) -> str:
    """All of them. Counters are of the whole life of the server."""
    return "\n".join(_lines(desk)) + "\n"


def _lines(desk: Desk) -> Iterator[str]:
    totals, model = desk.totals, desk.model
    store = model.transformer.counters
    counters = (
        ("requests", "requests that have ended", totals.requests),
        ("requests_cancelled", "of these, those whose client left", totals.cancelled),
        ("requests_failed", "of these, those that failed", totals.failed),
        ("prompt_tokens", "prompt tokens", totals.prompt_tokens),
        ("reused_tokens", "of these, those known from an earlier text", totals.reused_tokens),
        ("tokens", "tokens generated", totals.tokens),
        ("decode_seconds", "seconds of decoding, summed over texts", totals.decode_seconds),
        ("prefill_seconds", "seconds of reading prompts", totals.prefill_seconds),
        ("expert_hits", "unique experts that a layer asked for and had", store.hits),
        ("expert_misses", "unique experts that a layer asked for and had not", store.misses),
        ("miss_bytes", "bytes read for misses", store.miss_bytes),
        ("read_wait_seconds", "seconds in which only the disk worked", store.read_wait_seconds),
    )
    for name, what, value in counters:
        yield from _metric(f"{name}_total", "counter", what, value)
    gauges = (
        ("requests_running", "requests that run", desk.running),
        ("requests_waiting", "requests that wait", desk.waiting),
        ("resident_bytes", "memory that the process holds", resident_bytes()),
        ("budget_bytes", "memory that it may hold", model.memory.budget_bytes),
        (
            "slots_per_layer",
            "experts of a layer that memory has room for",
            model.memory.slots_per_layer,
        ),
    )
    for name, what, value in gauges:
        yield from _metric(name, "gauge", what, value)
    for place, (name, what) in enumerate(
        (("drafts_judged_total", "drafts judged"), ("drafts_accepted_total", "drafts accepted"))
    ):
        yield f"# HELP diskmoe_{name} {what}, by source"
        yield f"# TYPE diskmoe_{name} counter"
        for source, counts in sorted(totals.drafts.items()):
            yield f'diskmoe_{name}{{source="{source}"}} {counts[place]}'


def _metric(name: str, kind: str, what: str, value: float) -> Iterator[str]:
    yield f"# HELP diskmoe_{name} {what}"
    yield f"# TYPE diskmoe_{name} {kind}"
    yield f"diskmoe_{name} {value}"
