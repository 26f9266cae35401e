"""Toy model directories, made with the tokenizers library."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_templates import load_from
from toy_tokenizers import byte_level_tokenizer, sentencepiece_tokenizer

MakeDirectory = Callable[..., Path]


@pytest.fixture(scope="session")
def toys() -> dict[str, dict[str, Any]]:
    """{kind: tokenizer.json as data}; <think> is an added token that prints, as in Qwen and GLM."""
    byte_level = json.loads(byte_level_tokenizer().to_str())
    byte_level["added_tokens"][3]["special"] = False
    return {
        "byte-level": byte_level,
        "sentencepiece": json.loads(sentencepiece_tokenizer().to_str()),
    }


@pytest.fixture
def make_directory(tmp_path: Path, toys: dict[str, dict[str, Any]]) -> MakeDirectory:
    """make_directory(kind, edit=..., config=..., template=...) -> a model directory."""

    def make(
        kind: str | None = "byte-level",
        edit: Callable[[dict[str, Any]], None] | None = None,
        config: dict[str, Any] | None = None,
        template: str | None = None,
    ) -> Path:
        if kind is not None:
            data = json.loads(json.dumps(toys[kind]))
            if edit is not None:
                edit(data)
            (tmp_path / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
        if config is not None:
            path = tmp_path / "tokenizer_config.json"
            path.write_text(json.dumps(config), encoding="utf-8")
        if template is not None:
            (tmp_path / "chat_template.jinja").write_text(template, encoding="utf-8", newline="")
        return tmp_path

    return make


@pytest.fixture
def load(make_directory):
    """load(text) -> ChatTemplate of that text."""
    return lambda text, **config: load_from(
        make_directory(None, template=text, config=config or None)
    )
