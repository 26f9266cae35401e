"""Tune the cut model as a whole on the dense model's answers.

The layer-wise refit cannot know which errors matter for the next token. A short run over the
calibration text with ordinary cross-entropy on the dense model's (mostly greedy) answers moves
the down projections together; nothing else changes, so the parts file keeps its form. (Routers
stay: with their tiny scale even small steps shuffle the choice of experts, which did harm.) The change is far smaller than a step of
the refit's int4 delta (rounded into it, it is lost), so it is stored beside it in 2 bits.
"""

from __future__ import annotations

import time

import numpy as np
import torch
import torch.nn.functional as F
from demo_eval import score
from demo_net import Net, forward
from demo_split import sparse_net
from demo_text import Text

from diskmoe.engine.demo_form import down_delta, pack_fine

SHRINK = 0.8
SHORT = 40  # answers up to this many tokens are short
LONG = 6


def padded(texts: list[Text]) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded tokens, and which of them belong to answers."""
    tokens = torch.zeros((len(texts), max(len(t.ids) for t in texts)), dtype=torch.long)
    counts = torch.zeros(tokens.shape, dtype=torch.bool)
    for row, text in enumerate(texts):
        tokens[row, : len(text.ids)] = torch.from_numpy(text.ids.astype(np.int64))
        counts[row, text.prompt : len(text.ids)] = True
    return tokens, counts


def tune(
    dense: Net,
    parts: dict[str, np.ndarray],
    top_k: int,
    texts: list[Text],
    held: list[Text],
    vocab: torch.Tensor,
    steps: int,
    seed: int,
    rate: float = 1e-4,
    again: bool = False,
) -> dict[str, np.ndarray]:
    """The parts with new fine deltas.

    Each step takes long answers (`LONG` texts) and, when `again`, also short ones: where to stop,
    and JSON, are learnt from those, and the long ones alone make the model forget them.
    """
    parts = dict(parts)
    for index in range(0 if again else len(dense.layers)):
        # the ridge of the split is a little too weak: shrunken deltas do better on new text
        name = f"layers.{index}.down.scale"
        parts[name] = (parts[name].astype(np.float32) * SHRINK).astype(np.float16)
    net = sparse_net(dense, parts, top_k)
    place = torch.zeros(len(dense.embed), dtype=torch.long)
    place[vocab] = torch.arange(len(vocab))
    head = net.embed[vocab]
    downs = []
    for layer in net.layers:
        layer.down = layer.down.clone().requires_grad_()
        downs.append(layer.down)
    optimizer = torch.optim.Adam(downs, lr=rate, betas=(0.9, 0.98))
    rng = np.random.default_rng(seed)
    kinds = [([x for x in texts if len(x.ids) > x.prompt + SHORT], LONG)]
    if again:
        kinds.append(([x for x in texts if len(x.ids) <= x.prompt + SHORT], 2 * LONG))
    start, losses = time.time(), []
    print(f"tune: before {score(net, held)}", flush=True)
    for step in range(steps):
        now = min(1.0, (step + 1) / 4) * max(0.05, 0.5 * (1 + np.cos(np.pi * step / steps)))
        for part in optimizer.param_groups:
            part["lr"] = rate * now
        for pool, count in kinds:
            tokens, counts = padded([pool[i] for i in rng.integers(0, len(pool), count)])
            hidden = forward(net, tokens[:, :-1])[counts[:, 1:]]
            loss = F.cross_entropy(hidden @ head.T, place[tokens[:, 1:][counts[:, 1:]]])
            (loss / len(kinds)).backward()
            losses.append(float(loss.detach()))
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 4 or step == steps - 1:
            said = score(net, held) if step % 10 == 9 or step == steps - 1 else ""
            print(
                f"tune step {step + 1}/{steps}: loss {np.mean(losses[-5 * len(kinds) :]):.4f} {said} "
                f"{time.time() - start:.0f} s",
                flush=True,
            )
    out = dict(parts)
    for index, (layer, old) in enumerate(zip(net.layers, dense.layers, strict=True)):
        name = f"layers.{index}."
        columns = torch.from_numpy(parts[f"{name}order"].astype(np.int64))
        moved = (layer.down.detach() - old.down[:, columns]).numpy() - down_delta(
            parts, index, False
        )
        out[f"{name}fine.q"], out[f"{name}fine.scale"] = pack_fine(moved)
    print(f"tune: after, as stored {score(sparse_net(dense, out, top_k), held)}", flush=True)
    return out
