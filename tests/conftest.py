"""Fixtures for all tests."""

from pathlib import Path

import pytest

from diskmoe.engine.settings import PREFIX, SETTINGS


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test must not change its verdict with the variables of the shell it runs in."""
    for setting in SETTINGS:
        monkeypatch.delenv(setting.name, raising=False)
        if setting.name != "CACHE_DIR":  # where the demo's wheel is
            monkeypatch.delenv(PREFIX + setting.name, raising=False)
