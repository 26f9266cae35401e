"""Texts as a trie of rules: every alternative of a rule begins with another byte, so that one byte
says where to go. Sub-tries that are equal are one rule."""

from __future__ import annotations

from collections.abc import Iterable

from diskmoe.grammar_draft.json_rules import JsonRules
from diskmoe.grammar_draft.rules import Alternative, Literal

Entry = tuple[bytes, Alternative]  # a text, and what follows it


def trie(made: JsonRules, texts: Iterable[Entry], label: str) -> list[Alternative]:
    """The alternatives of the root. A text that begins another has an alternative without bytes."""
    nodes = [sorted(set(texts), key=lambda entry: entry[0])]
    depths = [0]
    groups: list[list[tuple[bytes, Alternative, int]]] = []  # per node: bytes, what follows, child
    for entries, depth in zip(nodes, depths, strict=True):
        found: list[tuple[bytes, Alternative, int]] = []
        groups.append(found)
        i = 0
        while i < len(entries):
            text, behind = entries[i]
            k = i + 1
            while k < len(entries) and text[depth:] and entries[k][0][depth] == text[depth]:
                k += 1
            if k == i + 1:
                found.append((text[depth:], behind, 0))
            else:
                end = _common(text, entries[k - 1][0], depth)
                found.append((text[depth:end], (), len(nodes)))
                nodes.append(entries[i:k])
                depths.append(end)
            i = k
    alternatives: list[list[Alternative]] = [[] for _ in nodes]
    for number in range(len(nodes) - 1, -1, -1):  # children before parents
        for data, behind, child in groups[number]:
            if child:
                below = alternatives[child]
                behind = (made.kept(("trie", tuple(below)), label, below),)
            alternatives[number].append((Literal(data), *behind) if data else behind)
    return alternatives[0]


def _common(one: bytes, other: bytes, end: int) -> int:
    """How long the common beginning of two texts is, that is `end` at least."""
    while end < min(len(one), len(other)) and one[end] == other[end]:
        end += 1
    return end
