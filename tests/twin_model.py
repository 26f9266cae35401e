"""The whole decoder as plainly as it can be: NumPy, one prompt at once, no cache, no store.

Weights are f32 arrays by checkpoint name. ``formats`` says how matrices are to be held: a float
format changes the numbers only; an integer format also quantises the activations, and the dots are
exact integers as in the kernels. Nothing here is shared with the engine but the config, the names
and the definition of the weight formats.

Rounding activations to int8 is a step function: where a quotient falls next to a tie, the last bit
of two correct computations decides, and the logits then differ by about 1e-2. ``margin`` is the
least distance to a tie that was met, in integer steps; a test that compares to 1e-5 chooses a model
whose margin is clear of float32 noise (about 3e-5 steps).
"""

from dataclasses import dataclass

import naive
import numpy as np
import numpy.typing as npt

from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.families import FAMILIES
from diskmoe.experts.formats import quantise, round_to_bf16, widen_bf16

Floats = npt.NDArray[np.float32]
Tensors = dict[str, Floats]


def held(weights: Floats, fmt: str) -> Floats:
    """The numbers that a matrix stands for once it is held in ``fmt``, f32 of the same shape."""
    if fmt == "f32":
        return weights
    if fmt == "bf16":
        return widen_bf16(round_to_bf16(weights))
    values, scales, zeros, row_scales = quantise(weights, fmt)
    rows, groups = scales.shape
    numbers = values.reshape(rows, groups, 32).astype(np.float32)
    steps = scales.astype(np.float32)
    if zeros is not None and row_scales is not None:
        numbers = 16 * numbers - zeros[:, :, None]
        steps = steps * row_scales[:, None]
    wide = numbers * steps[:, :, None]
    return wide.reshape(rows, -1)[:, : weights.shape[1]].astype(np.float32)


@dataclass
class Twin:
    config: ModelConfig
    tensors: Tensors
    dense_format: str = "f32"
    expert_format: str = "f32"
    margin: float = 0.5

    def logits(self, ids: npt.ArrayLike) -> Floats:
        """(n,) -> (n, vocab), every row seeing itself and the earlier ones."""
        config, names = self.config, FAMILIES[self.config.family].names
        embedding = held(self.tensors[names.embedding], self.dense_format)
        x = embedding[np.asarray(ids)]
        for layer in range(config.layers):
            at = names.layer.format(L=layer)
            x = x + self._attention(self._norm(x, at + names.attention_norm), at)
            x = x + self._feed_forward(self._norm(x, at + names.ffn_norm), at, layer)
        head = names.embedding if config.tied else names.head
        return self._linear(self._norm(x, names.final_norm), head, self.dense_format)

    def _norm(self, x: Floats, name: str) -> Floats:
        return naive.rms_norm(x, self.tensors[name], self.config.norm_epsilon).astype(np.float32)

    def _linear(self, x: Floats, name: str, fmt: str) -> Floats:
        weights = self.tensors[name]
        if fmt in ("q8", "q4"):
            self._watch_ties(x)
            return naive.matmul_quantised(x, *quantise(weights, fmt))
        return naive.matmul(x, held(weights, fmt)).astype(np.float32)

    def _watch_ties(self, x: Floats) -> None:
        _, scales = naive.quantise_activations(x)
        padded = np.pad(x, ((0, 0), (0, -x.shape[1] % 32)))
        steps = padded.reshape(*scales.shape, 32) / np.where(scales == 0, 1, scales)[:, :, None]
        self.margin = min(self.margin, float(np.abs(0.5 - np.abs(steps) % 1).min()))

    def _projection(self, x: Floats, name: str) -> Floats:
        out = self._linear(x, f"{name}.weight", self.dense_format)
        return out + self.tensors.get(f"{name}.bias", np.float32(0))

    def _attention(self, x: Floats, at: str) -> Floats:
        config, names = self.config, FAMILIES[self.config.family].names
        heads = {
            names.q: (config.heads, names.q_norm),
            names.k: (config.kv_heads, names.k_norm),
            names.v: (config.kv_heads, None),
        }
        exponents = np.arange(0, config.rope_dims, 2) / config.rope_dims
        frequencies = config.rope_theta**-exponents
        parts = []
        for part, (count, norm) in heads.items():
            y = self._projection(x, at + part)
            if norm is not None and config.qk_norm == "full_vector":
                y = self._norm(y, at + norm)
            y = y.reshape(len(x), count, config.head_dim)
            if norm is not None and config.qk_norm == "per_head":
                y = self._norm(y, at + norm)
            if config.clip_qkv is not None:
                y = np.clip(y, -config.clip_qkv, config.clip_qkv)
            if norm is not None:
                y = naive.rope(y, frequencies, 0, config.rope_layout == "interleaved")
            parts.append(y.astype(np.float32))
        q, k, v = parts
        mixed = naive.attend(q, k, v, 0, config.head_dim**-0.5).astype(np.float32)
        return self._projection(mixed.reshape(len(x), -1), at + names.o)

    def _ffn(self, x: Floats, parts: list[str], fmt: str) -> Floats:
        gate, up, down = parts
        inner = naive.silu_mul(self._linear(x, gate, fmt), self._linear(x, up, fmt))
        return self._linear(inner.astype(np.float32), down, fmt)

    def _feed_forward(self, x: Floats, at: str, layer: int) -> Floats:
        config, names = self.config, FAMILIES[self.config.family].names
        if layer not in config.moe_layers:
            parts = (names.dense_gate, names.dense_up, names.dense_down)
            return self._ffn(x, [at + part for part in parts], self.dense_format)
        logits = self._linear(x, at + names.router, "f32")
        bias = np.zeros(config.experts, np.float32)
        if config.correction_bias:
            bias = self.tensors[at + names.correction_bias]
        ids, shares = naive.route(
            logits,
            config.score,
            bias,
            config.groups,
            config.top_groups,
            "top2",
            config.top_k,
            config.renorm,
            config.routed_scale,
        )
        out = np.zeros_like(x)
        parts = (names.expert_gate, names.expert_up, names.expert_down)
        for i, (chosen, weights) in enumerate(zip(ids, shares, strict=True)):
            for e, weight in zip(chosen, weights, strict=True):
                named = [at + part.replace("{e}", str(e)) for part in parts]
                y = self._ffn(x[i : i + 1], named, self.expert_format)
                out[i] += np.float32(weight) * y[0]
        if config.shared_width:
            parts = (names.shared_gate, names.shared_up, names.shared_down)
            out += self._ffn(x, [at + part for part in parts], self.dense_format)
        return out
