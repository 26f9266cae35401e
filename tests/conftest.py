"""Fixtures for all tests."""

import signal
from pathlib import Path

import pytest

from diskmoe.engine.settings import PREFIX, SETTINGS


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session", autouse=True)
def _interrupts_arrive() -> None:
    """A test run in the background of a shell ignores Ctrl-C, and so would what it tests."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A test must not change its verdict with the variables of the shell it runs in, nor teach the
    user's program anything."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
    for setting in SETTINGS:
        monkeypatch.delenv(setting.name, raising=False)
        if setting.name != "CACHE_DIR":  # where the demo's wheel is
            monkeypatch.delenv(PREFIX + setting.name, raising=False)
