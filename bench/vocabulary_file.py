"""A vocabulary read from a .tiktoken file, and texts cut by it."""

from __future__ import annotations

import base64
from importlib import util
from pathlib import Path

from diskmoe.engine.errors import BadRequest
from diskmoe.grammar_draft.vocabulary import Vocabulary

SPARE_IDS = 293  # special tokens behind the others, as Qwen's files have them


def read_vocabulary(place: str | None) -> Vocabulary:
    """The tokens of a file. Raises BadRequest where there is none, or it is none of ours."""
    if place is None:
        found = util.find_spec("dashscope")
        if found is None or not found.submodule_search_locations:
            raise BadRequest(
                "bench grammar needs a vocabulary: --vocabulary FILE, or Qwen's from the package "
                "dashscope, which is not installed: pip install dashscope"
            )
        place = str(Path(found.submodule_search_locations[0]) / "resources" / "qwen.tiktoken")
    try:
        data = Path(place).read_bytes()
        texts: list[bytes | None] = []
        for line in data.splitlines():
            text, number = line.split()
            if int(number) != len(texts):
                raise ValueError(f"line {len(texts) + 1} has the id {int(number)}")
            texts.append(base64.b64decode(text, validate=True))
    except (OSError, ValueError) as error:
        raise BadRequest(f"{place} is no vocabulary: {error}") from None
    special = {len(texts) + i: f"<|{i}|>" for i in range(SPARE_IDS)}
    return Vocabulary([*texts, *[None] * SPARE_IDS], special, {len(texts)})


def greedy(text: bytes, vocabulary: Vocabulary) -> list[int]:
    """A text as the longest tokens that fit, from left to right."""
    trie = vocabulary.trie
    found: list[int] = []
    at = 0
    while at < len(text):
        node, stop, size = 0, len(trie.byte), 0
        best = (0, -1)
        while node < stop and at + size < len(text):
            if trie.byte[node] != text[at + size]:
                node = int(trie.end[node])
                continue
            size += 1
            if trie.first[node] < trie.first[node + 1]:
                best = size, int(trie.tokens[trie.first[node]])
            node, stop = node + 1, int(trie.end[node])
        if not best[0]:
            raise BadRequest(f"the vocabulary has no token for {text[at : at + 1]!r}")
        found.append(best[1])
        at += best[0]
    return found
