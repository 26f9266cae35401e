"""Records from a container and from a checkpoint are the same bytes."""

import json
import os
import pickle
import struct
import subprocess
import sys
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packed import pack_record

from diskmoe.experts import records as module
from diskmoe.experts.arena import Arena
from diskmoe.experts.checkpoint import Checkpoint, ExpertTensors, TensorPlan
from diskmoe.experts.checksums import checksum
from diskmoe.experts.container import Container
from diskmoe.experts.convert import convert
from diskmoe.experts.errors import BadModel, ReadFailed
from diskmoe.experts.formats import FORMATS
from diskmoe.experts.pacer import Pacer
from diskmoe.experts.packing import unpack_record
from diskmoe.experts.reader import through_nbytes
from diskmoe.experts.records import CheckpointRecords, ContainerRecords, LayerRecords
from diskmoe.experts.safetensors_io import write_safetensors
from diskmoe.experts.store import ExpertStore
from diskmoe.experts.tiles import aligned_zeros


def expected(model: Any, layer: int, expert: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    gate, up, down = (model.weights[name] for name in model.plan.experts[layer].names(expert))
    return gate, up, down


@pytest.mark.parametrize("fmt", [None, *FORMATS])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_checkpoints_record_is_its_weights_packed(
    tiny_model: Any, dtype: str, fmt: str | None
) -> None:
    model = tiny_model(dtype=dtype, shards=2)
    records = CheckpointRecords(model.open(), model.plan, fmt)
    assert records.expert_format == (fmt or ("bf16" if dtype == "BF16" else "f32"))
    slot = np.full(records.record_layout.nbytes, 0xAB, np.uint8)
    for layer, expert in ((0, 0), (1, 2)):
        records.load(layer, expert, slot)
        matrices = expected(model, layer, expert)
        np.testing.assert_array_equal(slot, pack_record(*matrices, records.record_layout))
        if fmt is None:
            for found, weights in zip(
                unpack_record(slot, records.record_layout), matrices, strict=True
            ):
                np.testing.assert_array_equal(found, weights)
        size = 4 if dtype == "F32" else 2
        assert records.disk_bytes(layer, expert) == 3 * 24 * 40 * size
    records.close()


def test_a_checkpoints_buffers_are_bounded_by_the_threads(tiny_model: Any) -> None:
    model = tiny_model(dtype="BF16")
    records = CheckpointRecords(model.open(), model.plan, io_threads=2)
    assert records.scratch_bytes == 2 * through_nbytes(24 * 40 * 2)
    slots = [np.zeros(records.record_layout.nbytes, np.uint8) for _ in range(6)]
    threads = [
        threading.Thread(target=records.load, args=(n % 2, n % 3, slot))
        for n, slot in enumerate(slots)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert records._buffers.qsize() == 2
    for n, slot in enumerate(slots):
        matrices = expected(model, n % 2, n % 3)
        np.testing.assert_array_equal(slot, pack_record(*matrices, records.record_layout))
    records.close()


@pytest.mark.parametrize("fmt", [None, *FORMATS])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_scratch_is_an_upper_bound_and_a_close_one(
    tmp_path: Path, dtype: str, fmt: str | None
) -> None:
    hidden, ffn = 2048, 768
    layer = ExpertTensors(0, "{e}.gate", "{e}.up", "{e}.down")
    plan = TensorPlan(1, 1, hidden, ffn, (), (layer,))
    kind = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}[dtype]
    inner, down = np.zeros((ffn, hidden), kind), np.zeros((hidden, ffn), kind)
    tensors = {"0.gate": (dtype, inner), "0.up": (dtype, inner), "0.down": (dtype, down)}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text("{}")
    records = CheckpointRecords(Checkpoint.open(tmp_path), plan, fmt, io_threads=1)
    slot = np.empty(records.record_layout.nbytes, np.uint8)
    records.load(0, 0, slot)  # kernels are loaded by now
    tracemalloc.start()
    try:
        records.load(0, 0, slot)
        peak = tracemalloc.get_traced_memory()[1] + records._arena.nbytes
    finally:
        tracemalloc.stop()
        records.close()
    objects = 10_000  # Python's own
    assert peak - objects < records.scratch_bytes < 1.02 * peak


def test_scratch_has_room_for_the_widest_expert(tiny_model: Any) -> None:
    model = tiny_model(dtype="F16")
    name = model.plan.experts[1].names(2)[0]
    tensors = {n: ("F16", w.astype(np.float16)) for n, w in model.weights.items()}
    tensors[name] = ("F32", model.weights[name])
    write_safetensors(model.path / "model.safetensors", tensors)
    records = CheckpointRecords(model.open(), model.plan, "f32", io_threads=1)
    matrix = 24 * 40 * 4  # one of F32, and the copy of another
    assert records.scratch_bytes == through_nbytes(matrix) + matrix
    slot = np.empty(records.record_layout.nbytes, np.uint8)
    records.load(1, 2, slot)
    np.testing.assert_array_equal(slot, pack_record(*expected(model, 1, 2), records.record_layout))
    records.close()


@pytest.mark.parametrize("direct", ["auto", "off"])
@pytest.mark.parametrize("fmt", sorted(FORMATS))
def test_a_containers_record_equals_the_checkpoints(tiny_model: Any, fmt: str, direct: Any) -> None:
    model = tiny_model(dtype="BF16")
    convert(model.open(), model.plan, model.path.parent / "out", fmt, "q8")
    ours = ContainerRecords(Container.open(model.path.parent / "out"), direct)
    theirs = CheckpointRecords(model.open(), model.plan, fmt)
    assert ours.record_layout == theirs.record_layout
    arena = Arena(2, ours.record_layout.nbytes)
    for layer in ours.layers:
        for expert in range(ours.n_experts):
            ours.load(layer, expert, arena.slot(0))
            theirs.load(layer, expert, arena.slot(1))
            np.testing.assert_array_equal(arena.slot(0), arena.slot(1))
            assert ours.disk_bytes(layer, expert) == ours.record_layout.nbytes
    assert ours.io_mode
    ours.close()
    theirs.close()


def test_a_container_cut_off_while_running_fails_with_layer_and_expert(tiny_model: Any) -> None:
    model = tiny_model()
    out = model.path.parent / "out"
    convert(model.open(), model.plan, out, "q8", "q8")
    records = ContainerRecords(Container.open(out))
    os.truncate(out / "experts-00001.safetensors", 9000)
    store = ExpertStore(records, 2, records.layers, records.n_experts)
    with pytest.raises(ReadFailed, match=r"experts-00001.safetensors.*layer 1, expert 2"):
        list(store.fetch(1, np.array([2], np.int32)))
    assert len(store.resident(1)) == 0
    list(store.fetch(0, np.array([2], np.int32)))
    store.close()


@pytest.mark.parametrize("direct", ["auto", "off"])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_tensors_that_lie_anyhow_are_read_the_same_past_the_page_cache(
    tiny_model: Any, dtype: str, direct: Any
) -> None:
    model = tiny_model(dtype=dtype)
    records = CheckpointRecords(model.open(), model.plan, direct=direct)
    slot = np.zeros(records.record_layout.nbytes, np.uint8)
    for layer in records.layers:
        for expert in range(records.n_experts):
            records.load(layer, expert, slot)
            wanted = pack_record(*expected(model, layer, expert), records.record_layout)
            np.testing.assert_array_equal(slot, wanted)
    records.close()


def test_a_paced_source_says_so_and_can_be_hurried(tiny_model: Any) -> None:
    model = tiny_model()
    out = model.path.parent / "out"
    convert(model.open(), model.plan, out, "q8", "q8")
    for records in (
        ContainerRecords(Container.open(out), pacer=Pacer(0.5)),
        CheckpointRecords(model.open(), model.plan, pacer=Pacer(0.5)),
    ):
        assert records.io_mode.endswith("; disk paced at 5e-07 MB/s")
        slot = np.zeros(records.record_layout.nbytes, np.uint8)
        reading = threading.Thread(target=records.load, args=(0, 0, slot))
        reading.start()
        reading.join(0.05)
        assert reading.is_alive()  # for hours
        records.hurry()
        reading.join(10)
        assert not reading.is_alive() and slot.any()
        records.close()


@pytest.fixture
def flipped(tiny_model: Any) -> tuple[Container, Path, int]:
    """A container, the file and the offset of its record (1, 2), in which a bit is flipped."""
    model = tiny_model()
    out = model.path.parent / "out"
    convert(model.open(), model.plan, out, "q4", "q8")
    container = Container.open(out)
    path, offset, nbytes = container.record(1, 2)
    with open(path, "rb+") as file:
        file.seek(offset + nbytes // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    return container, path, offset


def test_a_flipped_bit_is_found_at_the_first_load_when_verifying(
    flipped: tuple[Container, Path, int],
) -> None:
    container, path, offset = flipped
    records = ContainerRecords(container, verify=True)
    slot = np.zeros(records.record_layout.nbytes, np.uint8)
    records.load(1, 1, slot)
    with pytest.raises(BadModel) as caught:
        records.load(1, 2, slot)
    message = str(caught.value)
    assert f"{path}: expert 2 of layer 1 ({len(slot)} bytes at {offset})" in message
    assert container.record_piece(1, 2).checksum in message and checksum(slot) in message
    assert "convert the model again" in message and "check the disk" in message
    assert "\n" not in message
    records.close()
    careless = ContainerRecords(container)
    careless.load(1, 2, slot)
    careless.close()


def test_a_record_is_verified_once(
    flipped: tuple[Container, Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    monkeypatch.setattr(module, "checksum", lambda data: counted.append(1) or checksum(data))
    records = ContainerRecords(flipped[0], verify=True)
    slot = np.zeros(records.record_layout.nbytes, np.uint8)
    for expert in (0, 1, 0, 1, 0):
        records.load(1, expert, slot)
    assert len(counted) == 2
    records.close()


@pytest.mark.parametrize("harm", ["deleted", "truncated"])
@pytest.mark.parametrize("kind", ["container", "checkpoint"])
def test_a_file_lost_while_decoding_ends_in_one_line_that_says_where(
    tiny_model: Any, kind: str, harm: str
) -> None:
    model = tiny_model(dtype="BF16")
    if kind == "container":
        out = model.path.parent / "out"
        convert(model.open(), model.plan, out, "q4", "q8")
        container = Container.open(out)
        records = ContainerRecords(container)
        path, offset, nbytes = container.record(1, 2)
    else:
        checkpoint = model.open()
        records = CheckpointRecords(checkpoint, model.plan, "q4")
        info = checkpoint.info(model.plan.experts[1].names(2)[0])
        path, offset, nbytes = info.path, info.offset, info.nbytes
    store = ExpertStore(records, 2, records.layers, records.n_experts)
    if harm == "deleted":
        path.unlink()
    else:
        list(store.fetch(1, np.array([1], np.int32)))  # the file is open by now
        os.truncate(path, offset + 10)
    with pytest.raises(ReadFailed) as caught:
        list(store.fetch(1, np.array([2], np.int32)))
    message = str(caught.value)
    assert f"{path}: reading {nbytes} bytes at {offset} (layer 1, expert 2)" in message
    assert ("No such file" if harm == "deleted" else "bytes early") in message
    assert "\n" not in message
    assert caught.value.exit_code == 1
    assert 2 not in store.resident(1)
    store.close()


LOADING_AFTER_COMPILING = """
import pathlib, pickle, sys
import numpy as np
from numba.core import event
from diskmoe.experts.checkpoint import Checkpoint
from diskmoe.experts.records import CheckpointRecords
from diskmoe.experts.tiles import matrix_layout
from diskmoe.experts.warm import compile_packers
formats, paths = sys.argv[1].split(","), sys.argv[2:]
compile_packers(formats)
with event.install_recorder("numba:compile") as recorder:
    for path in paths:
        checkpoint = Checkpoint.open(path)
        plan = pickle.loads(pathlib.Path(path, "plan").read_bytes())
        for fmt in formats:
            records = CheckpointRecords(checkpoint, plan, fmt)
            for layer in plan.experts:
                slot = np.empty(records.record_layout_of(layer.layer).nbytes, np.uint8)
                records.load(layer.layer, 1, slot)
            for tensor in plan.dense:
                if tensor.kind == "matrix":
                    checkpoint.pack(tensor.name, matrix_layout(fmt, *tensor.shape))
assert not recorder.buffer, [str(record) for _, record in recorder.buffer]
"""


@pytest.mark.parametrize("formats", ["q4", "q8", "bf16,f32"])
def test_nothing_is_compiled_by_loading_after_the_packers_were(
    tiny_model: Any, formats: str
) -> None:
    paths = []
    for dtype in ("F32", "F16", "BF16"):
        model = tiny_model(dtype=dtype, name=dtype)
        first, second = model.plan.experts
        plan = replace(model.plan, experts=(first, replace(second, mtp=True)))
        (model.path / "plan").write_bytes(pickle.dumps(plan))
        paths.append(str(model.path))
    run = subprocess.run(
        [sys.executable, "-c", LOADING_AFTER_COMPILING, formats, *paths],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("stored", ["checkpoint", "container"])
def test_the_records_of_an_mtp_layer_come_in_a_layout_of_their_own(
    tiny_model: Any, tmp_path: Path, stored: str
) -> None:
    model = tiny_model()
    first, second = model.plan.experts
    plan = replace(model.plan, experts=(first, replace(second, mtp=True)))
    checkpoint = Checkpoint.open(model.path)
    if stored == "checkpoint":
        source: Any = CheckpointRecords(checkpoint, plan, "q4")
    else:
        convert(checkpoint, plan, tmp_path / "out", "q4", "q8")
        source = ContainerRecords(Container.open(tmp_path / "out"))
    plain = CheckpointRecords(checkpoint, model.plan, "q8")
    records = LayerRecords(source, second.layer)
    assert records.layers == (second.layer,) and records.expert_format == "q8"
    assert source.record_layout.nbytes < records.record_layout.nbytes
    found, expected = (aligned_zeros(records.record_layout.nbytes) for _ in range(2))
    records.load(second.layer, 1, found)
    plain.load(second.layer, 1, expected)
    assert found.tobytes() == expected.tobytes()
    records.close()
    records.load(second.layer, 0, found)  # the source is another's to close
    source.close()
    plain.close()


def test_weights_that_are_not_finite_are_named_when_quantised(tiny_model: Any) -> None:
    model = tiny_model()
    path, name = model.path / "model.safetensors", model.plan.experts[1].names(2)[1]
    poison(path, name)
    records = CheckpointRecords(model.open(), model.plan, "q4")
    with pytest.raises(BadModel, match=name.replace(".", r"\.")):
        records.load(1, 2, np.zeros(records.record_layout.nbytes, np.uint8))
    records.load(1, 1, np.zeros(records.record_layout.nbytes, np.uint8))
    records.close()


def poison(path: Path, name: str) -> None:
    """Make the tensor's first weight NaN."""
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    begin = 8 + length + json.loads(data[8 : 8 + length])[name]["data_offsets"][0]
    data[begin : begin + 4] = struct.pack("<f", float("nan"))
    path.write_bytes(data)
