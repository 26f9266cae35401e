"""Sets of code points as sorted, disjoint ranges: what classes and escapes of a pattern mean.

U+0000 is a character here (JSON can write it, as an escape), surrogates are none.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable
from functools import cache

from diskmoe.grammar_draft.rules import LAST_CODE_POINT, Ranges, normal

UNIVERSE: Ranges = ((0, 0xD7FF), (0xE000, LAST_CODE_POINT))
DIGITS: Ranges = ((48, 57),)
WORDS: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
# ECMA-262: WhiteSpace and LineTerminator
SPACES: Ranges = (
    *((9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
)
LINE_ENDS: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))

_LONG = {  # names of general categories
    "letter": "L", "uppercase_letter": "Lu", "lowercase_letter": "Ll", "titlecase_letter": "Lt",
    "modifier_letter": "Lm", "other_letter": "Lo", "mark": "M", "nonspacing_mark": "Mn",
    "spacing_mark": "Mc", "enclosing_mark": "Me", "number": "N", "decimal_number": "Nd",
    "letter_number": "Nl", "other_number": "No", "punctuation": "P", "connector_punctuation": "Pc",
    "dash_punctuation": "Pd", "open_punctuation": "Ps", "close_punctuation": "Pe",
    "initial_punctuation": "Pi", "final_punctuation": "Pf", "other_punctuation": "Po",
    "symbol": "S", "math_symbol": "Sm", "currency_symbol": "Sc", "modifier_symbol": "Sk",
    "other_symbol": "So", "separator": "Z", "space_separator": "Zs", "line_separator": "Zl",
    "paragraph_separator": "Zp", "other": "C", "control": "Cc", "format": "Cf", "punct": "P",
    "digit": "Nd", "cntrl": "Cc",
}  # fmt: skip


def union(*sets: Iterable[tuple[int, int]]) -> Ranges:
    return normal([pair for ranges in sets for pair in ranges])


def complement(ranges: Ranges) -> Ranges:
    holes, start = [], 0
    for low, high in ranges:
        if start < low:
            holes.append((start, low - 1))
        start = high + 1
    holes.append((start, LAST_CODE_POINT))
    return normal(holes)


def difference(ranges: Ranges, taken: Ranges) -> Ranges:
    return intersection(ranges, complement(taken))


def intersection(one: Ranges, other: Ranges) -> Ranges:
    found = []
    i = k = 0
    while i < len(one) and k < len(other):
        low, high = max(one[i][0], other[k][0]), min(one[i][1], other[k][1])
        if low <= high:
            found.append((low, high))
        if one[i][1] < other[k][1]:
            i += 1
        else:
            k += 1
    return tuple(found)


@cache
def category(name: str) -> Ranges | None:
    r"""The characters of ``\p{name}``: a general category of Unicode, by its short or long name;
    None where there is no such. As many as the running Python knows of."""
    name = name.removeprefix("General_Category=").removeprefix("gc=")
    if name in ("Any", "ASCII"):
        return UNIVERSE if name == "Any" else ((0, 0x7F),)
    short = _LONG.get(name.lower(), name)
    found = _categories()
    if short in found:
        return found[short]
    several = [ranges for key, ranges in found.items() if len(short) == 1 and key[0] == short]
    return union(*several) if several else None


@cache
def _categories() -> dict[str, Ranges]:
    runs: dict[str, list[tuple[int, int]]] = {}
    kind, start = "", 0
    for point in range(sys.maxunicode + 2):
        here = unicodedata.category(chr(point)) if point <= sys.maxunicode else ""
        if here != kind:
            if kind:
                runs.setdefault(kind, []).append((start, point - 1))
            kind, start = here, point
    return {key: normal(ranges) for key, ranges in runs.items()}
