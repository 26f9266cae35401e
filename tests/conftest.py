"""Fixtures for all tests."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test must not change its verdict with the variables of the shell it runs in."""
    for name in list(os.environ):
        if name.startswith("DISKMOE_") and name != "DISKMOE_CACHE_DIR":
            monkeypatch.delenv(name)
    for name in ("MODEL", "PROMPT", "TEMP", "NGEN", "CAP", "GRAMMAR", "SYSTEM", "JSON", "DEBUG"):
        monkeypatch.delenv(name, raising=False)
