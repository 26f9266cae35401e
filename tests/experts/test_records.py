"""Records from a container and from a checkpoint are the same bytes."""

import json
import os
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diskmoe.experts.arena import Arena
from diskmoe.experts.container import Container
from diskmoe.experts.convert import convert
from diskmoe.experts.errors import BadModel, ReadFailed
from diskmoe.experts.formats import FORMATS
from diskmoe.experts.records import CheckpointRecords, ContainerRecords
from diskmoe.experts.store import ExpertStore
from diskmoe.experts.tiles import pack_record, unpack_record


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
    assert records.scratch_bytes == 2 * 24 * 40 * 2
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
