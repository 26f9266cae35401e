"""Check the packed parts against transformers: one hub-style directory, loaded by plain classes.

Builds the model with `demo_form` alone, as the installer will, writes it in the hub layout and
compares `Glm4MoeForCausalLM` (greedy text, logits) and its MTP layer with the figures' own code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import demo_mtp
import numpy as np
import torch
from demo_eval import held_texts
from demo_net import Net, forward
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from diskmoe.engine.demo_form import (
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    Parts,
    config_dict,
    moe_tensors,
    mtp_tensors,
)


def hub_tensors(dense: Net, parts: Parts, sparse: bool) -> dict[str, np.ndarray]:
    """All tensors of the model under their hub names."""
    out = {
        "model.embed_tokens.weight": dense.embed.numpy(),
        "model.norm.weight": dense.norm.numpy(),
    }
    for index, layer in enumerate(dense.layers):
        gate, up = layer.gate_up.chunk(2)
        names = {"gate_proj": gate.numpy(), "up_proj": up.numpy(), "down_proj": layer.down.numpy()}
        out.update(moe_tensors(names, parts, index, sparse))
        prefix = f"model.layers.{index}."
        sizes = [HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM]
        for name, value in zip("qkv", layer.qkv.split(sizes), strict=True):
            out[f"{prefix}self_attn.{name}_proj.weight"] = value.contiguous().numpy()
        out[f"{prefix}self_attn.o_proj.weight"] = layer.out.numpy()
        out[f"{prefix}input_layernorm.weight"] = layer.norm1.numpy()
        out[f"{prefix}post_attention_layernorm.weight"] = layer.norm2.numpy()
    out.update(mtp_tensors(parts))
    return {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in out.items()}


def write_hub(folder: Path, dense: Net, parts: Parts, sparse: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config = config_dict(sparse, parts.top_k)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    tensors = hub_tensors(dense, parts, sparse)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})


@torch.no_grad()
def check(
    folder: Path, dense: Net, net: Net, parts: Parts, tokenizer: Tokenizer, prompts: list[str]
) -> dict[str, Any]:
    """Largest logit differences, and whether greedy texts are the same."""
    from transformers import Glm4MoeForCausalLM
    from transformers.modeling_layers import MtpModel

    Glm4MoeForCausalLM._keys_to_ignore_on_load_unexpected = [r"model\.layers\.30\..*"]
    texts = held_texts(net, tokenizer, prompts, True)
    out: dict[str, Any] = {}
    for sparse, ours in ((False, dense), (True, net)):
        write_hub(folder, dense, parts, sparse)
        model = Glm4MoeForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()
        name = "sparse" if sparse else "dense"
        gap = 0.0
        for text in texts:
            ids = torch.from_numpy(text.ids.astype(np.int64))[None]
            mine = forward(ours, ids) @ ours.embed.T
            gap = max(gap, float((model(ids).logits - mine).abs().max()))
        out[f"{name}_logit_difference"] = gap
        if not sparse:
            continue
        same = 0
        for text in texts:
            ids = torch.from_numpy(text.ids.astype(np.int64))[None]
            made = model.generate(
                ids[:, : text.prompt],
                attention_mask=torch.ones_like(ids[:, : text.prompt]),
                max_new_tokens=200,
                do_sample=False,
                eos_token_id=2,
            )
            same += int(made[0].tolist() == text.ids.tolist())
        out["greedy_texts_equal"] = f"{same} of {len(texts)}"
        text = texts[0]
        ids = torch.from_numpy(text.ids.astype(np.int64))[None]
        assert text.states is not None
        states = torch.from_numpy(text.states).float()[None]
        layer = demo_mtp.load(parts.tensors)
        mine = layer(net.embed[ids[:, 1:-1]], states[:, :-1], net.top_k)
        theirs = MtpModel.from_pretrained(model)
        out["mtp_model"] = type(theirs).__name__
        out["mtp_difference"] = _mtp_gap(theirs, ids, states, mine)
    return out


def _mtp_gap(theirs: Any, ids: torch.Tensor, states: torch.Tensor, mine: torch.Tensor) -> float:
    """Largest difference of g_t between transformers' MtpModel and our layer."""
    count = mine.shape[1]
    positions = torch.arange(1, count + 1)[None]
    theirs_out = theirs.forward_layer(
        0, states[:, :count], positions, None, input_ids=ids[:, 1 : count + 1]
    )
    return float((theirs_out - mine).abs().max())
