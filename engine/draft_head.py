"""A model's MTP head made ready to draft: its weights, its experts' own hot store, its KV cache."""

from __future__ import annotations

from diskmoe.engine.kernels.workers import Workers
from diskmoe.engine.loading import Opened
from diskmoe.engine.memory import policy_for, wave_slots
from diskmoe.engine.model.forward import Transformer
from diskmoe.engine.model.kvcache import KvCache
from diskmoe.engine.model.mtp_layer import MtpLayer, mtp_weights
from diskmoe.engine.model.weights import load_dense
from diskmoe.engine.options import Options
from diskmoe.experts.budget import MemoryPlan
from diskmoe.experts.policy import POLICIES
from diskmoe.experts.records import LayerRecords
from diskmoe.experts.store import ExpertStore


def load_head(
    opened: Opened,
    options: Options,
    memory: MemoryPlan,
    transformer: Transformer,
    workers: Workers,
) -> list[MtpLayer]:
    """The head as planned, for each text at once; empty where none was. Close the first before the
    model's own records.

    Raises:
        BadModel: the weights cannot be used.
    """
    if not memory.mtp_slots:
        return []
    config = opened.config
    dense = load_dense(opened.source, config, opened.dense_format, head=True)
    records = LayerRecords(opened.records, config.layers)
    store = ExpertStore(
        records,
        memory.mtp_slots,
        records.layers,
        config.experts,
        options.io_threads,
        POLICIES[policy_for(options, records.record_layout.nbytes)[0]],
        1 if memory.request.mtp_whole else wave_slots(options, config),
    )
    first, *others = (
        KvCache(config, opened.context, layers=1, kv_format=options.kv)
        for _ in range(options.parallel)
    )
    layer = MtpLayer(transformer, mtp_weights(dense, config), store, first, workers)
    return [layer, *map(layer.for_another_text, others)]
