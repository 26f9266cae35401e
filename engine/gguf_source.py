"""A GGUF as the source of a conversion: its checkpoint, the files beside it, what becomes of it.

The rule of this file: what cannot be converted is said before a byte is written, and what is
rounded on the way is said by type.
"""

from __future__ import annotations

import json
from pathlib import Path

from diskmoe.engine.text.gguf_tokenizer import tokenizer_files
from diskmoe.experts.checkpoint import TensorPlan
from diskmoe.experts.formats import FORMATS, expert_format, expert_formats
from diskmoe.experts.gguf_blocks import FLOATS, exact_formats, keeps_codes
from diskmoe.experts.gguf_file import MAGIC
from diskmoe.experts.gguf_in import GgufCheckpoint
from diskmoe.experts.manifest import Manifest
from diskmoe.experts.safetensors_io import open_regular


def is_gguf(path: Path) -> bool:
    """Whether a path is a file that is called or begins like a GGUF."""
    if path.is_dir() or not path.exists():
        return False
    if path.suffix.lower() == ".gguf":
        return True
    with open(open_regular(path), "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def open_gguf(path: Path) -> tuple[GgufCheckpoint, dict[str, bytes]]:
    """(the checkpoint, {name: contents} of the files that the hub has beside the tensors).

    Raises BadModel: damaged, of an architecture or with a tokenizer that is not supported.
    """
    checkpoint = GgufCheckpoint.open(path)
    files = tokenizer_files(checkpoint.metadata, checkpoint.config["vocab_size"])
    config = json.dumps(checkpoint.config, indent=2) + "\n"
    return checkpoint, {**files, "config.json": config.encode()}


def best_expert_format(checkpoint: GgufCheckpoint, plan: TensorPlan) -> str:
    """What is asked for experts unless somebody asks: that eight bits stay eight, and all else becomes
    q4, or stays in the four bits that it has. Of gate and up, and of down."""

    def best(kinds: set[str]) -> str:
        eight = "Q8_0" in kinds and all("q8" in exact_formats(kind) for kind in kinds)
        return "q8" if eight else "q4"

    return expert_format(*map(best, checkpoint.expert_types(plan)))


def describe_types(checkpoint: GgufCheckpoint, manifest: Manifest) -> str:
    """What the file's quantised types become, in one line; empty when it has none."""
    made: dict[tuple[str, str], str] = {}  # (type, format) -> what that does to its numbers
    for name, layout in manifest.layouts.items():
        for kind in checkpoint.dense_types(name):
            exact = layout.format in checkpoint.exact_formats(name)
            made[kind, layout.format] = _fate(kind, layout.format, exact)
    for kinds, fmt in _expert_parts(checkpoint, manifest):
        for kind in kinds:
            made[kind, fmt] = _fate(kind, fmt, fmt in exact_formats(kind))
    told: list[str] = []
    for kind in checkpoint.types:
        fates: dict[str, list[str]] = {}
        for fmt in FORMATS:
            if kind not in FLOATS and (kind, fmt) in made:
                fates.setdefault(made[kind, fmt], []).append(fmt)
        told += [f"{kind} {fate} {' and '.join(formats)}" for fate, formats in fates.items()]
    return "; ".join(told)


def _fate(kind: str, fmt: str, exact: bool) -> str:
    if fmt == "f32":
        return "widened exactly to"
    if exact:
        return "bit for bit in"
    if keeps_codes(kind, fmt):
        return "with its codes, and steps of 8 bits, in"
    return "dequantised, then quantised once to"


def _expert_parts(checkpoint: GgufCheckpoint, manifest: Manifest) -> list[tuple[set[str], str]]:
    """(types in the file, the format that they get) of experts' gate and up, and of their down."""
    formats = expert_formats(manifest.facts.expert_format)
    return [*zip(checkpoint.expert_types(manifest.plan), formats, strict=True)]


def what_keeping_costs(checkpoint: GgufCheckpoint, manifest: Manifest) -> str | None:
    """What is to be said where experts are kept in f32 for want of a smaller format, if they are."""
    parts = _expert_parts(checkpoint, manifest)
    kinds = {kind for types, fmt in parts if fmt == "f32" for kind in types} - {*FLOATS}
    if not kinds:
        return None
    layer = manifest.plan.experts[0]
    pieces = checkpoint.experts(manifest.plan, layer).pieces(0)[:3]
    times = manifest.facts.record_layout_of(layer.layer).nbytes / sum(p.nbytes for p in pieces)
    return (
        f"to keep every number of {', '.join(sorted(kinds))} takes f32, {times:.1f} times the bytes of "
        "the experts; --experts q8 has 8.5 bits a weight and --experts q4 4.5"
    )
