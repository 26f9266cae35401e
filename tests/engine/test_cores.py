"""Compute threads by default, from faked files of the system."""

from pathlib import Path

import psutil
import pytest

from diskmoe.engine.cores import cpu_quota, usable_cores


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def machine(root: Path, siblings: list[str]) -> Path:
    """Logical processor n shares its core with those in siblings[n]."""
    for cpu, names in enumerate(siblings):
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        write(topology / "thread_siblings_list", names + "\n")
    return root


HYPER = ["0,4", "1,5", "2,6", "3,7"] * 2  # four cores of two threads each
PLAIN = ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("siblings", "allowed", "cores", "reason"),
    [
        (PLAIN, range(4), 4, "4 physical cores"),
        (HYPER, range(8), 4, "4 physical cores, 8 hardware threads"),
        (HYPER, (0, 4), 1, "1 physical core of 4 that this process may use"),
        (HYPER, (0, 1, 6), 3, "3 physical cores of 4 that this process may use"),
        (PLAIN, (2,), 1, "1 physical core of 4 that this process may use"),
    ],
)
def test_cores_are_those_allowed_with_hyper_threads_as_one(
    tmp_path, siblings, allowed, cores, reason
) -> None:
    assert usable_cores(machine(tmp_path, siblings), lambda: allowed) == (cores, reason)


@pytest.mark.parametrize(
    ("content", "quota"),
    [("150000 100000", 1.5), ("max 100000", None), ("", None), ("x y", None), ("0 0", None)],
)
def test_a_quota_of_cgroup_v2(tmp_path, content, quota) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/a/b\n")
    write(tmp_path / "sys/fs/cgroup/a/b/cpu.max", content)
    assert cpu_quota(tmp_path) == quota


@pytest.mark.parametrize(
    "content",
    ["1" + "0" * 400 + " 1", "-1 100000", "1 2 3", "\0", "100000 -5", "1e5 1e5", "9" * 5000 + " 1"],
)
def test_garbage_in_a_cgroup_is_no_quota(tmp_path, content) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/a\n1:cpu:/a/../..\nx\n\0:\0:/\0\n")
    write(tmp_path / "sys/fs/cgroup/a/cpu.max", content)
    write(tmp_path / "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", content.split(" ")[0])
    write(tmp_path / "sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "\0")
    (tmp_path / "sys/fs/cgroup/cpu.max").write_bytes(b"\xff\xfe 1\n")
    assert cpu_quota(tmp_path) is None


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe"])
def test_a_topology_that_says_nothing_is_not_one_core(tmp_path, monkeypatch, content) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 3)
    machine(tmp_path, PLAIN)
    path = tmp_path / "sys/devices/system/cpu/cpu2/topology/thread_siblings_list"
    path.write_bytes(content)
    assert usable_cores(tmp_path, lambda: range(4))[0] == 3


def test_the_tightest_quota_above_the_process_counts(tmp_path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/a/b\n")
    write(tmp_path / "sys/fs/cgroup/a/b/cpu.max", "400000 100000")
    write(tmp_path / "sys/fs/cgroup/a/cpu.max", "50000 100000")
    write(tmp_path / "sys/fs/cgroup/cpu.max", "max 100000")
    assert cpu_quota(tmp_path) == 0.5


def test_a_quota_of_cgroup_v1_whose_path_is_the_hosts(tmp_path) -> None:
    write(tmp_path / "proc/self/cgroup", "4:memory:/m\n3:cpu,cpuacct:/docker/123\n")
    write(tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "250000\n")
    write(tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert cpu_quota(tmp_path) == 2.5
    write(tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    assert cpu_quota(tmp_path) is None


@pytest.mark.parametrize(
    ("quota", "cores", "reason"),
    [
        ("120000 100000", 2, "the cgroup's CPU quota is 1.2 of 4 cores"),
        ("20000 100000", 1, "the cgroup's CPU quota is 0.2 of 4 cores"),
        ("400000 100000", 4, "4 physical cores"),
        ("999999 100000", 4, "4 physical cores"),
    ],
)
def test_a_quota_is_rounded_up_to_whole_cores(tmp_path, quota, cores, reason) -> None:
    machine(tmp_path, PLAIN)
    write(tmp_path / "proc/self/cgroup", "0::/\n")
    write(tmp_path / "sys/fs/cgroup/cpu.max", quota)
    assert usable_cores(tmp_path, lambda: range(4)) == (cores, reason)


def test_without_files_there_is_at_least_one_core(tmp_path) -> None:
    cores, reason = usable_cores(tmp_path, lambda: [0])
    assert cores == 1 and reason.startswith("1 physical core")
    assert cpu_quota(tmp_path) is None


def test_this_machine_has_a_core() -> None:
    assert usable_cores()[0] >= 1
