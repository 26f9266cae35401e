"""Tiny random models of transformers, written by its own save_pretrained."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest


@pytest.fixture(autouse=True)
def _quiet_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")


ZERO_CENTRED = ("qwen3_next", "qwen3_5_moe_text")  # norms, but those of delta layers


class Oracle:
    """A transformers model on the CPU in f32."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        torch.nn.Module.float(self._model)  # what was made of codes may be bf16 still

    def logits(self, ids: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """(n,) -> (n, vocab)."""
        with self._torch.no_grad():
            given = self._torch.tensor(np.asarray(ids)[None], dtype=self._torch.long)
            return self._model(given, use_cache=False).logits[0].numpy()

    def greedy(self, ids: list[int], count: int) -> tuple[list[int], float]:
        """(the next tokens, the least gap between the best and the second best logit)."""
        chosen, margin = list(ids), np.inf
        for _ in range(count):
            row = self.logits(chosen)[-1]
            second, best = np.sort(row)[-2:]
            margin = min(margin, float(best - second))
            chosen.append(int(row.argmax()))
        return chosen[len(ids) :], margin


def save_random_model(
    folder: Path, family: str, settings: dict[str, Any], dtype: str, seed: int
) -> None:
    """Random weights (std 0.08; norms about 1; correction biases and biases not 0), saved."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **settings)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith("inv_freq"):
                continue
            if name.endswith(("sinks", "A_log", "dt_bias")):
                tensor.copy_(torch.randn_like(tensor))
            elif "norm" in name:
                centre = 0.0 if family in ZERO_CENTRED and "linear_attn" not in name else 1.0
                tensor.copy_(centre + 0.1 * torch.randn_like(tensor))
            elif name.endswith("conv1d.weight"):
                tensor.copy_(0.3 * torch.randn_like(tensor))
            elif name.endswith(("mlp.gate.weight", "router.weight")):
                tensor.copy_(0.2 * torch.randn_like(tensor))
            else:
                tensor.copy_(0.08 * torch.randn_like(tensor))
    model.to(getattr(torch, dtype)).save_pretrained(folder)


@dataclass(frozen=True)
class RandomModel:
    """A saved model, its oracle, and what the oracle says after a prompt."""

    folder: Path
    oracle: Oracle
    expected: list[int]
    margin: float


@pytest.fixture
def random_model(tmp_path: Path) -> Callable[..., RandomModel]:
    """Makes the first random model whose greedy answer has no near tie.

    ``random_model(family, settings, dtype, prompt, tokens, least_margin)``
    """

    def make(
        family: str,
        settings: dict[str, Any],
        dtype: str,
        prompt: list[int],
        tokens: int,
        least_margin: float,
    ) -> RandomModel:
        for seed in range(20):
            folder = tmp_path / f"model-{seed}"
            save_random_model(folder, family, settings, dtype, seed)
            oracle = Oracle(folder)
            expected, margin = oracle.greedy(prompt, tokens)
            if margin > least_margin:
                return RandomModel(folder, oracle, expected, margin)
        pytest.fail(f"no model of 20 has a margin of {least_margin}")

    return make


@pytest.fixture
def save_random() -> Callable[..., None]:
    return save_random_model


@pytest.fixture
def oracle_of() -> Callable[[Path], Oracle]:
    return Oracle
