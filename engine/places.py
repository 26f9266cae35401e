"""Where files of ours live outside the user's sight: the cache directory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

DEMO_NAME = "demo-model"
FORMS = ("sparse", "dense")


def cache_dir(override: str | None = None) -> Path:
    """The user's cache directory for diskmoe, by the platform's custom; nothing is created."""
    if override:
        return Path(override).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
        return Path(base) / "diskmoe"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "diskmoe"
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "diskmoe"


def demo_dir(override: str | None = None, form: str = "sparse") -> Path:
    """Where ``diskmoe demo-model`` puts the converted demo model."""
    name = DEMO_NAME if form == "sparse" else f"{DEMO_NAME}-{form}"
    return cache_dir(override) / name
