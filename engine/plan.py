"""What ``diskmoe plan`` prints: where memory goes and what a token costs, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from diskmoe.engine.api import Prepared
from diskmoe.engine.cores import usable_cores
from diskmoe.engine.kernels.workers import Workers
from diskmoe.engine.predict import HIT_RATES, Speeds, TokenWork, kernel_speeds, token_seconds
from diskmoe.experts.budget import MemoryPlan, shown_bytes
from diskmoe.experts.disk import measure_disk


@dataclass(frozen=True)
class PlanReport:
    """A prepared model, its memory plan and what was measured, in words or as JSON."""

    prepared: Prepared
    memory: MemoryPlan
    speeds: Speeds

    @staticmethod
    def measure(prepared: Prepared, memory: MemoryPlan) -> PlanReport:
        """Measures the disk and the kernels, for about a second."""
        opened, options = prepared.opened, prepared.options
        records, hidden = opened.records, opened.config.hidden
        with Workers(options.threads or usable_cores()[0]) as workers:
            dense, expert = kernel_speeds(
                opened.dense_formats[-1], records.expert_format, hidden, workers
            )
        disk, how = None, "the model has no experts"
        if opened.config.moe_layers:
            nbytes = records.disk_bytes(opened.config.moe_layers[0], 0)
            disk, how = measure_disk(records.files, nbytes, options.io_threads)
        if disk is not None and options.disk_bps and options.disk_bps < disk:
            disk, how = float(options.disk_bps), f"DISK_BPS; unpaced: {how}"
        return PlanReport(prepared, memory, Speeds(dense, expert, disk, how))

    @property
    def bytes_per_cold_token(self) -> int:
        """Disk bytes of one token when no expert is resident."""
        config, records = self.prepared.opened.config, self.prepared.opened.records
        return config.top_k * sum(records.disk_bytes(layer, 0) for layer in config.moe_layers)

    @property
    def work(self) -> TokenWork:
        """What a token asks for."""
        config, records = self.prepared.opened.config, self.prepared.opened.records
        layers = len(config.moe_layers)
        return TokenWork(
            dense_bytes=self.memory.request.dense_bytes,
            expert_bytes=records.record_layout.nbytes,
            read_bytes=records.disk_bytes(config.moe_layers[0], 0) if layers else 0,
            top_k=config.top_k,
            moe_layers=layers,
        )

    @property
    def uniform_hit_rate(self) -> float:
        """How often a store of this size has an expert when all are chosen alike."""
        config = self.prepared.opened.config
        slots = sum(self.memory.slots_of(config.moe_layers).values())
        return slots / max(len(config.moe_layers) * config.experts, 1)

    @property
    def predicted(self) -> list[tuple[float, float | None]]:
        """(hit rate, tokens per second or None) for some hit rates and for uniform routing."""
        rates = sorted({*HIT_RATES, round(self.uniform_hit_rate, 4)})
        seconds = [token_seconds(self.work, self.speeds, rate) for rate in rates]
        return [(rate, 1 / s if s else None) for rate, s in zip(rates, seconds, strict=True)]

    def lines(self) -> list[str]:
        opened = self.prepared.opened
        config, records = opened.config, opened.records
        count = len(config.moe_layers) * config.experts
        each = records.record_layout.nbytes
        return [
            (
                f"{opened.path}: {config.family}, {config.layers} layers, {config.experts} experts, "
                f"top-{config.top_k}"
            ),
            (
                f"experts {records.expert_format}: {shown_bytes(each)} each, {count} in all, "
                f"{shown_bytes(count * each)}"
            ),
            *self.memory.lines(),
            (
                f"a token reads {shown_bytes(self.bytes_per_cold_token)} from disk when nothing "
                "is resident"
            ),
            *self._speed_lines(),
        ]

    def _speed_lines(self) -> list[str]:
        speeds = self.speeds
        disk = "not measured" if speeds.disk is None else f"{speeds.disk / 1e9:.2f} GB/s"
        parts = [
            f"{100 * rate:.3g} % {speed:.1f}" for rate, speed in self.predicted if speed is not None
        ]
        return [
            (
                f"measured: disk {disk} ({speeds.disk_how}), weights "
                f"{speeds.dense / 1e9:.1f} GB/s dense, {speeds.expert / 1e9:.1f} GB/s experts"
            ),
            (
                f"predicted tokens/s at a hit rate of {', '.join(parts)}; uniform routing would hit "
                f"{100 * self.uniform_hit_rate:.3g} %"
                if parts
                else "no prediction without the disk's speed"
            ),
        ]

    def as_json(self) -> dict[str, Any]:
        """The keys are told in docs/small-ram.md."""
        opened, speeds = self.prepared.opened, self.speeds
        config, records = opened.config, opened.records
        return {
            "model": str(opened.path),
            "family": config.family,
            "layers": config.layers,
            "experts": config.experts,
            "top_k": config.top_k,
            "expert_format": records.expert_format,
            "expert_bytes": records.record_layout.nbytes,
            "bytes_per_cold_token": self.bytes_per_cold_token,
            "memory": self.memory.as_json(),
            "speed": {
                "disk_bytes_per_second": speeds.disk,
                "disk_how": speeds.disk_how,
                "dense_bytes_per_second": speeds.dense,
                "expert_bytes_per_second": speeds.expert,
            },
            "uniform_hit_rate": self.uniform_hit_rate,
            "predicted": [{"hit_rate": rate, "tok_per_s": speed} for rate, speed in self.predicted],
        }
