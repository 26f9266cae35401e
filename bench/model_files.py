"""The files of a model on disk: which they are, and whether memory holds them already."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from diskmoe.experts.errors import BadModel
from diskmoe.experts.pagecache import cached_share
from diskmoe.experts.usage import model_fingerprint

QWEN3_RECORD = 2658304  # q4, 768 x 2048
_CHUNK = 4 << 20


def weight_files(place: Path) -> list[Path]:
    """The files with a model's weights; none where there is no model."""
    if place.is_file():
        return [place]
    for pattern in ("*.safetensors", "*.gguf"):
        found = sorted(place.glob(pattern))
        if found:
            return found
    return []


def expert_files(place: Path) -> list[Path]:
    """Those with its experts, where they lie apart; else all."""
    return sorted(place.glob("experts-*.safetensors")) or weight_files(place)


def record_bytes(place: Path) -> int:
    """Bytes of one of its expert records; of a usual one, where the model is not converted."""
    from diskmoe.experts.container import Container, is_container

    return Container.open(place).record_layout.nbytes if is_container(place) else QWEN3_RECORD


def model_id(place: Path) -> str:
    """What names a model wherever it lies, 32 hex digits. Raises BadModel."""
    config: dict[str, object] = {}
    try:
        if place.is_dir() and (place / "config.json").is_file():
            config = json.loads((place / "config.json").read_bytes())
        return model_fingerprint(config, weight_files(place))
    except (OSError, ValueError, RecursionError) as error:
        raise BadModel(f"{place}: cannot be read as a model ({str(error)[:200]})") from None


def can_drop() -> bool:
    """Whether this system empties the page cache of a file when it is asked to."""
    return hasattr(os, "posix_fadvise")


def drop_from_cache(files: Sequence[Path]) -> None:
    """Empties the page cache of these files, where that can be. Raises OSError."""
    if can_drop():
        for path in files:
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fill_cache(files: Sequence[Path]) -> None:
    """Reads the files once, so that the page cache has what fits. Raises OSError."""
    if cached_share(files) == 1.0:
        return
    memory = memoryview(bytearray(_CHUNK))
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(memory):
                pass
