"""What a conversion will write: names, sizes, metadata, and the fingerprint of its source.

The rule of this file: everything is known before the first byte is written, and depends on the
checkpoint, the plan and the formats alone. So a conversion can say what it needs, recognise its own
files later, and make the same bytes again.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from diskmoe.experts.checkpoint import Checkpoint, DenseTensor, TensorPlan
from diskmoe.experts.checksums import NO_CHECKSUM
from diskmoe.experts.container import (
    DENSE_NAME,
    config_digest,
    experts_name,
    record_name,
)
from diskmoe.experts.facts import FORMAT_VERSION, Facts
from diskmoe.experts.formats import mtp_format
from diskmoe.experts.records import chosen_expert_format
from diskmoe.experts.safetensors_io import TensorSpec, file_nbytes, read_into
from diskmoe.experts.tiles import matrix_layout


class Manifest:
    """The files of the container that `plan` and the formats make of a checkpoint.

    A format of None stands for the checkpoint's own precision, q4 also for four bits that weights are
    in already (`formats.chosen_format`).
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        plan: TensorPlan,
        expert_format: str | None,
        dense_format: str | None,
    ) -> None:
        self.plan = plan
        self.vectors = [tensor for tensor in plan.dense if tensor.kind == "vector"]
        matrices = [tensor for tensor in plan.dense if tensor.kind == "matrix"]
        formats = {t.name: checkpoint.format_for(t.name, dense_format) for t in matrices}
        facts = Facts(
            dense_format=_most_common(formats, matrices),
            expert_format=chosen_expert_format(checkpoint, plan, expert_format),
            hidden=plan.hidden,
            ffn=plan.ffn,
            n_experts=plan.n_experts,
            layers=tuple(sorted(layer.layer for layer in plan.experts)),
            mtp_layers=tuple(sorted(layer.layer for layer in plan.experts if layer.mtp)),
            config=config_digest(checkpoint.config),
            source="",
            biased=plan.biased,
        )
        self.facts = replace(facts, source=_fingerprint(checkpoint, plan, facts))
        self.layouts = {
            t.name: matrix_layout(
                mtp_format(formats[t.name]) if t.mtp else formats[t.name], *t.shape
            )
            for t in matrices
        }

    def sizes(self) -> dict[str, int]:
        """{file name: bytes} of all tensor files."""
        sizes = {
            experts_name(layer): file_nbytes(self.record_specs(layer), self.metadata(layer))
            for layer in self.facts.layers
        }
        sizes[DENSE_NAME] = file_nbytes(self.dense_specs(), self.dense_metadata())
        return sizes

    def record_specs(self, layer: int) -> list[TensorSpec]:
        """The tensors of a layer's file."""
        shape = (self.facts.record_layout_of(layer).nbytes,)
        names = (record_name(layer, expert) for expert in range(self.plan.n_experts))
        return [TensorSpec(name, "U8", shape) for name in names]

    def metadata(self, layer: int, checksums: Mapping[str, str] | None = None) -> dict[str, str]:
        """The metadata of a layer's file; of the same length without the checksums."""
        return {
            **self.facts.metadata(),
            "expert_format": self.facts.format_of(layer),
            "layers": json.dumps([layer]),
            "checksums": _sums(self.record_specs(layer), checksums),
        }

    def dense_specs(self) -> list[TensorSpec]:
        """The tensors of the dense file: matrices first, so that all of them are 64-aligned."""
        matrices = [TensorSpec(n, "U8", (layout.nbytes,)) for n, layout in self.layouts.items()]
        return matrices + [TensorSpec(t.name, "F32", t.shape) for t in self.vectors]

    def dense_metadata(self, checksums: Mapping[str, str] | None = None) -> dict[str, str]:
        """The metadata of the dense file; of the same length without the checksums."""
        table = {
            name: {"format": layout.format, "shape": [layout.rows, layout.cols]}
            for name, layout in self.layouts.items()
        }
        return {
            **self.facts.metadata(),
            "layers": json.dumps(list(self.facts.layers)),
            "mtp_layers": json.dumps(list(self.facts.mtp_layers)),
            "dense_format": self.facts.dense_format,
            "dense": json.dumps(table, separators=(",", ":")),
            "checksums": _sums(self.dense_specs(), checksums),
        }


def _most_common(formats: Mapping[str, str], matrices: Sequence[DenseTensor]) -> str:
    """The format that most weights of the matrices have."""
    weights = Counter[str]()
    for tensor in matrices:
        weights[formats[tensor.name]] += math.prod(tensor.shape)
    return weights.most_common(1)[0][0] if weights else "f32"


def _sums(specs: Sequence[TensorSpec], checksums: Mapping[str, str] | None) -> str:
    sums = {spec.name: checksums[spec.name] if checksums else NO_CHECKSUM for spec in specs}
    return json.dumps(sums, separators=(",", ":"))


def _fingerprint(checkpoint: Checkpoint, plan: TensorPlan, facts: Facts) -> str:
    """What the output depends on, in 32 hex digits: formats, plan, config, headers, and samples of
    the weights (a fine-tune has the same headers)."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{FORMAT_VERSION} {facts} {plan}".encode())
    digest.update(json.dumps(checkpoint.config, sort_keys=True).encode())
    sample = np.zeros(4096, np.uint8)
    for header in checkpoint.files:
        described = [(i.name, i.dtype, i.shape, i.offset) for i in header.tensors.values()]
        digest.update(f"{header.path.name} {header.file_size} {described}".encode())
        available = header.file_size - header.data_start
        part = sample[: min(len(sample), available)]
        for step in range(8):
            read_into(header.path, header.data_start + (available - len(part)) * step // 7, part)
            digest.update(part.data)
    return digest.hexdigest()
