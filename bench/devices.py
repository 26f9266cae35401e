"""The disk under a file: its name, its kind, and how far the system reads ahead on it. Linux only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Device:
    """A whole disk. number: "259:0", as control groups name it."""

    name: str
    number: str
    solid_state: bool | None
    read_ahead_bytes: int | None

    def __str__(self) -> str:
        kind = {True: "solid state", False: "rotating", None: "of unknown kind"}[self.solid_state]
        if self.name.startswith(("vd", "xvd")):
            kind = "virtual"  # what is below it, a guest is not told
        return f"{self.name} ({kind})"


def device_of(path: Path, root: Path = Path("/")) -> Device | None:
    """The disk that holds a file; None where there is none of its own (a network, an overlay)."""
    try:
        number = os.stat(path).st_dev
        place = (root / f"sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve(strict=True)
    except (OSError, AttributeError):
        return None
    if (place / "partition").exists():
        place = place.parent
    found = _text(place / "dev")
    if found is None:
        return None
    rotating = _text(place / "queue" / "rotational")
    ahead = _text(place / "queue" / "read_ahead_kb")
    return Device(
        place.name,
        found,
        None if rotating is None else rotating == "0",
        None if ahead is None or not ahead.isdigit() else int(ahead) << 10,
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
