"""Numba functions that are compiled once per machine and found again at the next start.

The rule of this file: a compiled function is used again only while the source of everything that it
was made from is the same. Numba looks at the file that defines a function, not at those whose
functions it calls; so each file's functions are kept in a folder named after the text of the file
and of all files of ours that it imports, in turn.
"""

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba import njit

PACKAGES = Path(__file__).resolve().parents[1]
_IMPORT = re.compile(r"^\s*from diskmoe\.([\w.]+) import", re.MULTILINE)


def cache_home() -> Path:
    """The user's cache directory for diskmoe, by the platform's custom; nothing is created."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
        return Path(base) / "diskmoe"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "diskmoe"
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "diskmoe"


def kernel_home() -> Path:
    """Where compiled kernels are kept: NUMBA_CACHE_DIR, or a folder in the user's cache."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    return Path(given) / "diskmoe" if given else cache_home() / "kernels"


@cache
def source_digest(file: Path) -> str:
    """Names the text of a source file and of all our files that it imports, in turn."""
    text = file.read_text(encoding="utf-8")
    digest = hashlib.blake2b(text.encode(), digest_size=8)
    for module in sorted(set(_IMPORT.findall(text))):
        path = PACKAGES.joinpath(*module.split("."))
        imported = path.with_suffix(".py")
        if imported.exists():
            digest.update(source_digest(imported).encode())
    return digest.hexdigest()


@contextmanager
def cached_for(file: str) -> Iterator[None]:
    """Numba functions decorated inside are kept with the sources of `file`."""
    before = numba.config.CACHE_DIR  # pyright: ignore[reportAttributeAccessIssue]
    folder = kernel_home() / source_digest(Path(file).resolve())
    numba.config.CACHE_DIR = str(folder)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before  # pyright: ignore[reportAttributeAccessIssue]


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`numba.njit` that releases the GIL and is cached on disk; bare or with Numba's options."""
    if function is None:
        return lambda f: kernel(f, **options)
    with cached_for(function.__code__.co_filename):
        return njit(function, cache=True, nogil=True, **options)
