"""One forward for several texts, each with a key-value cache of its own.

The one rule: each text gets what a forward of its own would give it, to the bit (row invariance
allows no other), while every expert that any of them wants is fetched once, and the rows of all go
through a matrix, and through an expert, together.

    together = Together(transformer)
    first, second = together.forward([Part(kv_a, [7], "last"), Part(kv_b, [3, 9, 4], "all")])

The rows of a text stand together, in the order of the texts. What they have with their cache is done
text by text, by programs for a number of rows at a place; all else by programs for a number of rows.
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
from diskmoe.engine.model.programs import Span
from diskmoe.engine.model.scratch import Floats, Scratch


class Part(NamedTuple):
    """One text's rows of a forward that it shares with others."""

    kv: KvCache
    ids: npt.ArrayLike  # (n,): the text's next token, and drafts that may follow it
    rows: Literal["last", "all"]  # of which logits are wanted


class Answer(NamedTuple):
    """What a part's rows came to."""

    logits: Floats  # (1 | n, vocab)
    hidden: Floats  # (n, hidden), after the final norm; valid until the next forward
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
        transformer = self._transformer
        if not parts or len({id(part.kv) for part in parts}) < len(parts):
            raise BadRequest("the texts of a forward must have a cache each")
        embedded = [transformer.embed(part.ids) for part in parts]
        if not all(map(len, embedded)):
            raise BadRequest("each text of a forward must have a token at least")
        spans: list[Span] = []
        total = 0
        for part, rows in zip(parts, embedded, strict=True):
            part.kv.begin(len(rows))
            spans.append(Span(part.kv, total, len(rows)))
            total += len(rows)
        transformer.begin_rows(total, certain=[span.first for span in spans])
        x = np.concatenate(embedded, out=self._scratch.take("x", total, transformer.config.hidden))
        for index, layer in enumerate(transformer.layers):
            transformer.share_layer(layer, x, spans, index)
        normed = transformer.normed(x)
        states = [normed[span.first : span.first + span.n] for span in spans]
        wanted = [wanted_rows(own, part.rows) for own, part in zip(states, parts, strict=True)]
        logits = np.split(
            transformer.head(np.concatenate(wanted)), np.cumsum([len(own) for own in wanted])[:-1]
        )
        for part, span in zip(parts, spans, strict=True):
            part.kv.advance(span.n, np.asarray(part.ids).tolist())
        return [
            Answer(rows, own, range(span.first, span.first + span.n))
            for rows, own, span in zip(logits, states, spans, strict=True)
        ]


def decode_scratch_bytes(config: ModelConfig, rows: int) -> int:
    """Bytes of what a decode forward of so many rows, of all texts, has beside what `scratch_bytes`
    counts for a prompt's chunk: rows that wait while it runs keep theirs."""
    lists = 0 if config.indexer is None else config.indexer.top
    return 4 * rows * (2 * config.hidden + lists)
