"""Our own model directory, made by `convert`: packed matrices and expert records, ready to use.

::

    config.json, tokenizer.json, ...       the model's own files, copied
    dense.safetensors                      matrices as packed U8 bytes, vectors as F32
    experts-00007.safetensors              the records of layer 7: U8 tensors `layers.7.experts.E`

The rule of this file: `open` checks every number before anything is used: versions, names, sizes
and offsets against the layouts that they must have. Each file's ``__metadata__`` tells:

* all files: ``format_version``, ``source`` (fingerprint of what was converted, and how),
  ``config`` (digest of config.json: other numbers there would give other text without a word),
  ``checksums`` = JSON {record or tensor name: BLAKE2b-64 in hex} (earlier dense files have none),
  ``expert_format`` (one, or that of gate and up + that of down: ``q4_0+q4_1``), ``hidden``, ``ffn``,
  ``n_experts``, ``biased`` = "1" where records have biases
* experts: ``layers`` = JSON list of the one
* dense: ``dense`` = JSON {name: {format, shape}} of the matrices, ``dense_format``, ``layers`` =
  JSON list, ``mtp_layers`` = JSON list of those that are MTP layers (q8 in a q4 model: four bits
  ruin a draft head)

A record starts at a multiple of 4096 in its file and its length is one: a single aligned read.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.experts.checksums import Piece
from diskmoe.experts.directory import check_model_directory, read_json_object
from diskmoe.experts.errors import BadModel
from diskmoe.experts.facts import (
    MOST,
    Facts,
    checksums_of,
    int_list_of,
    json_of,
    read_facts,
    require_version,
    text_of,
)
from diskmoe.experts.formats import FORMATS
from diskmoe.experts.packing import unpack, unpack_record
from diskmoe.experts.safetensors_io import (
    Header,
    TensorInfo,
    read_header,
    read_into,
    read_tensor,
    shown,
)
from diskmoe.experts.tiles import (
    PAGE,
    Bytes,
    MatrixLayout,
    RecordLayout,
    aligned_zeros,
    matrix_layout,
    record_layout,
)

DENSE_NAME = "dense.safetensors"


def experts_name(layer: int) -> str:
    """The file that holds a layer's records."""
    return f"experts-{layer:05}.safetensors"


def record_name(layer: int, expert: int) -> str:
    return f"layers.{layer}.experts.{expert}"


def config_digest(config: dict[str, Any]) -> str:
    """BLAKE2b-64 of a config's contents in hex; spacing and order do not count."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def is_container(directory: str | Path) -> bool:
    """Does the directory look like one of ours? Says nothing about whether it is in order."""
    path = Path(directory)
    return (path / DENSE_NAME).is_file() or any(path.glob("experts-[0-9]*.safetensors"))


class Container:
    """An opened converted model. Tensors are read at each call; nothing is kept."""

    def __init__(
        self,
        path: Path,
        config: dict[str, Any],
        facts: Facts,
        dense: Header,
        layouts: dict[str, MatrixLayout],
        records: dict[int, list[Piece]],
    ) -> None:
        self.path = path
        self.config = config
        self.dense_format = facts.dense_format
        self.expert_format = facts.expert_format
        self.hidden = facts.hidden
        self.ffn = facts.ffn
        self.n_experts = facts.n_experts
        self.biased = facts.biased
        self.layers = facts.layers
        self.source = facts.source
        self.record_layout = record_layout(
            facts.expert_format, facts.hidden, facts.ffn, facts.biased
        )
        self._facts = facts
        self.expert_files = [path / experts_name(layer) for layer in facts.layers]
        self._dense = dense
        self._layouts = layouts
        self._records = records

    @classmethod
    def open(cls, directory: str | Path) -> "Container":
        """Read and check all headers; BadModel names the file and what is wrong with it."""
        path = Path(directory)
        check_model_directory(path)
        config = read_json_object(path / "config.json", "config.json")
        if not (path / DENSE_NAME).is_file():
            raise BadModel(f"{path}: {DENSE_NAME} is missing; convert the model again")
        dense = read_header(path / DENSE_NAME)
        facts = read_facts(dense)
        found = config_digest(config)
        if found != facts.config:
            raise BadModel(
                f"{path / 'config.json'}: was changed after the conversion (digest {found}, it was "
                f"{facts.config}): put the model's own file back, or convert again"
            )
        layouts = _read_layouts(dense)
        records: dict[int, list[Piece]] = {}
        for layer in facts.layers:
            file = path / experts_name(layer)
            if not file.is_file():
                raise BadModel(
                    f"{path}: {file.name}, the experts of layer {layer}, is missing; "
                    "convert the model again"
                )
            records[layer] = check_expert_file(read_header(file), layer, facts)
        return cls(path, config, facts, dense, layouts, records)

    @property
    def names(self) -> list[str]:
        """The dense tensors, under their checkpoint's names."""
        return list(self._dense.tensors)

    def has(self, name: str) -> bool:
        return name in self._dense.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a dense tensor, as in the checkpoint."""
        layout = self.dense_layout(name)
        return (layout.rows, layout.cols) if layout else self._info(name).shape

    def dense_layout(self, name: str) -> MatrixLayout | None:
        """The layout of a packed matrix; None for a vector. BadModel when there is no such tensor."""
        self._info(name)
        return self._layouts.get(name)

    def dense_place(self, name: str) -> tuple[Path, int]:
        """(file, offset) of a dense tensor's bytes."""
        info = self._info(name)
        return info.path, info.offset

    def read_dense(self, name: str) -> Bytes | npt.NDArray[np.float32]:
        """A matrix as its packed bytes u8 (nbytes,), 64-aligned; a vector as f32 in its shape."""
        info = self._info(name)
        if name not in self._layouts:
            return read_tensor(info)
        packed = aligned_zeros(info.nbytes)
        self.read_dense_into(name, packed)
        return packed

    def read_dense_into(self, name: str, out: Bytes) -> None:
        """Fill `out` with the bytes of a dense tensor: u8, packed bytes or those of an f32 vector."""
        info = self._info(name)
        if out.shape != (info.nbytes,) or out.dtype != np.uint8:
            raise ValueError(f"{name} has {info.nbytes} bytes, out is {out.dtype} {out.shape}")
        read_into(info.path, info.offset, out)

    def f32(self, name: str) -> npt.NDArray[np.float32]:
        """A dense tensor as the numbers it stands for, f32 in its checkpoint's shape."""
        tensor = self.read_dense(name)
        layout = self._layouts.get(name)
        return unpack(tensor.view(np.uint8), layout) if layout else tensor.astype(np.float32)

    def record_layout_of(self, layer: int) -> RecordLayout:
        """How a layer's records lie; only those of MTP layers may differ from `record_layout`."""
        return self._facts.record_layout_of(layer)

    def record(self, layer: int, expert: int) -> tuple[Path, int, int]:
        """(file, offset, nbytes) of an expert's record."""
        piece = self._records[layer][expert]
        return piece.path, piece.offset, piece.nbytes

    def expert_f32(
        self, layer: int, expert: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """gate (ffn, hidden), up (ffn, hidden), down (hidden, ffn) as the numbers they stand for."""
        record = self._read_record(layer, expert)
        return unpack_record(record, self.record_layout_of(layer))

    def _read_record(self, layer: int, expert: int) -> Bytes:
        path, offset, nbytes = self.record(layer, expert)
        record = aligned_zeros(nbytes)
        read_into(path, offset, record)
        return record

    def expert_biases(self, layer: int, expert: int) -> tuple[npt.NDArray[np.float32], ...]:
        """Of gate (ffn,), up (ffn,) and down (hidden,); an empty tuple where experts have none."""
        return self._facts.record_layout_of(layer).biases(self._read_record(layer, expert))

    def record_piece(self, layer: int, expert: int) -> Piece:
        """Where an expert's record lies, with its checksum."""
        return self._records[layer][expert]

    def dense_pieces(self) -> list[Piece]:
        """The dense tensors with their checksums; empty when an earlier version left them out."""
        return pieces_in(self._dense)

    def _info(self, name: str) -> TensorInfo:
        info = self._dense.tensors.get(name)
        if info is None:
            raise BadModel(
                f"{self._dense.path}: tensor {shown(name)} is missing; the container was made from "
                "another model or by another version: convert again"
            )
        return info


def pieces_in(header: Header) -> list[Piece]:
    """The tensors of one of our files with their checksums; empty where it has none."""
    if "checksums" not in header.metadata:
        return []
    sums = checksums_of(header)
    return [_piece(f"tensor {shown(info.name)}", info, sums) for info in header.tensors.values()]


def _piece(what: str, info: TensorInfo, sums: dict[str, str]) -> Piece:
    return Piece(what, info.path, info.offset, info.nbytes, sums.get(info.name, "none"))


def _read_layouts(dense: Header) -> dict[str, MatrixLayout]:
    """Layouts of the packed matrices, each checked against the tensor it describes."""
    table = json_of(dense, "dense")
    if not isinstance(table, dict):
        raise BadModel(f"{dense.path}: metadata dense is not an object; convert again")
    layouts = {}
    for name, entry in table.items():
        where = f"{dense.path}: tensor {shown(name)}"
        fmt = entry.get("format") if isinstance(entry, dict) else None
        shape = entry.get("shape") if isinstance(entry, dict) else None
        if (
            not isinstance(fmt, str)
            or fmt not in FORMATS
            or not isinstance(shape, list)
            or len(shape) != 2
            or not all(type(n) is int and 0 < n <= MOST for n in shape)
        ):
            raise BadModel(f"{where}: metadata {shown(entry)} is no format and shape of a matrix")
        info = dense.tensors.get(name)
        if info is None:
            raise BadModel(f"{where} is missing although the metadata describes it; convert again")
        layout = matrix_layout(fmt, shape[0], shape[1])
        if info.dtype != "U8" or info.shape != (layout.nbytes,):
            raise BadModel(
                f"{where}: {info.dtype} of shape {list(info.shape)}, a {fmt} matrix {shape} is "
                f"U8 of shape [{layout.nbytes}]; convert again"
            )
        layouts[name] = layout
    for name, info in dense.tensors.items():
        if name not in layouts and info.dtype != "F32":
            raise BadModel(
                f"{dense.path}: tensor {shown(name)} is {info.dtype} without a format in the "
                "metadata; vectors are F32: convert again"
            )
    return layouts


def check_expert_file(header: Header, layer: int, facts: Facts) -> list[Piece]:
    """The records of a layer's file by expert, checked; BadModel otherwise."""
    require_version(header)
    facts = replace(facts, expert_format=facts.format_of(layer))  # what this file says of itself
    for key in ("expert_format", "hidden", "ffn", "n_experts", "config", "source"):
        found, expected = text_of(header, key), str(getattr(facts, key))
        if found != expected:
            raise BadModel(
                f"{header.path}: {key} {shown(found)}, {DENSE_NAME} says {shown(expected)}; "
                "the files are of different conversions"
            )
    if int_list_of(header, "layers") != [layer]:
        raise BadModel(f"{header.path}: holds layers {header.metadata['layers']}, not {layer}")
    sums = checksums_of(header)
    nbytes = facts.record_layout_of(layer).nbytes
    if len(header.tensors) < facts.n_experts:
        raise BadModel(
            f"{header.path}: {len(header.tensors)} records, layer {layer} has {facts.n_experts} "
            "experts; convert again"
        )
    records = []
    for expert in range(facts.n_experts):
        name = record_name(layer, expert)
        info = header.tensors.get(name)
        if info is None or name not in sums:
            what = "record" if info is None else "checksum"
            raise BadModel(
                f"{header.path}: the {what} of expert {expert} of layer {layer} is missing"
            )
        if info.dtype != "U8" or info.shape != (nbytes,) or info.offset % PAGE:
            raise BadModel(
                f"{header.path}: {name} is {info.dtype} {list(info.shape)} at byte {info.offset}; "
                f"a {facts.expert_format} record is U8 [{nbytes}] at a multiple of {PAGE}"
            )
        records.append(_piece(f"expert {expert} of layer {layer}", info, sums))
    return records
