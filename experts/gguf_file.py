"""Reading the header of GGUF files: metadata, and where each tensor lies.

The rule of this file: a header is hostile until every number in it has been checked against the
file it lies in, before memory is taken for it; what is wrong is said in one line that names the
file and the place. Nothing is memory-mapped, and no tensor is read.

    headers, metadata = read_gguf("GLM-4.5-Air-Q4_K_M-00001-of-00002.gguf")

A header is the magic, a version, the counts of tensors and of metadata entries, the entries (key,
type, value), then each tensor's name, dimensions (columns first), type and offset; data begins at
the next multiple of ``general.alignment``. A split model's files carry ``split.*`` entries.
"""

import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import gguf
import numpy as np

from diskmoe.experts.errors import BadModel
from diskmoe.experts.safetensors_io import (
    Header,
    TensorInfo,
    open_regular,
    refuse_overlaps,
    shown,
)

MAGIC = b"GGUF"
VERSIONS = (2, 3)
HEADER_LIMIT = 256 << 20  # bytes; a vocabulary of 260,000 tokens with its merges takes 20 million
MOST_ENTRIES = 1 << 16
MOST_TENSORS = 1 << 17
MOST_TEXTS = 1 << 21  # of one list; real vocabularies have up to 600,000 merges
MOST_SHARDS = 10_000
LONGEST_NAME = 1024  # bytes of a key, or of a tensor's name
MOST_DIMENSIONS = 4
ALIGNMENT = 32  # of tensors, where the file does not say

TYPES = {int(kind): kind.name for kind in gguf.GGMLQuantizationType}
BLOCKS = {kind.name: size for kind, size in gguf.GGML_QUANT_SIZES.items()}  # (weights, bytes)

_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_TEXT, _LIST = 8, 9


class Metadata:
    """Typed look-ups in a GGUF's entries; whatever is wrong is a BadModel with the key."""

    def __init__(self, path: Path, entries: Mapping[str, Any]) -> None:
        self.path = path
        self.entries = entries

    def bad(self, key: str, what: str) -> BadModel:
        return BadModel(f"{self.path}: {key} {what}")

    def has(self, key: str) -> bool:
        return key in self.entries

    def value(self, key: str, kind: type) -> Any:
        """The entry; BadModel when it is missing or of another type."""
        if key not in self.entries:
            raise self.bad(key, "is missing among its metadata")
        value = self.entries[key]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.bad(key, f"is a {type(value).__name__}, not a {kind.__name__}")
        return value

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """The entry, or `default` when there is none."""
        return self.value(key, kind) if key in self.entries else default

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number; a list with one number for each layer counts where all are equal."""
        value = self.entries.get(key, default)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if isinstance(value, list):
            raise self.bad(
                key, f"is {shown(value, 60)}: layers that differ in it are not supported"
            )
        if key in self.entries and type(value) is int:
            return value
        return self.value(key, int) if default is None or key in self.entries else default

    def number(self, key: str, default: float | None = None) -> float:
        """An f32, as the decimal number that was meant."""
        if default is not None and key not in self.entries:
            return default
        return self.value(key, float)

    def texts(self, key: str) -> list[str]:
        value = self.value(key, list)
        if not all(isinstance(text, str) for text in value):
            raise self.bad(key, "is not a list of texts")
        return value


def read_gguf(path: str | Path) -> tuple[list[Header], Metadata]:
    """(the headers of a model's files in order, the metadata of the first).

    `path` is the file, or any file of a split model (``NAME-00001-of-0000N.gguf``). BadModel for
    every kind of lie, for a missing file, and for a tensor that two files have.
    """
    paths = _shards(Path(path))
    headers, entries = zip(*(_read_header(shard) for shard in paths), strict=True)
    metadata = Metadata(paths[0], entries[0])
    _check_split(headers, [Metadata(*pair) for pair in zip(paths, entries, strict=True)])
    seen: dict[str, Path] = {}
    for header in headers:
        for name in header.tensors:
            if name in seen:
                raise BadModel(
                    f"{header.path}: tensor {shown(name)} is in {shown(seen[name].name)} too"
                )
            seen[name] = header.path
    return list(headers), metadata


def _shards(path: Path) -> list[Path]:
    """All files of the model that `path` is a file of."""
    match = _SHARD.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match[3])
    if not 1 <= int(match[2]) <= count <= MOST_SHARDS:
        raise BadModel(f"{path}: is no file 1 to {count} of at most {MOST_SHARDS}, by its name")
    ending = path.name[-len(".gguf") :]
    shards = [
        path.with_name(f"{match[1]}-{n:05}-of-{match[3]}{ending}") for n in range(1, count + 1)
    ]
    missing = [shard.name for shard in shards if not shard.exists()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise BadModel(
            f"{path.parent / missing[0]}{more} is missing ({count - len(missing)} of {count} files "
            "are there): fetch it again"
        )
    return shards


def _check_split(headers: tuple[Header, ...], entries: list[Metadata]) -> None:
    count = entries[0].get("split.count", int, 0)
    if max(count, 1) != len(headers):
        raise entries[0].bad(
            "split.count",
            f"is {count}, and {len(headers)} by the file's name: fetch the model again, under its "
            "own names",
        )
    if count < 2:
        return
    for number, (one, metadata) in enumerate(zip(headers, entries, strict=True)):
        if metadata.get("split.no", int) != number:
            raise BadModel(
                f"{one.path}: split.no is {shown(metadata.entries.get('split.no'))}, by its name it "
                f"is {number}"
            )
    told = entries[0].get("split.tensors.count", int)
    found = sum(len(header.tensors) for header in headers)
    if told is not None and told != found:
        raise BadModel(
            f"{headers[0].path}: split.tensors.count is {told}, the {count} files have {found}: "
            "fetch them again"
        )


def _read_header(path: Path) -> tuple[Header, dict[str, Any]]:
    with open(open_regular(path), "rb") as file:
        try:
            return _Walk(path, file).header()
        except OSError as error:
            raise BadModel(f"{path}: cannot be read: {error.strerror or error}") from None


class _Walk:
    """One pass over a header, front to back."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file
        self._size = os.fstat(file.fileno()).st_size
        self._at = 0

    def header(self) -> tuple[Header, dict[str, Any]]:
        magic = self._take(4, "its first bytes")
        if magic != MAGIC:
            raise self._bad(f"begins with {shown(magic)}, not with {MAGIC}: this is no GGUF file")
        version = self._number("I", "its version")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            kind = " in big-endian order" if swapped in VERSIONS else ""
            raise self._bad(f"is GGUF version {version}{kind}; this program reads 2 and 3")
        n_tensors = self._count("tensors", MOST_TENSORS, 24)
        n_entries = self._count("metadata entries", MOST_ENTRIES, 13)
        entries: dict[str, Any] = {}
        for number in range(n_entries):
            key = self._text(f"metadata key {number}", LONGEST_NAME)
            if key in entries:
                raise self._bad(f"metadata key {shown(key)} occurs twice")
            entries[key] = self._value(self._number("I", f"the type of {shown(key)}"), shown(key))
        described = [self._described(number) for number in range(n_tensors)]
        return self._placed(described, self._alignment(entries)), entries

    def _alignment(self, entries: Mapping[str, Any]) -> int:
        alignment = entries.get("general.alignment", ALIGNMENT)
        if type(alignment) is not int or not 8 <= alignment <= 1 << 20 or alignment & alignment - 1:
            raise self._bad(
                f"general.alignment is {shown(alignment)}, not a power of two from 8 to {1 << 20}"
            )
        return alignment

    def _described(self, number: int) -> tuple[str, tuple[int, ...], str, int]:
        """(name, shape with the columns last, type, offset among the data) of the next tensor."""
        name = self._text(f"the name of tensor {number}", LONGEST_NAME)
        where = f"tensor {shown(name)}"
        n_dimensions = self._number("I", f"{where}: its number of dimensions")
        if not 1 <= n_dimensions <= MOST_DIMENSIONS:
            raise self._bad(
                f"{where} has {n_dimensions} dimensions; 1 to {MOST_DIMENSIONS} are read"
            )
        shape = tuple(self._number("Q", f"{where}: its shape") for _ in range(n_dimensions))[::-1]
        code = self._number("I", f"{where}: its type")
        offset = self._number("Q", f"{where}: its offset")
        kind = TYPES.get(code)
        if kind is None or kind not in BLOCKS:
            raise self._bad(
                f"{where} has type {code}, which this version of the gguf package does not know: "
                "pip install -U gguf"
            )
        if min(shape) < 1 or max(shape) >= 1 << 48:
            raise self._bad(f"{where} has shape {list(shape)}, which holds no weights")
        return name, shape, kind, offset

    def _placed(self, described: list[tuple[str, tuple[int, ...], str, int]], align: int) -> Header:
        start = -(-self._at // align) * align
        available = max(self._size - start, 0)
        tensors: dict[str, TensorInfo] = {}
        for name, shape, kind, offset in described:
            where = f"tensor {shown(name)}"
            weights, nbytes = BLOCKS[kind]
            if shape[-1] % weights:
                raise self._bad(
                    f"{where} has {shape[-1]} columns, {kind} has blocks of {weights} of them"
                )
            total = shape[-1] // weights * nbytes
            for dimension in shape[:-1]:
                total *= dimension
            if offset % align:
                raise self._bad(f"{where} begins at {offset}, not at a multiple of {align}")
            if offset + total > available:
                raise self._bad(
                    f"{where} ({kind} {list(shape)}) ends at byte {offset + total} of the data, the "
                    f"file has {available}: it is cut off or damaged, fetch it again"
                )
            if name in tensors:
                raise self._bad(f"{where} occurs twice")
            tensors[name] = TensorInfo(name, kind, shape, start + offset, total, self._path)
        refuse_overlaps(self._path, tensors)
        return Header(self._path, tensors, {}, start, self._size)

    def _value(self, kind: int, where: str) -> Any:
        if kind == _TEXT:
            return self._text(where, HEADER_LIMIT)
        if kind == _LIST:
            return self._list(where)
        if kind not in _NUMBERS:
            raise self._bad(f"{where} has the value type {kind}; there are 0 to 12")
        return _meant(self._number(_NUMBERS[kind], where), kind)

    def _list(self, where: str) -> list[Any]:
        kind = self._number("I", where)
        count = self._number("Q", where)
        if kind == _TEXT:
            if count > MOST_TEXTS:
                raise self._bad(f"{where} has {count} texts, the most read is {MOST_TEXTS}")
            self._room(8 * count, where)
            return [self._text(where, HEADER_LIMIT) for _ in range(count)]
        if kind not in _NUMBERS:
            raise self._bad(
                f"{where} is a list of type {kind}; lists of numbers and texts are read"
            )
        code = np.dtype("<" + _NUMBERS[kind])
        raw = self._take(count * code.itemsize, where)
        values = np.frombuffer(raw, code).tolist()
        return [_meant(value, kind) for value in values] if kind == 6 else values

    def _text(self, where: str, limit: int) -> str:
        nbytes = self._number("Q", where)
        if nbytes > limit:
            raise self._bad(f"{where} claims {nbytes} bytes of text, the limit is {limit}")
        raw = self._take(nbytes, where)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._bad(
                f"{where} holds text that is not UTF-8 (byte {error.start}); fetch it again"
            ) from None

    def _count(self, what: str, most: int, least_nbytes: int) -> int:
        count = self._number("Q", f"its number of {what}")
        if count > most:
            raise self._bad(f"claims {count} {what}, the most read is {most}")
        self._room(count * least_nbytes, f"{count} {what}")
        return count

    def _number(self, code: str, where: str) -> Any:
        code = "<" + code
        return struct.unpack(code, self._take(struct.calcsize(code), where))[0]

    def _room(self, nbytes: int, where: str) -> None:
        """BadModel unless the header can have so many more bytes."""
        left = min(self._size, HEADER_LIMIT) - self._at
        if nbytes > left:
            raise self._bad(
                f"{where} needs {nbytes} bytes of header at byte {self._at}, {left} are left: the "
                "file is cut off or damaged, fetch it again"
            )

    def _take(self, nbytes: int, where: str) -> bytes:
        self._room(nbytes, where)
        raw = self._file.read(nbytes)
        if len(raw) != nbytes:
            raise self._bad(
                f"ended {nbytes - len(raw)} bytes early; is something still writing it?"
            )
        self._at += nbytes
        return raw

    def _bad(self, what: str) -> BadModel:
        return BadModel(f"{self._path}: {what}")


def _meant(value: Any, kind: int) -> Any:
    """An f32 as the shortest decimal number that gives it: 1e-6, not 9.999999974752427e-07."""
    return float(str(np.float32(value))) if kind == 6 else value
