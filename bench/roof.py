"""A run beside what memory and disk allow: the ceiling at each hit rate, and what would bring more.

The ceiling is the formula of ``engine.predict`` with the speed of memory in place of the kernels'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from diskmoe.bench.ceilings import Compute
from diskmoe.bench.knobs import Knob, Reading
from diskmoe.bench.machine import BUSY
from diskmoe.engine.predict import Speeds, TokenWork, token_seconds
from diskmoe.engine.stats import RunStats
from diskmoe.experts.budget import shown_bytes

HIT_RATES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True)
class Roofline:
    """What was measured of a model, and what follows from it."""

    model: str
    context: int  # positions that attention reads, in the middle of the run
    threads: int
    compute: Compute
    read: float | None  # bytes per second that misses are read with
    read_how: str
    readings: Sequence[Reading]  # cold, in other ways
    work: TokenWork  # dense weights without the KV cache
    kv_bytes: int
    stats: RunStats
    others_cpu: float | None  # share of the processors that others kept busy meanwhile
    slots: int
    experts: int
    knobs: Sequence[Knob]

    @property
    def hit_rate(self) -> float:
        """That of the run; 1 where there are no experts to miss."""
        rate = self.stats.decode.hit_rate
        return 1.0 if rate is None else rate

    @property
    def tok_per_s(self) -> float:
        return self.stats.tok_per_s or 0.0

    @property
    def achieved(self) -> float | None:
        """The run's speed, of the ceiling at its hit rate."""
        ceiling = self.ceiling(self.hit_rate)
        return None if ceiling is None else self.tok_per_s / ceiling

    def ceiling(self, hit_rate: float) -> float | None:
        """Tokens per second that memory and disk allow."""
        seconds = self._seconds(hit_rate)
        return None if seconds is None else 1 / seconds

    def limit(self, hit_rate: float) -> str:
        """What the ceiling at a hit rate is made of, for the most part."""
        whole, without = self._seconds(hit_rate), self._seconds(1.0)
        if whole is None or without is None:
            return "disk, not measured"
        return "disk" if whole - without > without else "memory"

    def _seconds(self, hit_rate: float) -> float | None:
        memory = self.compute.memory
        work = replace(self.work, dense_bytes=self.work.dense_bytes + self.kv_bytes)
        return token_seconds(work, Speeds(memory, memory, self.read, self.read_how), hit_rate)

    @property
    def bytes_per_token(self) -> dict[str, int]:
        """By part; from disk as in the run, and when nothing is resident."""
        work = self.work
        used = work.moe_layers * work.top_k
        return {
            "dense": work.dense_bytes,
            "kv_cache": self.kv_bytes,
            "experts_from_ram": used * work.expert_bytes,
            "experts_from_disk": round(self.stats.bytes_per_token or 0),
            "experts_from_disk_cold": used * work.read_bytes,
        }

    @property
    def rates(self) -> list[float]:
        """The table's hit rates: round ones, and that of the run."""
        if not self.work.moe_layers:
            return [1.0]
        return sorted({*HIT_RATES, round(self.hit_rate, 4)})

    @property
    def shares(self) -> dict[str, float]:
        """What the time of decoding went into."""
        decode = self.stats.decode
        wait, compute = decode.read_wait_seconds, decode.compute_seconds
        whole = max(decode.seconds, wait + compute)
        return {
            "read_wait": wait / whole,
            "compute": compute / whole,
            "other": (whole - wait - compute) / whole,
        }

    @property
    def knob(self) -> Knob | None:
        """The one to turn; None where there is none that the machine allows whatever the text."""
        return next((knob for knob in self.knobs if knob.within and knob.certain), None)

    def verdict(self) -> str:
        """The one knob, or why there is none."""
        if self.knob is not None:
            return f"turn {self.knob.line()} (now {self.tok_per_s:.3g})"
        achieved = "" if self.achieved is None else f", {100 * self.achieved:.0f} % of the ceiling"
        begin = f"no setting is worth 5 %{achieved}"
        if self.knobs:
            return f"{begin}; beyond that, {self.knobs[0].line()}"
        return begin + "; what is left is " + _largest(self.shares)

    def lines(self) -> list[str]:
        compute, parts = self.compute, self.bytes_per_token
        disk = "not measured" if self.read is None else f"{self.read / 1e9:.2f} GB/s"
        cold = ", ".join(
            f"{r.speed / 1e9:.2f} GB/s {_way(r.direct)} with {r.threads}" for r in self.readings
        )
        lines = [
            f"model     {self.model}",
            (
                f"memory    read with {compute.memory / 1e9:.1f} GB/s by {compute.threads} threads; "
                f"dense weights go through kernels with {compute.dense / 1e9:.1f} "
                f"({100 * compute.dense / compute.memory:.0f} %), experts with "
                f"{compute.expert / 1e9:.1f} ({100 * compute.expert / compute.memory:.0f} %)"
            ),
            f"misses    {disk}: {self.read_how}",
        ]
        if cold:
            lines.append(f"disk      cold: {cold} reads at a time")
        lines += [
            (
                f"a token   dense weights {shown_bytes(parts['dense'])}, KV cache "
                f"{shown_bytes(parts['kv_cache'])} at {self.context} positions, experts "
                f"{shown_bytes(parts['experts_from_ram'])}; of these from disk "
                f"{shown_bytes(parts['experts_from_disk'])} in the run, "
                f"{shown_bytes(parts['experts_from_disk_cold'])} when none is resident"
            ),
            "hit rate   ceiling tok/s   limited by",
        ]
        for rate in self.rates:
            speed = self.ceiling(rate)
            told = "" if rate != round(self.hit_rate, 4) else "   <- the run's hit rate"
            shown = "-" if speed is None else f"{speed:.2f}"
            lines.append(f"{100 * rate:>6.1f} %   {shown:>13}   {self.limit(rate)}{told}")
        achieved = "" if self.achieved is None else f", {100 * self.achieved:.0f} % of the ceiling"
        shares = ", ".join(f"{k.replace('_', ' ')} {100 * v:.0f} %" for k, v in self.shares.items())
        lines += [
            (
                f"measured  {self.stats.tokens} tokens, {self.tok_per_s:.2f} tok/s, hit rate "
                f"{100 * self.hit_rate:.1f} % with {self.slots} of {self.experts} slots{achieved}; {shares}"
            ),
            f"knob      {self.verdict()}",
        ]
        if self.others_cpu is not None and self.others_cpu > BUSY:
            busy = f"{100 * self.others_cpu:.0f} % of the processors"
            lines.append(f"busy      others kept {busy} busy during the run: measure again")
        others = [knob for knob in self.knobs if knob is not self.knob]
        return lines + [f"also      {knob.line()}" for knob in others]

    def as_json(self) -> dict[str, Any]:
        """The keys are told in docs/benchmarks.md."""
        return {
            "model": self.model,
            "threads": self.threads,
            "memory_bytes_per_second": self.compute.memory,
            "dense_bytes_per_second": self.compute.dense,
            "expert_bytes_per_second": self.compute.expert,
            "read_bytes_per_second": self.read,
            "read_how": self.read_how,
            "disk": [asdict(reading) for reading in self.readings],
            "context": self.context,
            "bytes_per_token": self.bytes_per_token,
            "ceiling": [
                {"hit_rate": rate, "tok_per_s": self.ceiling(rate), "limit": self.limit(rate)}
                for rate in self.rates
            ],
            "tokens": self.stats.tokens,
            "tok_per_s": self.tok_per_s,
            "hit_rate": self.stats.decode.hit_rate,
            "slots_per_layer": self.slots,
            "experts": self.experts,
            "achieved": self.achieved,
            "others_cpu": self.others_cpu,
            "time": self.shares,
            "knob": None if self.knob is None else asdict(self.knob),
            "verdict": self.verdict(),
            "knobs": [asdict(knob) for knob in self.knobs],
        }


def _way(direct: bool) -> str:
    return "past the page cache" if direct else "through it"


def _largest(shares: Mapping[str, float]) -> str:
    name = max(shares, key=lambda share: shares[share])
    return f"{name.replace('_', ' ')}, {100 * shares[name]:.0f} % of the time"
