"""How many threads are worth computing with: the physical cores that this process may use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from diskmoe.experts.cgroups import control_groups, read_number

_MOST = 1 << 60  # a larger quota is no number that a kernel wrote


def allowed_cpus() -> frozenset[int]:
    """Numbers of the logical processors that this process may run on."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return frozenset(range(os.cpu_count() or 1))


def usable_cores(
    root: Path = Path("/"), allowed: Callable[[], Iterable[int]] = allowed_cpus
) -> tuple[int, str]:
    """(cores, why that many): what affinity and the CPU quota leave, a core's two threads as one.

    Hyper-threads share the units that these kernels keep busy, so a second one per core only costs.
    """
    cpus = frozenset(allowed())
    cores, present = _physical(root, cpus), _physical(root, None)
    reason = f"{_count(cores, 'physical core')}"
    if present > cores:
        reason += f" of {present} that this process may use"
    elif len(cpus) > cores:
        reason += f", {len(cpus)} hardware threads"
    quota = cpu_quota(root)
    if quota is not None and quota < cores:
        rounded = max(1, -int(-quota // 1))
        return rounded, f"the cgroup's CPU quota is {quota:g} of {_count(cores, 'core')}"
    return cores, reason


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPUs' worth of time that the tightest cgroup above this process allows; None: no limit."""
    limits: list[float] = []
    for directory, version in control_groups("cpu", root):
        quota = period = None
        if version == 2:
            quota, period = _quota_pair(directory / "cpu.max")
        else:
            quota = read_number(directory / "cpu.cfs_quota_us")  # -1: no limit
            period = read_number(directory / "cpu.cfs_period_us")
        if quota is not None and period is not None and 0 < quota < _MOST and period > 0:
            limits.append(quota / period)
    return min(limits, default=None)


def _quota_pair(path: Path) -> tuple[int | None, int | None]:
    """cgroup v2's ``"200000 100000"``; ``"max 100000"`` is no limit."""
    try:
        quota, period = path.read_text().split()
        return int(quota), int(period)
    except (OSError, ValueError):
        return None, None


def _physical(root: Path, cpus: frozenset[int] | None) -> int:
    """Physical cores among these logical processors, or in the machine for None."""
    folder = root / "sys/devices/system/cpu"
    if cpus is None:
        found = [path.name[3:] for path in folder.glob("cpu[0-9]*")]
        cpus = frozenset(int(name) for name in found if name.isdigit())
    cores: set[str] = set()  # processors of one core list the same siblings
    for cpu in cpus:
        topology = folder / f"cpu{cpu}" / "topology"
        try:
            siblings = (topology / "thread_siblings_list").read_text().strip()
        except (OSError, ValueError):
            siblings = ""
        if not siblings:
            counted = psutil.cpu_count(logical=False) or os.cpu_count() or 1
            return max(1, min(counted, len(cpus)))
        cores.add(siblings)
    return max(1, len(cores))


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
