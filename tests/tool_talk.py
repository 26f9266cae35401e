"""A model that says what a test wants, token by token, through its own sampler and text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from diskmoe.engine.api import Model


def says(monkeypatch: pytest.MonkeyPatch, model: Model, text: str, ends: bool = True) -> None:
    """The model says this, and then ends or goes on by itself."""
    tokenizer, generate = model.text.tokenizer, Model.generate
    assert tokenizer is not None
    end = tokenizer.token_id("<|im_end|>")
    script = [*tokenizer.encode(text), *([end] if ends else [])]

    def scripted(prompt: Any, **how: Any) -> Any:
        def wanted(tokens: Sequence[int], logits: np.ndarray) -> np.ndarray:
            place = len(tokens) - len(prompt.ids)
            if place < len(script):
                logits[script[place]] = 1e9
            return logits

        return generate(model, prompt, **{**how, "processors": [wanted]})

    monkeypatch.setattr(model, "generate", scripted)
