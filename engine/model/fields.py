"""Typed, bounded access to a parsed config.json, and the bounds.

The rule of this file: every complaint names the file, the key, what was found and what is allowed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from diskmoe.experts.errors import BadModel

MAX_HIDDEN = 65_536
MAX_LAYERS = 1_024
MAX_EXPERTS = 4_096
MAX_VOCAB = 2_000_000
MAX_HEADS = 4_096
MAX_HEAD_DIM = 4_096
MAX_WIDTH = 1_048_576  # of a projection or an FFN
MAX_CONTEXT = 1 << 31


class Fields:
    """The keys of one object; a key that is null counts as not there."""

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        self.raw = raw
        self.where = where

    def find(self, keys: Sequence[str]) -> tuple[str, Any]:
        """The first of ``keys`` that is there and not null, else (first key, None)."""
        for key in keys:
            if self.raw.get(key) is not None:
                return key, self.raw[key]
        return keys[0], None

    def wrong(self, key: str, value: object, allowed: str) -> BadModel:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return BadModel(f"{self.where}: {key} is {shown}, allowed: {allowed}")

    def integer(self, keys: str | Sequence[str], low: int, high: int, default: int | None) -> int:
        key, value = self.find((keys,) if isinstance(keys, str) else keys)
        if value is None:
            if default is None:
                raise BadModel(
                    f"{self.where}: {key} is missing, expected a whole number {low} to {high}"
                )
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(key, value, f"a whole number {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float, default: float | None) -> float:
        value = self.raw.get(key)
        if value is None:
            if default is None:
                raise BadModel(f"{self.where}: {key} is missing, expected {low:g} to {high:g}")
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, value, f"a number {low:g} to {high:g}")
        if not low <= value <= high:  # false for NaN too
            raise self.wrong(key, value, f"a number {low:g} to {high:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.raw.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value
