"""Conversions for tests: one run, and what a directory holds."""

from pathlib import Path
from typing import Any

from diskmoe.experts.convert import convert


def contents(directory: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in directory.iterdir()}


def run(model: Any, out: Path, experts: str | None = "q4", dense: str | None = "q8") -> Any:
    return convert(model.open(), model.plan, out, experts, dense)
