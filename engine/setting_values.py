"""What the text of a setting means: its value, or a ValueError that says what it must be."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable

CONSTRAIN_WORDS = ("0", "1", "mask", "check")


def integer(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"a whole number from {low} to {high}") from None
        if not low <= value <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return value

    return parse


def number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"a number from {low:g} to {high:g}") from None
        if not (math.isfinite(value) and low <= value <= high):
            raise ValueError(f"a number from {low:g} to {high:g}")
        return value

    return parse


def switch(text: str) -> bool:
    """On or off, as words say it. ValueError for anything else."""
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("1 or 0")


def speed(text: str) -> int | None:
    factor = {"k": 10**3, "m": 10**6, "g": 10**9}.get(text[-1:].lower())
    try:
        value = float(text[:-1] if factor else text) * (factor or 1)
    except ValueError:
        value = math.nan
    if value == 0:
        return None
    if not 1000 <= value <= 1e12:
        raise ValueError("bytes a second from 1k to 1000G, like 500M or 1.5G; 0 for none")
    return round(value)


def choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() in allowed:
            return text.lower()
        near = difflib.get_close_matches(text.lower(), allowed, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError("one of " + ", ".join(allowed) + hint)

    return parse


def any_text(text: str) -> str:
    return text


def some_text(text: str) -> str:
    """What an unset variable of a shell leaves is refused, not taken for nothing that was said."""
    if not text.strip():
        raise ValueError("something, or left out")
    return text


def bits(text: str) -> int:
    if text in ("4", "8", "16", "32"):
        return int(text)
    raise ValueError("4, 8, 16 or 32")


def token_ids(text: str) -> tuple[int, ...]:
    try:
        ids = tuple(int(part) for part in text.replace(",", " ").split())
    except ValueError:
        raise ValueError("token ids like 1,2,3") from None
    if not ids or min(ids) < 0:
        raise ValueError("at least one token id, none negative, like 1,2,3")
    return ids


def did_you_mean(word: str, known: list[str] | tuple[str, ...], cutoff: float = 0.6) -> str:
    """``"; did you mean X?"`` when a known word is near, else an empty string."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""
