"""What runs teach about a model: where the history is, and what it does at the start of a run."""

from __future__ import annotations

from collections.abc import Callable

from diskmoe.engine.loading import Opened
from diskmoe.engine.options import Options
from diskmoe.experts.store import ExpertStore
from diskmoe.experts.usage import UsageHistory, model_fingerprint, pin_most_used

Say = Callable[[str], None]


def history_of(opened: Opened, options: Options, say: Say) -> UsageHistory | None:
    """The history of this model; None where none is wanted, or its files cannot be told."""
    if options.usage is None:
        return None
    try:
        fingerprint = model_fingerprint(opened.source.config, opened.records.files)
    except OSError as error:
        say(f"note      no usage history: {error}")
        return None
    layers, experts = opened.config.moe_layers, opened.config.experts
    return UsageHistory(options.usage, fingerprint, layers, experts, say)


def pin(store: ExpertStore, history: UsageHistory | None, options: Options, say: Say) -> None:
    """Fill ``PIN_GB`` of the hot store with what was used most. Raises ReadFailed."""
    if not options.pin_gb:
        return
    if history is None:
        say("note      PIN_GB has no effect without a usage history (USAGE=0, or a benchmark)")
        return
    pin_most_used(store, history, int(options.pin_gb * 2**30), say)
