"""One stats object per run; every number has one definition, and it stands here.

Decode and prefill are counted apart: prefill reads most experts once and would hide what a token
costs. The last prompt token is the first decode forward's row, so every emitted token comes from a
decode forward and plain decoding has exactly 1.0 tokens per forward. With drafts, a token is either
an accepted draft or sampled: picked by the model where no draft had it right.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import psutil

from diskmoe.mtp.compose import Account
from diskmoe.mtp.planner import Planner


class Counters(Protocol):
    """What the hot store counts, over its whole life."""

    hits: int
    misses: int
    miss_bytes: int
    read_wait_seconds: float
    read_seconds: float
    hideable_seconds: float
    ahead_hits: int
    ahead_bytes: int


class Recall(Protocol):
    """How many experts decode rows chose, and how many of them the guesses one layer before had
    among their k, and their 2k, first."""

    chosen: int
    in_k: int
    in_2k: int


COUNTED = tuple(Counters.__annotations__)


@dataclass
class Phase:
    """Sums over the forwards of one phase.

    hits, misses: per forward and layer, per unique expert: resident when the layer asked, or not;
    a draft head's layer, and all else that its drafts read, is counted with the forward.
    selections: rows x top-k, summed over layers; not reads.
    miss_bytes: bytes that misses demanded from disk.
    read_wait_seconds: time in which computing had nothing to do but wait for a read.
    read_seconds: wall time of layers' reads, each layer's from its first request to its last byte.
    hideable_seconds: how much of that the work on experts could have covered at best.
    ahead_hits: of the hits, those read on a guess in time; ahead_bytes: read on guesses, right or
    wrong, and not among the miss bytes.
    forward_seconds: wall time inside forwards and of finding their drafts; computing is what is left
    without the wait.
    seconds: wall time of the phase; what is left without the forwards chose tokens, made text, or
    waited for other texts.
    """

    forwards: int = 0
    rows: int = 0
    hits: int = 0
    misses: int = 0
    selections: int = 0
    miss_bytes: int = 0
    read_wait_seconds: float = 0.0
    read_seconds: float = 0.0
    hideable_seconds: float = 0.0
    ahead_hits: int = 0
    ahead_bytes: int = 0
    forward_seconds: float = 0.0
    seconds: float = 0.0

    def add(self, before: Snapshot, after: Snapshot, rows: int, seconds: float) -> None:
        """Books one forward from the counters before and after it."""
        self.count(rows)
        self.book(before, after, seconds)

    def count(self, rows: int) -> None:
        """A forward of so many rows."""
        self.forwards += 1
        self.rows += rows

    def book(self, before: Snapshot, after: Snapshot, seconds: float) -> None:
        """What was done for a forward, or for a part of one."""
        self.forward_seconds += seconds
        for name, value in after.items():
            setattr(self, name, getattr(self, name) + value - before[name])

    @property
    def hit_rate(self) -> float | None:
        """hits / (hits + misses); None when no layer asked for an expert."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else None

    @property
    def compute_seconds(self) -> float:
        """Seconds of the forwards that did not wait for a read."""
        return max(0.0, self.forward_seconds - self.read_wait_seconds)

    @property
    def other_seconds(self) -> float:
        """Wall time between forwards."""
        return max(0.0, self.seconds - self.forward_seconds)

    def since(self, before: Phase) -> Phase:
        """What was added to an earlier copy of this phase."""
        names = [entry.name for entry in fields(self)]
        return Phase(**{name: getattr(self, name) - getattr(before, name) for name in names})

    @property
    def hidden_share(self) -> float | None:
        """Of the reading that work could have covered, the share that it did; None without any."""
        if self.hideable_seconds <= 0:
            return None
        return min(1.0, (self.read_seconds - self.read_wait_seconds) / self.hideable_seconds)


Snapshot = dict[str, Any]


def snapshot(counters: Counters, selections: int) -> Snapshot:
    """The running counters at one moment."""
    return {name: getattr(counters, name) for name in COUNTED} | {"selections": selections}


@dataclass
class RunStats:
    """One run: a prompt, its prefill, its decode.

    prompt_tokens: of them reused_tokens had keys and values left by an earlier text. tokens: emitted;
    sampled: of these, those that no draft had right. ttft_seconds: from the start of prefill to the
    first token. stop_reason: why it ended. cache_state: ``warm`` where experts were in memory or in
    the page cache at the start, else ``cold``. prefill, decode: the sums of each. drafts: what became
    of them, by source.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    tokens: int = 0
    sampled: int = 0
    ttft_seconds: float = 0.0
    stop_reason: str = ""
    cache_state: str = "cold"
    prefill: Phase = field(default_factory=Phase)
    decode: Phase = field(default_factory=Phase)
    recall: Recall | None = None  # of the guesses of PREFETCH
    drafts: Mapping[str, Account] = field(default_factory=dict)
    planner: Planner | None = None  # of the drafts, where there are any

    @property
    def tokens_per_forward(self) -> float | None:
        """Emitted tokens / target-model forwards after prefill."""
        return self.tokens / self.decode.forwards if self.decode.forwards else None

    @property
    def tok_per_s(self) -> float | None:
        """Emitted tokens / seconds from the end of prefill to the last token."""
        return self.tokens / self.decode.seconds if self.decode.seconds > 0 else None

    @property
    def bytes_per_token(self) -> float | None:
        """Miss bytes of decode / emitted tokens."""
        return self.decode.miss_bytes / self.tokens if self.tokens else None


def peak_rss_bytes() -> int:
    """The most memory this process has ever had resident, in bytes."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform == "darwin":
        return int(peak)
    # ru_maxrss survives exec, so a big parent would be booked on us; VmHWM starts anew.
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return int(peak) * 1024


def phase_json(phase: Phase) -> dict[str, float | int | None]:
    """A phase as plain numbers, for the report's ``prefill`` entry."""
    numbers = {entry.name: getattr(phase, entry.name) for entry in fields(phase)}
    numbers["hit_rate"] = phase.hit_rate
    return numbers
