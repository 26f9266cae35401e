"""Converted models: what is in them, and what is said of damaged ones."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packed import pack_record

from diskmoe.experts.container import Container, is_container
from diskmoe.experts.convert import convert
from diskmoe.experts.errors import BadModel
from diskmoe.experts.packing import pack, unpack
from diskmoe.experts.safetensors_io import read_header
from diskmoe.experts.tiles import matrix_layout

EXPERTS = "experts-00001.safetensors"
EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture
def made(tiny_model: Any) -> tuple[Any, Path]:
    """(the tiny model, the directory of its conversion to q4 experts and q8 dense)."""
    model = tiny_model()
    out = model.path.parent / "out"
    convert(model.open(), model.plan, out, "q4", "q8")
    return model, out


def edit_header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the JSON header in place; its length stays (it is padded with spaces)."""
    header = read_header(path)
    with open(path, "rb+") as file:
        file.seek(8)
        table = json.loads(file.read(header.data_start - 8))
        change(table)
        text = json.dumps(table, separators=(",", ":")).encode()
        assert len(text) <= header.data_start - 8
        file.seek(8)
        file.write(text.ljust(header.data_start - 8))


def set_metadata(path: Path, key: str, value: str | None) -> None:
    def change(table: dict[str, Any]) -> None:
        table["__metadata__"].pop(key)
        if value is not None:
            table["__metadata__"][key] = value

    edit_header(path, change)


def refusal(out: Path, *said: str) -> None:
    with pytest.raises(BadModel) as caught:
        Container.open(out)
    message = str(caught.value)
    assert "\n" not in message
    for part in said:
        assert part in message, message


def test_a_container_has_the_plans_tensors(made: tuple[Any, Path]) -> None:
    model, out = made
    container = Container.open(out)
    assert is_container(out)
    assert not is_container(model.path)
    assert (container.dense_format, container.expert_format) == ("q8", "q4")
    assert (container.hidden, container.ffn, container.n_experts) == (40, 24, 3)
    assert container.layers == (0, 1)
    assert container.config == {"model_type": "tiny", "hidden": 40}
    assert set(container.names) == {tensor.name for tensor in model.plan.dense}
    for tensor in model.plan.dense:
        assert container.has(tensor.name)
        assert container.shape(tensor.name) == tensor.shape


def test_matrices_come_packed_and_vectors_as_they_were(made: tuple[Any, Path]) -> None:
    model, out = made
    container = Container.open(out)
    layout = container.dense_layout(EMBEDDING)
    assert layout is not None
    assert layout == matrix_layout("q8", 50, 40)
    packed = container.read_dense(EMBEDDING)
    assert packed.ctypes.data % 64 == 0
    np.testing.assert_array_equal(packed, pack(model.weights[EMBEDDING], layout))
    np.testing.assert_array_equal(container.f32(EMBEDDING), unpack(packed.view(np.uint8), layout))
    out_bytes = np.zeros(layout.nbytes, np.uint8)
    container.read_dense_into(EMBEDDING, out_bytes)
    np.testing.assert_array_equal(out_bytes, packed)
    router = "model.layers.1.mlp.gate.weight"
    assert container.dense_layout(router) is None
    np.testing.assert_array_equal(container.read_dense(router), model.weights[router])
    np.testing.assert_array_equal(container.f32(router), model.weights[router])


def test_records_can_be_read_with_the_safetensors_package(made: tuple[Any, Path]) -> None:
    model, out = made
    container = Container.open(out)
    gate, up, down = (model.weights[name] for name in model.plan.experts[1].names(2))
    expected = pack_record(gate, up, down, container.record_layout)
    with safetensors.safe_open(out / EXPERTS, "np") as file:
        np.testing.assert_array_equal(file.get_tensor("layers.1.experts.2"), expected)
        assert json.loads(file.metadata()["checksums"]).keys() == set(file.keys())
    path, offset, nbytes = container.record(1, 2)
    assert path == out / EXPERTS
    assert offset % 4096 == 0
    assert nbytes == container.record_layout.nbytes
    assert path.read_bytes()[offset : offset + nbytes] == expected.tobytes()


def test_a_missing_dense_tensor_is_named(made: tuple[Any, Path]) -> None:
    with pytest.raises(BadModel, match=r"'lm_head\.weight' is missing"):
        Container.open(made[1]).read_dense("lm_head.weight")


@pytest.mark.parametrize("file", ["dense.safetensors", EXPERTS, "config.json"])
def test_missing_files_are_named(made: tuple[Any, Path], file: str) -> None:
    (made[1] / file).unlink()
    refusal(made[1], file, "missing")


@pytest.mark.parametrize("file", ["dense.safetensors", EXPERTS])
def test_cut_off_files_are_named_with_numbers(made: tuple[Any, Path], file: str) -> None:
    size = (made[1] / file).stat().st_size
    os.truncate(made[1] / file, size - 100)
    refusal(made[1], file, "cut off")


@pytest.mark.parametrize("file", ["dense.safetensors", EXPERTS])
def test_another_version_is_refused_with_both_numbers(made: tuple[Any, Path], file: str) -> None:
    set_metadata(made[1] / file, "format_version", "1")
    refusal(made[1], file, "'1'", "reads 2", "convert")


def test_a_file_that_is_not_ours_is_refused(made: tuple[Any, Path]) -> None:
    set_metadata(made[1] / "dense.safetensors", "format_version", None)
    refusal(made[1], "not a diskmoe container")


def test_experts_of_another_conversion_are_refused(made: tuple[Any, Path]) -> None:
    set_metadata(made[1] / EXPERTS, "source", "0" * 32)
    refusal(made[1], EXPERTS, "different conversions")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("hidden", "0", "whole number"),
        ("hidden", "-5", "whole number"),
        ("hidden", "99999999", "whole number"),
        ("hidden", "٣", "whole number"),
        ("ffn", "25", "ffn"),
        ("n_experts", "2", "n_experts"),
        ("expert_format", "q3", "'q3'"),
        ("expert_format", "q4+q3", "'q4+q3'"),
        ("expert_format", "q4+q4_0+q8", "'q4+q4_0+q8'"),
        ("dense_format", "q4+q8", "'q4+q8'"),
        ("expert_format", "q8", "expert_format"),
        ("layers", "[0, true]", "layer numbers"),
        ("layers", "[1, 0]", "ascending"),
        ("layers", "{", "JSON"),
        ("dense", "[]", "dense"),
        ("dense", '{"x": {"format": "q8", "shape": [1, 2]}}', "'x' is missing"),
        ("dense", '{"model.norm.weight": {"format": "q8", "shape": [40]}}', "format and shape"),
        ("dense", '{"model.norm.weight": {"format": [], "shape": [4, 4]}}', "format and shape"),
        ("dense", '{"model.norm.weight": {"format": "q8", "shape": [4, 4]}}', "U8 of shape"),
        ("dense", "{}", "without a format"),
        ("source", None, "source is missing"),
    ],
)
def test_metadata_that_lies_is_refused(
    made: tuple[Any, Path], key: str, value: str | None, said: str
) -> None:
    set_metadata(made[1] / "dense.safetensors", key, value)
    refusal(made[1], said)


def test_a_missing_record_and_a_missing_checksum_are_named(made: tuple[Any, Path]) -> None:
    _, out = made

    def rename(table: dict[str, Any]) -> None:
        table["layers.1.experts.7"] = table.pop("layers.1.experts.2")

    edit_header(out / EXPERTS, rename)
    refusal(out, EXPERTS, "record of expert 2 of layer 1")
    set_metadata(out / "experts-00000.safetensors", "checksums", "{}")
    refusal(out, "experts-00000.safetensors", "checksum of expert 0 of layer 0")


def test_a_record_that_is_not_aligned_is_refused(made: tuple[Any, Path]) -> None:
    _, out = made

    def shift(table: dict[str, Any]) -> None:
        place = table["layers.1.experts.2"]
        begin, end = place["data_offsets"]
        table["layers.1.experts.0"]["shape"] = [0]
        table["layers.1.experts.0"]["data_offsets"] = [0, 0]
        place["data_offsets"] = [begin, end]
        table["layers.1.experts.1"]["data_offsets"] = [
            n - 64 for n in (end - begin, 2 * (end - begin))
        ]

    edit_header(out / EXPERTS, shift)
    refusal(out, EXPERTS, "layers.1.experts.0")


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    file=st.sampled_from(["dense.safetensors", EXPERTS]),
    flips=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_flipped_header_bytes_raise_nothing_but_bad_model(
    made: tuple[Any, Path], file: str, flips: list[tuple[float, int]]
) -> None:
    path = made[1] / file
    original = path.read_bytes()
    damaged = bytearray(original)
    text_end = original.rindex(b"}", 0, read_header(path).data_start)
    for place, byte in flips:
        damaged[int(place * text_end)] = byte
    path.write_bytes(damaged)
    try:
        Container.open(made[1])
    except BadModel as error:
        assert "\n" not in str(error)
    finally:
        path.write_bytes(original)
