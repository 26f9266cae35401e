"""Shared by the kernel tests: worker pools, and work so small that it would not be split."""

from collections.abc import Iterator

import pytest

from diskmoe.engine.kernels import program
from diskmoe.engine.kernels.workers import Workers


@pytest.fixture(scope="session")
def alone() -> Iterator[Workers]:
    with Workers(1) as workers:
        yield workers


@pytest.fixture(scope="session")
def pair() -> Iterator[Workers]:
    with Workers(2) as workers:
        yield workers


@pytest.fixture
def split_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program of the test is split among the threads, however small it is."""
    monkeypatch.setattr(program, "MACS_PER_CLAIM", 1)
    monkeypatch.setattr(program, "MACS_WORTH_WAKING", 0)
