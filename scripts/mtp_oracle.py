"""What transformers says of a model's MTP head: the drafts that follow a text, and their logits."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.cache_utils import MtpCache
from transformers.generation.candidate_generator import MTPCandidateGenerator
from transformers.modeling_layers import MtpModel
from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as dsa

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
        if config.model_type == "glm_moe_dsa":
            self._head: Any = _DsaHead(self.model, folder)
            return
        config.num_mtp_layers = 1
        for key, value in _TOLD.get(config.model_type, {}).items():
            setattr(config, key, value)
        # the class knows the layers of the published sizes only
        head = rf"model\.layers\.{config.num_hidden_layers}\..*"
        self.model._keys_to_ignore_on_load_unexpected = [head, "mtp.*"]
        self._head = MtpModel.from_pretrained(self.model).eval()

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
        if isinstance(self._head, _DsaHead):
            return self._head.states(states, positions, tokens)
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


class _DsaHead:
    """The head of GLM-5, which `MtpModel` cannot run: its layer by the class of the model's own.

    It attends to all keys, whatever the model chooses among.
    """

    def __init__(self, model: Any, folder: Path) -> None:
        self._model = model
        config = copy.deepcopy(model.config)
        config.mlp_layer_types, config.indexer_types = ["sparse"], ["full"]
        config.index_topk = config.max_position_embeddings
        at = f"model.layers.{config.num_hidden_layers}."
        stored = load_file(folder / "model.safetensors").items()
        tensors = {name.removeprefix(at): t.float() for name, t in stored if name.startswith(at)}
        hidden, epsilon = config.hidden_size, config.rms_norm_eps
        self._norms: dict[str, Any] = {}
        for name in ("enorm", "hnorm", "shared_head.norm"):
            self._norms[name] = dsa.GlmMoeDsaRMSNorm(hidden, epsilon)
            self._norms[name].weight.data = tensors.pop(f"{name}.weight")
        self._projection = tensors.pop("eh_proj.weight")
        each = [
            [tensors.pop(f"mlp.experts.{e}.{part}_proj.weight") for part in ("gate", "up", "down")]
            for e in range(config.n_routed_experts)
        ]
        tensors["mlp.experts.gate_up_proj"] = torch.stack([torch.cat([g, u]) for g, u, _ in each])
        tensors["mlp.experts.down_proj"] = torch.stack([down for _, _, down in each])
        self._layer = dsa.GlmMoeDsaDecoderLayer(config, 0).eval()
        found = self._layer.load_state_dict(tensors, strict=False)
        # that of an indexer, which has no say where all keys are seen
        assert not found.unexpected_keys
        assert all("indexer" in name for name in found.missing_keys), found.missing_keys

    def states(
        self, states: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor
    ) -> torch.Tensor:
        embedded = self._norms["enorm"](self._model.model.embed_tokens(tokens))
        z = torch.cat([embedded, self._norms["hnorm"](states)], dim=-1) @ self._projection.T
        n = tokens.shape[1]
        mask = torch.full((1, 1, n, n), torch.finfo(torch.float32).min).triu(1)
        turning = self._model.model.rotary_emb(z, position_ids=positions)
        made, _ = self._layer(
            z, attention_mask=mask, position_ids=positions, position_embeddings=turning
        )
        return self._norms["shared_head.norm"](made)
