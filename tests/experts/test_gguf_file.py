"""A GGUF's header is walked within bounds: what lies is refused in one line, whatever it says."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny_gguf import golden_gguf, rewrite

from diskmoe.experts.errors import BadModel
from diskmoe.experts.gguf_file import MOST_ENTRIES, read_gguf

OLMOE = golden_gguf("olmoe")


def refusal(path: Path) -> str:
    with pytest.raises(BadModel) as caught:
        read_gguf(path)
    told = str(caught.value)
    assert told.startswith(str(path.parent)) and "\n" not in told and len(told) < 400
    return told


def header(
    tensors: int = 0, entries: int = 0, rest: bytes = b"", magic: bytes = b"GGUF", version: int = 3
) -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, entries) + rest


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(
    name: str = "t", shape: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0
) -> bytes:
    """The description of a tensor; `shape` as the file has it, columns first."""
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


def test_metadata_and_tensors_are_as_the_gguf_package_reads_them():
    (found,), metadata = read_gguf(OLMOE)
    theirs = gguf.GGUFReader(OLMOE)
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            value = field.contents()
            same = value == metadata.entries[key] or metadata.entries[key] == pytest.approx(value)
            assert same, key
    assert list(found.tensors) == [t.name for t in theirs.tensors]
    for t in theirs.tensors:
        ours = found.tensors[t.name]
        assert ours.shape == tuple(int(n) for n in t.shape)[::-1]
        assert (ours.offset, ours.nbytes, ours.dtype) == (
            t.data_offset,
            t.n_bytes,
            t.tensor_type.name,
        )


def test_a_number_in_f32_is_the_decimal_that_was_meant():
    _, metadata = read_gguf(OLMOE)
    assert metadata.number("olmoe.attention.layer_norm_rms_epsilon") == 1e-5


HUGE = (1 << 64) - 1
LIES = {
    "nothing": (b"", "needs 4 bytes of header"),
    "another file": (b"PK\x03\x04" + bytes(40), "not with b'GGUF'"),
    "version 1": (header(version=1), "GGUF version 1"),
    "big-endian": (header(version=3 << 24), "in big-endian order"),
    "tensors": (header(tensors=HUGE), f"claims {HUGE} tensors"),
    "more tensors than bytes": (header(tensors=100_000), "needs 2400000 bytes of header"),
    "entries": (header(entries=MOST_ENTRIES + 1), f"claims {MOST_ENTRIES + 1} metadata entries"),
    "key": (header(entries=1, rest=struct.pack("<Q", HUGE) + bytes(8)), "bytes of text"),
    "key that is no text": (
        header(entries=1, rest=struct.pack("<Q", 2) + b"\xff\xfe" + bytes(8)),
        "not UTF-8",
    ),
    "text": (header(entries=1, rest=entry("k", 8, struct.pack("<Q", 1 << 40))), "bytes of text"),
    "type": (header(entries=1, rest=entry("k", 77, b"")), "value type 77"),
    "list": (
        header(entries=1, rest=entry("k", 9, struct.pack("<IQ", 5, 1 << 60))),
        "bytes of header at byte",
    ),
    "list of texts": (
        header(entries=1, rest=entry("k", 9, struct.pack("<IQ", 8, HUGE))),
        f"has {HUGE} texts",
    ),
    "list of lists": (
        header(entries=1, rest=entry("k", 9, struct.pack("<IQ", 9, 1))),
        "is a list of type 9",
    ),
    "twice": (header(entries=2, rest=entry("k", 7, b"\1") * 2), "'k' occurs twice"),
    "alignment": (
        header(entries=1, rest=entry("general.alignment", 4, struct.pack("<I", 48))),
        "general.alignment is 48",
    ),
    "alignment of nothing": (
        header(entries=1, rest=entry("general.alignment", 4, bytes(4))),
        "general.alignment is 0",
    ),
    "dimensions": (header(tensors=1, rest=tensor(shape=(1,) * 5)), "has 5 dimensions"),
    "no dimension": (header(tensors=1, rest=tensor(shape=()) + bytes(9)), "has 0 dimensions"),
    "empty": (header(tensors=1, rest=tensor(shape=(32, 0))), "holds no weights"),
    "unknown type": (header(tensors=1, rest=tensor(kind=4)), "has type 4"),
    "part of a block": (header(tensors=1, rest=tensor(shape=(33,), kind=8)), "blocks of 32"),
    "cut off": (header(tensors=1, rest=tensor()), "the file has 0"),
    "beyond any file": (
        header(tensors=1, rest=tensor(shape=(1 << 47, 1 << 47, 1 << 47, 1 << 47))),
        "the file has 0",
    ),
    "offset": (header(tensors=1, rest=tensor(offset=1 << 63) + bytes(999)), "the file has"),
    "crooked": (header(tensors=1, rest=tensor(offset=4) + bytes(999)), "begins at 4"),
    "over one another": (
        header(tensors=2, rest=tensor("a") + tensor("b") + bytes(999)),
        "tensors 'a' and 'b' overlap",
    ),
    "one name": (
        header(tensors=2, rest=tensor("a") + tensor("a", offset=128) + bytes(999)),
        "'a' occurs twice",
    ),
    "name": (header(tensors=1, rest=struct.pack("<Q", 5000) + bytes(9999)), "claims 5000 bytes"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_refused(tmp_path, lie):
    content, told = LIES[lie]
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    assert told in refusal(path)


def test_every_cut_off_file_is_refused(tmp_path):
    whole = OLMOE.read_bytes()
    path = tmp_path / "m.gguf"
    for length in (3, 10, 30, 200, 4000, 9000, len(whole) - 40):
        path.write_bytes(whole[:length])
        refusal(path)


def test_a_file_that_is_none_is_refused(tmp_path):
    assert "cannot be opened" in refusal(tmp_path / "m.gguf")
    (tmp_path / "d.gguf").mkdir()
    assert "not a regular file" in refusal(tmp_path / "d.gguf")


def test_a_missing_or_swapped_file_of_a_split_model_is_named(tmp_path):
    first = rewrite(OLMOE, tmp_path / "m.gguf", shards=3)
    second, third = (first.with_name(f"m-0000{n}-of-00003.gguf") for n in (2, 3))
    headers, _ = read_gguf(third)
    assert [h.path for h in headers] == [first, second, third]
    contents = second.read_bytes()
    second.write_bytes(third.read_bytes())
    assert "split.no is 2, by its name it is 1" in refusal(first)
    second.unlink()
    assert "m-00002-of-00003.gguf is missing (2 of 3 files are there)" in refusal(third)
    second.write_bytes(contents)
    (tmp_path / "alone.gguf").write_bytes(first.read_bytes())
    assert "split.count is 3, and 1 by the file's name" in refusal(tmp_path / "alone.gguf")


def test_a_tensor_that_two_files_have_is_refused(tmp_path):
    for number in range(2):
        writer = gguf.GGUFWriter(tmp_path / f"m-0000{number + 1}-of-00002.gguf", "olmoe")
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 2)
        writer.add_tensor("same", np.zeros(32, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    assert "'same' is in 'm-00001-of-00002.gguf' too" in refusal(tmp_path / "m-00001-of-00002.gguf")
