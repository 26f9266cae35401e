"""How much a chat template may take: the limits, the meter that counts, and the checks.

`sandbox.py` calls these before and after everything that can repeat or grow.
"""

import re
import threading
import time
from collections.abc import ItemsView, Iterable, KeysView, Mapping, ValuesView
from typing import Any

LARGEST_VALUE = 16 << 20  # characters, and 8 for an item: in one value and in the whole output
MOST_MADE = 128 << 20  # the same, of all values that one render makes, freed ones included
MOST_STEPS = 2_000_000
MOST_SECONDS = 10.0
LARGEST_NUMBER = 100_000  # as a width, a count or an index; range() has the same bound
LONGEST_NEEDLE = 256  # Python's searches from the right take (text x needle) steps


class TemplateLimit(Exception):
    """A template takes more time or memory than any honest one."""


class Meter(threading.local):
    """Steps, time and output of the render that this thread is in."""

    def start(self) -> None:
        self.steps = MOST_STEPS
        self.output = LARGEST_VALUE
        self.room = MOST_MADE
        self.deadline = time.monotonic() + MOST_SECONDS

    def step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise TemplateLimit(f"takes more than {MOST_STEPS} steps")
        if time.monotonic() > self.deadline:
            raise TemplateLimit(f"takes more than {MOST_SECONDS:g} seconds")

    def print(self, value: Any) -> None:
        self.step()
        self.output -= measure(value)
        if self.output < 0:
            raise TemplateLimit(f"writes more than {LARGEST_VALUE} characters")

    def make(self, value: Any) -> None:
        self.step()
        measure(value)
        if isinstance(value, str):
            self.room -= len(value)
        elif isinstance(value, (list, tuple, dict)):
            self.room -= 8 * len(value)
        if self.room < 0:
            raise TemplateLimit(f"makes values of more than {MOST_MADE} characters together")


def measure(value: Any) -> int:
    """Characters of a value plus 8 for each item, parts that are used twice counted twice."""
    size = _size(value, {})
    check_size(size)
    return size


def _size(value: Any, known: dict[int, int]) -> int:
    """`known`: sizes of the containers seen so far, by identity. Twenty lists of ten references
    each can stand for 10^20 items; walked this way they are two hundred."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, int):
        return 1 + value.bit_length() // 3
    if not isinstance(value, (Mapping, list, tuple, set, KeysView, ValuesView, ItemsView)):
        return 1
    size = known.get(id(value))
    if size is None:
        size = 8 * len(value)
        # Items of a view are made on the way: their identities would not last.
        mapping = getattr(value, "mapping", value)
        if isinstance(mapping, Mapping):
            size += 8 * len(value)
            for key, item in mapping.items():
                size += _size(key, known) + _size(item, known)
        else:
            for item in value:
                size += _size(item, known)
        known[id(value)] = size
    return size


def check_size(size: int) -> None:
    if size > LARGEST_VALUE:
        raise TemplateLimit(f"makes a value of more than {LARGEST_VALUE} characters")


def check_numbers(args: Iterable[Any], kwargs: Mapping[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, (int, float)) and not abs(value) <= LARGEST_NUMBER:
            raise TemplateLimit(f"passes a number beyond {LARGEST_NUMBER}")


def check_format(form: str) -> None:
    """Refuse widths of more than three digits and widths taken from an argument."""
    if re.search(r"\d{4}", form) or re.search(r"%[-+ #0]*\*|\{[^{}]*\{", form):
        raise TemplateLimit("formats with a very large or computed width")


def check_replace(text: str, old: Any, new: Any) -> None:
    if isinstance(old, str) and isinstance(new, str):
        check_size(len(text) + text.count(old) * len(new))


def join_parts(separator: str, parts: Any) -> list[Any]:
    """The parts as a list, after checking how long they are together."""
    listed = list(parts)
    check_size(measure(listed) + len(separator) * len(listed))
    return listed


def width(options: list[Any], kwargs: Mapping[str, Any]) -> int:
    """The most that an indent or tojson filter is asked to put around an item."""
    total = 0
    for value in (*options, *kwargs.values()):
        if isinstance(value, int):
            total += abs(value)
        elif isinstance(value, (str, list, tuple)):
            total += measure(value)
    return total


def depth(value: Any, limit: int = 100) -> int:
    """How deeply containers are nested; `measure` has bounded their size before."""
    level = [value]
    for depth in range(limit):
        level = [
            item
            for container in level
            if isinstance(container, (Mapping, list, tuple))
            for item in (container.values() if isinstance(container, Mapping) else container)
        ]
        if not level:
            return depth
    return limit
