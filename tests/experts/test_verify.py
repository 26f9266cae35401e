"""Every byte of a converted model has a checksum, and what is damaged is found and named."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diskmoe.experts import verify as module
from diskmoe.experts.checksums import checksum
from diskmoe.experts.container import Container
from diskmoe.experts.convert import convert
from diskmoe.experts.safetensors_io import SafetensorsWriter, TensorSpec, read_header
from diskmoe.experts.verify import pieces_of, verify


@pytest.fixture
def out(tiny_model: Any) -> Path:
    model = tiny_model()
    path = model.path.parent / "out"
    convert(model.open(), model.plan, path, "q4", "q8")
    return path


def flip(path: Path, offset: int) -> None:
    with open(path, "rb+") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 4]))


def damages(out: Path, n_threads: int = 2) -> list[str]:
    found = [damage for _, damage in verify(pieces_of(Container.open(out)), n_threads)]
    return [damage for damage in found if damage is not None]


def readers() -> list[str]:
    names = (thread.name for thread in threading.enumerate())
    return [name for name in names if name.startswith("diskmoe-read")]


def test_the_pieces_are_all_bytes_of_all_tensors_in_the_order_of_the_files(out: Path) -> None:
    container = Container.open(out)
    pieces = pieces_of(container)
    files = [out / "dense.safetensors", *container.expert_files]
    infos = [info for file in files for info in read_header(file).tensors.values()]
    wanted = [(info.path, info.offset, info.nbytes) for info in infos]
    assert [(piece.path, piece.offset, piece.nbytes) for piece in pieces] == wanted
    for piece in pieces:
        data = piece.path.read_bytes()[piece.offset : piece.offset + piece.nbytes]
        assert piece.checksum == checksum(np.frombuffer(data, np.uint8))


@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_whole_model_has_no_damage(out: Path, n_threads: int) -> None:
    assert damages(out, n_threads) == []
    assert readers() == []


def test_every_damaged_piece_is_found_and_named(out: Path) -> None:
    pieces = pieces_of(Container.open(out))
    for piece in pieces:
        flip(piece.path, piece.offset + piece.nbytes - 1)
    found = damages(out)
    assert len(found) == len(pieces)
    for piece in pieces:
        (said,) = (damage for damage in found if piece.checksum in damage)
        assert f"{piece.path}: {piece.what} ({piece.nbytes} bytes at {piece.offset})" in said
        assert "\n" not in said
    whats = {piece.what for piece in pieces}
    assert {"expert 2 of layer 1", "tensor 'model.embed_tokens.weight'"} < whats


def test_pieces_larger_than_a_block_are_summed_up(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 1000)
    assert damages(out) == []
    piece = Container.open(out).record_piece(0, 1)
    flip(piece.path, piece.offset + 2345)
    (said,) = damages(out)
    assert "expert 1 of layer 0" in said


def test_a_piece_that_cannot_be_read_is_damaged_and_the_others_are_still_looked_at(
    out: Path,
) -> None:
    pieces = pieces_of(Container.open(out))
    last = pieces[-1]
    os.truncate(last.path, last.offset + 10)
    found = [(piece, damage) for piece, damage in verify(pieces) if damage is not None]
    assert [piece for piece, _ in found] == [last]
    assert "bytes early" in str(found[0][1]) and last.what in str(found[0][1])
    assert len(pieces) > 2


def test_a_verification_that_is_left_ends_its_threads(out: Path) -> None:
    going = verify(pieces_of(Container.open(out)))
    next(going)
    assert len(readers()) == 2
    going.close()  # type: ignore[attr-defined]
    assert readers() == []


def test_a_dense_file_of_an_earlier_version_has_no_checksums(out: Path) -> None:
    path = out / "dense.safetensors"
    header = read_header(path)
    metadata = {key: text for key, text in header.metadata.items() if key != "checksums"}
    text = json.dumps(metadata)
    with open(path, "rb+") as file:
        file.seek(8)
        table = json.loads(file.read(header.data_start - 8))
        table["__metadata__"] = json.loads(text)
        file.seek(8)
        file.write(json.dumps(table).encode().ljust(header.data_start - 8))
    container = Container.open(out)
    assert container.dense_pieces() == []
    assert len(pieces_of(container)) == 6
    assert damages(out) == []


def test_a_writer_knows_the_checksum_of_each_tensor_however_it_was_given(tmp_path: Path) -> None:
    data = np.random.default_rng(1).integers(0, 256, 100, np.uint8)
    specs = [TensorSpec("a", "U8", (30,)), TensorSpec("none", "U8", (0,))]
    specs.append(TensorSpec("b", "F32", (15,)))
    writer = SafetensorsWriter(tmp_path / "x", specs, {})
    writer.write(data[:7])
    writer.write(data[7:90])
    writer.close()
    assert writer.checksums["a"] == checksum(data[:30])
    assert writer.checksums["b"] == checksum(data[30:90])
