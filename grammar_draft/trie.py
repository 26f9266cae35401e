"""The texts of a vocabulary as a trie in flat arrays, walked by compiled functions.

Nodes stand in preorder, so that a subtree is a run of nodes and its tokens are a run of ``tokens``.
A node knows which bytes its subtree holds: a state that takes any of them and stays where it is
takes the subtree at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diskmoe.compiled.functions import inner, kernel
from diskmoe.grammar_draft.token_sets import BROKEN, I32, U8, TokenSets, Words, follow, sets_of

MAX_HEIGHT = 32767
OTHERS, WHOLE, SOUND = 1, 2, 4  # bits of `kinds`


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
    sets: TokenSets
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
    lay_nodes(data, starts, byte, depth, first)
    deepest = int(depth.max()) if count else 0
    close_nodes(byte, depth, end, below, kinds, deepest)
    nodes = np.zeros((count + 1, 8), np.int32)
    nodes[:, 1] = first
    nodes[:-1, 0], nodes[:-1, 2] = end, depth
    height = np.zeros(count, np.int32)
    measure(depth, end, height)
    nodes[:-1, 3] = byte.astype(np.int32) | kinds.astype(np.int32) << 8 | height << 16
    nodes[:-1, 4:] = below.view(np.int32)
    sets = sets_of(data, starts, tokens, words)
    return Trie(byte, depth, end, first, tokens, below, kinds, nodes, sets, deepest)


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
def lay_nodes(data: Any, starts: Any, byte: Any, depth: Any, first: Any) -> None:
    """Lays the nodes of sorted texts in preorder: byte, depth, first (see `Trie`)."""
    node = 0
    texts = len(starts) - 1
    for i in range(texts):
        length = starts[i + 1] - starts[i]
        common = _common(data, starts, i)
        for at in range(common, length):
            byte[node] = data[starts[i] + at]
            depth[node] = at + 1
            # tokens of the same text come next and have no node of their own
            first[node] = i
            node += 1
    first[node] = texts


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
        states[at] = follow(states[at - 1], byte[node])
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
        bad_here = bad[at + 1] | np.uint8(whole[node] == BROKEN)
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
