"""Sets of code points as sequences of byte ranges, well-formed UTF-8 only.

The split follows the encoding's own borders (RFC 3629): a range of code points is cut where the
length changes and where the last bytes do not run over their whole range, as in Ken Thompson's
grep and in RE2 (Cox, "Regular Expression Matching in the Wild", 2010).

    >>> sequences(((0x7F, 0x80),))
    [((127, 127),), ((194, 194), (128, 128))]
"""

from __future__ import annotations

from diskmoe.grammar_draft.rules import Ranges

Sequence = tuple[tuple[int, int], ...]  # of byte ranges, first byte first
CHARACTERS = (  # first bytes of characters of several bytes, and the ranges of those that follow
    ((0xC2, 0xDF), ((0x80, 0xBF),)),
    ((0xE0, 0xE0), ((0xA0, 0xBF), (0x80, 0xBF))),
    ((0xE1, 0xEC), ((0x80, 0xBF), (0x80, 0xBF))),
    ((0xED, 0xED), ((0x80, 0x9F), (0x80, 0xBF))),
    ((0xEE, 0xEF), ((0x80, 0xBF), (0x80, 0xBF))),
    ((0xF0, 0xF0), ((0x90, 0xBF), (0x80, 0xBF), (0x80, 0xBF))),
    ((0xF1, 0xF3), ((0x80, 0xBF), (0x80, 0xBF), (0x80, 0xBF))),
    ((0xF4, 0xF4), ((0x80, 0x8F), (0x80, 0xBF), (0x80, 0xBF))),
)
_LENGTHS = ((0x7F, 1), (0x7FF, 2), (0xFFFF, 3), (0x10FFFF, 4))


def sequences(ranges: Ranges) -> list[Sequence]:
    """The byte sequences of a set of code points (no surrogates in it)."""
    found: list[Sequence] = []
    for low, high in ranges:
        for last, length in _LENGTHS:
            if low <= high and low <= last:
                _split(low, min(high, last), length, found)
                low = last + 1
    return found


def _split(low: int, high: int, length: int, found: list[Sequence]) -> None:
    """Cuts [low, high], all of one length, until each byte runs over one range."""
    queue = [(low, high)]
    while queue:
        low, high = queue.pop()
        for tail in range(1, length):
            mask = (1 << (6 * tail)) - 1  # the bits of the last `tail` bytes
            if low & ~mask == high & ~mask:
                continue
            if low & mask:
                queue += [((low | mask) + 1, high), (low, low | mask)]
                break
            if high & mask != mask:
                queue += [(high & ~mask, high), (low, (high & ~mask) - 1)]
                break
        else:
            first, last = chr(low).encode(), chr(high).encode()
            found.append(tuple(zip(first, last, strict=True)))
