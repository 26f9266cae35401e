"""The MTP layer of the demonstration model: training on states of the sparse form.

With h_t the main model's state after the final norm and x_{t+1} the next token, the layer makes

    z_t = eh_proj . [enorm(Emb(x_{t+1})) ; hnorm(h_t)]
    g_t = shared_head.norm(DecoderLayer(z_<=t))          logits of x_{t+2} = head . g_t

and is trained to give the main model's own next state and its choice. Training uses a part of
the vocabulary only (the tokens that occur, and others drawn at random so that they stay away).
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from demo_net import Layer, Net, attention, ffn, rms, rotary
from demo_text import Text, load_texts
from torch import Tensor

from diskmoe.engine.demo_form import (
    EXPERTS,
    FFN,
    HEADS,
    HIDDEN,
    KV_HEADS,
    VOCAB,
    pack_int8,
    unpack_int8,
)

Q_ROWS, KV_ROWS = HEADS * 64, KV_HEADS * 64
SOFT = 8  # how many of the main model's probabilities are kept as soft labels
EXTRA = 512  # random other tokens in each step's output


class Mtp(torch.nn.Module):
    """The layer; FFN neurons in one matrix, 768 shared and 16 x 48 routed."""

    def __init__(self) -> None:
        super().__init__()
        make = torch.nn.Parameter
        self.enorm = make(torch.ones(HIDDEN))
        self.hnorm = make(torch.ones(HIDDEN))
        self.eh_proj = make(torch.zeros(HIDDEN, 2 * HIDDEN))
        self.norm1 = make(torch.ones(HIDDEN))
        self.norm2 = make(torch.ones(HIDDEN))
        self.query = make(torch.zeros(Q_ROWS, HIDDEN))
        self.key = make(torch.zeros(KV_ROWS, HIDDEN))
        self.value = make(torch.zeros(KV_ROWS, HIDDEN))
        self.out = make(torch.zeros(HIDDEN, HIDDEN))
        self.gate = make(torch.zeros(FFN, HIDDEN))
        self.up = make(torch.zeros(FFN, HIDDEN))
        self.down = make(torch.zeros(HIDDEN, FFN))
        self.router = make(torch.zeros(EXPERTS, HIDDEN))
        self.norm = make(torch.ones(HIDDEN))
        self.register_buffer("bias", torch.zeros(EXPERTS))

    def layer(self) -> Layer:
        return Layer(
            self.norm1,
            self.norm2,
            torch.cat([self.query, self.key, self.value]),
            self.out,
            torch.cat([self.gate, self.up]),
            self.down,
            self.router,
            self.bias,
        )

    def forward(self, embedded: Tensor, states: Tensor, top_k: int) -> Tensor:
        """embedded [B, S, 576] of x_{t+1}, states [B, S, 576] of t -> g [B, S, 576]."""
        cos, sin = rotary(torch.arange(embedded.shape[1])[None])
        both = torch.cat([rms(embedded, self.enorm), rms(states, self.hnorm)], dim=-1)
        x = F.linear(both, self.eh_proj)
        layer = self.layer()
        x = x + attention(x, layer, cos, sin)
        x = x + ffn(rms(x, layer.norm2), layer, top_k)
        return rms(x, self.norm)


NAMES = {
    "enorm.weight": "enorm",
    "hnorm.weight": "hnorm",
    "eh_proj.weight": "eh_proj",
    "shared_head.norm.weight": "norm",
    "input_layernorm.weight": "norm1",
    "post_attention_layernorm.weight": "norm2",
    "self_attn.q_proj.weight": "query",
    "self_attn.k_proj.weight": "key",
    "self_attn.v_proj.weight": "value",
    "self_attn.o_proj.weight": "out",
    "mlp.gate.weight": "router",
    "mlp.gate.e_score_correction_bias": "bias",
    "mlp.gate_proj.weight": "gate",
    "mlp.up_proj.weight": "up",
    "mlp.down_proj.weight": "down",
}


def store(mtp: Mtp) -> dict[str, np.ndarray]:
    """The tensors of the parts file: big matrices in int8, the others as they are in f16/f32."""
    out: dict[str, np.ndarray] = {}
    for name, attribute in NAMES.items():
        value = getattr(mtp, attribute).detach().numpy()
        if attribute == "bias":
            out[f"mtp.{name}"] = value.astype(np.float32)
        elif value.ndim == 1 or attribute == "router":
            out[f"mtp.{name}"] = value.astype(np.float16)
        else:
            out[f"mtp.{name}.q"], out[f"mtp.{name}.scale"] = pack_int8(value)
    return out


def load(parts: dict[str, np.ndarray]) -> Mtp:
    """The layer from the stored tensors."""
    mtp = Mtp()
    with torch.no_grad():
        for name, attribute in NAMES.items():
            if f"mtp.{name}.q" in parts:
                value = unpack_int8(parts[f"mtp.{name}.q"], parts[f"mtp.{name}.scale"])
            else:
                value = parts[f"mtp.{name}"].astype(np.float32)
            getattr(mtp, attribute).copy_(torch.from_numpy(value))
    return mtp


def pad(rows: list[np.ndarray], dtype: torch.dtype) -> Tensor:
    out = torch.zeros((len(rows), max(len(r) for r in rows), *rows[0].shape[1:]), dtype=dtype)
    for index, row in enumerate(rows):
        out[index, : len(row)] = torch.from_numpy(np.asarray(row)).to(dtype)
    return out


@torch.no_grad()
def start(net: Net, texts: list[Text]) -> Mtp:
    """From the last layer: eh_proj is solved to give that layer's input one position later."""
    mtp = Mtp()
    last = net.layers[-1]
    assert last.router is not None and last.bias is not None
    gram = torch.zeros(2 * HIDDEN, 2 * HIDDEN)
    cross = torch.zeros(2 * HIDDEN, HIDDEN)
    ones = torch.ones(HIDDEN)
    for text in texts:
        ids = torch.from_numpy(text.ids[:-1].astype(np.int64))[None]
        cos, sin = rotary(torch.arange(ids.shape[1])[None])
        x = net.embed[ids]
        for layer in net.layers[:-1]:
            x = x + attention(x, layer, cos, sin)
            x = x + ffn(rms(x, layer.norm2), layer, net.top_k)
        entry = x[0]
        x = x + attention(x, last, cos, sin)
        h = rms(x + ffn(rms(x, last.norm2), last, net.top_k), net.norm)[0]
        both = torch.cat([rms(net.embed[ids[0, 1:]], ones), rms(h[:-1], ones)], dim=-1)[20:]
        gram += both.T @ both
        cross += both.T @ entry[21:]
    gram.diagonal().mul_(1.02).add_(1e-3 * gram.diagonal().mean())
    mtp.eh_proj.copy_(torch.linalg.solve(gram, cross).T)
    mtp.norm1.copy_(last.norm1)
    mtp.norm2.copy_(last.norm2)
    for target, source in zip(
        (mtp.query, mtp.key, mtp.value), last.qkv.split([Q_ROWS, KV_ROWS, KV_ROWS]), strict=True
    ):
        target.copy_(source)
    mtp.out.copy_(last.out)
    for target, source in zip((mtp.gate, mtp.up), last.gate_up.chunk(2), strict=True):
        target.copy_(source)
    mtp.down.copy_(last.down)
    mtp.router.copy_(last.router)
    mtp.norm.copy_(net.norm)
    return mtp


class Data:
    """Texts with states and soft labels; new files are picked up while they are written."""

    def __init__(self, net: Net, vocab: Tensor) -> None:
        self.net, self.vocab = net, vocab
        self.head = net.embed[vocab]
        self.known = np.zeros(VOCAB, dtype=bool)
        self.known[vocab.numpy()] = True
        self.texts: list[Text] = []
        self.tops: list[np.ndarray] = []
        self.odds: list[np.ndarray] = []
        self.seen: set[Path] = set()

    @torch.no_grad()
    def refresh(self, paths: list[Path]) -> None:
        for path in sorted(set(paths) - self.seen):
            self.seen.add(path)
            for text in load_texts(path, states=True):
                if len(text.ids) < 40 or text.states is None:
                    continue
                # position t is trained towards the main model's distribution at t + 1
                states = torch.from_numpy(np.array(text.states[1:])).float()
                logits = states @ self.head.T
                best = logits.topk(SOFT, dim=1)
                self.tops.append(best.indices.to(torch.int16).numpy())
                self.odds.append((best.values - logits.logsumexp(1, True)).exp().half().numpy())
                self.texts.append(Text(text.ids, text.prompt, np.array(text.states)))

    def tokens(self) -> int:
        return sum(len(t.ids) - t.prompt for t in self.texts)

    def batch(self, chosen: list[int], prefix: int) -> tuple[Tensor, ...]:
        texts = [self.texts[i] for i in chosen]
        nexts = pad([t.ids[1:-1].astype(np.int64) for t in texts], torch.long)
        states = pad([t.states for t in texts if t.states is not None], torch.float32)
        weight = torch.zeros(nexts.shape)
        for row, text in enumerate(texts):
            weight[row, prefix : text.prompt - 2] = 0.3
            weight[row, max(text.prompt - 2, 0) : len(text.ids) - 2] = 1.0
            # a rare token has no place in the output used here: nothing to learn from it
            weight[row, : len(text.ids) - 2] *= torch.from_numpy(self.known[text.ids[2:]])
        tops = pad([self.tops[i].astype(np.int64) for i in chosen], torch.long)
        odds = pad([self.odds[i] for i in chosen], torch.float32)
        return nexts, states[:, :-1], states[:, 1:], tops, odds, weight


def plan(lengths: list[int], budget: int, rng: np.random.Generator) -> list[list[int]]:
    """Batches of about `budget` positions, similar lengths together, in random order."""
    order = np.argsort(np.array(lengths) + rng.uniform(0, 12, len(lengths)))
    out: list[list[int]] = [[]]
    for index in order:
        if (len(out[-1]) + 1) * lengths[index] > budget:
            out.append([])
        out[-1].append(int(index))
    rng.shuffle(out)
    return [x for x in out if x]


def step_loss(
    mtp: Mtp, data: Data, chosen: list[int], prefix: int, top_k: int, generator: torch.Generator
) -> tuple[Tensor, float]:
    nexts, states, goal, tops, odds, weight = data.batch(chosen, prefix)
    made = mtp(data.net.embed[nexts], states, top_k)
    keep = weight > 0
    made, goal, tops, odds, weight = made[keep], goal[keep], tops[keep], odds[keep], weight[keep]
    extra = torch.randint(VOCAB, (EXTRA,), generator=generator)
    logits = made @ torch.cat([data.head, data.net.embed[extra]]).T
    chance = odds / odds.sum(1, keepdim=True)
    # half of the weight on the choice itself: acceptance is about the choice
    chance = 0.5 * chance
    chance[:, 0] += 0.5
    cross = logits.logsumexp(1) - (logits.gather(1, tops) * chance).sum(1)
    gap = (made - goal).pow(2).mean(1) / goal.pow(2).mean()
    hit = ((logits.detach().argmax(1) == tops[:, 0]).float() * (weight == 1)).sum()
    loss = ((cross + 0.3 * gap) * weight).sum() / weight.sum()
    return loss, float(hit / (weight == 1).sum())


class Muon:
    """Momentum made orthogonal by Newton-Schulz steps, in f32 (torch's own uses bfloat16, which
    an ordinary CPU has no instructions for)."""

    def __init__(self, matrices: list[torch.nn.Parameter], decay: float = 0.05) -> None:
        self.matrices, self.decay = matrices, decay
        self.momentum = [torch.zeros_like(m) for m in matrices]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for matrix, momentum in zip(self.matrices, self.momentum, strict=True):
            if matrix.grad is None:
                continue
            momentum.lerp_(matrix.grad, 0.05)
            x = matrix.grad.lerp(momentum, 0.95)
            wide = x.shape[0] <= x.shape[1]
            x = x if wide else x.T
            x = x / (x.norm() + 1e-12)
            for _ in range(5):
                square = x @ x.T
                x = 3.4445 * x + (2.0315 * square @ square - 4.775 * square) @ x
            x = x if wide else x.T
            # the size of an Adam step, so that one rate serves both
            matrix.mul_(1 - rate * self.decay)
            matrix.add_(x, alpha=-rate * 0.2 * max(matrix.shape) ** 0.5)
            matrix.grad = None


def train(
    mtp: Mtp,
    data: Data,
    folder: Path,
    steps: int,
    prefix: int,
    top_k: int,
    seed: int,
    budget: int = 8192,
    rate: float = 3e-3,
    check: object = None,
) -> Mtp:
    """Muon for the matrices, Adam for the rest, cosine rate; returns the averaged layer."""
    matrices = [p for n, p in mtp.named_parameters() if p.ndim == 2 and n != "router"]
    others = [p for n, p in mtp.named_parameters() if p.ndim == 1 or n == "router"]
    muon = Muon(matrices)
    adam = torch.optim.Adam(others, lr=rate, betas=(0.9, 0.98))
    generator = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    mean = {n: p.detach().clone() for n, p in mtp.named_parameters()}
    queue: list[list[int]] = []
    begin, losses, hits = time.time(), [], []
    for step in range(steps):
        if not queue:
            data.refresh(list(folder.glob("text.*.npz")))
            lengths = [len(t.ids) - 2 for t in data.texts]
            queue = plan(lengths, budget, rng)
        warm = min(1.0, (step + 1) / 30)
        now = rate * warm * max(0.02, 0.5 * (1 + np.cos(np.pi * step / steps)))
        for group in adam.param_groups:
            group["lr"] = now
        loss, hit = step_loss(mtp, data, queue.pop(), prefix, top_k, generator)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        muon.step(now)
        adam.step()
        adam.zero_grad()
        keep = min(0.99, step / (step + 20))
        with torch.no_grad():
            for name, value in mtp.named_parameters():
                mean[name].lerp_(value, 1 - keep)
        losses.append(float(loss.detach()))
        hits.append(hit)
        if step % 25 == 24 or step == steps - 1:
            spent = time.time() - begin
            print(
                f"mtp step {step + 1}/{steps}: loss {np.mean(losses[-25:]):.3f}, hit "
                f"{np.mean(hits[-25:]):.3f}, {len(data.texts)} texts, {data.tokens()} tokens, "
                f"{spent:.0f} s",
                flush=True,
            )
        if callable(check) and (step % 60 == 59 or step == steps - 1):
            check(step, mean)
    with torch.no_grad():
        for name, value in mtp.named_parameters():
            value.copy_(mean[name])
    return mtp


@torch.no_grad()
def acceptance(mtp: Mtp, net: Net, texts: list[Text], vocab: Tensor | None = None) -> float:
    """Share of answer positions where the draft is the main model's own token.

    Counted as a decoder would: after x_{t+1} is known, is the draft for x_{t+2} what the main
    model then chose? Texts are greedy, so that is the text itself.
    """
    head = net.embed if vocab is None else net.embed[vocab]
    hits = total = 0
    for text in texts:
        ids = torch.from_numpy(text.ids.astype(np.int64))
        states = torch.from_numpy(np.array(text.states)).float()[None, :-1]
        made = mtp(net.embed[ids[None, 1:-1]], states, net.top_k)[0, text.prompt - 1 :]
        draft = (made @ head.T).argmax(-1)
        if vocab is not None:
            draft = vocab[draft]
        hits += int((draft == ids[text.prompt + 1 :]).sum())
        total += len(draft)
    return hits / max(total, 1)
