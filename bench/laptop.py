"""A smaller machine: processes kept to so much memory and so fast a disk by the system itself.

    with limits(8 << 30, None, model) as box:
        Popen(box.wrap(["python", ...]))        # box.how says what keeps it to that

The rule of this file: what could not be limited is never said to be. Page cache counts as memory of
a control group, so a file that was mapped or read is no free second cache, as on a real machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from diskmoe.bench.devices import device_of
from diskmoe.experts.budget import shown_bytes
from diskmoe.experts.cgroups import control_groups

SYSTEMD_SECONDS = 10.0  # to see whether it makes scopes for us at all
# the process puts itself into its groups before it becomes the command: no page is booked elsewhere
_ENTER = """\
import os, sys
split = sys.argv.index("--")
for path in sys.argv[1:split]:
    with open(path, "w") as file:
        file.write(str(os.getpid()))
os.execvp(sys.argv[split + 1], sys.argv[split + 1 :])
"""


@dataclass(frozen=True)
class Box:
    """Where commands are run. how: what keeps them to which limits, or that nothing does."""

    how: str
    ram: bool  # whether the system limits the memory
    disk: bool  # and the disk
    _before: tuple[str, ...] = ()

    def wrap(self, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` in the box."""
        return [*self._before, *argv]


@contextmanager
def limits(ram_bytes: int | None, disk_bps: int | None, path: Path) -> Iterator[Box]:
    """A box for commands that read files on the disk under `path`; it is gone afterwards.

    Control groups that this user may make, else systemd's, else none: see `Box`.
    """
    if ram_bytes is None and disk_bps is None:
        yield Box("no limits", False, False)
        return
    device = device_of(path)
    with ExitStack() as stack:
        found = _own_groups(stack, ram_bytes, disk_bps, device and device.number)
        yield found or _systemd(ram_bytes, disk_bps, path) or _none()


def _none() -> Box:
    return Box(
        "no control group can be made here, so settings alone keep to the limits", False, False
    )


def _own_groups(
    stack: ExitStack, ram_bytes: int | None, disk_bps: int | None, device: str | None
) -> Box | None:
    """A group for each limit, below ours; None where none can be made."""
    entries: list[str] = []
    parts: list[str] = []
    ram = disk = False
    made: dict[Path, Path] = {}  # in version 2 one group has both
    if ram_bytes is not None:
        group = _group(stack, "memory", made)
        if group is not None:
            directory, version = group
            name, swap = (
                ("memory.max", "memory.swap.max")
                if version == 2
                else ("memory.limit_in_bytes", "memory.swappiness")
            )
            ram = _written(directory / name, str(ram_bytes))
            if ram:
                _written(directory / swap, "0")
                entries.append(str(directory / "cgroup.procs"))
                parts.append(f"memory {shown_bytes(ram_bytes)} (page cache included)")
    if disk_bps is not None and device is not None:
        version_1 = any(version == 1 for _, version in control_groups("blkio"))
        group = _group(stack, "blkio" if version_1 else "io", made)
        if group is not None:
            directory, version = group
            if version == 2:
                disk = _written(directory / "io.max", f"{device} rbps={disk_bps}")
            else:
                name = "blkio.throttle.read_bps_device"
                disk = _written(directory / name, f"{device} {disk_bps}")
            if disk:
                entries.append(str(directory / "cgroup.procs"))
                parts.append(f"reads {disk_bps / 1e6:.0f} MB/s")
    if not parts:
        return None
    before = (sys.executable, "-I", "-S", "-c", _ENTER, *dict.fromkeys(entries), "--")
    return Box(f"a control group: {', '.join(parts)}", ram, disk, before)


def _group(stack: ExitStack, controller: str, made: dict[Path, Path]) -> tuple[Path, int] | None:
    """(a new group of a controller, its version); None where none can be made."""
    for parent, version in control_groups(controller):
        if parent in made:
            return made[parent], version
        if version == 2 and controller not in _words(parent / "cgroup.subtree_control"):
            continue
        if not (parent / "cgroup.procs").exists():
            continue
        directory = parent / f"diskmoe-bench-{os.getpid()}"
        try:
            directory.mkdir()
        except OSError:
            continue
        stack.callback(_remove, directory)
        made[parent] = directory
        return directory, version
    return None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _written(path: Path, text: str) -> bool:
    try:
        path.write_text(text)
    except OSError:
        return False
    return True


def _remove(directory: Path) -> None:
    try:
        directory.rmdir()
    except OSError:
        pass  # a process of it is still ending; an empty group costs nothing


def _systemd(ram_bytes: int | None, disk_bps: int | None, path: Path) -> Box | None:
    """A scope of systemd's for each command; None where it makes none for us."""
    program = shutil.which("systemd-run")
    if program is None:
        return None
    before = [program, "--scope", "--quiet", "--collect"]
    if os.getuid():
        before.insert(1, "--user")
    parts = []
    if ram_bytes is not None:
        before += ["-p", f"MemoryMax={ram_bytes}", "-p", "MemorySwapMax=0"]
        parts.append(f"memory {shown_bytes(ram_bytes)} (page cache included)")
    if disk_bps is not None:
        before += ["-p", f"IOReadBandwidthMax={path.absolute()} {disk_bps}"]
        parts.append(f"reads {disk_bps / 1e6:.0f} MB/s")
    try:
        tried = subprocess.run(
            [*before, "--", "true"], capture_output=True, timeout=SYSTEMD_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if tried.returncode:
        return None
    how = f"a scope of systemd: {', '.join(parts)}"
    return Box(how, ram_bytes is not None, disk_bps is not None, (*before, "--"))
