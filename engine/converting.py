"""Converting a model, with the plan first and progress on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from diskmoe.engine.errors import BadModel
from diskmoe.engine.gguf_source import best_expert_format, describe_types, is_gguf, open_gguf
from diskmoe.engine.model.config import read_config
from diskmoe.engine.model.tensors import tensor_plan
from diskmoe.experts.budget import shown_bytes
from diskmoe.experts.checkpoint import Checkpoint
from diskmoe.experts.container import Container, is_container
from diskmoe.experts.convert import convert
from diskmoe.experts.export import export_checkpoint

Say = Callable[[str], None]
LINES_EVERY_SECONDS = 2.0


def convert_model(
    source: Path,
    out: Path,
    experts: str | None,
    dense: str | None,
    say: Say,
    threads: int | None = None,
) -> None:
    """Converts a Hugging Face directory or a GGUF, with the plan first and progress on the way.

    A format of None keeps the checkpoint's own precision. Experts "auto": q4, or as they are where
    the model was trained in four bits; a GGUF's of eight bits keep them.

    Raises:
        BadModel, BadOutput, DiskFull, WriteFailed: one line each; see ``diskmoe.experts.convert``.
    """
    if is_container(source):
        raise BadModel(f"{source} is converted already; give the Hugging Face directory")
    if is_gguf(source):
        checkpoint, made = open_gguf(source)
        config = read_config(checkpoint.config, f"{source}: its metadata as a config.json")
        plan = tensor_plan(config, checkpoint.has)
        checkpoint.verify(plan)
        experts = best_expert_format(checkpoint, plan) if experts == "auto" else experts
        say(f"gguf      {describe_types(checkpoint, plan, experts, dense)}")
    else:
        checkpoint, made = Checkpoint.open(source), None
        config = read_config(checkpoint.config, str(source / "config.json"))
        plan = tensor_plan(config, checkpoint.has)
        if experts == "auto":
            experts = None if config.expert_codes else "q4"
    say(
        f"convert   {config.family}, {config.layers} layers, {config.experts} experts: "
        f"{shown_bytes(checkpoint.nbytes)} to experts {experts or 'as they are'}, "
        f"dense {dense or 'as it is'}"
    )
    try:
        tell = progress_lines(say, "convert")
        done = convert(checkpoint, plan, out, experts, dense, tell, threads or 2, made)
    except KeyboardInterrupt:
        say("convert   stopped; what is whole was kept: run the same command to go on")
        raise
    say(
        f"written   {shown_bytes(done.nbytes)} at {out} in {done.seconds:.1f} s"
        + (f" ({shown_bytes(done.kept_nbytes)} were there already)" if done.kept_nbytes else "")
    )


def export_model(source: Path, out: Path, say: Say) -> None:
    """Writes a converted model back as an f32 checkpoint, for other programs to compare with.

    Raises:
        BadModel, BadOutput: one line each.
    """
    if not is_container(source):
        raise BadModel(f"{source} is not a converted model: there is nothing to write back")
    container = Container.open(source)
    config = read_config(container.config, str(source / "config.json"))
    nbytes = export_checkpoint(container, tensor_plan(config, container.has), out)
    say(f"written   {shown_bytes(nbytes)} in f32 at {out}")


def progress_lines(say: Say, word: str) -> Callable[[int, int, str], None]:
    """tell(done, total, what): says how far the bytes are and how long it takes, now and then."""
    started = time.perf_counter()
    last = started

    def tell(done: int, total: int, what: str) -> None:
        nonlocal last
        now = time.perf_counter()
        if now - last < LINES_EVERY_SECONDS or not done:
            return
        last = now
        left = (now - started) * (total - done) / done
        say(
            f"{word:<9} {what}: {shown_bytes(done)} of {shown_bytes(total)}, about {left:.0f} s left"
        )

    return tell
