"""What a run says about itself: the settings line, the report on stderr, the JSON object.

Every number comes from ``RunStats`` or is measured here; ``REPORT_KEYS`` is a contract with the
scripts that read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from diskmoe.engine.setting_sources import Value
from diskmoe.engine.settings import SETTINGS
from diskmoe.engine.stats import RunStats, peak_rss_bytes, phase_json
from diskmoe.experts.budget import shown_bytes
from diskmoe.mtp.compose import Account
from diskmoe.mtp.planner import Planner

REPORT_KEYS = (
    "text",
    "token_ids",
    "prompt_tokens",
    "reused_tokens",
    "tokens",
    "sampled",
    "forwards",
    "tokens_per_forward",
    "prefill_seconds",
    "decode_seconds",
    "ttft_seconds",
    "tok_per_s",
    "hits",
    "misses",
    "hit_rate",
    "selections",
    "miss_bytes",
    "bytes_per_token",
    "read_wait_seconds",
    "read_seconds",
    "hidden_share",
    "compute_seconds",
    "prefetch",
    "peak_rss_bytes",
    "budget_bytes",
    "slots_per_layer",
    "cache_state",
    "stop_reason",
    "drafts",
    "planner",
    "settings",
    "model",
    "prefill",
)


@dataclass(frozen=True)
class ModelFacts:
    """What a report says about the model it ran."""

    name: str
    family: str
    layers: int
    experts: int
    top_k: int
    expert_bytes: int
    expert_format: str
    budget_bytes: int
    slots_per_layer: int
    paced: str = ""  # what a disk made slow is called in the report


def shown(value: Any) -> str:
    """A setting's value as a user would type it, cut short."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, (tuple, list)):
        value = ",".join(str(part) for part in value)
    text = str(value).replace("\n", "\\n")
    return repr(text if len(text) <= 40 else text[:37] + "...") if " " in text else text[:60]


def settings_lines(values: Mapping[str, Value], verbose: bool) -> list[str]:
    """The effective settings: what was given or decided; all of them when verbose."""
    parts = [
        f"{setting.name}={shown(values[setting.name].value)} ({values[setting.name].source})"
        for setting in SETTINGS
        if values[setting.name].value is not None
        and (verbose or values[setting.name].source != "default")
    ]
    if not parts:
        return ["settings  all default"]
    if not verbose:
        return ["settings  " + ", ".join(parts)]
    return ["settings"] + ["  " + part for part in parts]


def report_json(
    stats: RunStats,
    facts: ModelFacts,
    values: Mapping[str, Value],
    token_ids: Sequence[int],
    text: str | None,
) -> dict[str, Any]:
    """The run as one JSON object; see ``REPORT_KEYS``."""
    decode = stats.decode
    report: dict[str, Any] = {
        "text": text,
        "token_ids": [int(token) for token in token_ids],
        "prompt_tokens": stats.prompt_tokens,
        "reused_tokens": stats.reused_tokens,
        "tokens": stats.tokens,
        "sampled": stats.sampled,
        "forwards": decode.forwards,
        "tokens_per_forward": stats.tokens_per_forward,
        "prefill_seconds": stats.prefill.seconds,
        "decode_seconds": decode.seconds,
        "ttft_seconds": stats.ttft_seconds,
        "tok_per_s": stats.tok_per_s,
        "hits": decode.hits,
        "misses": decode.misses,
        "hit_rate": decode.hit_rate,
        "selections": decode.selections,
        "miss_bytes": decode.miss_bytes,
        "bytes_per_token": stats.bytes_per_token,
        "read_wait_seconds": decode.read_wait_seconds,
        "read_seconds": decode.read_seconds,
        "hidden_share": decode.hidden_share,
        "compute_seconds": decode.compute_seconds,
        "prefetch": _prefetch_json(stats),
        "peak_rss_bytes": peak_rss_bytes(),
        "budget_bytes": facts.budget_bytes,
        "slots_per_layer": facts.slots_per_layer,
        "cache_state": stats.cache_state,
        "stop_reason": stats.stop_reason,
        "drafts": {name: _draft_json(account) for name, account in stats.drafts.items()},
        "planner": None if stats.planner is None else stats.planner.summary(),
        "settings": {
            name: {"value": value.value, "source": value.source} for name, value in values.items()
        },
        "model": {
            "name": facts.name,
            "family": facts.family,
            "layers": facts.layers,
            "experts": facts.experts,
            "top_k": facts.top_k,
            "expert_bytes": facts.expert_bytes,
            "expert_format": facts.expert_format,
        },
        "prefill": phase_json(stats.prefill),
    }
    assert tuple(report) == REPORT_KEYS
    return report


def report_lines(stats: RunStats, facts: ModelFacts) -> list[str]:
    """The report for a person, to stderr."""
    decode = stats.decode
    if not stats.tokens:
        return [f"report    no token was generated; stop: {stats.stop_reason}"]
    lines = [
        (
            f"report    {stats.tokens} tokens in {decode.seconds:.2f} s, "
            f"{stats.tok_per_s:.2f} tok/s; first after {stats.ttft_seconds:.2f} s; "
            f"stop: {stats.stop_reason}"
        ),
        (
            f"forwards  {decode.forwards}, {stats.tokens_per_forward:.2f} tokens/forward; prefill "
            f"{stats.prefill.rows} rows in {stats.prefill.seconds:.2f} s{_prefill_experts(stats)}"
            + (f", {stats.reused_tokens} more were known" if stats.reused_tokens else "")
        ),
    ]
    if decode.hit_rate is not None:
        lines.append(
            f"experts   hit rate {100 * decode.hit_rate:.1f} % ({decode.hits} hits, "
            f"{decode.misses} misses, {decode.selections} selections), "
            f"{facts.slots_per_layer} of {facts.experts} slots/layer; read "
            f"{shown_bytes(decode.miss_bytes)}, {shown_bytes(stats.bytes_per_token or 0)}/token; "
            f"cache {stats.cache_state}" + (f"; {facts.paced}" if facts.paced else "")
        )
    hidden = decode.hidden_share
    lines.append(
        f"time      read wait {decode.read_wait_seconds:.2f} s, "
        f"compute {decode.compute_seconds:.2f} s; reading took {decode.read_seconds:.2f} s"
        + ("" if hidden is None else f", {100 * hidden:.0f} % of what work could hide was hidden")
    )
    lines += _prefetch_lines(stats)
    lines.append(
        f"memory    peak {shown_bytes(peak_rss_bytes())} of a budget of "
        f"{shown_bytes(facts.budget_bytes)}"
    )
    lines += [_source_line(name, account) for name, account in stats.drafts.items()]
    if stats.planner is not None:
        lines.append(_planner_line(stats.planner, facts.expert_bytes))
    return lines


def _draft_json(account: Account) -> dict[str, Any]:
    return {**asdict(account), "acceptance": account.acceptance}


def _source_line(name: str, account: Account) -> str:
    """Scripts read these lines: their form is a contract."""
    share = 100 * (account.acceptance or 0.0)
    kind = "forced drafts" if name == "grammar" else "drafts"
    return f"{name}: {share:.0f}% acceptance ({account.accepted}/{account.judged} {kind})"


def _planner_line(planner: Planner, expert_bytes: int) -> str:
    """How many drafts forwards had, how they did by place, and what the planner thinks rows cost."""
    found = planner.summary()
    fixed = "" if found["fixed"] is None else f" fixed at {found['fixed']} beside a grammar's;"
    depths = ", ".join(f"{k}: {count}" for k, count in found["depths"].items())
    line = f"planner:{fixed} forwards by drafts {depths or 'none'}"
    places = [f"{right}/{judged}" for judged, right in found["accepted_by_position"]]
    if places:
        line += f"; accepted by position {' '.join(places)}"
    seconds = [f"{1000 * each:.3g}" for each in found["seconds_by_rows"]]
    if seconds:
        misses = [shown_bytes(expert_bytes * each) for each in found["misses_by_row"]]
        line += f"; T(1..{len(seconds)}) {' '.join(seconds)} ms"
        line += f"; miss bytes per row {', '.join(misses)}"
    return line + f"; declined {found['declined']}"


def _prefetch_json(stats: RunStats) -> dict[str, Any] | None:
    recall = stats.recall
    if recall is None:
        return None
    return {
        "chosen": recall.chosen,
        "recall_at_k": recall.in_k / recall.chosen if recall.chosen else None,
        "recall_at_2k": recall.in_2k / recall.chosen if recall.chosen else None,
        "hits": stats.decode.ahead_hits,
        "bytes": stats.decode.ahead_bytes,
    }


def _prefetch_lines(stats: RunStats) -> list[str]:
    """What the guesses of the next layer's experts were worth."""
    recall, decode = stats.recall, stats.decode
    if recall is None or not recall.chosen:
        return []
    line = (
        f"prefetch  one layer ahead {100 * recall.in_k / recall.chosen:.1f} % of the experts were "
        f"guessed, {100 * recall.in_2k / recall.chosen:.1f} % in twice as many guesses"
    )
    if decode.ahead_bytes:
        line += (
            f"; {decode.ahead_hits} hits were read ahead in time, "
            f"{shown_bytes(decode.ahead_bytes)} read on guesses"
        )
    return [line]


def _prefill_experts(stats: RunStats) -> str:
    rate = stats.prefill.hit_rate
    if rate is None:
        return ""
    return f" (hit rate {100 * rate:.1f} %, read {shown_bytes(stats.prefill.miss_bytes)})"
