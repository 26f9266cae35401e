"""The control groups that limit this process, on Linux; elsewhere there are none."""

from pathlib import Path


def control_groups(controller: str, root: Path = Path("/")) -> list[tuple[Path, int]]:
    """(directory, version 1 or 2) of each group of a controller above this process, innermost first.

    The directories need not be there: in a container the path that the kernel tells may be the
    host's, and only the mount itself, which comes last, is visible.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    found: list[tuple[Path, int]] = []
    for line in lines:
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if controllers == "":
            mount, version = root / "sys/fs/cgroup", 2
        elif controller in controllers.split(","):
            mount, version = root / "sys/fs/cgroup" / controller, 1
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        found += [(mount.joinpath(*parts[:n]), version) for n in range(len(parts), -1, -1)]
    return found


def read_number(path: Path) -> int | None:
    """The number that a file holds; None when there is no file or no number ("max") in it."""
    try:
        return int(path.read_text().strip())
    except (OSError, ValueError):
        return None
