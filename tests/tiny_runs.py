"""What oracle tests and golden tests do with a model: run it, convert it, and note or repeat which
experts its rows go to."""

from pathlib import Path
from typing import Any

import numpy as np
from tiny_model import running

from diskmoe.engine.model.config import read_config
from diskmoe.engine.model.forward import Transformer
from diskmoe.engine.model.tensors import tensor_plan
from diskmoe.experts.checkpoint import Checkpoint
from diskmoe.experts.container import Container
from diskmoe.experts.convert import convert
from diskmoe.experts.export import export_checkpoint

Routing = list[tuple[np.ndarray, np.ndarray]]


def greedy(
    folder: Path, prompt: list[int], count: int, whole_prefill: bool, **options: Any
) -> list[int]:
    """The tokens after a prompt that goes in at once or row by row, decoded row by row."""
    with running(folder, **options) as model:
        if whole_prefill:
            logits = model.forward(prompt)
        else:
            for token in prompt[:-1]:
                model.forward([token], "none")
            logits = model.forward(prompt[-1:])
        chosen: list[int] = []
        for _ in range(count):
            chosen.append(int(logits[0].argmax()))
            logits = model.forward(chosen[-1:])
    return chosen


def converted(
    folder: Path, experts: str | None, dense: str | None = None, out: Path | None = None
) -> Path:
    """The model in these formats (None: kept; dense ones as experts), beside it or as `out`."""
    checkpoint = Checkpoint.open(folder)
    plan = tensor_plan(read_config(checkpoint.config, str(folder)), checkpoint.has)
    out = out or folder.with_name(f"{folder.name}-{experts}-{dense}")
    convert(checkpoint, plan, out, experts, dense or experts)
    return out


def dequantised(folder: Path, out: Path) -> Path:
    """A checkpoint in f32 of the numbers that a converted model's weights stand for."""
    container = Container.open(folder)
    plan = tensor_plan(read_config(container.config, str(folder)))
    export_checkpoint(container, plan, out)
    return out


def recorded_routing(model: Transformer) -> Routing:
    """The experts and weights (rows, top_k) of each layer with experts from now on, in turn."""
    chosen: Routing = []
    model.choose_with(lambda layer, ids, shares: chosen.append((ids.copy(), shares.copy())))
    return chosen


def repeat_routing(model: Transformer, chosen: Routing) -> None:
    """The next forward chooses what was recorded."""
    left = iter(chosen)

    def choose(layer: int, ids: np.ndarray, shares: np.ndarray) -> None:
        ids[:], shares[:] = next(left)

    model.choose_with(choose)
