"""Tensors that llama.cpp's converter did more to than give them another name, as they were.

The rule of this file: rows only change places wherever that is all that was done, so that their
blocks can be kept bit for bit; the rest is made in f32.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.experts.errors import BadModel
from diskmoe.experts.safetensors_io import TensorInfo, shown
from diskmoe.experts.tiles import Floats

Tensors = Mapping[str, TensorInfo]
Config = Mapping[str, Any]
Order = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Recipe:
    """How a tensor of the checkpoint comes out of the file: the rows of its sources, one behind the
    other, or, with `make`, what that gives for the whole of them in f32."""

    sources: tuple[TensorInfo, ...]
    shape: tuple[int, ...]
    order: Order | None = None  # row i is the sources' row order[i]; None: as they are
    make: Callable[..., Floats] | None = None


def less_one(norm: Floats) -> Floats:
    return norm - np.float32(1)


def paired_rows(info: TensorInfo, heads: int) -> Order:
    """The order of rows that rope's pairs had: half a head apart."""
    rows = info.shape[0]
    if heads < 1 or rows % (2 * heads):
        raise BadModel(
            f"{info.path}: tensor {shown(info.name)} has {rows} rows, no whole pairs for {heads} heads"
        )
    return _paired(rows, heads)


def _paired(rows: int, heads: int) -> Order:
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def joined_recipes(config: Config, info: TensorInfo, paired: bool) -> dict[str, Recipe]:
    """{part of an attention's name: recipe} of q, k and v, whose rows a tensor has one after another."""
    heads = (config["num_attention_heads"], *[config["num_key_value_heads"]] * 2)
    rows, dims = info.shape[0], info.shape[0] // max(sum(heads), 1)
    if min(heads) < 1 or rows != dims * sum(heads) or dims % 2:
        raise BadModel(
            f"{info.path}: tensor {shown(info.name)} has {rows} rows, no whole heads for "
            f"{heads[0]} of queries and {heads[1]} of keys and of values"
        )
    recipes: dict[str, Recipe] = {}
    first = 0
    for part, count in zip("qkv", heads, strict=True):
        turned = paired and part != "v"
        order = first + (_paired(count * dims, count) if turned else np.arange(count * dims))
        recipes[part] = Recipe((info,), (count * dims, *info.shape[1:]), order=order)
        first += count * dims
    return recipes


def switch_recipe(config: Config, tensors: Tensors, at: str) -> Iterator[tuple[str, Recipe]]:
    """The row that switches a shared expert; a vector in the file."""
    info = tensors.get(at + "ffn_gate_inp_shexp.weight")
    if info is not None:
        shape = (1, info.shape[-1])
        yield "mlp.shared_expert_gate.weight", Recipe((info,), shape, make=lambda row: row)


def latent_recipes(config: Config, tensors: Tensors, at: str) -> Iterator[tuple[str, Recipe]]:
    """kv_b_proj, of which the file has the part of keys turned, (heads, rank, dims), apart from that
    of values, (heads, dims, rank)."""
    keys, values = tensors.get(at + "attn_k_b.weight"), tensors.get(at + "attn_v_b.weight")
    if keys is None or values is None:
        return
    heads, rank, dims = keys.shape if len(keys.shape) == 3 else (0, 0, 0)
    if values.shape != (heads, config["v_head_dim"], rank):
        raise BadModel(
            f"{keys.path}: tensors {shown(keys.name)} {list(keys.shape)} and {shown(values.name)} "
            f"{list(values.shape)} are not of the same heads"
        )

    def make(of_keys: Floats, of_values: Floats) -> Floats:
        return np.concatenate([of_keys.swapaxes(1, 2), of_values], axis=1)

    shape = (heads * (dims + values.shape[1]), rank)
    yield "self_attn.kv_b_proj.weight", Recipe((keys, values), shape, make=make)


def delta_recipes(config: Config, tensors: Tensors, at: str) -> Iterator[tuple[str, Recipe]]:
    """Of Qwen3-Next: q, k, v and z are in one matrix in the checkpoint, head of keys by head."""
    yield from switch_recipe(config, tensors, at)
    yield from _conv_and_decay(config, tensors, at, None)
    qkv, z = tensors.get(at + "attn_qkv.weight"), tensors.get(at + "attn_gate.weight")
    if qkv is None or z is None:
        return
    keys, per_key, key_dim, value_dim = _heads(config)
    both = np.arange(qkv.shape[0] + z.shape[0])
    parts = np.split(both, np.cumsum([keys * key_dim] * 2 + [keys * per_key * value_dim]))
    if len(parts[3]) != keys * per_key * value_dim:
        raise BadModel(
            f"{qkv.path}: tensors {shown(qkv.name)} {list(qkv.shape)} and {shown(z.name)} "
            f"{list(z.shape)} are not of {keys} x {per_key} heads"
        )
    order = np.concatenate([part.reshape(keys, -1) for part in parts], axis=1).reshape(-1)
    shape = (len(both), qkv.shape[1])
    yield "linear_attn.in_proj_qkvz.weight", Recipe((qkv, z), shape, order=order)


def tiled_delta_recipes(config: Config, tensors: Tensors, at: str) -> Iterator[tuple[str, Recipe]]:
    """Of Qwen3.5: heads of values lie by their number within a head of keys, not by that head."""
    yield from switch_recipe(config, tensors, at)
    keys, per_key, key_dim, value_dim = _heads(config)
    heads = np.arange(keys * per_key).reshape(per_key, keys).T.reshape(-1)
    values = (heads[:, None] * value_dim + np.arange(value_dim)).reshape(-1)
    mixed = np.concatenate([np.arange(2 * keys * key_dim), 2 * keys * key_dim + values])
    yield from _conv_and_decay(config, tensors, at, (mixed, heads))
    for name, ours, order in (
        ("attn_qkv.weight", "in_proj_qkv.weight", mixed),
        ("attn_gate.weight", "in_proj_z.weight", values),
        ("ssm_alpha.weight", "in_proj_a.weight", heads),
        ("ssm_beta.weight", "in_proj_b.weight", heads),
        ("ssm_dt.bias", "dt_bias", heads),
    ):
        if (info := tensors.get(at + name)) is not None:
            _refuse_rows(info, len(order))
            yield f"linear_attn.{ours}", Recipe((info,), info.shape, order=order)
    if (out := tensors.get(at + "ssm_out.weight")) is not None:
        _refuse_rows(out, len(values), -1)
        yield (
            "linear_attn.out_proj.weight",
            Recipe((out,), out.shape, make=lambda weights: weights[:, values]),
        )


def _conv_and_decay(
    config: Config, tensors: Tensors, at: str, orders: tuple[Order, Order] | None
) -> Iterator[tuple[str, Recipe]]:
    """The filters, (channels, taps) in the file, and the logarithm of the decay, negated there."""
    if (conv := tensors.get(at + "ssm_conv1d.weight")) is not None:
        channels, taps = conv.shape if len(conv.shape) == 2 else (0, 0)
        order = None if orders is None else orders[0]
        _refuse_rows(conv, channels if order is None else len(order))
        yield "linear_attn.conv1d.weight", Recipe((conv,), (channels, 1, taps), order=order)
    if (decay := tensors.get(at + "ssm_a")) is not None:
        heads = slice(None) if orders is None else orders[1]
        if orders is not None:
            _refuse_rows(decay, len(orders[1]))

        def make(rates: Floats) -> Floats:
            with np.errstate(all="ignore"):  # a rate that is none gives no number, and is found
                return np.log(-rates)[heads]

        yield "linear_attn.A_log", Recipe((decay,), decay.shape, make=make)


def _heads(config: Config) -> tuple[int, int, int, int]:
    """(heads of keys, heads of values for each, dims of a key, dims of a value)."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    return keys, values // keys, config["linear_key_head_dim"], config["linear_value_head_dim"]


def _refuse_rows(info: TensorInfo, expected: int, axis: int = 0) -> None:
    if info.shape[axis] != expected:
        raise BadModel(
            f"{info.path}: tensor {shown(info.name)} has shape {list(info.shape)}, its metadata ask "
            f"for {expected} {'columns' if axis else 'rows'}"
        )
