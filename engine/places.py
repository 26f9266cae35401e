"""Where files of ours live outside the user's sight: the cache directory."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

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
    """The user's cache directory for diskmoe, by the platform's custom; nothing is created."""
    if override:
        return as_path(override)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
        return Path(base) / "diskmoe"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "diskmoe"
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "diskmoe"


def ensure_kernel_cache(package: Path, say: Callable[[str], None]) -> None:
    """Gives Numba a place for compiled kernels where neither of its own can be written.

    Call it before Numba is imported. Without a cache directory Numba refuses to compile at all.
    """
    if "NUMBA_CACHE_DIR" in os.environ or _can_write(package):
        return
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    if _can_write(base):
        return
    folder = tempfile.mkdtemp(prefix="diskmoe-kernels-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["NUMBA_CACHE_DIR"] = folder
    say(
        f"note      neither {package} nor {base} can be written: kernels are compiled anew at every "
        "start; set NUMBA_CACHE_DIR to a directory that can"
    )


def _can_write(folder: Path) -> bool:
    """Whether files can be made in a folder, or in the nearest one above it that is there."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)


def demo_dir(override: str | None = None, form: str = "sparse") -> Path:
    """Where ``diskmoe demo-model`` puts the converted demo model."""
    name = DEMO_NAME if form == "sparse" else f"{DEMO_NAME}-{form}"
    return cache_dir(override) / name
