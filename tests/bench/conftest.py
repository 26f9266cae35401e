"""A small synthetic model, written once."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_synthetic import tiny_model

from diskmoe.bench.model import Synthetic
from diskmoe.bench.writing import write_model


@pytest.fixture(scope="session")
def silent() -> Callable[[str], None]:
    return lambda line: None


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Synthetic, Path, Path]:
    """(model, its directory, its GGUF)."""
    folder = tmp_path_factory.mktemp("synth")
    model = tiny_model(routing="sticky")
    write_model(model, folder / "model", folder / "model.gguf", "qwen3moe", lambda line: None)
    return model, folder / "model", folder / "model.gguf"
