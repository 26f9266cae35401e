"""What ``diskmoe plan`` prints: where memory goes and what a token costs, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from diskmoe.engine.api import Prepared
from diskmoe.experts.budget import MemoryPlan, shown_bytes


@dataclass(frozen=True)
class PlanReport:
    """A prepared model and its memory plan, in words or as JSON."""

    prepared: Prepared
    memory: MemoryPlan

    @property
    def bytes_per_cold_token(self) -> int:
        """Disk bytes of one token when no expert is resident."""
        config, records = self.prepared.opened.config, self.prepared.opened.records
        return config.top_k * sum(records.disk_bytes(layer, 0) for layer in config.moe_layers)

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
        ]

    def as_json(self) -> dict[str, Any]:
        opened = self.prepared.opened
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
        }
