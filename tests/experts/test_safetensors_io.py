"""Headers that lie, headers that are right, and files that the safetensors package reads back."""

import json
import os
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from diskmoe.experts.errors import BadModel, ReadFailed
from diskmoe.experts.safetensors_io import (
    SafetensorsWriter,
    TensorSpec,
    as_f32,
    file_nbytes,
    read_header,
    read_rows,
    read_tensor,
    write_safetensors,
)


def raw_file(path: Path, header: bytes, data: bytes = b"", length: int | None = None) -> Path:
    count = len(header) if length is None else length
    path.write_bytes(count.to_bytes(8, "little") + header + data)
    return path


def one_tensor(**changes: Any) -> bytes:
    entry = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} | changes
    return json.dumps({"w": entry}).encode()


def refusal(path: Path) -> str:
    with pytest.raises(BadModel) as caught:
        read_header(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_files_of_the_safetensors_package_are_read(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.arange(4, dtype=np.float16),
        "c": np.array([[True], [False]]),
        "empty": np.zeros((0, 5), np.float32),
        "scalar": np.array(3.5, np.float64),
    }
    save_file(arrays, tmp_path / "x.safetensors", metadata={"who": "me"})
    header = read_header(tmp_path / "x.safetensors")
    assert header.metadata == {"who": "me"}
    assert set(header.tensors) == set(arrays)
    for name, array in arrays.items():
        found = read_tensor(header.tensors[name])
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)


def test_bf16_is_read_as_its_bits_and_widened(tmp_path: Path) -> None:
    bits = np.array([[0x3F80, 0xC000], [0x0001, 0x7F7F]], np.uint16)
    header = one_tensor(dtype="BF16", shape=[2, 2], data_offsets=[0, 8])
    info = read_header(raw_file(tmp_path / "x", header, bits.tobytes())).tensors["w"]
    np.testing.assert_array_equal(read_tensor(info), bits)
    wide = as_f32(read_tensor(info), info.dtype)
    np.testing.assert_array_equal(wide[0], [1.0, -2.0])
    np.testing.assert_array_equal(read_rows(info, 1, 2), bits[1:])


def test_written_files_are_read_by_the_safetensors_package(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    record = np.arange(256, dtype=np.uint8)
    write_safetensors(path, {"r": ("U8", record), "m": ("F32", matrix)}, {"k": "v"})
    found = load_file(path)
    np.testing.assert_array_equal(found["m"], matrix)
    np.testing.assert_array_equal(found["r"], record)
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == {"k": "v"}
    assert read_header(path).data_start % 4096 == 0
    assert os.listdir(tmp_path) == ["x.safetensors"]


def test_the_writer_fills_metadata_in_at_the_end(tmp_path: Path) -> None:
    path, specs = tmp_path / "x.safetensors", [TensorSpec("w", "U8", (10,))]
    with closing(SafetensorsWriter(path, specs, {"sum": "?" * 16})) as writer:
        writer.write(np.zeros(4, np.uint8))
        writer.write(np.ones(6, np.uint8))
        assert not path.exists()
        writer.finish({"sum": "f" * 16})
    assert read_header(path).metadata == {"sum": "f" * 16}
    assert path.stat().st_size == file_nbytes(specs, {"sum": "f" * 16})


def test_the_writer_refuses_too_few_and_too_many_bytes(tmp_path: Path) -> None:
    specs = [TensorSpec("w", "U8", (10,))]
    with closing(SafetensorsWriter(tmp_path / "x.safetensors", specs, {})) as writer:
        with pytest.raises(ValueError, match="10"):
            writer.write(np.zeros(11, np.uint8))
        with pytest.raises(ValueError, match="10 bytes were never written"):
            writer.finish({})
    assert not (tmp_path / "x.safetensors").exists()


def test_files_too_short_for_a_length_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"1234567")
    assert "7 bytes" in refusal(tmp_path / "x")


def test_a_header_of_2_to_the_60_bytes_is_refused(tmp_path: Path) -> None:
    assert str(1 << 60) in refusal(raw_file(tmp_path / "x", b"{}", length=1 << 60))


def test_a_header_longer_than_the_file_is_refused_with_both_numbers(tmp_path: Path) -> None:
    message = refusal(raw_file(tmp_path / "x", b"{}", length=5000))
    assert "5000" in message
    assert " 2 " in message


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"\xff\xfe{}", "not UTF-8"),
        (b"{", "JSON"),
        (b"", "JSON"),
        (b"[1, 2]", "list"),
        (b"null", "NoneType"),
        (b'{"a": NaN}', "not an object"),
        (b"[" * 100_000, "nested"),
        (b'{"w": {"dtype": "F32", "dtype": "F32"}}', "twice"),
        (b'{"__metadata__": []}', "__metadata__"),
        (b'{"__metadata__": {"a": 1}}', "__metadata__"),
        (b'{"w": 5}', "not an object"),
        (b'{"w": {}}', "dtype None"),
        (b'{"n": ' + b"9" * 5000 + b"}", "JSON"),
    ],
)
def test_headers_that_are_no_tensor_table_are_refused(
    tmp_path: Path, header: bytes, said: str
) -> None:
    assert said in refusal(raw_file(tmp_path / "x", header))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dtype": "F33"}, "'F33'"),
        ({"dtype": 4}, "dtype 4"),
        ({"shape": [2, -3]}, "[2, -3]"),
        ({"shape": [True, 6]}, "[True, 6]"),
        ({"shape": [2.0, 3]}, "[2.0, 3]"),
        ({"shape": "23"}, "'23'"),
        ({"shape": [1 << 60, 1 << 60]}, "1152921504606846976"),
        ({"shape": [1 << 32, 1 << 32]}, "needs 73786976294838206464 bytes"),
        ({"shape": [1] * 9}, "at most 8"),
        ({"shape": [2, 2]}, "needs 16 bytes, the header gives it 24"),
        ({"data_offsets": [0, 28]}, "ends at byte 28"),
        ({"data_offsets": [-4, 20]}, "[-4, 20]"),
        ({"data_offsets": [24, 0]}, "before it begins"),
        ({"data_offsets": [0]}, "not two"),
        ({"data_offsets": [False, 24]}, "[False, 24]"),
        ({"data_offsets": None}, "None"),
        ({"dtype": "F4", "shape": [3]}, "needs 1.5 bytes"),
    ],
)
def test_entries_that_lie_are_refused_with_tensor_and_numbers(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    message = refusal(raw_file(tmp_path / "x", one_tensor(**changes), bytes(24)))
    assert "tensor 'w'" in message
    assert said in message


def test_overlapping_tensors_are_refused_by_name(tmp_path: Path) -> None:
    table = {
        "a": {"dtype": "U8", "shape": [10], "data_offsets": [0, 10]},
        "b": {"dtype": "U8", "shape": [10], "data_offsets": [9, 19]},
        "none": {"dtype": "U8", "shape": [0], "data_offsets": [5, 5]},
    }
    message = refusal(raw_file(tmp_path / "x", json.dumps(table).encode(), bytes(19)))
    assert "'a' and 'b' overlap" in message


def test_gaps_between_tensors_are_accepted(tmp_path: Path) -> None:
    path = raw_file(tmp_path / "x", one_tensor(data_offsets=[8, 32]), bytes(40))
    assert read_header(path).tensors["w"].nbytes == 24


def test_names_with_line_breaks_stay_on_one_line(tmp_path: Path) -> None:
    table = {"a\nb\ud800" + "c" * 5000: {"dtype": "?"}}
    message = refusal(raw_file(tmp_path / "x", json.dumps(table).encode()))
    assert len(message) < 600


def test_a_directory_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    assert "not a regular file" in refusal(tmp_path)
    assert "cannot be opened" in refusal(tmp_path / "no")


def test_a_doubled_key_among_many_is_found_at_once(tmp_path: Path) -> None:
    keys = [f'"{n}":0' for n in range(60_000)]
    header = "{" + ",".join([*keys, '"59999":0']) + "}"
    begin = time.process_time()
    assert "the key '59999' occurs twice" in refusal(raw_file(tmp_path / "x", header.encode()))
    assert time.process_time() - begin < 5  # comparing all pairs takes a minute


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_a_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    assert "not a regular file" in refusal(tmp_path / "x")


def test_a_file_that_shrank_after_opening_is_said(tmp_path: Path) -> None:
    path = raw_file(tmp_path / "x", one_tensor(), bytes(24))
    info = read_header(path).tensors["w"]
    os.truncate(path, info.offset + 20)
    with pytest.raises(ReadFailed, match="4 bytes early"):
        read_tensor(info)
    path.unlink()
    with pytest.raises(ReadFailed, match="24 bytes at"):
        read_tensor(info)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=300))
def test_random_bytes_raise_nothing_but_bad_model(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    try:
        read_header(tmp_path / "x")
    except BadModel as error:
        assert "\n" not in str(error)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
_ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "BF16", "U8", "F4", ""]) | _JSON,
        "shape": st.lists(st.integers(-1, 1 << 62) | st.integers(0, 4), max_size=9) | _JSON,
        "data_offsets": st.lists(st.integers(-1, 70), min_size=2, max_size=2) | _JSON,
    },
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    table=st.dictionaries(st.text(max_size=4), _ENTRY | _JSON, max_size=4),
    metadata=st.none() | _JSON,
    flip=st.none() | st.tuples(st.integers(0, 400), st.integers(0, 255)),
    cut=st.integers(0, 60),
)
def test_mutated_headers_raise_nothing_but_bad_model(
    tmp_path: Path, table: dict[str, Any], metadata: Any, flip: tuple[int, int] | None, cut: int
) -> None:
    if metadata is not None:
        table["__metadata__"] = metadata
    header = bytearray(json.dumps(table).encode())
    if flip is not None and header:
        header[flip[0] % len(header)] = flip[1]
    path = raw_file(tmp_path / "x", bytes(header), bytes(64 - cut))
    try:
        found = read_header(path)
    except BadModel as error:
        assert "\n" not in str(error)
    else:
        for info in found.tensors.values():
            assert read_tensor(info).nbytes == info.nbytes
