"""What config.json says of layers with a gated delta rule: their sizes, and which layers they are.

And of the models inside which these families are found.
"""

from collections.abc import Mapping

from diskmoe.engine.kernels.delta_shape import LANES, DeltaShape
from diskmoe.engine.model.fields import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_WIDTH, Fields

MAX_TAPS = 16
KINDS = ("linear_attention", "full_attention")


def delta_shape(f: Fields) -> DeltaShape:
    """BadModel for heads that cannot be."""
    key_heads = f.integer("linear_num_key_heads", 1, MAX_HEADS, None)
    value_heads = f.integer("linear_num_value_heads", 1, MAX_HEADS, None)
    if value_heads % key_heads:
        raise f.wrong("linear_num_value_heads", value_heads, f"a multiple of {key_heads} key heads")
    key_dim = _head_dim(f, "linear_key_head_dim", key_heads)
    value_dim = _head_dim(f, "linear_value_head_dim", value_heads)
    taps = f.integer("linear_conv_kernel_dim", 2, MAX_TAPS, None)
    return DeltaShape(key_heads, value_heads, key_dim, value_dim, taps)


def _head_dim(f: Fields, key: str, heads: int) -> int:
    dim = f.integer(key, 1, MAX_HEAD_DIM, None)
    if dim % LANES:
        raise f.wrong(key, dim, f"a multiple of {LANES}")
    if heads * dim > MAX_WIDTH:
        raise f.wrong(key, dim, f"{heads} heads of up to {MAX_WIDTH} numbers in all")
    return dim


def delta_layers(f: Fields, layers: int) -> tuple[int, ...]:
    """The layers with a delta rule: listed, or all but every so manieth."""
    listed = f.raw.get("layer_types")
    if listed is None:
        every = f.integer("full_attention_interval", 1, MAX_LAYERS, 4)
        listed = [KINDS[(layer + 1) % every == 0] for layer in range(layers)]
    if not isinstance(listed, list) or any(kind not in KINDS for kind in listed):
        raise f.wrong("layer_types", listed, f"a list of {' or '.join(KINDS)}")
    if len(listed) != layers:
        raise f.wrong("layer_types", listed, f"as many as there are layers, {layers}")
    return tuple(layer for layer, kind in enumerate(listed) if kind == KINDS[0])


def text_half(raw: Mapping[str, object], f: Fields) -> Mapping[str, object]:
    """The keys of a model that reads text, where they stand in a part of their own.

    A key of the part wins over the same one around it, but these must not contradict each other.
    """
    part = raw.get("text_config")
    if part is None:
        return raw
    if not isinstance(part, Mapping):
        raise f.wrong("text_config", part, "an object")
    for key in ("tie_word_embeddings", "quantization_config"):
        if key in raw and key in part and raw[key] != part[key]:
            raise f.wrong(f"text_config.{key}", part[key], f"what {key} beside it is: {raw[key]!r}")
    return {**raw, **part, "model_type": raw.get("model_type")}
