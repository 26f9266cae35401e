"""The machine of a benchmark: what it is, and what else it is doing."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib import metadata
from pathlib import Path

import psutil

from diskmoe.bench.devices import device_of
from diskmoe.bench.model_files import expert_files, record_bytes
from diskmoe.bench.results import Machine
from diskmoe.engine.cores import allowed_cpus, cpu_quota, usable_cores
from diskmoe.engine.errors import DiskMoeError
from diskmoe.experts.budget import available_memory, shown_bytes

BUSY = 0.10  # of the processors: with more kept busy by others a machine is called busy
_LOOK_SECONDS = 0.5
_GIT_SECONDS = 10.0
_TOLD = ("python", "numpy", "numba", "llvmlite")
_INSTRUCTIONS = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512vnni",
    "neon",
    "dotprod",
)


class Meter:
    """Processor time from its making on: ours with our ended children's, and everyone's."""

    def __init__(self) -> None:
        self._cpus = allowed_cpus()
        self._began = time.perf_counter()
        self._ours, self._all = _our_seconds(), self._busy()

    def own_seconds(self) -> float | None:
        """Processor time of this process and of its children that have ended."""
        ours = _our_seconds()
        return None if ours is None or self._ours is None else ours - self._ours

    def others_share(self) -> float | None:
        """Share of the processors that runs may use that others kept busy; None: not told."""
        own, took = self.own_seconds(), time.perf_counter() - self._began
        if own is None or took <= 0:
            return None
        share = (self._busy() - self._all - own) / (took * len(self._cpus))
        return round(min(max(share, 0.0), 1.0), 4)

    def _busy(self) -> float:
        times = psutil.cpu_times(percpu=True)
        counted = [t for number, t in enumerate(times) if number in self._cpus] or times
        idle = ("idle", "iowait", "guest", "guest_nice")  # guests' time is in user's already
        return sum(
            value for t in counted for name, value in t._asdict().items() if name not in idle
        )


def _our_seconds() -> float | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def load_average() -> float | None:
    """Of the last minute."""
    try:
        return round(os.getloadavg()[0], 2)
    except (OSError, AttributeError):
        return None


def machine_of(model: Path) -> Machine:
    """Looks at the machine, and measures the disk under the model; about a second."""
    from diskmoe.engine.kernels.paths import cpu_features, host_path  # it imports Numba

    meter = Meter()
    time.sleep(_LOOK_SECONDS)
    busy, load = meter.others_share(), load_average()
    memory, device = available_memory(), device_of(model)
    disk_bps, disk_how = _disk_speed(model)
    features = cpu_features()
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        cpu=_cpu_name(),
        features=tuple(name for name in _INSTRUCTIONS if name in features),
        kernels=host_path()[0],
        processors=len(allowed_cpus()),
        cores=usable_cores()[0],
        ram_bytes=psutil.virtual_memory().total,
        available_bytes=memory.nbytes,
        cgroup_memory_bytes=memory.limit if memory.in_group else None,
        cgroup_cpus=cpu_quota(),
        disk=None if device is None else str(device),
        disk_bps=disk_bps,
        disk_how=disk_how,
        read_ahead_bytes=None if device is None else device.read_ahead_bytes,
        load=load,
        busy=busy,
        versions=_versions(),
        commit=_commit(Path(__file__).resolve().parents[1]),
    )


def machine_line(machine: Machine) -> str:
    """The machine in one line, for people."""
    parts = [
        f"{machine.cpu}, {machine.cores} of {machine.processors} processors used"
        if machine.cores != machine.processors
        else f"{machine.cpu}, {machine.cores} cores",
        f"{machine.kernels} ({' '.join(machine.features)})",
        f"RAM {shown_bytes(machine.ram_bytes)}, {shown_bytes(machine.available_bytes)} available",
    ]
    if machine.cgroup_memory_bytes is not None:
        parts.append(f"cgroup limit {shown_bytes(machine.cgroup_memory_bytes)}")
    if machine.cgroup_cpus is not None:
        parts.append(f"cgroup quota {machine.cgroup_cpus:g} CPUs")
    speed = "" if machine.disk_bps is None else f" {machine.disk_bps / 1e9:.2f} GB/s"
    ahead = machine.read_ahead_bytes
    parts.append(
        f"disk {machine.disk or 'unknown'}{speed or ' not measured'}"
        + ("" if ahead is None else f", read-ahead {shown_bytes(ahead)}")
    )
    parts += [machine.system, *(f"{name} {version}" for name, version in machine.versions.items())]
    if machine.commit is not None:
        parts.append(f"commit {machine.commit}")
    if machine.load is not None:
        parts.append(f"load {machine.load:g}")
    if machine.busy is not None:
        parts.append(f"others busy {100 * machine.busy:.0f} %")
    return "; ".join(parts)


def _disk_speed(model: Path) -> tuple[float | None, str]:
    from diskmoe.experts.disk import measure_disk

    files = expert_files(model)
    try:
        if not files:
            return None, "the model has no weight files"
        speed, how = measure_disk(files, record_bytes(model))
    except (DiskMoeError, OSError) as error:
        return None, " ".join(str(error).split())[:200]
    return None if speed is None else round(speed), how


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "Hardware") and value.strip():
                return value.strip()
    except OSError:
        pass
    name = _said(["sysctl", "-n", "machdep.cpu.brand_string"])
    return name or platform.processor() or platform.machine() or "unknown"


def _versions() -> dict[str, str]:
    found = {"diskmoe": _version("diskmoe"), "python": platform.python_version()}
    return found | {name: _version(name) for name in _TOLD if name != "python"}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"


def _commit(tree: Path) -> str | None:
    """The commit of a source tree, with + where it was changed; None where there is no tree."""
    if not (tree / ".git").exists():
        return None
    commit = _said(["git", "-C", str(tree), "rev-parse", "--short=12", "HEAD"])
    if commit is None:
        return None
    changed = _said(["git", "-C", str(tree), "status", "--porcelain", "--untracked-files=no"])
    return commit + ("+" if changed else "")


def _said(words: list[str]) -> str | None:
    """What a program prints; None where there is no such program, or it fails."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
