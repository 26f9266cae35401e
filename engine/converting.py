"""Converting a model, with the plan first and progress on the way."""

from __future__ import annotations

import math
import shutil
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from diskmoe.engine.cores import usable_cores
from diskmoe.engine.errors import BadModel
from diskmoe.engine.gguf_source import (
    best_expert_format,
    describe_types,
    is_gguf,
    open_gguf,
    what_keeping_costs,
)
from diskmoe.engine.model.config import ModelConfig, read_config
from diskmoe.engine.model.tensors import tensor_plan
from diskmoe.experts.budget import auto_budget, available_memory, shown_bytes
from diskmoe.experts.checkpoint import Checkpoint
from diskmoe.experts.container import Container, is_container
from diskmoe.experts.convert import convert
from diskmoe.experts.export import export_checkpoint
from diskmoe.experts.fidelity import deviations
from diskmoe.experts.forecast import Forecast, forecast
from diskmoe.experts.formats import expert_formats
from diskmoe.experts.gguf_in import GgufCheckpoint
from diskmoe.experts.manifest import Manifest
from diskmoe.experts.records import chosen_expert_format

Say = Callable[[str], None]
LINES_EVERY_SECONDS = 2.0
SPEED_OF_SECONDS = 30.0  # time left is reckoned from so many


def convert_model(
    source: Path,
    out: Path,
    experts: str | None,
    dense: str | None,
    say: Say,
    threads: int | None = None,
    ram_gb: float | None = None,
) -> None:
    """Converts a Hugging Face directory or a GGUF: the plan first, progress on the way, and at the
    end how far the numbers are from those of the source.

    A format of None keeps the checkpoint's own precision; q4 keeps four bits that weights are in
    already. Experts "auto": q4, or q8 where a GGUF has eight bits.

    Raises:
        BadModel, BadOutput, DiskFull, WriteFailed: one line each; see ``diskmoe.experts.convert``.
        OutOfBudget: ram_gb, or what is available, is too little for one thread.
    """
    if is_container(source):
        raise BadModel(f"{source} is converted already; give the Hugging Face directory")
    made: dict[str, bytes] | None = None
    if is_gguf(source):
        checkpoint, made = open_gguf(source)
        config = read_config(checkpoint.config, f"{source}: its metadata as a config.json")
    else:
        checkpoint = Checkpoint.open(source)
        config = read_config(checkpoint.config, str(source / "config.json"))
    plan = tensor_plan(config, checkpoint.has)
    checkpoint.verify(plan)
    if experts == "auto" and isinstance(checkpoint, GgufCheckpoint):
        experts = best_expert_format(checkpoint, plan)
    elif experts == "auto":
        experts = "q4"
    manifest = Manifest(checkpoint, plan, experts, dense)
    budget = int(ram_gb * 2**30) if ram_gb else auto_budget(available_memory())[0]
    there = next(place for place in (out, *out.absolute().parents) if place.is_dir())
    needs = forecast(checkpoint, plan, manifest, threads or usable_cores()[0], budget, there)
    kept = manifest.facts.expert_format == chosen_expert_format(checkpoint, plan, None)
    for line in plan_lines(config, manifest, needs, there, kept):
        say(line)
    if isinstance(checkpoint, GgufCheckpoint):
        told = describe_types(checkpoint, manifest)
        say(f"blocks    {told}" if told else "blocks    none: all of the file is in floats")
        if experts is None and (costs := what_keeping_costs(checkpoint, manifest)):
            say(f"note      {costs}")
    try:
        tell, check = progress_lines(say, "convert"), progress_lines(say, "verify")
        done = convert(checkpoint, plan, out, experts, dense, tell, needs.threads, check, made)
    except KeyboardInterrupt:
        say("convert   stopped; what is whole was kept: run the same command to go on")
        raise
    say(
        f"written   {shown_bytes(done.nbytes)} at {out} in {done.seconds:.1f} s"
        + (f" ({shown_bytes(done.kept_nbytes)} were there already)" if done.kept_nbytes else "")
    )
    found = deviations(checkpoint, plan, Container.open(out))
    say("error     " + ", ".join(f"{one.kind} {shown_error(one.relative)}" for one in found))


def plan_lines(
    config: ModelConfig, manifest: Manifest, needs: Forecast, there: Path, kept: bool
) -> list[str]:
    """What will be made of what, and what that takes. there: a directory where it will lie."""
    facts, plan = manifest.facts, manifest.plan
    types = ", ".join(f"{kind} {shown_bytes(nbytes)}" for kind, nbytes in needs.source.items())
    weights = len(facts.layers) * facts.n_experts * 3 * plan.ffn * plan.hidden
    dense = dict.fromkeys(layout.format for layout in manifest.layouts.values())
    dense = sorted(dense, key=lambda fmt: fmt != facts.dense_format)  # that of most weights first
    shape, experts = f"{config.layers} layers, no experts", ""
    if weights:
        bits, as_they_are = 8 * needs.expert_nbytes / weights, " as they are" if kept else ""
        shape = f"{config.layers} layers, {config.experts} experts of {plan.ffn} x {plan.hidden}"
        experts = f"experts{as_they_are} in {facts.expert_format} ({bits:.2f} bits a weight)"
        experts += f" {shown_bytes(needs.expert_nbytes)}, "
    free = shown_bytes(shutil.disk_usage(there).free)
    memory, seconds = shown_bytes(needs.memory_bytes), shown_seconds(needs.seconds)
    target = f"{experts}dense in {', '.join(dense)}"
    target += f" {shown_bytes(needs.dense_nbytes)}; {free} are free"
    lines = [
        f"convert   {config.family}, {shape}",
        f"source    {shown_bytes(sum(needs.source.values()))}: {types}",
        f"target    {shown_bytes(needs.nbytes)}: {target}",
        f"needs     about {memory} of memory and {seconds} with {needs.threads} thread(s)"
        + _shown_speeds(needs),
    ]
    if config.quantisation is not None:
        formats = dict.fromkeys(expert_formats(facts.expert_format))
        fates = ", ".join(_fate(config.quantisation, fmt) for fmt in formats)
        lines.append(f"codes     {config.quantisation}: {fates}")
    return lines


def _fate(coding: str, fmt: str) -> str:
    """What becomes of a checkpoint's codes in experts."""
    fates = {
        ("fp8", "fp8"): "kept bit for bit",
        ("mxfp4", "mxfp4"): "kept bit for bit",
        ("int4", "int4"): "kept bit for bit",
        ("int4", "q4_0"): "kept bit for bit",
        ("int4", "q8"): "kept exactly where f16 has their scales, in twice the bytes",
        ("int4", "q4"): "kept, their steps rounded to 8 bits",
    }
    anew = "dequantised exactly" + ("" if fmt == "f32" else ", then rounded once")
    return fates.get((coding, fmt), anew)


def _shown_speeds(needs: Forecast) -> str:
    speeds = (("read", needs.read_bps), ("write", needs.write_bps))
    told = [f"{what} {shown_bytes(int(bps))}/s" for what, bps in speeds if bps is not None]
    return f"; the disk: {', '.join(told)}" if told else ""


def shown_seconds(seconds: float) -> str:
    return f"{math.ceil(seconds)} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def shown_error(relative: float) -> str:
    """A relative error in per cent, with two figures; none is said in a word."""
    return "exact" if relative == 0 else f"{100 * relative:.2g} %"


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
    """tell(done, total, what): says how far the bytes are and how long it takes, now and then.

    Time left is reckoned from the last half minute: a disk's speed changes, and what was done before
    the first call, by an earlier run, says nothing about it.
    """
    lately: deque[tuple[float, int]] = deque()  # when a line was said, or the first call was: bytes

    def tell(done: int, total: int, what: str) -> None:
        now = time.perf_counter()
        if not lately:
            lately.append((now, done))
        if now - lately[-1][0] < LINES_EVERY_SECONDS or done <= lately[0][1]:
            return
        began, before = lately[0]
        lately.append((now, done))
        while now - lately[1][0] > SPEED_OF_SECONDS:
            lately.popleft()
        left = shown_seconds((now - began) * (total - done) / (done - before))
        bps = shown_bytes(int((done - before) / (now - began)))
        say(
            f"{word:<9} {what}: {shown_bytes(done)} of {shown_bytes(total)}, {bps}/s, about {left} left"
        )

    return tell
