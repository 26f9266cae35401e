"""A small model beside the one that runs, to draft for it: opened, planned for, loaded.

The one rule: it is resident. All its experts have slots of their own, and its bytes are in the
memory plan of the model that it drafts for. Its weights are taken in 8 bits where a checkpoint is
not converted: what it says is judged, so it need not be exact.
"""

from __future__ import annotations

from pathlib import Path

import numpy.typing as npt

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.kernels.workers import Workers
from diskmoe.engine.loading import Opened, open_model
from diskmoe.engine.memory import LEAST_CHUNK
from diskmoe.engine.model.forward import Transformer, Wanted, scratch_bytes
from diskmoe.engine.model.kvcache import KvCache, kv_cache_bytes
from diskmoe.engine.model.scratch import Floats
from diskmoe.engine.model.weights import dense_bytes, load_dense
from diskmoe.engine.options import Options
from diskmoe.engine.text.tokenizer import TextTokenizer, load_tokenizer
from diskmoe.experts.store import WAVE_SLOTS, ExpertStore

_OPTIONS = Options(dense_bits=8, expert_bits=8, mtp=False)


class SmallText:
    """A small model with the cache of one text; see ``mtp.draft_model.SmallModel``."""

    def __init__(self, transformer: Transformer, kv: KvCache) -> None:
        self.kv = kv
        self.vocab_size = transformer.vocab_size
        self._transformer = transformer

    def forward(self, ids: npt.ArrayLike, rows: Wanted) -> Floats:
        return self._transformer.forward(ids, rows, None, self.kv)


class DraftModel:
    """A small model; texts can have it once it is loaded."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self._loaded: tuple[Transformer, list[SmallText], ExpertStore] | None = None

    @classmethod
    def open(cls, path: Path, tokenizer: TextTokenizer | None) -> DraftModel:
        """Reads its headers. tokenizer: of the model that it is to draft for.

        Raises:
            BadModel: not a model, damaged, or of a family that is not supported.
            BadRequest: its vocabulary is another one, or it has layers with a state.
        """
        if tokenizer is None:
            raise BadRequest(f"DRAFT_MODEL={path} needs a tokenizer.json in both models")
        opened = open_model(path, _OPTIONS)
        try:
            if opened.config.delta is not None:
                raise BadRequest(
                    f"DRAFT_MODEL={path}: a {opened.config.family} cannot take drafts back one by "
                    "one; name a model with attention in all layers"
                )
            _check_vocabulary(path, tokenizer, load_tokenizer(path, opened.config.vocab))
        except BaseException:
            opened.records.close()
            raise
        return cls(opened)

    @property
    def transformer(self) -> Transformer:
        assert self._loaded is not None
        return self._loaded[0]

    def for_text(self, lane: int) -> SmallText:
        """The model as it is for the texts of a lane."""
        assert self._loaded is not None
        return self._loaded[1][lane]

    def nbytes(self, context: int, options: Options) -> int:
        """Memory for texts of `context` positions."""
        opened, config = self.opened, self.opened.config
        layout, positions = opened.records.record_layout, self._positions(context)
        slots = len(config.moe_layers) * config.experts + self._wave_slots
        rows = min(LEAST_CHUNK, positions)
        return (
            dense_bytes(opened.source, config, opened.dense_format)
            + options.parallel * kv_cache_bytes(config, positions, kv_format=options.kv)
            + scratch_bytes(config, rows, 2, positions, layout, opened.dense_formats)
            + opened.records.scratch_bytes
            + slots * layout.nbytes
        )

    def load(self, workers: Workers, context: int, options: Options) -> None:
        """Raises BadModel: weights that cannot be read."""
        opened, config = self.opened, self.opened.config
        weights = load_dense(opened.source, config, opened.dense_format)
        store = ExpertStore(
            opened.records,
            max(config.experts, 1),
            config.moe_layers,
            config.experts,
            wave_slots=self._wave_slots,
        )
        caches = [
            KvCache(config, self._positions(context), kv_format=options.kv)
            for _ in range(options.parallel)
        ]
        transformer = Transformer(config, weights, store, caches[0], workers)
        self._loaded = transformer, [SmallText(transformer, kv) for kv in caches], store

    def describe(self) -> str:
        config = self.opened.config
        experts = f"{config.experts} experts" if config.moe_layers else "no experts"
        return f"{self.opened.name}: {config.family}, {config.layers} layers, {experts}"

    def close(self) -> None:
        if self._loaded is not None:
            self._loaded[2].close()
            self._loaded = None
        self.opened.records.close()

    @property
    def _wave_slots(self) -> int:
        """Slots that a prompt's experts pass through on the way; all have one of their own."""
        return WAVE_SLOTS if self.opened.config.moe_layers else 0

    def _positions(self, context: int) -> int:
        """Of its cache: no more than it was trained for."""
        return min(context, self.opened.config.context)


def _check_vocabulary(path: Path, large: TextTokenizer, small: TextTokenizer | None) -> None:
    """Each id that both models have prints the same bytes; one may have more of them."""
    if small is None:
        raise BadRequest(f"DRAFT_MODEL={path}: it has no tokenizer.json")
    pairs = zip(large.token_bytes, small.token_bytes, strict=False)
    for token, (wanted, found) in enumerate(pairs):
        if wanted != found:
            raise BadRequest(
                f"DRAFT_MODEL={path}: its token {token} prints {_shown(found)}, the model's "
                f"{_shown(wanted)}: name a small model of the same vocabulary"
            )


def _shown(token: bytes | None) -> str:
    return "nothing" if token is None else repr(token[:40])[1:]
