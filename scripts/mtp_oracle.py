"""What transformers says of a model's MTP head: the drafts that follow a text, and their logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM
from transformers.cache_utils import MtpCache
from transformers.generation.candidate_generator import MTPCandidateGenerator
from transformers.modeling_layers import MtpModel

# what a family's config must be told before its head can be run
_TOLD: dict[str, dict[str, Any]] = {
    "glm4_moe_lite": {"mtp_mlp_layer_types": ["sparse"]},
    "qwen3_next": {"mtp_layer_types": ["full_attention"]},
    "qwen3_5_moe_text": {"mtp_layer_types": ["full_attention"]},
}


class MtpOracle:
    """A model and its head on the CPU in f32, by the classes of transformers."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        config = self.model.config
        config.num_mtp_layers = 1
        for key, value in _TOLD.get(config.model_type, {}).items():
            setattr(config, key, value)
        # the class knows the layers of the published sizes only
        head = rf"model\.layers\.{config.num_hidden_layers}\..*"
        self.model._keys_to_ignore_on_load_unexpected = [head, "mtp.*"]
        self._head: Any = MtpModel.from_pretrained(self.model).eval()

    def drafts(self, ids: list[int], depth: int) -> tuple[list[int], npt.NDArray[np.float32]]:
        """(tokens, logits (depth, vocab)) of the drafts that follow `ids`, at least two: each by
        the whole text so far and without a cache, going on from the state after the head's norm."""
        logits: list[npt.NDArray[np.float32]] = []
        text = list(ids)
        with torch.no_grad():
            out = self.model(torch.tensor([ids[:-1]]), output_hidden_states=True, use_cache=False)
            states = out.hidden_states[-1]
            for _ in range(depth):
                made = self._states(text, states)
                logits.append(self.model.lm_head(made[:, -1])[0].numpy())
                text.append(int(logits[-1].argmax()))
                states = torch.cat([states, made[:, -1:]], dim=1)
        return text[len(ids) :], np.array(logits)

    def _states(self, text: list[int], states: torch.Tensor) -> torch.Tensor:
        tokens = torch.tensor([text[1:]])
        positions = torch.arange(1, len(text))[None]
        cache = MtpCache(config=self.model.config.get_mtp_config())
        return self._head.forward_layer(0, states, positions, cache, input_ids=tokens)

    def greedy(self, ids: list[int], tokens: int) -> list[int]:
        """The model's own greedy tokens after `ids`, without a cache."""
        text = list(ids)
        with torch.no_grad():
            for _ in range(tokens):
                logits = self.model(torch.tensor([text]), use_cache=False).logits
                text.append(int(logits[0, -1].argmax()))
        return text[len(ids) :]

    def generate(self, ids: list[int], tokens: int) -> tuple[list[int], dict[int, int]]:
        """(greedy tokens, first drafts by how many tokens stood before them) of
        ``generate(use_mtp=True)``."""
        drafted: dict[int, int] = {}
        get = MTPCandidateGenerator.get_candidates

        def recorded(generator: Any, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            made = get(generator, input_ids, *args, **kwargs)
            before = input_ids.shape[1]
            if made[0].shape[1] > before:
                drafted[before] = int(made[0][0, before])
            return made

        MTPCandidateGenerator.get_candidates = recorded  # type: ignore[method-assign]
        try:
            out = self.model.generate(
                torch.tensor([ids]),
                use_mtp=True,
                max_new_tokens=tokens,
                do_sample=False,
                eos_token_id=-1,
                pad_token_id=0,
            )
        finally:
            MTPCandidateGenerator.get_candidates = get  # type: ignore[method-assign]
        return out[0, len(ids) :].tolist(), drafted
