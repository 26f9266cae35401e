"""A model's tokens as a constraint sees them: what each prints, which steer, which end a text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from diskmoe.grammar_draft.trie import Trie, Words, trie_of


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The ids 0 to ``len(texts) - 1``.

    texts: per id the bytes that it prints; None for what prints nothing. special: of these the
    ids that exist, and how they are written; a grammar may name them, and never matches them by
    that. ends: the ids that end a text, whatever they print: allowed where a document may end and
    nowhere else.
    """

    texts: Sequence[bytes | None]
    special: Mapping[int, str]
    ends: Collection[int]

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def words(self) -> int:
        """Words of 64 ids in a mask."""
        return -(-len(self.texts) // 64)

    @cached_property
    def plain(self) -> list[bytes | None]:
        """Per id the bytes that it is matched by; None for those that are not."""
        texts = [data or None for data in self.texts]
        for token in {*self.special, *self.ends}:
            if 0 <= token < len(texts):
                texts[token] = None
        return texts

    @cached_property
    def trie(self) -> Trie:
        """Those bytes as a trie, made when first asked for."""
        return trie_of(self.spelled, self.words)

    @cached_property
    def spelled(self) -> list[tuple[bytes, int]]:
        """(bytes, id) of all that are matched by their bytes, ascending."""
        return sorted((data, token) for token, data in enumerate(self.plain) if data)

    @cached_property
    def named(self) -> Words:
        """All that a grammar may name."""
        exists = (bool(data) or token in self.special for token, data in enumerate(self.texts))
        return self.mask_of(
            token for token, there in enumerate(exists) if there and token not in self.ends
        )

    @cached_property
    def ending(self) -> Words:
        """The ids that end a text."""
        return self.mask_of(token for token in self.ends if 0 <= token < len(self.texts))

    def mask_of(self, ids: Iterable[int]) -> Words:
        """A bit for each of these ids."""
        mask = np.zeros(self.words, np.uint64)
        for token in ids:
            mask[token >> 6] |= np.uint64(1 << (token & 63))
        mask.setflags(write=False)
        return mask
