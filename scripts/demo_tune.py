"""Tune the cut model as a whole on the dense model's answers.

The layer-wise refit cannot know which errors matter for the next token. A short run over the
calibration text with ordinary cross-entropy on the dense model's (mostly greedy) answers moves
the down projections and the routers together; nothing else changes, so the parts file keeps its
form. The deltas are rounded to int4 again at the end.
"""

from __future__ import annotations

import time

import numpy as np
import torch
import torch.nn.functional as F
from demo_eval import score
from demo_form import pack_int4
from demo_net import Net, forward
from demo_split import sparse_net
from demo_text import Text

SHRINK = 0.8


def tune(
    dense: Net,
    parts: dict[str, np.ndarray],
    top_k: int,
    texts: list[Text],
    held: list[Text],
    vocab: torch.Tensor,
    steps: int,
    seed: int,
    budget: int = 1536,
    rate: float = 5e-5,
) -> dict[str, np.ndarray]:
    """The parts with new deltas and routers."""
    parts = dict(parts)
    for index in range(len(dense.layers)):
        # the ridge of the split is a little too weak: shrunken deltas do better on new text
        name = f"layers.{index}.down.scale"
        parts[name] = (parts[name].astype(np.float32) * SHRINK).astype(np.float16)
    net = sparse_net(dense, parts, top_k)
    place = torch.zeros(len(dense.embed), dtype=torch.long)
    place[vocab] = torch.arange(len(vocab))
    head = net.embed[vocab]
    downs, routers = [], []
    for layer in net.layers:
        assert layer.router is not None
        layer.down = layer.down.clone().requires_grad_()
        layer.router = layer.router.clone().requires_grad_()
        downs.append(layer.down)
        routers.append(layer.router)
    # the routers are tiny numbers: their rate goes by their size
    size = float(torch.stack([r.detach().pow(2).mean().sqrt() for r in routers]).mean())
    optimizer = torch.optim.Adam(
        [{"params": downs, "base": rate}, {"params": routers, "base": 0.01 * size}],
        betas=(0.9, 0.98),
    )
    rng = np.random.default_rng(seed)
    order: list[list[Text]] = []
    start, losses = time.time(), []
    print(f"tune: before {score(net, held)}", flush=True)
    for step in range(steps):
        if not order:
            # texts of like length are of one kind: every batch takes from all over
            mixed = rng.permutation(len(texts))
            size = max(1, budget // max(len(t.ids) for t in texts))
            order = [[texts[i] for i in mixed[n : n + size]] for n in range(0, len(mixed), size)]
        group = order.pop()
        tokens = torch.zeros((len(group), max(len(t.ids) for t in group)), dtype=torch.long)
        counts = torch.zeros(tokens.shape, dtype=torch.bool)
        for row, text in enumerate(group):
            tokens[row, : len(text.ids)] = torch.from_numpy(text.ids.astype(np.int64))
            counts[row, text.prompt : len(text.ids)] = True
        now = min(1.0, (step + 1) / 4) * max(0.05, 0.5 * (1 + np.cos(np.pi * step / steps)))
        for part in optimizer.param_groups:
            part["lr"] = part["base"] * now
        hidden = forward(net, tokens[:, :-1])[counts[:, 1:]]
        loss = F.cross_entropy(hidden @ head.T, place[tokens[:, 1:][counts[:, 1:]]])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        if step % 5 == 4 or step == steps - 1:
            said = score(net, held) if step % 10 == 9 or step == steps - 1 else ""
            print(
                f"tune step {step + 1}/{steps}: loss {np.mean(losses[-5:]):.4f} {said} "
                f"{time.time() - start:.0f} s",
                flush=True,
            )
    out = dict(parts)
    for index, (layer, old) in enumerate(zip(net.layers, dense.layers, strict=True)):
        name = f"layers.{index}."
        assert layer.router is not None
        columns = torch.from_numpy(parts[f"{name}order"].astype(np.int64))
        delta = layer.down.detach() - old.down[:, columns]
        out[f"{name}down.q"], out[f"{name}down.scale"] = pack_int4(delta.numpy())
        out[f"{name}router"] = layer.router.detach().numpy().astype(np.float16)
    print(f"tune: after, as stored {score(sparse_net(dense, out, top_k), held)}", flush=True)
    return out
