"""NumPy twins: what each kernel computes, written as plainly as it can be.

Float results are taken in float64 unless the kernel's rounding is part of its contract (the
activations' quantisation, the order of routing). Tests compare kernels with these.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.engine.kernels.delta_shape import DeltaShape
from diskmoe.engine.kernels.ffn_shape import SILU, Swiglu
from diskmoe.engine.model.rope import Llama3, Yarn

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


def quantise_activations(x: Floats, group: int = 32) -> tuple[npt.NDArray[np.int32], Floats]:
    """x (n, cols) -> values (n, groups, group), scales f32 (n, groups): amax / 127, half to even."""
    n, cols = x.shape
    groups = -(-cols // group)
    padded = np.zeros((n, groups * group), np.float32)
    padded[:, :cols] = x
    grouped = padded.reshape(n, groups, group)
    scales = (np.abs(grouped).max(axis=2) / np.float32(127)).astype(np.float32)
    divisors = np.where(scales == 0, np.float32(1), scales)
    values = np.clip(np.rint(grouped / divisors[:, :, None]), -127, 127).astype(np.int32)
    return values, scales


def fma(a: npt.NDArray[Any], b: npt.NDArray[Any], c: Floats) -> Floats:
    """a * b + c: an exact product, a sum in float64, rounded once more, which stands for one."""
    return (a.astype(np.float64) * b.astype(np.float64) + c).astype(np.float32)


def matmul_quantised(
    x: Floats,
    values: npt.NDArray[Any],
    scales: npt.NDArray[Any],
    zeros: npt.NDArray[np.uint8] | None = None,
    row_scales: Floats | None = None,
    minima: npt.NDArray[np.float16] | None = None,
) -> Floats:
    """x (n, cols), weights as formats.quantise gives them -> (n, rows).

    The group sums are exact, the scale products, the running sum and its product by the row's
    scale are rounded to f32. A group's minima come behind its other weights.
    """
    rows, groups = scales.shape
    w = values.astype(np.int32).reshape(rows, groups, -1)
    if zeros is not None:
        w = 16 * w - zeros.astype(np.int32)[:, :, None]
    q, x_scales = quantise_activations(x, w.shape[2])
    w_scales = scales.astype(np.float32)
    total = np.zeros((len(x), rows), np.float32)
    for g in range(groups):
        dots = q[:, g] @ w[:, g].T
        total = fma(dots, x_scales[:, g, None] * w_scales[None, :, g], total)
        if minima is not None:
            of_group = minima[None, :, g].astype(np.float32)
            total = fma(q[:, g].sum(axis=1)[:, None], x_scales[:, g, None] * of_group, total)
    return total if row_scales is None else total * row_scales


def matmul_chains(x: Floats, weights: Floats) -> Floats:
    """x (n, cols), weights (rows, cols) -> (n, rows): column k goes to chain k % 4 by fma."""
    chains: list[Any] = [np.zeros((len(x), len(weights)), np.float32) for _ in range(4)]
    for k in range(x.shape[1]):
        chains[k % 4] = fma(x[:, k, None], weights[None, :, k], chains[k % 4])
    return (chains[0] + chains[1]) + (chains[2] + chains[3])


def matmul_blocks(x: Floats, numbers: Floats, scales: Floats) -> Floats:
    """Like `matmul_chains` for each 128 columns, times scales (tiles of 16 rows, blocks), by fma."""
    spread = np.repeat(scales, 16, axis=0)[: len(numbers)]
    total = np.zeros((len(x), len(numbers)), np.float32)
    for block in range(scales.shape[1]):
        part = slice(block * 128, block * 128 + 128)
        sums = matmul_chains(x[:, part], numbers[:, part])
        total = fma(sums, spread[None, :, block], total)
    return total


def matmul(x: Floats, weights: Floats) -> Doubles:
    """x (n, cols), weights (rows, cols) -> (n, rows)."""
    return x.astype(np.float64) @ weights.T.astype(np.float64)


def sigmoid(x: npt.NDArray[np.floating]) -> Doubles:
    return 1 / (1 + np.exp(-x.astype(np.float64)))


def activated(
    gate: npt.NDArray[np.floating], up: npt.NDArray[np.floating], swiglu: Swiglu
) -> Doubles:
    """What goes into down: silu(gate) * up, or with a limit what gpt-oss does."""
    if swiglu.limit is None:
        return silu_mul(gate, up)
    gate, up = np.minimum(gate, swiglu.limit), np.clip(up, -swiglu.limit, swiglu.limit)
    return (up + 1) * gate * sigmoid(swiglu.alpha * gate)


def silu_mul(gate: npt.NDArray[np.floating], up: npt.NDArray[np.floating]) -> Doubles:
    return gate * sigmoid(gate) * up


def rms_norm(x: Floats, weight: Floats, eps: float) -> Doubles:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + eps) * weight


def yarn_frequencies(theta: float, dims: int, yarn: Yarn) -> Doubles:
    """(dims / 2,): pair by pair, by how often it turns within the trained positions."""
    pairs = np.arange(dims // 2)
    plain = theta ** (-2.0 * pairs / dims)

    def place(turns: float) -> float:  # the pair, not whole, that turns so often
        return float(np.log(yarn.trained / turns / 2 / np.pi) / np.log(theta) * dims / 2)

    begin, end = place(yarn.fast), place(yarn.slow)
    if yarn.truncate:
        begin, end = np.floor(begin), np.ceil(end)
    begin, end = max(begin, 0.0), min(end, dims - 1.0)
    shares = [min(max((i - begin) / (end - begin or 0.001), 0.0), 1.0) for i in pairs]
    return np.array([w * (1 - s + s / yarn.factor) for w, s in zip(plain, shares, strict=True)])


def llama3_frequencies(theta: float, dims: int, scaling: Llama3) -> Doubles:
    """(dims / 2,): pair by pair, by how many positions a turn takes."""
    longest, shortest = scaling.trained / scaling.slow, scaling.trained / scaling.fast
    found = []
    for plain in theta ** (-2.0 * np.arange(dims // 2) / dims):
        positions = 2 * np.pi / plain
        if positions > longest:
            found.append(plain / scaling.factor)
        elif positions < shortest:
            found.append(plain)
        else:
            share = (scaling.trained / positions - scaling.slow) / (scaling.fast - scaling.slow)
            found.append(plain * (share + (1 - share) / scaling.factor))
    return np.array(found)


def rope(
    x: Floats, inverse_frequencies: Doubles, start: int, interleaved: bool, magnitude: float = 1.0
) -> Doubles:
    """x (n, heads, head_dim) rotated as complex numbers, and made larger."""
    rotated = x.astype(np.float64)
    dims = 2 * len(inverse_frequencies)
    angles = (start + np.arange(len(x)))[:, None] * inverse_frequencies[None, :]
    near = slice(0, dims, 2) if interleaved else slice(0, dims // 2)
    far = slice(1, dims, 2) if interleaved else slice(dims // 2, dims)
    pairs = (
        (rotated[..., near] + 1j * rotated[..., far]) * magnitude * np.exp(1j * angles)[:, None, :]
    )
    rotated[..., near], rotated[..., far] = pairs.real, pairs.imag
    return rotated


def attend(
    q: Floats,
    k: Floats,
    v: Floats,
    start: int,
    scale: float,
    window: int = 0,
    sinks: Floats | None = None,
    chosen: Sequence[npt.NDArray[np.int64]] | None = None,
) -> Doubles:
    """q (n, heads, d), k (ctx, kv, d), v (ctx, kv, v_dim) -> (n, heads, v_dim).

    chosen: for each row the keys that it sees; None: all before it, and its own.
    """
    n, heads, _ = q.shape
    shared = heads // k.shape[1]
    out = np.zeros((n, heads, v.shape[2]))
    for i in range(n):
        for h in range(heads):
            end = start + i + 1
            seen = np.arange(max(0, end - window) if window else 0, end)
            if chosen is not None:
                seen = chosen[i]
            keys = k[seen, h // shared].astype(np.float64)
            scores = keys @ q[i, h].astype(np.float64) * scale
            most = scores.max()
            sink = 0.0
            if sinks is not None:
                most = max(most, sinks[h])
                sink = np.exp(sinks[h] - most)
            weights = np.exp(scores - most)
            out[i, h] = weights / (weights.sum() + sink) @ v[seen, h // shared]
    return out


def choose(
    q: Floats, k: Floats, shares: Floats, start: int, top: int
) -> list[npt.NDArray[np.int64]]:
    """q (n, heads, d), k (ctx, d), shares (n, heads) -> ascending positions for each row."""
    found = []
    for i, row in enumerate(q.astype(np.float64)):
        dots = np.maximum(row @ k[: start + i + 1].T.astype(np.float64), 0)
        scores = shares[i].astype(np.float64) @ dots
        found.append(np.sort(np.argsort(-scores, kind="stable")[:top]))
    return found


def layer_norm(x: Floats, weight: Floats, bias: Floats, eps: float) -> Doubles:
    wide = x.astype(np.float64) - x.mean(axis=-1, keepdims=True, dtype=np.float64)
    return wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + eps) * weight + bias


def expert_ffn(
    x: Floats,
    gate: Floats,
    up: Floats,
    down: Floats,
    biases: Sequence[Floats] = (),
    swiglu: Swiglu = SILU,
) -> Doubles:
    """One expert in exact arithmetic: x (n, hidden) -> (n, hidden)."""
    gate_bias, up_bias, down_bias = biases or (0, 0, 0)
    gates, ups = matmul(x, gate) + gate_bias, matmul(x, up) + up_bias
    return activated(gates, ups, swiglu) @ down.T.astype(np.float64) + down_bias


def combine(selected: Floats, index: npt.NDArray[np.int32], weights: Floats, y: Floats) -> Doubles:
    return y + (selected[index].astype(np.float64) * weights[:, :, None]).sum(axis=1)


def route(
    logits: Floats,
    score: str,
    bias: Floats,
    n_group: int,
    topk_group: int,
    group_score: str,
    top_k: int,
    renorm: bool,
    scale: float,
) -> tuple[npt.NDArray[np.int64], Doubles]:
    """Ids by a stable sort of the choice scores, weights in float64."""
    wide = logits.astype(np.float64)
    if score == "sigmoid":
        scores = sigmoid(wide)
    else:
        scores = np.exp(wide - wide.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
    choice = scores + bias
    grouped = np.sort(choice.reshape(len(logits), n_group, -1), axis=2)
    best = grouped[:, :, -2:].sum(axis=2) if group_score == "top2" else grouped[:, :, -1]
    kept = np.argsort(-best, axis=1, kind="stable")[:, :topk_group]
    for row, groups in enumerate(kept):
        closed = np.setdiff1d(np.arange(n_group), groups)
        choice[row].reshape(n_group, -1)[closed] = -np.inf
    ids = np.argsort(-choice, axis=1, kind="stable")[:, :top_k]
    weights = np.take_along_axis(scores, ids, axis=1)
    if renorm:
        weights /= weights.sum(axis=1, keepdims=True) + (1e-20 if score == "sigmoid" else 0)
    return ids, weights * scale


def gated_delta(
    raw: Floats, a: Floats, b: Floats, shape: DeltaShape, conv: Floats, log: Floats, bias: Floats
) -> Doubles:
    """raw (n, channels), a and b (n, value_heads), conv (channels, taps) -> (n, value_heads,
    value_dim): what the states of rows 0.. answer, row after row, as the delta rule is written."""
    n, shared = len(raw), shape.value_heads // shape.key_heads
    before = np.concatenate([np.zeros((shape.taps - 1, shape.channels)), raw.astype(np.float64)])
    mixed = sum(before[tap : tap + n] * conv[:, tap] for tap in range(shape.taps))
    mixed = mixed * sigmoid(np.asarray(mixed))
    widths = (shape.key_width, 2 * shape.key_width)
    q, k, v = np.split(mixed, widths, axis=1)
    q, k = (part.reshape(n, shape.key_heads, shape.key_dim) for part in (q, k))
    q, k = (part / np.sqrt((part**2).sum(axis=2, keepdims=True) + 1e-6) for part in (q, k))
    v = v.reshape(n, shape.value_heads, shape.value_dim)
    step = sigmoid(b)
    fade = np.exp(-np.exp(log.astype(np.float64)) * np.log1p(np.exp(a.astype(np.float64) + bias)))
    out = np.zeros(v.shape)
    for head in range(shape.value_heads):
        state = np.zeros((shape.key_dim, shape.value_dim))
        for i in range(n):
            key, query = k[i, head // shared], q[i, head // shared]
            state *= fade[i, head]
            state += np.outer(key, step[i, head] * (v[i, head] - key @ state))
            out[i, head] = query @ state / np.sqrt(shape.key_dim)
    return out


def mask_of(allowed: npt.NDArray[np.uint64], n: int) -> npt.NDArray[np.bool_]:
    """Words of 64 bits -> a bool for each of n ids."""
    return np.array([bool(int(allowed[i // 64]) >> (i % 64) & 1) for i in range(n)])


def largest_of_blocks(
    logits: Floats, allowed: npt.NDArray[np.uint64], blocks: int
) -> tuple[int, Floats]:
    """The lowest id of the largest logit that may be taken, or -1, or -2; each block's largest."""
    mask = mask_of(allowed, len(logits))
    taken = np.where(mask, logits, np.float32(-np.inf))
    maxima = np.array([taken[64 * b : 64 * b + 64].max() for b in range(blocks)], np.float32)
    if not np.isfinite(logits[mask]).all():
        return -2, maxima
    return (int(taken.argmax()) if mask.any() else -1), maxima


def share_of(logits: Floats, allowed: npt.NDArray[np.uint64], token: int) -> float:
    """The probability of a token among those that may be taken."""
    taken = logits[mask_of(allowed, len(logits))].astype(np.float64)
    return float(1 / np.exp(taken - logits[token]).sum())


def weights(logits: Floats, largest: float, temperature: float) -> Doubles:
    """e**((logit - largest) / temperature)."""
    with np.errstate(over="ignore"):
        return np.exp((logits.astype(np.float64) - largest) / temperature)


def heaviest(logits: Floats, ids: Sequence[int], weights: Doubles, target: float) -> list[int]:
    """The fewest ids with the largest logits, of equals the lowest, that weigh `target` together."""
    order = sorted(range(len(ids)), key=lambda k: (-logits[ids[k]], ids[k]))
    held = np.cumsum(weights[order])
    count = int(np.searchsorted(held, target, side="left")) + 1
    return sorted(int(ids[k]) for k in order[:count])


def _mixed(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
    return word ^ (word >> 31)


def stream_of(seed: int, place: int) -> int:
    step = 0x9E3779B97F4A7C15
    return _mixed(_mixed((seed + step) % 2**64) ^ (place * step % 2**64))


def uniform(stream: int, number: int) -> float:
    """SplitMix64's number `number` from a state, its upper 52 bits as an odd multiple of 2**-53."""
    return ((_mixed((stream + (number + 1) * 0x9E3779B97F4A7C15) % 2**64) >> 12) + 0.5) / 2**52


def race(ids: Sequence[int], weights: Doubles, stream: int) -> int:
    """The id with the least -log(1 - u) / weight."""
    noise = np.array([-np.log1p(-uniform(stream, int(i))) for i in ids])
    with np.errstate(divide="ignore"):
        return int(ids[int((noise / weights).argmin())])


def lookup(text: Sequence[int], chain: Sequence[int], count: int) -> list[tuple[int, int]]:
    """(token, grade) of at most ``count`` drafts behind text + chain, by looking at every place."""
    context, found = [*text, *chain], []
    while len(found) < count:
        for n in (5, 2):
            ends = [
                end
                for end in reversed(range(n, len(text)))
                if len(context) >= n and list(text[end - n : end]) == context[-n:]
            ][:8]
            if ends:
                break
        else:
            break
        best = max(ends, key=lambda end: _in_common(text[:end], context))
        votes = [text[end] for end in ends].count(text[best])
        sure = _in_common(text[:best], context)
        if votes == len(ends):
            sure += (0, 3, 6)[min(votes, 3) - 1]
        elif votes * 2 <= len(ends):
            sure = sure // 3
        if sure < 3:
            break
        found.append((text[best], (sure >= 5) + (sure >= 8) + (sure >= 12)))
        context.append(text[best])
    return found


def _in_common(one: Sequence[int], other: Sequence[int]) -> int:
    """How long a tail, up to 32, two texts share."""
    count = 0
    while count < min(32, len(one), len(other)) and one[-1 - count] == other[-1 - count]:
        count += 1
    return count
