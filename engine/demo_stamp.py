"""What a converted demo model was made from and by; asked at every bare start, so it is cheap."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from diskmoe.engine.errors import BadModel

STAMP = "demo-parts.digest"  # beside the converted demo
_SAMPLES = 32
_SAMPLE_BYTES = 4096


def parts_path() -> Path:
    """The parts file that ships with the package."""
    return Path(__file__).with_name("demo_parts.safetensors")


def parts_digest() -> str:
    """Names the parts file by its size and blocks spread over it: other training, other numbers.

    Raises BadModel when it is missing.
    """
    path = parts_path()
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest = hashlib.sha256(str(size).encode())
            for number in range(_SAMPLES):
                file.seek(max(0, size - _SAMPLE_BYTES) * number // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    except OSError:
        raise BadModel(f"{path} is missing: install diskmoe again") from None
    return digest.hexdigest()


def stamp_text() -> str:
    """What a demo model made now is stamped with: its parts, and the container format."""
    from diskmoe.experts.facts import FORMAT_VERSION

    return f"{parts_digest()} {FORMAT_VERSION}"


def is_current(target: Path) -> bool:
    """Whether ``target`` holds a whole demo model as this version makes it."""
    from diskmoe.experts.container import is_container

    return is_container(target) and _stamp(target) == stamp_text().split()


def is_readable(target: Path) -> bool:
    """Whether the demo model is in the container format of this version, whatever its parts."""
    return _stamp(target)[1:] == stamp_text().split()[1:]


def _stamp(target: Path) -> list[str]:
    stamp = target / STAMP
    if not stamp.is_file():
        return []
    return stamp.read_text(encoding="ascii", errors="replace").split()
