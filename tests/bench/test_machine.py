"""The machine of a benchmark: its disk, what others do on it, and smaller ones made of it."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_results import example

from diskmoe.bench import laptop, machine
from diskmoe.bench.devices import Device, device_of
from diskmoe.bench.laptop import limits
from diskmoe.bench.machine import Meter, machine_line, machine_of
from diskmoe.bench.results import Machine


def test_our_own_work_is_not_that_of_others() -> None:
    meter = Meter()
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    own, others = meter.own_seconds(), meter.others_share()
    if own is None:
        pytest.skip("this system does not tell processor time")
    assert 0 < own < 5 and others is not None and 0 <= others <= 1


def test_a_machine_is_told_with_its_disk_and_versions(written) -> None:
    _, folder, _ = written
    found = machine_of(folder)
    assert found.cores >= 1 and found.ram_bytes > found.available_bytes > 0
    assert set(found.versions) == {"diskmoe", "python", "numpy", "numba", "llvmlite"}
    assert found.disk_how
    line = machine_line(found)
    assert found.cpu in line and "RAM" in line and "\n" not in line


def test_what_could_not_be_told_is_left_out_of_the_line() -> None:
    line = machine_line(example(Machine, full=False))
    assert "None" not in line and "disk unknown not measured" in line
    limited = replace(example(Machine, full=True), cgroup_memory_bytes=1 << 30, cgroup_cpus=1.5)
    assert "cgroup limit 1.0 GiB; cgroup quota 1.5 CPUs" in machine_line(limited)


def test_a_changed_source_tree_has_a_mark_at_its_commit(tmp_path: Path) -> None:
    assert machine._commit(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e"]
    try:
        subprocess.run([*git, "init", "-q"], check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there is no git here")
    (tmp_path / "file").write_text("one")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "one"], check=True)
    clean = machine._commit(tmp_path)
    assert clean is not None and not clean.endswith("+")
    (tmp_path / "file").write_text("two")
    assert machine._commit(tmp_path) == clean + "+"


def block_device(root: Path, number: str, *, partition: bool) -> None:
    """A disk as /sys shows it, and a link from the number of what is mounted."""
    disk = root / "sys" / "devices" / "nvme0n1"
    (disk / "queue").mkdir(parents=True)
    (disk / "dev").write_text("259:0\n")
    (disk / "queue" / "rotational").write_text("0\n")
    (disk / "queue" / "read_ahead_kb").write_text("128\n")
    place = disk
    if partition:
        place = disk / "nvme0n1p2"
        place.mkdir()
        (place / "partition").write_text("2\n")
        (place / "dev").write_text("259:2\n")
    (root / "sys" / "dev" / "block").mkdir(parents=True)
    (root / "sys" / "dev" / "block" / number).symlink_to(place)


@pytest.mark.skipif(sys.platform != "linux", reason="/sys")
@pytest.mark.parametrize("partition", [False, True])
def test_the_disk_under_a_file_is_the_whole_one(tmp_path: Path, partition: bool) -> None:
    number = os.stat(tmp_path).st_dev
    root = tmp_path / "root"
    block_device(root, f"{os.major(number)}:{os.minor(number)}", partition=partition)
    found = device_of(tmp_path, root)
    assert found == Device("nvme0n1", "259:0", True, 128 << 10)
    assert str(found) == "nvme0n1 (solid state)"
    assert device_of(tmp_path, tmp_path / "elsewhere") is None
    assert device_of(tmp_path / "missing", root) is None


def no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laptop, "control_groups", lambda controller: [])


def test_without_limits_a_command_is_itself(tmp_path: Path) -> None:
    with limits(None, None, tmp_path) as box:
        assert box.wrap(["a", "b"]) == ["a", "b"] and not box.ram and not box.disk


def test_where_nothing_can_be_limited_nothing_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_groups(monkeypatch)
    monkeypatch.setattr(laptop.shutil, "which", lambda name: None)
    with limits(1 << 30, 10**8, tmp_path) as box:
        assert box.wrap(["a"]) == ["a"] and not box.ram and not box.disk
        assert "no control group can be made" in box.how


@pytest.mark.parametrize("version", [1, 2])
def test_a_control_group_has_the_limits_while_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    parent = tmp_path / "group"
    parent.mkdir()
    (parent / "cgroup.procs").write_text("")
    (parent / "cgroup.subtree_control").write_text("cpu io memory\n")
    monkeypatch.setattr(laptop, "control_groups", lambda controller: [(parent, version)])
    monkeypatch.setattr(
        laptop, "device_of", lambda path: Device("nvme0n1", "259:0", True, 128 << 10)
    )
    with limits(1 << 30, 10**8, tmp_path) as box:
        assert box.ram and box.disk and "memory 1.0 GiB" in box.how and "100 MB/s" in box.how
        (group,) = parent.glob("diskmoe-bench-*")
        if version == 1:
            assert (group / "memory.limit_in_bytes").read_text() == str(1 << 30)
            throttle = group / "blkio.throttle.read_bps_device"
            assert throttle.read_text() == "259:0 100000000"
        else:
            assert (group / "memory.max").read_text() == str(1 << 30)
            assert (group / "io.max").read_text() == "259:0 rbps=100000000"
        code = "import sys; sys.exit(7)"
        done = subprocess.run(box.wrap([sys.executable, "-S", "-c", code]), check=False)
        assert done.returncode == 7
        assert (group / "cgroup.procs").read_text().isdigit()


def test_a_group_whose_parent_does_not_pass_memory_on_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup.procs").write_text("")
    (tmp_path / "cgroup.subtree_control").write_text("cpu\n")
    monkeypatch.setattr(laptop, "control_groups", lambda controller: [(tmp_path, 2)])
    monkeypatch.setattr(laptop.shutil, "which", lambda name: None)
    with limits(1 << 30, None, tmp_path) as box:
        assert not box.ram


@pytest.mark.skipif(sys.platform == "win32", reason="a script")
@pytest.mark.parametrize("works", [True, False])
def test_systemd_makes_a_scope_where_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    no_groups(monkeypatch)
    program = tmp_path / "systemd-run"
    program.write_text(f"#!/bin/sh\nexit {0 if works else 1}\n")
    program.chmod(0o755)
    monkeypatch.setattr(laptop.shutil, "which", lambda name: str(program))
    with limits(1 << 30, 10**8, tmp_path) as box:
        assert box.ram is box.disk is works
        wrapped = box.wrap(["a", "b"])
        assert wrapped[-2:] == ["a", "b"] and (str(program) in wrapped) is works
        assert (f"MemoryMax={1 << 30}" in wrapped) is works
