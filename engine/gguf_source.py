"""A GGUF as the source of a conversion: its checkpoint, the files beside it, what becomes of it.

The rule of this file: what cannot be converted is said before a byte is written, and what is
rounded on the way is said by type.
"""

from __future__ import annotations

import json
from pathlib import Path

from diskmoe.engine.text.gguf_tokenizer import tokenizer_files
from diskmoe.experts.checkpoint import TensorPlan
from diskmoe.experts.gguf_blocks import FLOATS, keeps_codes, keeps_numbers, own_format
from diskmoe.experts.gguf_file import MAGIC
from diskmoe.experts.gguf_in import GgufCheckpoint
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


def best_expert_format(checkpoint: GgufCheckpoint, plan: TensorPlan) -> str | None:
    """The format that experts get unless one is asked for; None: as they are.

    Eight bits stay eight and codes of MXFP4 stay such codes; everything else becomes q4.
    """
    kinds = checkpoint.expert_types(plan)
    if kinds == {"MXFP4"}:
        return None
    return "q8" if kinds == {"Q8_0"} else "q4"


def describe_types(
    checkpoint: GgufCheckpoint, plan: TensorPlan, experts: str | None, dense: str | None
) -> str:
    """What the file's quantised types become, in one line; empty when it has none.

    experts, dense: the formats asked for; None keeps the numbers.
    """
    of_experts = checkpoint.expert_types(plan)
    told: list[str] = []
    for kind in checkpoint.types:
        if kind in FLOATS:
            continue
        target = experts if kind in of_experts else dense
        if (target or own_format(kind)) == "f32":
            told.append(f"{kind} widened to f32, exactly")
        elif target is None or keeps_numbers(kind, target):
            told.append(f"{kind} bit for bit")
        elif keeps_codes(kind, target):
            told.append(f"codes of {kind} kept, their steps rounded to 8 bits")
        else:
            told.append(f"{kind} dequantised, then quantised once")
    return "; ".join(told)
