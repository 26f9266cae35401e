"""Cut the dense FFNs into experts: neuron order, routers, refitted down projections.

Everything goes layer by layer with the *student's* inputs (the layers before are already cut) and
the *teacher's* residual stream as target, so that each refit also makes good what the layers
before got wrong. The rows are weighted by the size of the residual stream: what the next RMSNorm
sees is the relative error, and a few positions have enormous residuals.
"""

from __future__ import annotations

import time

import numpy as np
import torch
import torch.nn.functional as F
from demo_net import (
    Layer,
    Net,
    apply_experts,
    attention,
    expert_weights,
    ffn_hidden,
    forward,
    rms,
    rotary,
)
from demo_text import Text
from torch import Tensor

from diskmoe.engine.demo_form import (
    EXPERTS,
    HIDDEN,
    SHARED,
    WIDTH,
    down_delta,
    pack_int4,
    unpack_int4,
)

ROUTER_STD = 0.03  # of the logits: weights stay near 1, ties in f32 are practically absent
ALPHAS = (0.005, 0.02, 0.08)


def batches(texts: list[Text], prefix: int, rows: int) -> list[tuple[Tensor, Tensor]]:
    """Right-padded token batches in order of length, with the positions that count.

    The system turn is the same everywhere: it counts in one sequence of each batch only.
    """
    out = []
    order = sorted(texts, key=lambda t: len(t.ids))
    for begin in range(0, len(order), rows):
        group = order[begin : begin + rows]
        tokens = torch.zeros((len(group), len(group[-1].ids)), dtype=torch.long)
        valid = torch.zeros(tokens.shape, dtype=torch.bool)
        for row, text in enumerate(group):
            tokens[row, : len(text.ids)] = torch.from_numpy(text.ids.astype(np.int64))
            valid[row, 0 if row == 0 else prefix : len(text.ids)] = True
        out.append((tokens, valid))
    return out


def cluster(activity: Tensor, seed: int) -> Tensor:
    """Balanced k-means on co-activation: activity [tokens, 768] -> expert of each neuron."""
    points = activity.abs().sqrt().T
    points = points - points.mean(1, keepdim=True)
    points = F.normalize(points, dim=1)
    generator = torch.Generator().manual_seed(seed)
    # start from neurons far from each other
    chosen = [int(torch.randint(len(points), (1,), generator=generator))]
    nearest = points @ points[chosen[0]]
    for _ in range(EXPERTS - 1):
        chosen.append(int(nearest.argmin()))
        nearest = torch.maximum(nearest, points @ points[chosen[-1]])
    centers = points[chosen]
    owner = torch.zeros(len(points), dtype=torch.long)
    for _ in range(25):
        likeness = points @ centers.T
        # those with most to lose choose first
        ranked = (likeness - likeness.mean(1, keepdim=True)).flatten().argsort(descending=True)
        room = [WIDTH] * EXPERTS
        new = [-1] * len(points)
        for pair in ranked.tolist():
            neuron, expert = divmod(pair, EXPERTS)
            if new[neuron] < 0 and room[expert]:
                new[neuron] = expert
                room[expert] -= 1
        fresh = torch.tensor(new)
        if bool((fresh == owner).all()):
            break
        owner = fresh
        centers = F.normalize(
            torch.stack([points[owner == e].mean(0) for e in range(EXPERTS)]), dim=1
        )
    return owner


def neuron_order(hidden: Tensor, down: Tensor, weight: Tensor, seed: int) -> Tensor:
    """768 shared neurons by importance, then the rest expert by expert."""
    importance = (hidden.abs() * weight[:, None]).mean(0) * down.norm(dim=0)
    ranked = importance.argsort(descending=True)
    rest = ranked[SHARED:]
    sample = torch.randperm(len(hidden), generator=torch.Generator().manual_seed(seed))[:10000]
    owner = cluster(hidden[sample][:, rest], seed)
    return torch.cat([ranked[:SHARED], rest[owner.argsort(stable=True)]])


def expert_energy(hidden: Tensor, down: Tensor) -> Tensor:
    """Squared norm of each expert's output [N, 16]; neurons already in order."""
    routed = hidden[:, SHARED:].view(-1, EXPERTS, WIDTH).transpose(0, 1)
    columns = down[:, SHARED:].view(HIDDEN, EXPERTS, WIDTH).permute(1, 2, 0)
    gram = columns @ columns.transpose(1, 2)
    return ((routed @ gram) * routed).sum(2).clamp_min(0).T.contiguous()


def train_router(
    x: Tensor, energy: Tensor, top_k: int, steps: int, seed: int
) -> tuple[Tensor, Tensor, float, float]:
    """(router [16, 576], bias [16], share of energy kept, share the best choice would keep)."""
    generator = torch.Generator().manual_seed(seed)
    spread = x.pow(2).mean(0).sqrt() + 1e-6
    inputs = x / spread
    share = energy / energy.sum(1, keepdim=True).clamp_min(1e-12)
    size = energy.sum(1, keepdim=True) / energy.sum(1).mean()
    lost_weight = share * size.clamp_max(5)
    member = torch.zeros_like(energy).scatter_(1, energy.topk(top_k, 1).indices, 1.0)
    log_share = (share + 1e-5).log()
    log_share = log_share - log_share.mean(1, keepdim=True)
    gram = inputs.T @ inputs + 0.01 * len(x) * torch.eye(HIDDEN)
    mean = log_share.mean(0)
    start = torch.linalg.solve(gram, inputs.T @ (log_share - mean)).T
    matrix = start.clone().requires_grad_()
    offset = mean.clone().requires_grad_()
    optimizer = torch.optim.Adam([matrix, offset], lr=4e-3)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * 0.5 * (1 + np.cos(np.pi * step / steps))
        pick = torch.randint(len(x), (4096,), generator=generator)
        logits = inputs[pick] @ matrix.T + offset
        edge = logits.detach().topk(top_k + 1, 1).values[:, -2:].mean(1, keepdim=True)
        near = logits - edge
        loss = -(share[pick] * logits.log_softmax(1)).sum(1).mean()
        loss = loss + F.binary_cross_entropy_with_logits(near, member[pick])
        # the energy that would be lost, with a soft edge: what the choice is really for
        loss = loss + 3 * (lost_weight[pick] * torch.sigmoid(-2 * near)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        logits = inputs @ matrix.T + offset
        taken = torch.zeros_like(energy).scatter_(1, logits.topk(top_k, 1).indices, 1.0)
        total = energy.sum()
        kept = float((energy * taken).sum() / total)
        best = float((energy * member).sum() / total)
        scale = ROUTER_STD / logits.std()
        # near zero sigmoid(z) is 1/2 + z/4, so the offset works as a bias of a quarter its size
        return matrix.detach() / spread * scale, offset.detach() * scale / 4, kept, best


def refit(features: Tensor, target: Tensor, weight: Tensor, old: Tensor) -> tuple[Tensor, str]:
    """Ridge towards `old`: the delta of down_proj; the strength is chosen on every 16th row."""
    error = target - features @ old.T
    test = torch.arange(len(features)) % 16 == 0
    root = weight.sqrt()[:, None]
    gram = torch.zeros(features.shape[1], features.shape[1])
    cross = torch.zeros(features.shape[1], HIDDEN)
    rows = (~test).nonzero()[:, 0]
    for part in rows.split(16384):
        scaled = features[part] * root[part]
        gram.addmm_(scaled.T, scaled)
        cross.addmm_(scaled.T, error[part] * root[part])
    held, left = features[test] * root[test], error[test] * root[test]
    before = float(left.pow(2).sum())
    best, best_alpha, best_loss = torch.zeros_like(old), 0.0, before
    # with a unit diagonal the ridge treats loud and quiet neurons alike, and f32 is enough
    size = (gram.diagonal() + 1e-6 * gram.diagonal().mean()).sqrt()
    gram /= size[:, None] * size
    cross /= size[:, None]
    for alpha in ALPHAS:
        lifted = gram + alpha * torch.eye(len(gram))
        delta = (torch.cholesky_solve(cross, torch.linalg.cholesky(lifted)) / size[:, None]).T
        loss = float((left - held @ delta.T).pow(2).sum())
        if loss < best_loss:
            best, best_alpha, best_loss = delta, alpha, loss
    return best, f"alpha {best_alpha}, error {best_loss / before:.3f} of before"


@torch.no_grad()
def split(net: Net, texts: list[Text], prefix: int, top_k: int, seed: int) -> dict[str, np.ndarray]:
    """The tensors of the parts file."""
    groups = batches(texts, prefix, 32)
    teacher = [net.embed[tokens] for tokens, _ in groups]
    student = [x.clone() for x in teacher]
    parts: dict[str, np.ndarray] = {}
    for index, layer in enumerate(net.layers):
        start = time.time()
        inputs, hiddens, targets, weights, middles = [], [], [], [], []
        for place, (tokens, valid) in enumerate(groups):
            cos, sin = rotary(torch.arange(tokens.shape[1])[None])
            middle = teacher[place] + attention(teacher[place], layer, cos, sin)
            inner = ffn_hidden(rms(middle, layer.norm2), layer.gate_up)
            teacher[place] = middle + F.linear(inner, layer.down)
            if index == 0:
                middle_s, inner_s = middle, inner
            else:
                middle_s = student[place] + attention(student[place], layer, cos, sin)
                inner_s = ffn_hidden(rms(middle_s, layer.norm2), layer.gate_up)
            middles.append(middle_s)
            hiddens.append(inner_s)
            inputs.append(rms(middle_s, layer.norm2)[valid])
            targets.append((teacher[place] - middle_s)[valid])
            weights.append(1 / teacher[place][valid].pow(2).mean(-1))
        flat = torch.cat([h[v] for h, (_, v) in zip(hiddens, groups, strict=True)])
        x, target, weight = torch.cat(inputs), torch.cat(targets), torch.cat(weights)
        del inputs, targets
        weight = (weight / weight.median()).clamp_max(4)
        order = neuron_order(flat, layer.down, weight.sqrt(), seed + index)
        flat = flat[:, order]
        down = layer.down[:, order].contiguous()
        energy = expert_energy(flat, down) * weight[:, None]
        with torch.enable_grad():
            router, bias, kept, best = train_router(x, energy, top_k, 200, seed + index)
        router = router.half().float()
        flat = apply_experts(flat, expert_weights(x, router, bias, top_k))
        delta, said = refit(flat, target, weight, down)
        packed, scale = pack_int4(delta.numpy())
        down = down + torch.from_numpy(unpack_int4(packed, scale))
        del flat, x, target, energy
        for place in range(len(groups)):
            # the hidden activations are known already; only their order is new
            mask = expert_weights(rms(middles[place], layer.norm2), router, bias, top_k)
            inner = apply_experts(hiddens[place][..., order], mask)
            student[place] = middles[place] + F.linear(inner, down)
        gap = [
            ((s - t)[v].pow(2).mean(-1) / t[v].pow(2).mean(-1)).mean()
            for s, t, (_, v) in zip(student, teacher, groups, strict=True)
        ]
        name = f"layers.{index}."
        parts[f"{name}order"] = order.numpy().astype(np.int16)
        parts[f"{name}router"] = router.numpy().astype(np.float16)
        parts[f"{name}router_bias"] = bias.numpy().astype(np.float32)
        parts[f"{name}down.q"], parts[f"{name}down.scale"] = packed, scale
        print(
            f"layer {index}: energy kept {kept:.3f} of best {best:.3f}; {said}; relative gap "
            f"{float(torch.stack(gap).mean()):.4f}; {time.time() - start:.1f} s",
            flush=True,
        )
    return parts


@torch.inference_mode()
def with_states(net: Net, texts: list[Text]) -> list[Text]:
    """The same texts with the states `net` has on them."""
    order = sorted(texts, key=lambda t: len(t.ids))
    made: list[Text] = []
    for tokens, _ in batches(texts, 0, 16):
        states = forward(net, tokens).half().numpy()
        for row in range(len(tokens)):
            text = order[len(made)]
            made.append(Text(text.ids, text.prompt, states[row, : len(text.ids) - 1]))
    return made


def sparse_net(net: Net, parts: dict[str, np.ndarray], top_k: int) -> Net:
    """The sparse net from the stored tensors."""
    layers = []
    for index, layer in enumerate(net.layers):
        name = f"layers.{index}."
        order = torch.from_numpy(parts[f"{name}order"].astype(np.int64))
        gate, up = layer.gate_up.chunk(2)
        delta = down_delta(parts, index)
        layers.append(
            Layer(
                layer.norm1,
                layer.norm2,
                layer.qkv,
                layer.out,
                torch.cat([gate[order], up[order]]),
                layer.down[:, order] + torch.from_numpy(delta),
                torch.from_numpy(parts[f"{name}router"].astype(np.float32)),
                torch.from_numpy(parts[f"{name}router_bias"].astype(np.float32)),
            )
        )
    return Net(net.embed, net.norm, layers, top_k)
