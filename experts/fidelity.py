"""How far a converted model's numbers are from those of its checkpoint, by kind of tensor.

The rule of this file: what is compared is a sample, evenly spread over layers, experts and rows, so
that a model of any size takes seconds; both sides are read from the disk, and nothing is trusted to
be what was meant to be written.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from diskmoe.experts.checkpoint import Checkpoint, TensorPlan
from diskmoe.experts.container import Container
from diskmoe.experts.packing import unpack, widened
from diskmoe.experts.records import CheckpointRecords
from diskmoe.experts.rows import rows_on_disk
from diskmoe.experts.tiles import TILE, Floats, aligned_zeros, record_layout

LAYERS, EXPERTS_OF_LAYER, TILES_OF_MATRIX = 6, 2, 32  # of a sample, at most
PARTS = ("experts' gate", "experts' up", "experts' down")
_KINDS = (  # by what a dense matrix is called
    ("embed_tokens", "embedding"),
    ("lm_head", "head"),
    ("attn", "attention"),
    ("shared", "shared experts"),
)

T = TypeVar("T")


@dataclass
class Deviation:
    """Of one kind of tensor: squares of what was lost, and of what there was, over the sample."""

    kind: str
    lost: float = 0.0
    whole: float = 0.0

    @property
    def relative(self) -> float:
        """Root of mean squares of the error, in those of the weights."""
        return (self.lost / self.whole) ** 0.5 if self.whole else 0.0

    def add(self, source: Floats, ours: Floats) -> None:
        self.whole += _squares(source)
        self.lost += _squares(source - ours)


def deviations(checkpoint: Checkpoint, plan: TensorPlan, container: Container) -> list[Deviation]:
    """Attention first, experts last; kinds that the model does not have are left out."""
    found: dict[str, Deviation] = {}
    for kind, source, ours in _dense(checkpoint, plan, container):
        found.setdefault(kind, Deviation(kind)).add(source, ours)
    for kind, source, ours in _experts(checkpoint, plan, container):
        found.setdefault(kind, Deviation(kind)).add(source, ours)
    return list(found.values())


def comparison_bytes(plan: TensorPlan) -> int:
    """Memory that `deviations` takes, beside what packing an expert as f32 takes."""
    return 3 * record_layout("f32", plan.hidden, plan.ffn, plan.biased).nbytes


def _dense(
    checkpoint: Checkpoint, plan: TensorPlan, container: Container
) -> Iterator[tuple[str, Floats, Floats]]:
    for tensor in plan.dense:
        layout = container.dense_layout(tensor.name)
        if layout is None:
            continue
        kind = next((kind for word, kind in _KINDS if word in tensor.name), "dense layers")
        kind = f"MTP {kind}" if tensor.mtp else kind
        with closing(rows_on_disk(container, tensor.name, layout)) as rows:
            packed = aligned_zeros(rows.layout.nbytes)
            for tile in _spread(range(layout.tiles), TILES_OF_MATRIX):
                begin, end = tile * TILE, min(tile * TILE + TILE, layout.rows)
                rows.read(tile, packed)
                source = widened(checkpoint.rows(tensor.name, begin, end))
                yield kind, source, unpack(packed, rows.layout)[: end - begin]


def _experts(
    checkpoint: Checkpoint, plan: TensorPlan, container: Container
) -> Iterator[tuple[str, Floats, Floats]]:
    with closing(CheckpointRecords(checkpoint, plan, "f32", 1)) as records:
        record = aligned_zeros(records.record_layout.nbytes)
        for layer in _spread(plan.experts, LAYERS):
            for expert in _spread(range(plan.n_experts), EXPERTS_OF_LAYER):
                records.load(layer.layer, expert, record)
                ours = container.expert_f32(layer.layer, expert)
                parts = zip(PARTS, records.record_layout.parts(), ours, strict=True)
                for kind, (part, begin, end), matrix in parts:
                    kind = f"MTP {kind}" if layer.mtp else kind
                    yield kind, unpack(record[begin:end], part), matrix


def _spread(items: Sequence[T], most: int) -> list[T]:
    """At most so many of them, the first and the last among them, evenly spread."""
    places = np.linspace(0, len(items) - 1, min(most, len(items)))
    return [items[i] for i in dict.fromkeys(np.rint(places).astype(int).tolist())]


def _squares(numbers: Floats) -> float:
    flat = numbers.reshape(-1)
    return float(np.dot(flat, flat))
