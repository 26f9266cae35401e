"""The texts of a vocabulary as a trie in flat arrays, walked by compiled functions.

Nodes stand in preorder, so that a subtree is a run of nodes and its tokens are a run of ``tokens``.
A node knows which bytes its subtree holds: a state that takes any of them and stays where it is
takes the subtree at once. For states like that there are also the sets of tokens that have a byte:
what such a state takes of the whole vocabulary is a few operations on words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.compiled.functions import inner, kernel

Words = npt.NDArray[np.uint64]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]

MAX_HEIGHT = 32767
OTHERS, WHOLE, SOUND = 1, 2, 4  # bits of `kinds`
_BROKEN = 8  # the state behind bytes that are no UTF-8


@dataclass(frozen=True, eq=False)
class Trie:
    """The tokens of a vocabulary that are matched by their bytes."""

    byte: U8  # (nodes,)
    depth: I32  # (nodes,), 1 for the first bytes
    end: I32  # (nodes,): the node behind the subtree
    first: I32  # (nodes + 1,): index into `tokens` of the first token at a node or behind it
    tokens: I32  # (spelled,): ids by their bytes, ascending
    below: Words  # (nodes, 2): the ASCII bytes behind a node in its subtree, as a set
    kinds: U8  # (nodes,): OTHERS: other bytes are behind; SOUND: no text through here is broken
    #            UTF-8 (that may end within a character); WHOLE: nor is this within a character
    nodes: (
        I32  # (nodes + 1, 8): end, first, depth, byte | kinds << 8 | levels below << 16, below in
    )
    #             four parts: what a walk reads of a node lies together; of the last row only `first`
    #             counts
    lengths: I32  # (spelled,): bytes of each of `tokens`
    having: Words  # (129, words): the tokens that have an ASCII byte, and last those with others
    broken: Words  # (words,): tokens that are no UTF-8 from their start on
    spelled: Words  # (words,): all of them
    deepest: int  # bytes of the longest token


def trie_of(spelled: Sequence[tuple[bytes, int]], words: int) -> Trie:
    """Builds the trie of texts and their ids, ascending: a tenth of a second for 150,000.

    words: of 64 ids in a mask.
    """
    texts = [data for data, _ in spelled]
    tokens = np.array([token for _, token in spelled], np.int32)
    starts = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(data) for data in texts], out=starts[1:])
    data = np.frombuffer(b"".join(texts), np.uint8)
    count = int(count_nodes(data, starts))
    byte, kinds = np.empty(count, np.uint8), np.zeros(count, np.uint8)
    depth, end = np.empty(count, np.int32), np.empty(count, np.int32)
    first = np.empty(count + 1, np.int32)
    below = np.zeros((count, 2), np.uint64)
    having = np.zeros((129, words), np.uint64)
    broken, all_of_them = np.zeros(words, np.uint64), np.zeros(words, np.uint64)
    lay_nodes(data, starts, tokens, byte, depth, first, having, broken, all_of_them)
    deepest = int(depth.max()) if count else 0
    close_nodes(byte, depth, end, below, kinds, deepest)
    nodes = np.zeros((count + 1, 8), np.int32)
    nodes[:, 1] = first
    nodes[:-1, 0], nodes[:-1, 2] = end, depth
    height = np.zeros(count, np.int32)
    measure(depth, end, height)
    nodes[:-1, 3] = byte.astype(np.int32) | kinds.astype(np.int32) << 8 | height << 16
    nodes[:-1, 4:] = below.view(np.int32)
    sets = (having, broken, all_of_them)
    lengths = np.diff(starts).astype(np.int32)
    return Trie(byte, depth, end, first, tokens, below, kinds, nodes, lengths, *sets, deepest)


@inner
def _follow(state: Any, byte: Any) -> Any:
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
        return 7 if byte == 0xF4 else _BROKEN
    low = 0xA0 if state == 4 else 0x90 if state == 6 else 0x80
    high = 0x9F if state == 5 else 0x8F if state == 7 else 0xBF
    if state == _BROKEN or byte < low or byte > high:
        return _BROKEN
    if state == 1:
        return 0
    return 2 if state in (3, 6, 7) else 1


@inner
def _common(data: Any, starts: Any, i: Any) -> Any:
    """How many bytes text i has in common with the one before it, at their beginnings."""
    if i == 0:
        return 0
    length = min(starts[i + 1] - starts[i], starts[i] - starts[i - 1])
    common = 0
    while common < length and data[starts[i] + common] == data[starts[i - 1] + common]:
        common += 1
    return common


@kernel
def count_nodes(data: Any, starts: Any) -> Any:
    """The nodes of sorted texts. data: u8, all of them; starts: i64 (texts + 1,)."""
    count = 0
    for i in range(len(starts) - 1):
        length = starts[i + 1] - starts[i]
        common = _common(data, starts, i)
        count += length - common
    return count


@kernel
def lay_nodes(
    data: Any,
    starts: Any,
    tokens: Any,
    byte: Any,
    depth: Any,
    first: Any,
    having: Any,
    broken: Any,
    spelled: Any,
) -> Any:
    """Lays the nodes of sorted texts in preorder: byte, depth, first (see `Trie`); and the sets of
    tokens: having, broken, spelled, all zero before."""
    node = 0
    one = np.uint64(1)
    for i in range(len(tokens)):
        length = starts[i + 1] - starts[i]
        common = _common(data, starts, i)
        for at in range(common, length):
            byte[node] = data[starts[i] + at]
            depth[node] = at + 1
            # tokens of the same text come next and have no node of their own
            first[node] = i
            node += 1
        word, bit = tokens[i] >> 6, one << np.uint64(tokens[i] & 63)
        spelled[word] |= bit
        state = 0
        for at in range(starts[i], starts[i + 1]):
            having[min(data[at], np.uint8(128)), word] |= bit
            state = _follow(state, data[at])
        if state == _BROKEN:
            broken[word] |= bit
    first[node] = len(tokens)


@kernel
def close_nodes(byte: Any, depth: Any, end: Any, below: Any, kinds: Any, deepest: Any) -> Any:
    """Fills in what a node knows of its subtree: end, below, kinds (see `Trie`), zero before."""
    count = len(byte)
    states = np.zeros(deepest + 2, np.uint8)
    whole = np.empty(count, np.uint8)  # the state behind each node
    open_ = np.zeros(deepest + 2, np.int64)  # the latest node of each depth
    before = 0
    for node in range(count):
        at = depth[node]
        for closed in range(at, before + 1):
            end[open_[closed]] = node
        open_[at], before = node, at
        states[at] = _follow(states[at - 1], byte[node])
        whole[node] = states[at]
    for closed in range(1, before + 1):
        end[open_[closed]] = count
    # per depth, of the nodes behind the one at hand that may be its children
    low, high = np.zeros(deepest + 2, np.uint64), np.zeros(deepest + 2, np.uint64)
    others, bad = np.zeros(deepest + 2, np.uint8), np.zeros(deepest + 2, np.uint8)
    one = np.uint64(1)
    for node in range(count - 1, -1, -1):
        at = depth[node]
        below[node, 0], below[node, 1] = low[at + 1], high[at + 1]
        bad_here = bad[at + 1] | np.uint8(whole[node] == _BROKEN)
        kinds[node] = others[at + 1]
        if not bad_here:
            kinds[node] |= SOUND if whole[node] else SOUND | WHOLE
        low[at + 1] = high[at + 1] = np.uint64(0)
        others[at + 1] = bad[at + 1] = np.uint8(0)
        low[at] |= below[node, 0]
        high[at] |= below[node, 1]
        others[at] |= kinds[node] & OTHERS
        bad[at] |= bad_here
        value = byte[node]
        if value < 64:
            low[at] |= one << np.uint64(value)
        elif value < 128:
            high[at] |= one << np.uint64(value - 64)
        else:
            others[at] |= OTHERS


@kernel
def measure(depth: Any, end: Any, height: Any) -> Any:
    """height[n] = how many levels of nodes are below a node, at most MAX_HEIGHT; zero before."""
    for node in range(len(depth) - 1, -1, -1):
        child = node + 1
        while child < end[node]:
            height[node] = min(max(height[node], height[child] + 1), MAX_HEIGHT)
            child = end[child]
