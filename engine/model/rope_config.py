"""What a config.json says about rope: theta, the dims that turn, and how it is stretched.

The rule of this file: keys are looked for in the old place and in the new one, as transformers
does, and a scaling that is not carried out is refused by name.
"""

from collections.abc import Mapping
from typing import NamedTuple

from diskmoe.engine.model.family import Family, RopeLayout
from diskmoe.engine.model.fields import MAX_CONTEXT, Fields
from diskmoe.engine.model.rope import Llama3, Yarn, yarn_magnitude
from diskmoe.experts.errors import BadModel


class Rope(NamedTuple):
    theta: float
    dims: int  # the first of a head that turn
    layout: RopeLayout
    scaling: Yarn | Llama3 | None


def read_rope(f: Fields, family: Family, head_dim: int) -> Rope:
    """From the old keys or from the ``rope_parameters`` dict of 5.x.

    Where both forms say something, the dict wins over the plain keys and ``rope_scaling`` over
    ``rope_parameters``, as in transformers.
    """
    key, value = f.find(("rope_scaling", "rope_parameters"))
    if value == {}:
        key, value = "rope_parameters", f.raw.get("rope_parameters")
    if value is None:
        value = family.yarn_default or {}
    if not isinstance(value, Mapping):
        raise f.wrong(key, value, "an object")
    if any(isinstance(item, Mapping) for item in value.values()):
        raise BadModel(f"{f.where}: {key} differs between layers, which is not supported")
    kind = value.get("rope_type", value.get("type", "default"))
    read = {"default": lambda fields: None, "yarn": _yarn, "llama3": _llama3}.get(str(kind))
    if read is None:
        raise BadModel(
            f"{f.where}: rope scaling {str(kind)[:40]!r} is not supported, only plain rope"
            f" (rope_type 'default'), 'yarn' and 'llama3'; see {key}"
        )
    merged = Fields({**f.raw, **{k: v for k, v in value.items() if v is not None}}, f.where)
    theta = merged.number("rope_theta", 1.0, 1e12, family.theta_default)
    dims = head_dim
    if family.rope_partial is not None:
        key_of_dims = family.rope_dims_key
        if (
            key_of_dims is not None
            and key_of_dims in f.raw
            and merged.raw.get("partial_rotary_factor") is None
        ):
            dims = f.integer(key_of_dims, 2, head_dim, head_dim)
        else:
            share = merged.number("partial_rotary_factor", 0.0, 1.0, family.rope_partial)
            dims = int(head_dim * share)
    if dims < 2 or dims % 2:
        raise f.wrong("head_dim", head_dim, f"an even number of rotary dims, not {dims}")
    layout = family.rope_layout
    if family.rope_layout_key is not None:
        layout = (
            "interleaved" if f.flag(family.rope_layout_key, layout == "interleaved") else "half"
        )
    return Rope(theta, dims, layout, read(merged))


def _yarn(f: Fields) -> Yarn:
    """The keys of a rope_scaling with rope_type yarn."""
    if f.raw.get("rope_theta") == 1:
        raise f.wrong("rope_theta", 1, "more than 1 with yarn")
    context = f.integer("max_position_embeddings", 1, MAX_CONTEXT, MAX_CONTEXT)
    factor = f.number("factor", 1.0, 1e6, None)
    share = f.number("mscale", 0.0, 1e3, 0.0)
    all_dims = f.number("mscale_all_dim", 0.0, 1e3, 0.0)
    magnitude = yarn_magnitude(factor)
    if share and all_dims:
        magnitude = yarn_magnitude(factor, share) / yarn_magnitude(factor, all_dims)
    return Yarn(
        factor=factor,
        trained=f.integer("original_max_position_embeddings", 1, MAX_CONTEXT, context),
        fast=f.number("beta_fast", 1e-6, 1e6, 32.0),
        slow=f.number("beta_slow", 1e-6, 1e6, 1.0),
        truncate=f.flag("truncate", True),
        magnitude=f.number("attention_factor", 0.0, 1e3, magnitude),
        all_dims=all_dims,
    )


def _llama3(f: Fields) -> Llama3:
    """The keys of a rope_scaling with rope_type llama3; all of them must be there."""
    slow = f.number("low_freq_factor", 1e-6, 1e6, None)
    fast = f.number("high_freq_factor", 1e-6, 1e6, None)
    if fast <= slow:
        raise f.wrong("high_freq_factor", fast, f"more than low_freq_factor, {slow:g}")
    return Llama3(
        factor=f.number("factor", 1.0, 1e6, None),
        trained=f.integer("original_max_position_embeddings", 1, MAX_CONTEXT, None),
        slow=slow,
        fast=fast,
    )
