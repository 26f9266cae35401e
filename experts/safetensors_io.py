"""Reading and writing safetensors files: 8 bytes of length, a JSON header, then raw tensors.

The rule of this file: a header is hostile until every number in it has been checked against the
file it lies in; what is wrong is said in one line that names the file and the place. Nothing is
memory-mapped, and no tensor is read before it is asked for.
"""

import json
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from diskmoe.experts.checksums import new_digest
from diskmoe.experts.errors import BadModel, ReadFailed
from diskmoe.experts.formats import widen_bf16

HEADER_LIMIT = 100_000_000  # bytes; the reference implementation has the same bound
MAX_DIMENSIONS = 8
MAX_DIMENSION = 1 << 48
DATA_ALIGNMENT = 4096  # of the first tensor byte in files written here
_READ_CHUNK = 1 << 30  # macOS refuses single reads of 2 GiB and more

_TYPES_OF_BITS = {
    4: ("F4",),
    6: ("F6_E2M3", "F6_E3M2"),
    8: ("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"),
    16: ("I16", "U16", "F16", "BF16"),
    32: ("I32", "U32", "F32"),
    64: ("I64", "U64", "F64", "C64"),
}
DTYPE_BITS = {dtype: bits for bits, dtypes in _TYPES_OF_BITS.items() for dtype in dtypes}
_NUMPY_TYPES = {
    dtype: np.dtype(f"<{dtype[0].lower()}{bits // 8}")
    for dtype, bits in DTYPE_BITS.items()
    if dtype[1:].isdigit() and bits >= 8
}
_NUMPY_TYPES |= {"BOOL": np.dtype("|b1"), "BF16": np.dtype("<u2")}
FLOAT_DTYPES = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies: `offset` counts from the start of the file, sizes are in bytes."""

    name: str
    dtype: str  # a key of DTYPE_BITS
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    path: Path


@dataclass(frozen=True)
class Header:
    """What a safetensors file holds."""

    path: Path
    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]
    data_start: int  # bytes from the start of the file
    file_size: int


def shown(text: object, limit: int = 100) -> str:
    """Text from a file for use in a one-line message: quoted, escaped and cut."""
    quoted = ascii(text)
    return quoted if len(quoted) <= limit else quoted[: limit - 4] + "...'"


def parse_json(text: bytes, path: Path, place: str) -> Any:
    """The JSON value in `text`; BadModel for bad UTF-8, JSON, duplicate keys and absurd depth."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            seen: set[str] = set()
            twice = next(name for name, _ in pairs if name in seen or seen.add(name))
            raise ValueError(f"the key {shown(twice)} occurs twice")
        return result

    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        raise BadModel(
            f"{path}: {place} is not UTF-8 text (byte {error.start}); fetch the file again"
        ) from None
    except RecursionError:
        raise BadModel(f"{path}: {place} is nested too deeply to be a real one") from None
    except ValueError as error:
        raise BadModel(f"{path}: {place} is not usable JSON: {_one_line(error)}") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]


def open_regular(path: Path) -> int:
    """A file descriptor open for reading; BadModel when `path` is no readable regular file."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # before opening: a FIFO would block
            raise BadModel(f"{path}: not a regular file")
        return os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise BadModel(f"{path}: cannot be opened: {error.strerror or error}") from None


def read_header(path: str | Path) -> Header:
    """Read and check the header of a safetensors file; BadModel for every kind of lie."""
    path = Path(path)
    fd = open_regular(path)
    try:
        size = os.fstat(fd).st_size
        if size < 8:
            raise BadModel(
                f"{path}: {size} bytes, too short for a safetensors file; fetch it again"
            )
        length = int.from_bytes(_read_exactly(fd, 8, path), "little")
        if length > HEADER_LIMIT:
            raise BadModel(
                f"{path}: header claims {length} bytes, the limit is {HEADER_LIMIT}; "
                "this is not a safetensors file or it is damaged"
            )
        if length > size - 8:
            raise BadModel(
                f"{path}: header claims {length} bytes, the file has {size - 8} after its first 8; "
                "it is cut off, fetch it again"
            )
        text = _read_exactly(fd, length, path)
    finally:
        os.close(fd)
    table = parse_json(text, path, "header")
    if not isinstance(table, dict):
        raise BadModel(f"{path}: header is a JSON {type(table).__name__}, not an object")
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise BadModel(f"{path}: __metadata__ is not an object of strings")
    start = 8 + length
    tensors = {
        name: _checked_tensor(path, name, entry, start, size - start)
        for name, entry in table.items()
    }
    refuse_overlaps(path, tensors)
    return Header(path, tensors, metadata, start, size)


def _checked_tensor(path: Path, name: str, entry: Any, start: int, available: int) -> TensorInfo:
    where = f"{path}: tensor {shown(name)}"
    if not isinstance(entry, dict):
        raise BadModel(f"{where}: its header entry is not an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise BadModel(f"{where}: unknown dtype {shown(dtype)}; known: {', '.join(DTYPE_BITS)}")
    if (
        not _are_counts(shape)
        or len(shape) > MAX_DIMENSIONS
        or max(shape, default=0) > MAX_DIMENSION
    ):
        raise BadModel(
            f"{where}: shape {shown(shape)} is not a list of at most {MAX_DIMENSIONS} "
            f"whole numbers from 0 to {MAX_DIMENSION}"
        )
    if not _are_counts(offsets) or len(offsets) != 2:
        raise BadModel(f"{where}: data_offsets {shown(offsets)} are not two whole numbers")
    begin, end = offsets
    if begin > end:
        raise BadModel(f"{where}: ends at {end}, before it begins at {begin}")
    if end > available:
        raise BadModel(
            f"{where}: ends at byte {end} of the data, the file has {available}; "
            "it is cut off or damaged, fetch it again"
        )
    elements = 1
    for dimension in shape:
        elements *= dimension
    bits = elements * DTYPE_BITS[dtype]
    if bits % 8 or bits // 8 != end - begin:
        needed = f"{bits // 8}" if bits % 8 == 0 else f"{bits / 8:g}"
        raise BadModel(
            f"{where}: {dtype} of shape {shown(list(shape))} needs {needed} bytes, "
            f"the header gives it {end - begin}"
        )
    return TensorInfo(name, dtype, tuple(shape), start + begin, end - begin, path)


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def refuse_overlaps(path: Path, tensors: Mapping[str, TensorInfo]) -> None:
    """BadModel when two of a file's tensors share bytes."""
    previous: TensorInfo | None = None
    for info in sorted(tensors.values(), key=lambda info: (info.offset, info.offset + info.nbytes)):
        if info.nbytes == 0:
            continue
        if previous is not None and info.offset < previous.offset + previous.nbytes:
            raise BadModel(
                f"{path}: tensors {shown(previous.name)} and {shown(info.name)} overlap at byte "
                f"{info.offset} of the file"
            )
        previous = info


def _read_exactly(fd: int, nbytes: int, path: Path) -> bytes:
    parts: list[bytes] = []
    missing = nbytes
    while missing:
        part = os.read(fd, min(missing, _READ_CHUNK))
        if not part:
            raise BadModel(f"{path}: ended {missing} bytes early; is something still writing it?")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The NumPy type a tensor is read as: BF16 as u16 bits, FP8 and smaller types as bytes."""
    return _NUMPY_TYPES.get(dtype, np.dtype("|u1"))


def read_tensor(info: TensorInfo) -> npt.NDArray[Any]:
    """The tensor in its own type (see `numpy_dtype`); types under 8 bits come as flat bytes."""
    array = np.empty(info.nbytes, np.uint8)
    read_into(info.path, info.offset, array)
    if DTYPE_BITS[info.dtype] < 8:
        return array
    return array.view(numpy_dtype(info.dtype)).reshape(info.shape)


def read_rows(info: TensorInfo, begin: int, end: int) -> npt.NDArray[Any]:
    """Rows begin..end-1 of a tensor of at least one dimension, in its own type."""
    if not info.shape or DTYPE_BITS[info.dtype] < 8 or not 0 <= begin <= end <= info.shape[0]:
        raise ValueError(f"no rows {begin} to {end} in {info.dtype} of shape {info.shape}")
    row_nbytes = info.nbytes // max(info.shape[0], 1)
    array = np.empty((end - begin) * row_nbytes, np.uint8)
    read_into(info.path, info.offset + begin * row_nbytes, array)
    return array.view(numpy_dtype(info.dtype)).reshape(end - begin, *info.shape[1:])


def read_into(path: Path, offset: int, array: npt.NDArray[np.uint8]) -> None:
    """Fill `array` (1-D) with the file's bytes from `offset` on.

    ReadFailed when the system refuses, or the file is shorter than its header was found to be.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(offset)
            view, done = array.data, 0
            while done < len(view):
                count = file.readinto(view[done : done + _READ_CHUNK])
                if not count:
                    raise ReadFailed(
                        f"{path}: reading {len(array)} bytes at {offset}: the file ends "
                        f"{len(view) - done} bytes early; it has changed since it was opened"
                    )
                done += count
    except OSError as error:
        raise ReadFailed(
            f"{path}: reading {len(array)} bytes at {offset}: {error.strerror or error}; "
            "check the disk, and the file"
        ) from error


def as_f32(array: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    """A tensor as `read_tensor` gives it -> f32, exactly; ValueError for types that are no floats
    or do not fit."""
    if dtype == "BF16":
        return widen_bf16(array)
    if dtype in FLOAT_DTYPES:
        return array.astype(np.float32, copy=False)
    raise ValueError(f"{dtype} is not one of {', '.join(FLOAT_DTYPES)}")


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to be written."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        elements = 1
        for dimension in self.shape:
            elements *= dimension
        return elements * DTYPE_BITS[self.dtype] // 8


def _header_text(specs: Sequence[TensorSpec], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for spec in specs:
        end = offset + spec.nbytes
        place = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [offset, end]}
        entries[spec.name] = place
        offset = end
    return json.dumps(entries, separators=(",", ":")).encode()


def _padded_nbytes(text: bytes) -> int:
    return -(-(8 + len(text)) // DATA_ALIGNMENT) * DATA_ALIGNMENT - 8


def file_nbytes(specs: Sequence[TensorSpec], metadata: Mapping[str, str]) -> int:
    """The size of the file that `SafetensorsWriter` makes of them."""
    header = 8 + _padded_nbytes(_header_text(specs, metadata))
    return header + sum(spec.nbytes for spec in specs)


class SafetensorsWriter:
    """Writes a safetensors file tensor by tensor, in the order of `specs`, into ``PATH.tmp``.

    `checksums` has those of the tensors that are written, by name. `finish` puts the final metadata into the room that the first had (so checksums can be filled
    in: give placeholders of the same length), makes the file durable and gives it its name; until
    then there is no file PATH. Data starts at a multiple of 4096, the header is padded with spaces.
    """

    def __init__(
        self, path: Path, specs: Sequence[TensorSpec], metadata: Mapping[str, str]
    ) -> None:
        self.path = path
        self.checksums: dict[str, str] = {}
        self._specs = list(specs)
        self._digest, self._digested = new_digest(), 0
        self._temporary = path.with_name(path.name + ".tmp")
        text = _header_text(specs, metadata)
        self._header_nbytes = _padded_nbytes(text)
        self._missing = sum(spec.nbytes for spec in specs)
        self._file = open(self._temporary, "wb", buffering=0)  # noqa: SIM115 - closed by close()
        try:
            self._write_all(self._padded(text))
        except BaseException:
            self._file.close()
            raise

    def _padded(self, text: bytes) -> bytes:
        if len(text) > self._header_nbytes:
            raise ValueError("the final metadata is longer than the first was")
        return self._header_nbytes.to_bytes(8, "little") + text.ljust(self._header_nbytes)

    def _write_all(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view[:_READ_CHUNK]) :]

    def write(self, array: npt.NDArray[Any]) -> None:
        """Append an array's bytes; tensors follow one another without gaps."""
        if array.nbytes > self._missing:
            raise ValueError(f"{array.nbytes} bytes written, room is left for {self._missing}")
        if array.nbytes:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            self._write_all(data)
            self._sum_up(data)
        self._missing -= array.nbytes

    def _sum_up(self, data: memoryview) -> None:
        while data:
            spec = self._specs[len(self.checksums)]
            part = data[: spec.nbytes - self._digested]
            self._digest.update(part)
            self._digested += len(part)
            data = data[len(part) :]
            if self._digested == spec.nbytes:
                self.checksums[spec.name] = self._digest.hexdigest()
                self._digest, self._digested = new_digest(), 0

    def finish(self, metadata: Mapping[str, str]) -> None:
        """Write the final header, sync, and rename to the final name."""
        if self._missing:
            raise ValueError(f"{self.path}: {self._missing} bytes were never written")
        self._file.seek(0)
        self._write_all(self._padded(_header_text(self._specs, metadata)))
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._temporary, self.path)

    def close(self) -> None:
        """Let go of the file; without `finish` before, PATH.tmp stays behind."""
        self._file.close()


def write_safetensors(
    path: str | Path,
    tensors: Mapping[str, tuple[str, npt.NDArray[Any]]],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write {name: (dtype, array)} at once. BF16 arrays hold u16 bits; U8 takes any bytes."""
    specs = [TensorSpec(name, dtype, array.shape) for name, (dtype, array) in tensors.items()]
    with closing(SafetensorsWriter(Path(path), specs, metadata or {})) as writer:
        for _, array in tensors.values():
            writer.write(array)
        writer.finish(metadata or {})
