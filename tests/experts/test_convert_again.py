"""A conversion that finds something at its output: its own work, somebody else's, another one."""

import os
from pathlib import Path
from typing import Any

import pytest
from conversions import contents, run

from diskmoe.experts.container import Container
from diskmoe.experts.convert import _Job, convert
from diskmoe.experts.errors import BadModel, BadOutput
from diskmoe.experts.lockfile import LOCK_NAME
from diskmoe.experts.verify import pieces_of, verify


def test_a_second_conversion_into_one_output_is_refused(model: Any, out: Path) -> None:
    refusals = []

    def second(done: int, total: int, what: str) -> None:
        if not refusals:
            with pytest.raises(BadOutput) as caught:
                run(model, out)
            refusals.append(str(caught.value))

    convert(model.open(), model.plan, out, progress=second)
    assert f"process {os.getpid()} is at work in it; wait until it is done" in refusals[0]
    assert str(out.with_name("out.partial")) in refusals[0]
    assert "\n" not in refusals[0]
    assert all(damage is None for _, damage in verify(pieces_of(Container.open(out))))
    assert not (out / LOCK_NAME).exists()


def test_what_another_process_finished_in_the_meantime_is_recognised(
    model: Any, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = _Job.alone

    def late(job: _Job) -> Any:
        monkeypatch.setattr(_Job, "alone", real)
        run(model, out)
        return real(job)

    monkeypatch.setattr(_Job, "alone", late)
    done = run(model, out)
    assert done.kept_nbytes == done.nbytes
    assert os.listdir(out.parent) == ["out"]


def test_a_finished_conversion_is_recognised(model: Any, out: Path) -> None:
    first = run(model, out)
    before = contents(out)
    second = run(model, out)
    assert second.kept_nbytes == second.nbytes == first.nbytes
    assert contents(out) == before


def test_an_empty_output_directory_is_used(model: Any, out: Path) -> None:
    out.mkdir(parents=True)
    run(model, out)
    Container.open(out)


def test_somebody_elses_output_is_refused_and_left_alone(model: Any, out: Path) -> None:
    out.mkdir(parents=True)
    (out / "thesis.txt").write_text("precious")
    with pytest.raises(BadModel, match="not empty and not a diskmoe container"):
        run(model, out)
    assert contents(out) == {"thesis.txt": b"precious"}
    with pytest.raises(BadModel, match="a file"):
        run(model, out / "thesis.txt")
    with pytest.raises(BadModel, match="kept for unfinished conversions"):
        run(model, out.with_name("x.partial"))


def test_somebody_elses_partial_directory_is_refused_and_left_alone(model: Any, out: Path) -> None:
    partial = out.with_name("out.partial")
    partial.mkdir(parents=True)
    (partial / "thesis.txt").write_text("precious")
    with pytest.raises(BadModel, match=r"'thesis\.txt' is not from this conversion"):
        run(model, out)
    assert contents(partial) == {"thesis.txt": b"precious"}


def test_another_conversion_is_refused_and_left_alone(model: Any, out: Path) -> None:
    run(model, out)
    before = contents(out)
    with pytest.raises(BadModel, match="another conversion"):
        run(model, out, "q8")
    assert contents(out) == before
    out.rename(out.with_name("next.partial"))
    with pytest.raises(BadModel, match="another conversion"):
        run(model, out.with_name("next"), "q8")
    assert contents(out.with_name("next.partial")) == before


def test_other_weights_under_the_same_headers_are_another_conversion(model: Any, out: Path) -> None:
    run(model, out)
    shard = model.path / "model-00001-of-00002.safetensors"
    data = bytearray(shard.read_bytes())
    data[-2000:] = bytes(2000)
    shard.write_bytes(data)
    with pytest.raises(BadModel, match="another conversion"):
        run(model, out)


def test_a_file_damaged_by_a_power_failure_is_written_again(model: Any, out: Path) -> None:
    run(model, out)
    reference = contents(out)
    partial = out.with_name("out.partial")
    out.rename(partial)
    os.truncate(partial / "experts-00001.safetensors", 100)
    run(model, out)
    assert contents(out) == reference
