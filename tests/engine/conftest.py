"""What several tests of the program run on."""

from pathlib import Path

import pytest
from tiny_model import random_tensors, tiny_config, write_checkpoint


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random bf16 checkpoint without a tokenizer, and without a stop token that it could hit."""
    path = tmp_path_factory.mktemp("tiny")
    config = tiny_config("qwen3_moe", eos_token_id=None)
    write_checkpoint(path, config, random_tensors(config, seed=11), dtype="bf16")
    return path
