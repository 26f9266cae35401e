"""The tokens of a vocabulary by the bytes they have and begin with, as sets of ids.

Sets for single bytes are the leaves of a tree whose nodes are unions: tokens without any byte of a
class are found by a few sets, however many bytes it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.compiled.functions import inner, kernel

Words = npt.NDArray[np.uint64]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]

SPACE = 32
WITHIN = 32  # sets of short tokens
LEAVES = 128  # the row of byte 0; byte b is at LEAVES + b, row i is the union of 2 i and 2 i + 1
BROKEN = 8  # the state behind bytes that are no UTF-8


@dataclass(frozen=True, eq=False)
class TokenSets:
    """Bit t of a row: token t belongs to it."""

    having: Words  # (256, words): tokens that have a byte, as a tree; row 0: one that is not ASCII
    starting: Words  # (256, words): tokens that begin with it, likewise
    second: Words  # (256, words): tokens that begin with a space and then it, likewise
    again: Words  # (words,): tokens that have a space behind their first byte
    within: Words  # (WITHIN, words): row n: tokens of at most n bytes
    broken: Words  # (words,): tokens that are no UTF-8 from their start on
    spelled: Words  # (words,): all of them
    longest: I32  # ids of all longer tokens, the longest first
    lengths: I32  # bytes of each of `longest`


def sets_of(data: U8, starts: npt.NDArray[np.int64], tokens: I32, words: int) -> TokenSets:
    """Sets of texts that stand one behind another. starts: (texts + 1,); tokens: their ids; words: of
    64 ids in a set."""
    having, starting, second = trees = np.zeros((3, 2 * LEAVES, words), np.uint64)
    again, broken, spelled = flat = np.zeros((3, words), np.uint64)
    within = np.zeros((WITHIN, words), np.uint64)
    lay_sets(data, starts, tokens, trees, flat, within)
    lengths = np.diff(starts).astype(np.int32)
    long = np.argsort(-lengths, kind="stable")[: int((lengths >= WITHIN).sum())]
    sets = (having, starting, second, again, within, broken, spelled)
    return TokenSets(*sets, tokens[long], lengths[long])


@inner
def follow(state: Any, byte: Any) -> Any:
    """UTF-8 byte by byte (RFC 3629): 0 between characters, 1 to 7 within one, 8 never again."""
    if state == 0:
        if byte < 0x80:
            return 0
        if 0xC2 <= byte <= 0xDF:
            return 1
        if byte == 0xE0:
            return 4
        if byte == 0xED:
            return 5
        if 0xE1 <= byte <= 0xEF:
            return 2
        if byte == 0xF0:
            return 6
        if 0xF1 <= byte <= 0xF3:
            return 3
        return 7 if byte == 0xF4 else BROKEN
    low = 0xA0 if state == 4 else 0x90 if state == 6 else 0x80
    high = 0x9F if state == 5 else 0x8F if state == 7 else 0xBF
    if state == BROKEN or byte < low or byte > high:
        return BROKEN
    if state == 1:
        return 0
    return 2 if state in (3, 6, 7) else 1


@kernel
def lay_sets(data: Any, starts: Any, tokens: Any, trees: Any, flat: Any, within: Any) -> None:
    """Fills the sets of `TokenSets`, all zero before. data, starts, tokens: as in `sets_of`; trees: u64
    (3, 256, words): having, starting, second; flat: u64 (3, words): again, broken, spelled."""
    one = np.uint64(1)
    for i in range(len(tokens)):
        word, bit = tokens[i] >> 6, one << np.uint64(tokens[i] & 63)
        begin, end = starts[i], starts[i + 1]
        flat[2, word] |= bit
        if end - begin < WITHIN:
            within[end - begin, word] |= bit
        state = 0
        for at in range(begin, end):
            row = LEAVES + data[at] if data[at] < 128 else 0
            trees[0, row, word] |= bit
            if at == begin:
                trees[1, row, word] |= bit
            elif data[at] == SPACE:
                flat[0, word] |= bit
            if at == begin + 1 and data[begin] == SPACE:
                trees[2, row, word] |= bit
            state = follow(state, data[at])
        if state == BROKEN:
            flat[1, word] |= bit
    for length in range(1, WITHIN):
        for i in range(within.shape[1]):
            within[length, i] |= within[length - 1, i]
    for tree in range(3):
        for row in range(LEAVES - 1, 0, -1):
            for i in range(trees.shape[2]):
                trees[tree, row, i] = trees[tree, 2 * row, i] | trees[tree, 2 * row + 1, i]
