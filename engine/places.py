"""Where files of ours live outside the user's sight: what can be made again, and what is learned."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from diskmoe.compiled.files import cache_home
from diskmoe.engine.errors import BadRequest

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


def state_dir(override: str | None = None) -> Path:
    """Where what is learned is kept: as given, or the user's state directory. Nothing is created.

    Raises BadRequest for a user without a home directory.
    """
    if override:
        return as_path(override)
    base = os.environ.get("XDG_STATE_HOME")
    if not base and sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
    if base:
        return Path(base) / "diskmoe"
    homes = {"win32": ("AppData", "Local"), "darwin": ("Library", "Application Support")}
    try:
        return Path.home().joinpath(*homes.get(sys.platform, (".local", "state")), "diskmoe")
    except RuntimeError as error:
        raise BadRequest(f"{error}: set DISKMOE_STATE_DIR") from None


def demo_dir(override: str | None = None, form: str = "sparse") -> Path:
    """Where ``diskmoe demo-model`` puts the converted demo model."""
    name = DEMO_NAME if form == "sparse" else f"{DEMO_NAME}-{form}"
    return cache_dir(override) / name
