"""Turn a Hugging Face directory into a container.

The rule of this file: work goes to ``OUT.partial``, file by file, each under a temporary name until
it is whole and on the disk; at the end the directory gets its name. Whatever stops a conversion,
the same command goes on after the last whole file, and the bytes come out the same. Experts pass
through memory one by one, matrices in blocks of rows. One process at a time works there: it holds
the directory's lock.
"""

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from diskmoe.experts.checkpoint import Checkpoint, TensorPlan
from diskmoe.experts.container import (
    DENSE_NAME,
    Container,
    check_expert_file,
    experts_name,
    is_container,
    pieces_in,
)
from diskmoe.experts.errors import BadModel, BadOutput, DiskFull, WriteFailed
from diskmoe.experts.facts import Facts, read_facts
from diskmoe.experts.lockfile import LOCK_NAME, locked
from diskmoe.experts.manifest import Manifest
from diskmoe.experts.pieces import in_order, packed_parts
from diskmoe.experts.records import CheckpointRecords
from diskmoe.experts.safetensors_io import SafetensorsWriter, read_header, shown
from diskmoe.experts.side_files import COPIED, side_files
from diskmoe.experts.tiles import Bytes
from diskmoe.experts.verify import verify

_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
_UNUSABLE = {  # what is wrong with the place that was named, rather than with its disk
    errno.EACCES,
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.ENOTEMPTY,
    errno.EPERM,
    errno.EROFS,
}

Progress = Callable[[int, int, str], None]  # bytes done, bytes in all, what is being written


@dataclass(frozen=True)
class Conversion:
    """What a conversion did."""

    path: Path
    expert_format: str
    dense_format: str
    nbytes: int  # of all tensor files
    kept_nbytes: int  # of these, found whole from an earlier run
    seconds: float


def convert(
    checkpoint: Checkpoint,
    plan: TensorPlan,
    out_dir: str | Path,
    expert_format: str | None = "q4",
    dense_format: str | None = "q8",
    progress: Progress | None = None,
    threads: int = 2,
    checked: Progress | None = None,
    made: Mapping[str, bytes] | None = None,
) -> Conversion:
    """Write the container `out_dir`. A format of None keeps the checkpoint's own precision.

    `progress` is told what was written, `checked` what was read back and found to be the same.
    `made` has the files that lie beside the tensors, for a checkpoint that is no directory to copy
    them from; one of them is config.json.

    Raises BadModel for a checkpoint that does not fit its plan and for an `out_dir` that is
    somebody else's (nothing is left behind then), BadOutput when it cannot be written or another
    process is converting into it, DiskFull when the disk is too small and WriteFailed when it
    refuses (what is whole is kept), ReadFailed when the checkpoint cannot be read.
    """
    begin = time.perf_counter()
    out = Path(out_dir)
    checkpoint.verify(plan)
    manifest = Manifest(checkpoint, plan, expert_format, dense_format)
    job = _Job(checkpoint, manifest, out, progress, checked, made)
    with job.disk_errors():
        if _is_done(out, manifest.facts):
            return job.summary(time.perf_counter() - begin, kept=job.total_nbytes)
    with job.alone():
        with job.disk_errors():
            if _is_done(out, manifest.facts):  # by the process that had the lock before
                return job.summary(time.perf_counter() - begin, kept=job.total_nbytes)
            job.look_at_partial()
        try:
            job.run(max(1, threads))
        except DiskFull:
            raise
        except BadModel:
            job.remove_partial()  # these weights will never make a container
            raise
    return job.summary(time.perf_counter() - begin, kept=job.kept_nbytes)


def _is_done(out: Path, facts: Facts) -> bool:
    """Is `out` the finished result already? BadModel when it is anything but that, or empty."""
    if out.suffix == ".partial":
        raise BadModel(f"{out}: a name that ends in .partial is kept for unfinished conversions")
    if not out.exists():
        return False
    if not out.is_dir():
        raise BadModel(f"{out}: a file; name a directory that does not exist yet")
    if not any(out.iterdir()):
        return False
    if not is_container(out):
        raise BadModel(f"{out}: not empty and not a diskmoe container; name another directory")
    if Container.open(out).source != facts.source:
        raise BadModel(
            f"{out}: holds another conversion (other model or formats); name another directory or "
            "remove it"
        )
    return True


class _Job:
    """One conversion under way."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        manifest: Manifest,
        out: Path,
        progress: Progress | None,
        checked: Progress | None,
        made: Mapping[str, bytes] | None,
    ) -> None:
        self.checkpoint, self.manifest, self.out = checkpoint, manifest, out
        self.partial = out.with_name(out.name + ".partial")
        self.sizes = manifest.sizes()
        self.total_nbytes = sum(self.sizes.values())
        self.made = made or {}
        self.copied = side_files(checkpoint.path) if made is None else list(made)
        self.kept: set[str] = set()
        self._progress, self._checked = progress, checked
        self._done_nbytes = 0

    @property
    def kept_nbytes(self) -> int:
        return sum(self.sizes[name] for name in self.kept)

    def summary(self, seconds: float, kept: int) -> Conversion:
        facts = self.manifest.facts
        return Conversion(
            self.out, facts.expert_format, facts.dense_format, self.total_nbytes, kept, seconds
        )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Make the partial directory and hold its lock. When left, an empty one is removed."""
        with contextlib.ExitStack() as stack:
            with self.disk_errors():
                if self.partial.exists() and not self.partial.is_dir():
                    raise BadOutput(f"{self.partial}: is in the way; remove it")
                self.partial.mkdir(parents=True, exist_ok=True)
                stack.callback(_remove_empty, self.partial)
                # once the work is done the lock lies in the directory's final place
                stack.enter_context(locked(self.partial, moved_to=self.out))
            yield

    def look_at_partial(self) -> None:
        """Find the whole files of an earlier run; BadModel when the directory is not of this job."""
        ours = {*self.sizes, *COPIED, LOCK_NAME}
        ours |= {Path(name).parts[0] for name in self.copied}
        for entry in sorted(self.partial.iterdir()):
            if entry.name.removesuffix(".tmp") not in ours:
                raise BadModel(
                    f"{self.partial}: {shown(entry.name)} is not from this conversion; remove the "
                    "directory or name another output"
                )
        for name in self.sizes:
            if (self.partial / name).exists() and self._is_whole(self.partial / name):
                self.kept.add(name)

    def _is_whole(self, path: Path) -> bool:
        try:
            header = read_header(path)
        except BadModel:
            return False  # cut off by a power failure: written again
        if header.metadata.get("source") != self.manifest.facts.source:
            raise BadModel(
                f"{self.partial}: is from another conversion (other model or formats); remove it "
                "or name another output"
            )
        if path.name == DENSE_NAME:
            return (
                header.file_size == self.sizes[DENSE_NAME]
                and read_facts(header) == self.manifest.facts
            )
        layer = int(path.stem.rpartition("-")[2])
        check_expert_file(header, layer, self.manifest.facts)
        return header.file_size == self.sizes[path.name]

    def remove_partial(self) -> None:
        for name in {*self.sizes, *self.copied}:
            for path in (self.partial / name, self.partial / (name + ".tmp")):
                path.unlink(missing_ok=True)
        for folder in {(self.partial / name).parent for name in self.copied} - {self.partial}:
            _remove_empty(folder)

    def run(self, threads: int) -> None:
        """Write what is missing, then give the directory its name."""
        with self.disk_errors():
            self._check_room()
        self._done_nbytes = self.kept_nbytes
        plan, fmt = self.manifest.plan, self.manifest.facts.expert_format
        with closing(CheckpointRecords(self.checkpoint, plan, fmt, threads)) as records:
            for layer in self.manifest.facts.layers:
                if experts_name(layer) not in self.kept:
                    # closed before the records are: its threads read their files
                    with closing(in_order(records, layer, threads)) as made:
                        self._write_layer(layer, made)
        if DENSE_NAME not in self.kept:
            self._write_dense()
        self._read_back()
        with self.disk_errors():
            for name in self.copied:
                target = self.partial / name
                target.parent.mkdir(exist_ok=True)
                _place(self.made.get(name, self.checkpoint.path / name), target)
            _sync_directory(self.partial)
            if self.out.exists():
                self.out.rmdir()  # it was empty
            self.partial.rename(self.out)
            _sync_directory(self.out.parent)

    def _read_back(self) -> None:
        """Compare all that was written with its checksums, past the page cache where that works."""
        done, pieces = (
            0,
            [p for name in self.sizes for p in pieces_in(read_header(self.partial / name))],
        )
        for piece, damage in verify(pieces):
            if damage is not None:
                piece.path.unlink(missing_ok=True)
                raise WriteFailed(
                    f"{damage}, just after it was written: the disk or the memory is not to be "
                    f"trusted; {piece.path.name} was removed, run the same command to go on"
                )
            done += piece.nbytes
            if self._checked is not None:
                self._checked(done, self.total_nbytes, piece.path.name)

    def _check_room(self) -> None:
        missing = self._missing_nbytes()
        free = shutil.disk_usage(self.partial).free
        if missing > free:
            kept = f" beside the {self.kept_nbytes} already there" if self.kept else ""
            if not self.kept:
                self.remove_partial()
            raise DiskFull(
                f"{self.partial}: {missing} bytes are to be written{kept}, {free} are free: "
                f"{missing - free} bytes are missing; free them, or name a directory elsewhere"
            )

    def _missing_nbytes(self) -> int:
        """Bytes of the files that are not there whole."""
        there = {name for name in self.sizes if (self.partial / name).exists()}
        return sum(size for name, size in self.sizes.items() if name not in there)

    @contextmanager
    def disk_errors(self, temporary: Path | None = None) -> Iterator[None]:
        """OSError -> one line that says where the partial output is and what it still needs."""
        try:
            yield
        except OSError as error:
            place, reason = error.filename or self.partial, error.strerror or error
            if error.errno in _UNUSABLE:
                raise BadOutput(
                    f"{place}: cannot be used for the output: {reason}; mend that, or name another "
                    "directory"
                ) from error
            if error.errno not in _FULL:
                raise WriteFailed(
                    f"{place}: cannot be written: {reason}; check the disk and run the same "
                    f"command again, what is whole in {self.partial} is kept"
                ) from error
            if temporary is not None:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)  # it would be written anew anyway
            missing = self._missing_nbytes()
            free = shutil.disk_usage(self.partial if self.partial.exists() else ".").free
            raise DiskFull(
                f"{self.partial}: the disk is full; {missing} of {self.total_nbytes} bytes are "
                f"still to be written, {free} are free: free {max(missing - free, 1)} more and run "
                "the same command again, it goes on where it stopped"
            ) from error

    def _write_layer(self, layer: int, records: Iterator[Bytes]) -> None:
        path = self.partial / experts_name(layer)
        specs = self.manifest.record_specs(layer)
        with (
            self.disk_errors(path.with_name(path.name + ".tmp")),
            closing(SafetensorsWriter(path, specs, self.manifest.metadata(layer))) as writer,
        ):
            for record in records:
                writer.write(record)
                self._advance(record.nbytes, f"layer {layer}")
            writer.finish(self.manifest.metadata(layer, writer.checksums))

    def _write_dense(self) -> None:
        path = self.partial / DENSE_NAME
        specs = self.manifest.dense_specs()
        with (
            self.disk_errors(path.with_name(path.name + ".tmp")),
            closing(SafetensorsWriter(path, specs, self.manifest.dense_metadata())) as writer,
        ):
            for name, layout in self.manifest.layouts.items():
                for part in packed_parts(self.checkpoint, name, layout):
                    writer.write(part)
                    self._advance(part.nbytes, name)
                    del part  # gone before the next one is made
            for tensor in self.manifest.vectors:
                vector = self.checkpoint.f32(tensor.name)
                writer.write(vector)
                self._advance(vector.nbytes, tensor.name)
            writer.finish(self.manifest.dense_metadata(writer.checksums))

    def _advance(self, nbytes: int, what: str) -> None:
        self._done_nbytes += nbytes
        if self._progress is not None:
            self._progress(self._done_nbytes, self.total_nbytes, what)


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _place(source: Path | bytes, target: Path) -> None:
    """Copy a file, or write its contents, whole or not at all."""
    temporary = target.with_name(target.name + ".tmp")
    if isinstance(source, bytes):
        temporary.write_bytes(source)
    else:
        shutil.copyfile(source, temporary)
    with open(temporary, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(temporary, target)


def _sync_directory(path: Path) -> None:
    """Make renames durable; Windows has no such call."""
    if os.name == "posix":
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
