"""Where files of ours live outside the user's sight: the cache directory."""

from __future__ import annotations

from pathlib import Path

from diskmoe.engine.errors import BadRequest
from diskmoe.experts.kernel_files import cache_home

DEMO_NAME = "demo-model"
FORMS = ("sparse", "dense")


def as_path(text: str) -> Path:
    """A path as a user types it, ``~`` included. Raises BadRequest when there is no such home."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise BadRequest(f"{text}: {error}") from None


def cache_dir(override: str | None = None) -> Path:
    """Where the demo model is kept: as given, or the user's cache. Nothing is created.

    Raises BadRequest for a user without a home directory.
    """
    if override:
        return as_path(override)
    try:
        return cache_home()
    except RuntimeError as error:
        raise BadRequest(f"{error}: set DISKMOE_CACHE_DIR") from None


def demo_dir(override: str | None = None, form: str = "sparse") -> Path:
    """Where ``diskmoe demo-model`` puts the converted demo model."""
    name = DEMO_NAME if form == "sparse" else f"{DEMO_NAME}-{form}"
    return cache_dir(override) / name
