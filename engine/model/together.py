"""One forward for several texts, each with a key-value cache of its own.

The one rule: each text gets what a forward of its own would give it, to the bit (row invariance
allows no other), while every expert that any of them wants is fetched once, and the rows of all go
through an expert together.

    together = Together(transformer)
    first, second = together.forward([Part(kv_a, [7], "last"), Part(kv_b, [3, 9, 4], "all")])

Attention runs text by text: its rows are copied to a place of their own and back, so that programs
are made for a number of rows and not for every mix of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.forward import Transformer, wanted_rows
from diskmoe.engine.model.kvcache import KvCache
from diskmoe.engine.model.scratch import Floats, Scratch

Places = npt.NDArray[np.intp]


class Part(NamedTuple):
    """One text's rows of a forward that it shares with others."""

    kv: KvCache
    ids: npt.ArrayLike  # (n,): the text's next token, and drafts that may follow it
    rows: Literal["last", "all"]  # of which logits are wanted


class Answer(NamedTuple):
    """What a part's rows came to."""

    logits: Floats  # (1 | n, vocab)
    hidden: Floats  # (n, hidden), after the final norm
    places: Sequence[int]  # (n,) of its rows among those of the whole forward


class Together:
    """Forwards of a model for several texts. The transformer is lent."""

    def __init__(self, transformer: Transformer) -> None:
        self._transformer = transformer
        self._scratch = Scratch()

    def forward(self, parts: Sequence[Part]) -> list[Answer]:
        """Appends each part's tokens to its cache and answers each.

        Raises BadRequest for a part that cannot be fed, ReadFailed when an expert cannot be read;
        all caches are then as they were before.
        """
        transformer, hidden = self._transformer, self._transformer.config.hidden
        if not parts or len({id(part.kv) for part in parts}) < len(parts):
            raise BadRequest("the texts of a forward must have a cache each")
        rows = [transformer.embed(part.ids) for part in parts]
        if not all(map(len, rows)):
            raise BadRequest("each text of a forward must have a token at least")
        for part, each in zip(parts, rows, strict=True):
            part.kv.begin(len(each))
        counts = [len(each) for each in rows]
        places = _places(counts)
        transformer.begin_rows(sum(counts), certain=len(parts))
        x = self._scratch.take("x", sum(counts), hidden)
        lanes = [self._scratch.take(f"lane {i}", n, hidden) for i, n in enumerate(counts)]
        for lane, each in zip(lanes, rows, strict=True):
            lane[:] = each
        for index, layer in enumerate(transformer.layers):
            for number, (part, lane, at) in enumerate(zip(parts, lanes, places, strict=True)):
                transformer.attend(layer, lane, part.kv, index, number)
                x[at] = lane
            transformer.feed(layer, x)
            for lane, at in zip(lanes, places, strict=True):
                lane[:] = x[at]
        normed = transformer.normed(x)
        states = [normed[at] for at in places]
        wanted = [wanted_rows(own, part.rows) for own, part in zip(states, parts, strict=True)]
        logits = np.split(
            transformer.head(np.concatenate(wanted)), np.cumsum([len(own) for own in wanted])[:-1]
        )
        for part, count in zip(parts, counts, strict=True):
            part.kv.advance(count, np.asarray(part.ids).tolist())
        return [
            Answer(rows, own, at.tolist())
            for rows, own, at in zip(logits, states, places, strict=True)
        ]


def together_scratch_bytes(config: ModelConfig, rows: int) -> int:
    """Bytes beside those of a forward of as many rows in all."""
    return 4 * 2 * rows * config.hidden


def _places(counts: Sequence[int]) -> list[Places]:
    """Where the rows of parts of so many rows are in a forward: the first of each part, which is no
    draft, before all drafts."""
    begins = len(counts) + np.cumsum([0, *(count - 1 for count in counts)])
    return [
        np.concatenate(([part], np.arange(begins[part], begins[part + 1]))).astype(np.intp)
        for part in range(len(counts))
    ]
