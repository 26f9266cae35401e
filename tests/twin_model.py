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

from diskmoe.engine.kernels.delta_shape import DeltaShape
from diskmoe.engine.kernels.ffn_shape import Swiglu
from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.families import FAMILIES
from diskmoe.engine.model.family import Names
from diskmoe.engine.model.latent_config import IndexerShape, LatentShape
from diskmoe.engine.model.rope import Yarn
from diskmoe.experts.formats import quantise, round_to_bf16, widen_bf16

Floats = npt.NDArray[np.float32]
Tensors = dict[str, Floats]


def held(weights: Floats, fmt: str) -> Floats:
    """The numbers that a matrix stands for once it is held in ``fmt``, f32 of the same shape."""
    if fmt == "f32":
        return weights
    if fmt == "bf16":
        return widen_bf16(round_to_bf16(weights))
    values, scales, zeros, row_scales, _ = quantise(weights, fmt)
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
    chosen: list[npt.NDArray[np.int64]] | None = (
        None  # keys that rows see, of the last layer to say
    )

    @property
    def names(self) -> Names:
        return FAMILIES[self.config.family].names

    def logits(self, ids: npt.ArrayLike) -> Floats:
        """(n,) -> (n, vocab), every row seeing itself and the earlier ones."""
        config, names = self.config, self.names
        embedding = held(self.tensors[names.embedding], self.dense_format)
        x = embedding[np.asarray(ids)] * np.float32(config.embedding_scale)
        for layer in range(config.layers):
            at = names.layer.format(L=layer)
            x = x + self._attention(self._norm(x, at + names.attention_norm), at, layer)
            x = x + self._feed_forward(self._norm(x, at + names.ffn_norm), at, layer)
        head = names.embedding if config.tied else names.head
        logits = self._linear(self._norm(x, names.final_norm), head, self.dense_format)
        return logits * np.float32(config.logit_scale)

    def _norm(self, x: Floats, name: str, centred: bool | None = None) -> Floats:
        """centred: whether the weights are what is added to 1; None: as the model's norms are."""
        centred = self.config.zero_centred if centred is None else centred
        weights = self.tensors[name] + np.float32(centred)
        return naive.rms_norm(x, weights, self.config.norm_epsilon).astype(np.float32)

    def _linear(self, x: Floats, name: str, fmt: str) -> Floats:
        return self._product(x, self.tensors[name], fmt)

    def _product(self, x: Floats, weights: Floats, fmt: str) -> Floats:
        if fmt in ("q8", "q4", "mxfp4"):
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

    def _turned(self, x: Floats) -> Floats:
        """x (n, heads, dims) after rope, row i at position i."""
        config, magnitude = self.config, 1.0
        frequencies = config.rope_theta ** -(np.arange(0, config.rope_dims, 2) / config.rope_dims)
        scaling = config.rope_scaling
        if isinstance(scaling, Yarn):
            frequencies = naive.yarn_frequencies(config.rope_theta, config.rope_dims, scaling)
            magnitude = scaling.magnitude
        elif scaling is not None:
            frequencies = naive.llama3_frequencies(config.rope_theta, config.rope_dims, scaling)
        interleaved = config.rope_layout == "interleaved"
        return naive.rope(x, frequencies, 0, interleaved, magnitude).astype(np.float32)

    def _choice(
        self, x: Floats, latent: Floats, shape: IndexerShape, at: str
    ) -> list[npt.NDArray[np.int64]]:
        """The keys that each row sees."""
        names, dims = self.names, self.config.rope_dims

        def turned(y: Floats) -> Floats:
            return np.concatenate([self._turned(y[..., :dims]), y[..., dims:]], axis=2)

        q = self._projection(latent, at + names.index_q).reshape(len(x), shape.heads, -1)
        norm = f"{at}{names.index_k_norm}"
        weight, bias = self.tensors[f"{norm}.weight"], self.tensors[f"{norm}.bias"]
        k = naive.layer_norm(self._projection(x, at + names.index_k), weight, bias, 1e-6)
        k = turned(k[:, None].astype(np.float32))[:, 0]
        shares = self._linear(x, f"{at}{names.index_shares}.weight", "f32")
        return naive.choose(turned(q), k, shares, 0, shape.top)

    def _latent_attention(self, x: Floats, shape: LatentShape, at: str, layer: int) -> Floats:
        """Keys are expanded, as published; values are after the mixing, which is where a format
        that quantises its inputs quantises them."""
        names, n, heads = self.names, len(x), self.config.heads

        def normed(y: Floats, name: str) -> Floats:
            return naive.rms_norm(y, self.tensors[at + name], 1e-6).astype(np.float32)

        if shape.q_rank:
            latent = normed(self._projection(x, at + names.q_a), names.q_a_norm)
            q = self._projection(latent, at + names.q_b)
            if self.config.indexer is not None and self.config.chooses(layer):
                self.chosen = self._choice(x, latent, self.config.indexer, at)
        else:
            q = self._projection(x, at + names.q)
        q = q.reshape(n, heads, -1)
        q = np.concatenate([q[..., : shape.plain], self._turned(q[..., shape.plain :])], axis=2)
        down = self._projection(x, at + names.kv_a)
        latents = normed(down[:, : shape.rank], names.kv_a_norm)
        turned = self._turned(down[:, None, shape.rank :])
        weights = self.tensors[f"{at}{names.kv_b}.weight"].reshape(heads, -1, shape.rank)
        expanders = held(weights.reshape(-1, shape.rank), self.dense_format).reshape(weights.shape)
        keys = np.einsum("nr,hpr->nhp", latents, expanders[:, : shape.plain])
        keys = np.concatenate([keys, np.repeat(turned, heads, axis=1)], axis=2)
        values = np.repeat(latents[:, None], heads, axis=1)
        scale, chosen = self.config.attention_scale, self.chosen
        mixed = naive.attend(q, keys, values, 0, scale, chosen=chosen).astype(np.float32)
        out = [
            self._product(mixed[:, h], weights[h, shape.plain :], self.dense_format)
            for h in range(heads)
        ]
        return self._projection(np.concatenate(out, axis=1), at + names.o)

    def _attention(self, x: Floats, at: str, layer: int) -> Floats:
        config, names = self.config, self.names
        if config.latent is not None:
            return self._latent_attention(x, config.latent, at, layer)
        if config.delta is not None and layer in config.delta_layers:
            return self._delta(x, config.delta, at)
        heads = {
            names.q: (config.heads, names.q_norm),
            names.k: (config.kv_heads, names.k_norm),
            names.v: (config.kv_heads, None),
        }
        parts, gates = [], np.float32(1)
        for part, (count, norm) in heads.items():
            y = self._projection(x, at + part)
            if part == names.q and config.q_gate:
                y, gates = np.split(y.reshape(len(x), config.heads, -1), 2, axis=2)
                y, gates = y.reshape(len(x), -1), naive.sigmoid(gates).reshape(len(x), -1)
            if norm is not None and config.qk_norm == "full_vector":
                y = self._norm(y, at + norm)
            y = y.reshape(len(x), count, config.head_dim)
            if norm is not None and config.qk_norm == "per_head":
                y = self._norm(y, at + norm)
            if config.clip_qkv is not None:
                y = np.clip(y, -config.clip_qkv, config.clip_qkv)
            if norm is not None:
                y = self._turned(y)
            parts.append(y.astype(np.float32))
        q, k, v = parts
        window, sinks = config.window(layer), self.tensors.get(at + names.sinks)
        mixed = naive.attend(q, k, v, 0, config.attention_scale, window, sinks)
        mixed = (mixed.reshape(len(x), -1) * gates).astype(np.float32)
        return self._projection(mixed, at + names.o)

    def _delta(self, x: Floats, shape: DeltaShape, at: str) -> Floats:
        names, n = self.names, len(x)

        def vector(name: str) -> Floats:
            return self.tensors[at + name]

        raw, b = (
            self._linear(x, at + names.delta_qkv, self.dense_format),
            self._linear(x, at + names.delta_b, "f32"),
        )
        if names.delta_fused:  # by key head
            keys, values = shape.key_dim, shape.value_width // shape.key_heads
            raw = raw.reshape(n, shape.key_heads, -1)
            parts = np.split(raw, np.cumsum([keys, keys, values]), axis=2)
            q, k, v, z = (part.reshape(n, -1) for part in parts)
            raw = np.concatenate([q, k, v], axis=1)
            b, a = np.split(b.reshape(n, shape.key_heads, -1), 2, axis=2)
            a, b = a.reshape(n, -1), b.reshape(n, -1)
        else:
            z = self._linear(x, at + names.delta_z, self.dense_format)
            a = self._linear(x, at + names.delta_a, "f32")
        conv = vector(names.delta_conv)[:, 0]
        log, bias = vector(names.delta_log), vector(names.delta_bias)
        said = naive.gated_delta(raw, a, b, shape, conv, log, bias).astype(np.float32)
        out = self._norm(said, at + names.delta_norm, centred=False)
        out = naive.silu_mul(z, out.reshape(n, -1)).astype(np.float32)
        return self._linear(out, at + names.delta_out, self.dense_format)

    def _ffn(
        self, x: Floats, matrices: list[Floats], fmt: str, biases: tuple[Floats, ...] = ()
    ) -> Floats:
        gate_bias, up_bias, down_bias = biases or (np.float32(0),) * 3
        gate = self._product(x, matrices[0], fmt) + gate_bias
        up = self._product(x, matrices[1], fmt) + up_bias
        swiglu = Swiglu(self.config.swiglu_limit, self.config.swiglu_alpha)
        inner = naive.activated(gate, up, swiglu).astype(np.float32)
        return self._product(inner, matrices[2], fmt) + down_bias

    def _expert(self, at: str, expert: int) -> tuple[list[Floats], tuple[Floats, ...]]:
        """(gate, up and down, their biases) of an expert, however the checkpoint has them."""
        names = self.names
        if not names.fused and at + names.stacked_gate_up in self.tensors:
            both = self.tensors[at + names.stacked_gate_up][expert]
            width = self.config.expert_width
            return [both[:width], both[width:], self.tensors[at + names.stacked_down][expert]], ()
        if not names.fused:
            parts = (names.expert_gate, names.expert_up, names.expert_down)
            return [self.tensors[at + part.replace("{e}", str(expert))] for part in parts], ()
        both, down = (self.tensors[at + n][expert] for n in (names.expert_gate, names.expert_down))
        bias = self.tensors[at + names.expert_gate + "_bias"][expert]
        down_bias = self.tensors[at + names.expert_down + "_bias"][expert]
        return [both[:, 0::2].T, both[:, 1::2].T, down.T], (bias[0::2], bias[1::2], down_bias)

    def _feed_forward(self, x: Floats, at: str, layer: int) -> Floats:
        config, names = self.config, self.names
        if layer not in config.moe_layers:
            parts = (names.dense_gate, names.dense_up, names.dense_down)
            return self._ffn(x, [self.tensors[at + part] for part in parts], self.dense_format)
        logits = self._linear(x, at + names.router, "f32")
        logits = logits + self.tensors.get(at + names.router_bias, np.float32(0))
        bias = np.zeros(config.experts, np.float32)
        if config.correction_bias:
            bias = self.tensors[at + names.correction_bias]
        ids, shares = naive.route(
            logits,
            config.score,
            bias,
            config.groups,
            config.top_groups,
            config.group_score,
            config.top_k,
            config.renorm,
            config.routed_scale,
        )
        out = np.zeros_like(x)
        for i, (chosen, weights) in enumerate(zip(ids, shares, strict=True)):
            for e, weight in zip(chosen, weights, strict=True):
                matrices, biases = self._expert(at, e)
                y = self._ffn(x[i : i + 1], matrices, self.expert_format, biases)
                out[i] += np.float32(weight) * y[0]
        if config.shared_width:
            parts = (names.shared_gate, names.shared_up, names.shared_down)
            shared = self._ffn(x, [self.tensors[at + part] for part in parts], self.dense_format)
            if config.shared_gated:
                switch = naive.matmul(x, self.tensors[at + names.shared_switch])
                shared = (shared * naive.sigmoid(switch)).astype(np.float32)
            out += shared
        return out
