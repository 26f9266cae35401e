"""A synthetic model's files: a diskmoe model directory and, if asked for, a GGUF.

The rule of this file: work goes to ``OUT.partial`` and ``FILE.tmp``, layer by layer, with a few
experts in memory; both get their names at the end, and whatever stops the work removes them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import cast

import numpy as np

from diskmoe.bench.gguf_out import GgufFile, ggml_bytes
from diskmoe.bench.model import Synthetic
from diskmoe.bench.weights import Block, packed_parts
from diskmoe.engine.errors import BadOutput, DiskFull, WriteFailed
from diskmoe.engine.model.families import FAMILIES
from diskmoe.engine.model.family import Names
from diskmoe.experts.budget import shown_bytes
from diskmoe.experts.checkpoint import Checkpoint, DenseTensor, ExpertTensors, TensorPlan
from diskmoe.experts.container import DENSE_NAME, experts_name
from diskmoe.experts.manifest import Manifest
from diskmoe.experts.pieces import made_ahead
from diskmoe.experts.safetensors_io import SafetensorsWriter
from diskmoe.experts.tiles import Bytes, RecordLayout, aligned_zeros

Say = Callable[[str], None]
LINES_EVERY_SECONDS = 2.0
Expert = tuple[Block, Block, Block]


class _Source:
    """What a manifest asks of a checkpoint, for weights that come from no file."""

    def __init__(self, config: dict[str, object]) -> None:
        self.config = config
        self.files: tuple[()] = ()

    def exact_formats(self) -> tuple[set[str], set[str]]:
        """Of experts: they are made in the format that is asked for."""
        return {"f32"}, {"f32"}

    def experts(self, plan: TensorPlan, layer: ExpertTensors) -> _Source:
        return self

    def format_for(self, name: str, asked: str) -> str:
        return asked


def write_model(
    model: Synthetic,
    out: Path,
    gguf: Path | None,
    gguf_arch: str | None,
    say: Say,
    threads: int = 2,
) -> int:
    """Write the model; returns the bytes of its tensor files.

    Raises:
        BadOutput: a place that is taken or cannot be written to.
        DiskFull: not enough room, found before anything is written.
    """
    job = _Job(model, out, gguf, gguf_arch, say)
    with job.tidy():
        job.begin()
        for layer in model.config.moe_layers:
            job.write_layer(layer, threads)
        job.write_dense()
        job.finish()
    return job.total_nbytes


class _Job:
    """One model under way."""

    def __init__(
        self, model: Synthetic, out: Path, gguf: Path | None, gguf_arch: str | None, say: Say
    ) -> None:
        self.model, self.out = model, out
        self.partial = out.with_name(out.name + ".partial")
        source = cast(Checkpoint, _Source(model.raw))
        self.manifest = Manifest(source, model.plan, model.expert_format, model.dense_format)
        self.total_nbytes = sum(self.manifest.sizes().values())
        self._gguf = None
        if gguf is not None and gguf_arch is not None:
            self._gguf = GgufFile(gguf, gguf_arch, model.config, model.raw)
        self._say = say
        self._done = 0
        self._started = self._told = time.perf_counter()
        self._ours: Path | None = None  # the directory of this job, under whichever name
        self._parents: list[Path] = []  # made for it, innermost first
        self._begun = False

    def begin(self) -> None:
        """Refuse what is in the way, look at the room, declare what will be written."""
        if self._gguf is not None:
            _refuse_overlap(self.out, self._gguf.path)
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise BadOutput(f"{self.out}: is there already; name another directory or remove it")
        if self.partial.exists():
            raise BadOutput(f"{self.partial}: is in the way, left by an earlier run; remove it")
        if self._gguf is not None and self._gguf.path.exists():
            raise BadOutput(f"{self._gguf.path}: is there already; name another file or remove it")
        self._parents = [path for path in self.partial.parents if not path.exists()]
        self.partial.parent.mkdir(parents=True, exist_ok=True)
        self.partial.mkdir()
        self._ours = self.partial
        needed = [(self.out, self.partial, self.total_nbytes)]
        if self._gguf is not None:
            self._declare(self._gguf)
            needed.append((self._gguf.path, self._gguf.path.parent, self._gguf.nbytes))
        _refuse_full_disks(needed)
        if self._gguf is not None:
            self._gguf.begin()
        self._begun = True
        both = " in each of the two files" if self._gguf else ""
        self._say(f"synth     {shown_bytes(self.total_nbytes)} to write{both}")

    def _declare(self, gguf: GgufFile) -> None:
        model, plan = self.model, self.model.plan
        for tensor in plan.dense:
            gguf.declare(
                tensor.name, model.dense_format if tensor.kind == "matrix" else None, tensor.shape
            )
        inner = (plan.n_experts, plan.ffn, plan.hidden)
        outer = (plan.n_experts, plan.hidden, plan.ffn)
        for layer in model.config.moe_layers:
            for name, shape in zip(_stacked(model, layer), (inner, inner, outer), strict=True):
                gguf.declare(name + ".weight", model.expert_format, shape)
                if plan.biased:  # zeros, as the file is before anything is put there
                    gguf.declare(name + ".bias", None, shape[:2])

    def write_layer(self, layer: int, threads: int) -> None:
        """The records of a layer, and the same experts into the GGUF."""
        path = self.partial / experts_name(layer)
        layout = self.manifest.facts.record_layout_of(layer)
        writer = SafetensorsWriter(
            path, self.manifest.record_specs(layer), self.manifest.metadata(layer)
        )
        names = _stacked(self.model, layer)
        with closing(writer), closing(self._experts(layer, layout, threads)) as made:
            for number, (record, stored) in enumerate(made):
                writer.write(record)
                if self._gguf is not None:
                    for name, part in zip(names, stored, strict=True):
                        self._gguf.put(name + ".weight", number * part.nbytes, part)
                self._advance(record.nbytes, f"layer {layer}")
            writer.finish(self.manifest.metadata(layer, writer.checksums))

    def _experts(
        self, layer: int, layout: RecordLayout, threads: int
    ) -> Generator[tuple[Bytes, list[Bytes]], None, None]:
        """(record, its parts as GGUF has them) in order; as many as threads are made ahead."""

        def make(expert: int) -> tuple[Bytes, list[Bytes]]:
            blocks = self.model.expert(layer, expert)
            stored = [ggml_bytes(block) for block in blocks] if self._gguf is not None else []
            return _record(blocks, layout), stored

        return made_ahead(make, self.model.config.experts, threads, "diskmoe-synth")

    def write_dense(self) -> None:
        """dense.safetensors, and the same tensors into the GGUF."""
        writer = SafetensorsWriter(
            self.partial / DENSE_NAME, self.manifest.dense_specs(), self.manifest.dense_metadata()
        )
        by_name = {tensor.name: tensor for tensor in self.model.plan.dense}
        with closing(writer):
            for name, layout in self.manifest.layouts.items():
                for part in packed_parts(self._shared(by_name[name]), layout):
                    writer.write(part)
                    self._advance(part.nbytes, name)
            for tensor in self.manifest.vectors:
                vector = self.model.vector(tensor)
                writer.write(vector)
                if self._gguf is not None:
                    self._gguf.put(tensor.name, 0, vector.reshape(-1).view(np.uint8))
                self._advance(vector.nbytes, tensor.name)
            writer.finish(self.manifest.dense_metadata(writer.checksums))

    def _shared(self, tensor: DenseTensor) -> Iterator[Block]:
        """The blocks of a matrix; each goes into the GGUF as it passes."""
        at = 0
        for block in self.model.matrix(tensor):
            if self._gguf is not None:
                data = ggml_bytes(block)
                self._gguf.put(tensor.name, at, data)
                at += data.nbytes
            yield block

    def finish(self) -> None:
        """Give both their names."""
        with (self.partial / "config.json").open("w", encoding="utf-8") as file:
            file.write(json.dumps(self.model.raw, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if self.out.exists():
            self.out.rmdir()  # it was empty
        self.partial.rename(self.out)
        self._ours = self.out
        if self._gguf is not None:
            self._gguf.finish()
        self._ours, self._parents = None, []
        seconds = time.perf_counter() - self._started
        self._say(f"written   {shown_bytes(self.total_nbytes)} at {self.out} in {seconds:.1f} s")
        if self._gguf is not None:
            size = shown_bytes(os.path.getsize(self._gguf.path))
            self._say(f"written   {size} at {self._gguf.path}, the same weights")

    @contextmanager
    def tidy(self) -> Iterator[None]:
        """Remove unfinished files when anything goes wrong; OSError becomes one line."""
        try:
            yield
        except BaseException as error:
            kind = WriteFailed if self._begun else BadOutput  # what happened later, or the place
            with _uninterrupted():
                self._remove()
            if isinstance(error, OSError):
                place = error.filename or self.partial
                message = f"{place}: cannot be written: {error.strerror or error}"
                raise kind(f"{message}; mend that, or name another place") from error
            raise

    def _remove(self) -> None:
        """Leave the disk as it was found; what other programs put into new directories stays."""
        if self._gguf is not None:
            self._gguf.discard()
        if self._ours is not None:
            shutil.rmtree(self._ours, ignore_errors=True)
        for parent in self._parents:
            try:
                parent.rmdir()
            except OSError:
                break

    def _advance(self, nbytes: int, what: str) -> None:
        self._done += nbytes
        now = time.perf_counter()
        if now - self._told >= LINES_EVERY_SECONDS:
            self._told = now
            left = (now - self._started) * (self.total_nbytes - self._done) / self._done
            self._say(
                f"synth     {what}: {shown_bytes(self._done)} of "
                f"{shown_bytes(self.total_nbytes)}, about {left:.0f} s left"
            )


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """A block that another Ctrl-C does not end: it would leave gigabytes behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


def _refuse_overlap(out: Path, gguf: Path) -> None:
    """The GGUF needs a place of its own: the directory gets its name when all is written."""
    directory, file = Path(os.path.realpath(out)), Path(os.path.realpath(gguf))
    for ours in (directory, directory.with_name(directory.name + ".partial")):
        for theirs in (file, file.with_name(file.name + ".tmp")):
            if ours == theirs or ours in theirs.parents or theirs in ours.parents:
                raise BadOutput(
                    f"{gguf}: is not apart from the model's directory {out}: name a place beside it"
                )


def _refuse_full_disks(needed: list[tuple[Path, Path, int]]) -> None:
    """needed: (what the user named, a directory on its disk, bytes). Raises DiskFull."""
    by_disk: dict[int, int] = {}
    for named, directory, nbytes in needed:
        disk = directory.stat().st_dev
        by_disk[disk] = by_disk.get(disk, 0) + nbytes
        wanted, free = by_disk[disk], shutil.disk_usage(directory).free
        if wanted > free:
            raise DiskFull(
                f"{named}: {wanted} bytes are to be written on its disk, {free} are free: free "
                f"{wanted - free} more, or ask for fewer --layers"
            )


def _record(blocks: Expert, layout: RecordLayout) -> Bytes:
    """An expert's record u8 (layout.nbytes,); biases are zeros."""
    record = aligned_zeros(layout.nbytes)
    for block, (part, begin, end) in zip(blocks, layout.parts(), strict=True):
        record[begin:end] = block.packed(part)
    return record


def _stacked(model: Synthetic, layer: int) -> tuple[str, str, str]:
    """The names that gate, up and down of a layer, each stacked, would have in a checkpoint."""
    names = FAMILIES[model.config.family].names
    at = names.layer.format(L=layer)
    parts = Names() if names.fused else names
    gate, up, down = (
        at + name.replace(".{e}.", ".").removesuffix(".weight")
        for name in (parts.expert_gate, parts.expert_up, parts.expert_down)
    )
    return gate, up, down
