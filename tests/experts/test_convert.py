"""Conversions that are killed, run out of disk, or meet somebody else's files."""

import errno
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversions import contents, run

from diskmoe.experts import pieces
from diskmoe.experts.checkpoint import Checkpoint
from diskmoe.experts.container import Container
from diskmoe.experts.convert import convert
from diskmoe.experts.errors import BadModel, BadOutput, DiskFull, ReadFailed, WriteFailed
from diskmoe.experts.formats import FORMATS
from diskmoe.experts.pieces import packed_parts
from diskmoe.experts.records import CheckpointRecords
from diskmoe.experts.safetensors_io import SafetensorsWriter, write_safetensors
from diskmoe.experts.tiles import matrix_layout
from diskmoe.experts.verify import pieces_of, verify


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


@pytest.mark.parametrize("dense", [None, *FORMATS])
def test_every_format_comes_out_as_it_would_be_packed(model: Any, out: Path, dense: Any) -> None:
    done = run(model, out, dense, dense)
    container = Container.open(out)
    assert done.dense_format == container.dense_format == (dense or "bf16")
    checkpoint = model.open()
    for tensor in model.plan.dense:
        layout = container.dense_layout(tensor.name)
        if layout is None:
            expected = checkpoint.f32(tensor.name)
        else:
            expected = checkpoint.pack(tensor.name, layout)
        np.testing.assert_array_equal(container.read_dense(tensor.name), expected)
    assert all(damage is None for _, damage in verify(pieces_of(container)))
    assert sum(path.stat().st_size for path in out.glob("*.safetensors")) == done.nbytes


def test_matrices_larger_than_a_block_of_rows_come_out_the_same(
    model: Any, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(model, out)
    whole = contents(out)
    shutil.rmtree(out)
    monkeypatch.setattr(pieces, "ROW_BLOCK_BYTES", 16 * 40 * 4)
    run(model, out)
    assert contents(out) == whole


def test_the_models_own_files_are_copied_and_nothing_else_is_left(model: Any, out: Path) -> None:
    (model.path / "chat_template.jinja").write_text("{{ hello }}")
    (model.path / "pytorch_model.bin").write_text("not wanted")
    run(model, out)
    assert sorted(os.listdir(out)) == [
        "chat_template.jinja",
        "config.json",
        "dense.safetensors",
        "experts-00000.safetensors",
        "experts-00001.safetensors",
        "tokenizer.json",
    ]
    assert os.listdir(out.parent) == ["out"]


def test_layers_need_not_begin_at_zero_nor_be_neighbours(model: Any, out: Path) -> None:
    first, second = model.plan.experts  # as with leading dense layers, and an MTP layer at the end
    layers = (replace(first, layer=1), replace(second, layer=46))
    convert(model.open(), replace(model.plan, experts=layers), out, "f32", "f32")
    container = Container.open(out)
    assert container.layers == (1, 46)
    assert (out / "experts-00046.safetensors").is_file()
    for found, name in zip(container.expert_f32(46, 2), second.names(2), strict=True):
        np.testing.assert_array_equal(found, model.weights[name])


def test_threads_do_not_change_the_bytes(model: Any, out: Path) -> None:
    convert(model.open(), model.plan, out, "q4", "q8", threads=1)
    convert(model.open(), model.plan, out.with_name("other"), "q4", "q8", threads=3)
    assert contents(out) == contents(out.with_name("other"))


def test_progress_ends_at_the_whole(model: Any, out: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    convert(model.open(), model.plan, out, progress=lambda *step: seen.append(step))
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)
    assert seen[0][2] == "layer 0"
    # headers are counted in the total and are not told one by one
    assert 0 <= seen[-1][1] - seen[-1][0] < 3 * 4096 * 4


@pytest.mark.parametrize("point", range(14))
def test_a_conversion_stopped_anywhere_goes_on_to_the_same_bytes(
    model: Any, out: Path, point: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = out.with_name("reference")
    run(model, reference)
    steps = iter(range(1000))

    def killing(real: Any) -> Any:
        def step(*args: Any, **kwargs: Any) -> Any:
            if next(steps) == point:
                raise Killed
            return real(*args, **kwargs)

        return step

    with monkeypatch.context() as patch:
        patch.setattr(SafetensorsWriter, "write", killing(SafetensorsWriter.write))
        patch.setattr(os, "replace", killing(os.replace))
        patch.setattr(Path, "rename", killing(Path.rename))
        with pytest.raises(Killed):
            run(model, out)
    assert not out.exists()
    partial = out.with_name("out.partial")
    with pytest.raises(BadModel, match="unfinished conversion"):
        Container.open(partial)
    with pytest.raises(BadModel, match="unfinished conversion"):
        Checkpoint.open(partial)
    run(model, out)
    assert contents(out) == contents(reference)
    assert not partial.exists()


def test_whole_files_are_kept_and_not_written_again(
    model: Any, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SafetensorsWriter.finish

    def killed_at_dense(writer: SafetensorsWriter, metadata: dict[str, str]) -> None:
        if writer.path.name == "dense.safetensors":
            raise Killed
        real(writer, metadata)

    with monkeypatch.context() as patch:
        patch.setattr(SafetensorsWriter, "finish", killed_at_dense)
        with pytest.raises(Killed):
            run(model, out)
    written = []
    with monkeypatch.context() as patch:
        patch.setattr(
            SafetensorsWriter, "finish", lambda w, m: (written.append(w.path.name), real(w, m))
        )
        done = run(model, out)
    assert written == ["dense.safetensors"]
    assert done.kept_nbytes == sum(path.stat().st_size for path in out.glob("experts-*"))


KILLED_SCRIPT = """
import os, pathlib, pickle, signal, sys
from diskmoe.experts.checkpoint import Checkpoint
from diskmoe.experts.convert import convert
from diskmoe.experts.safetensors_io import SafetensorsWriter
model, plan, out, point = sys.argv[1:]
left = [int(point)]
real = SafetensorsWriter._write_all
def write(writer, data):
    left[0] -= 1
    if left[0] == 0:
        real(writer, memoryview(data)[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    real(writer, data)
SafetensorsWriter._write_all = write
convert(Checkpoint.open(model), pickle.loads(pathlib.Path(plan).read_bytes()), out, "q4", "q8")
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_process_that_was_really_killed_is_resumed_to_the_same_bytes(
    model: Any, out: Path
) -> None:
    run(model, out.with_name("reference"))
    plan = out.with_name("plan")
    plan.write_bytes(pickle.dumps(model.plan))
    for point in (4, 9):  # in the first layer, and further on
        places = [str(model.path), str(plan), str(out), str(point)]
        done = subprocess.run([sys.executable, "-c", KILLED_SCRIPT, *places], check=False)
        assert done.returncode == -signal.SIGKILL
        assert not out.exists()
    run(model, out)
    assert contents(out) == contents(out.with_name("reference"))


@pytest.mark.parametrize("where", ["write", "sync"])
def test_a_full_disk_says_where_the_partial_output_is_and_what_is_missing(
    model: Any, out: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = SafetensorsWriter._write_all, []

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def full_later(writer: SafetensorsWriter, data: Any) -> None:
        calls.append(1)
        full() if len(calls) == 8 else real(writer, data)

    with monkeypatch.context() as patch:
        if where == "write":
            patch.setattr(SafetensorsWriter, "_write_all", full_later)
        else:
            patch.setattr(os, "fsync", full)
        with pytest.raises(DiskFull) as caught:
            run(model, out)
    message = str(caught.value)
    assert "\n" not in message
    partial = out.with_name("out.partial")
    assert str(partial) in message
    assert "the disk is full" in message
    assert "same command again" in message
    done = run(model, out)
    missing = done.nbytes - done.kept_nbytes
    assert f"; {missing} of {done.nbytes} bytes are still to be written" in message
    assert done.kept_nbytes > 0 if where == "write" else done.kept_nbytes == 0
    assert not partial.exists()


def test_too_little_room_is_said_before_anything_is_written(
    model: Any, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10000, 0, 1000))
    with pytest.raises(DiskFull, match="1000 are free: [0-9]+ bytes are missing"):
        run(model, out)
    assert list(out.parent.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_said(model: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadOutput, match=r"file/out.*: cannot be used for the output: Not a dir"):
        run(model, tmp_path / "file" / "out")
    (tmp_path / "out.partial").write_text("")
    with pytest.raises(BadOutput, match=r"out\.partial: is in the way; remove it"):
        run(model, tmp_path / "out")


@pytest.mark.parametrize(
    ("number", "kind", "exit_code"),
    [
        (errno.EROFS, BadOutput, 2),
        (errno.EACCES, BadOutput, 2),
        (errno.EIO, WriteFailed, 1),
        (errno.ENOSPC, DiskFull, 2),
    ],
)
def test_what_the_system_refuses_is_named_for_what_it_is(
    model: Any, out: Path, number: int, kind: Any, exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(writer: SafetensorsWriter, data: Any) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(SafetensorsWriter, "_write_all", refused)
        with pytest.raises(kind) as caught:
            run(model, out)
    assert type(caught.value) is kind
    assert caught.value.exit_code == exit_code
    assert str(out.with_name("out.partial")) in str(caught.value)
    assert "\n" not in str(caught.value)
    run(model, out)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(errno.EIO, "broken")])
def test_readers_have_ended_before_their_files_are_closed(
    model: Any, out: Path, error: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading: list[int] = []
    closed_while: list[int] = []
    load, close = CheckpointRecords.load, CheckpointRecords.close

    def slow_load(records: Any, layer: int, expert: int, slot: Any) -> None:
        loading.append(expert)
        time.sleep(0.05 * expert)
        load(records, layer, expert, slot)
        loading.remove(expert)

    def noting_close(records: Any) -> None:
        closed_while.append(len(loading))
        close(records)

    def stop(*step: Any) -> None:
        raise error

    monkeypatch.setattr(CheckpointRecords, "load", slow_load)
    monkeypatch.setattr(CheckpointRecords, "close", noting_close)
    with pytest.raises((KeyboardInterrupt, OSError, WriteFailed)):
        convert(model.open(), model.plan, out, progress=stop, threads=2)
    assert closed_while == [0]
    assert loading == []
    assert not [t for t in threading.enumerate() if t.name.startswith("diskmoe-convert")]


@pytest.mark.parametrize("dense", sorted(FORMATS))
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_matrix_passes_through_memory_in_blocks(
    tmp_path: Path, dtype: str, dense: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = 256 << 10
    monkeypatch.setattr(pieces, "ROW_BLOCK_BYTES", block)
    weights = np.zeros(
        (2048, 768), {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}[dtype]
    )
    write_safetensors(tmp_path / "model.safetensors", {"w": (dtype, weights)})
    (tmp_path / "config.json").write_text("{}")
    checkpoint, layout = Checkpoint.open(tmp_path), matrix_layout(dense, 2048, 768)
    whole = checkpoint.pack("w", layout)
    assert b"".join(part.tobytes() for part in packed_parts(checkpoint, "w", layout)) == (
        whole.tobytes()
    )
    tracemalloc.start()
    try:
        for part in packed_parts(checkpoint, "w", layout):
            del part
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    scales = layout.tiles * layout.groups * 32
    assert peak < 3 * block + scales + 50_000


def test_weights_that_are_not_finite_leave_nothing_behind(tiny_model: Any, tmp_path: Path) -> None:
    model = tiny_model()
    embedding = model.weights["model.embed_tokens.weight"].copy()
    embedding[5, 6] = np.inf
    tensors = model.weights | {"model.embed_tokens.weight": embedding}
    write_safetensors(
        model.path / "model.safetensors", {name: ("F32", w) for name, w in tensors.items()}
    )
    with pytest.raises(BadModel, match=r"'model\.embed_tokens\.weight' from row 0 on: row 5"):
        run(model, tmp_path / "out")
    assert not (tmp_path / "out.partial").exists()
    run(model, tmp_path / "out", "bf16", "bf16")


def test_a_checkpoint_that_does_not_fit_its_plan_leaves_nothing_behind(
    model: Any, out: Path
) -> None:
    shutil.rmtree(out.parent, ignore_errors=True)
    plan = model.plan
    checkpoint = model.open()
    os.truncate(model.path / "model-00002-of-00002.safetensors", 3000)
    with pytest.raises((BadModel, ReadFailed)):
        convert(checkpoint, plan, out)
    assert not out.exists()
    with pytest.raises(BadModel, match="cut off"):
        model.open()


def test_templates_in_a_folder_are_copied_too(model: Any, out: Path) -> None:
    folder = model.path / "additional_chat_templates"
    folder.mkdir()
    (folder / "tool_use.jinja").write_text("{{ messages }}")
    run(model, out)
    assert (out / folder.name / "tool_use.jinja").read_text() == "{{ messages }}"
