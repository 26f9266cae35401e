"""What a config.json says about numbers that whole vectors are multiplied by."""

from typing import NamedTuple

from diskmoe.engine.model.family import Family
from diskmoe.engine.model.fields import Fields
from diskmoe.engine.model.latent_config import LatentShape
from diskmoe.engine.model.rope import Llama3, Yarn, yarn_magnitude


class Scales(NamedTuple):
    """Factors of embedding, attention and logits, and of what layers add.

    What layers add to the hidden state is multiplied by `residual`. The state is held divided by it
    instead, which a norm does not see when its epsilon is divided by the square.
    """

    embedding: float
    residual: float
    attention: float
    logits: float


def read_scales(
    f: Fields,
    family: Family,
    head_dim: int,
    latent: LatentShape | None,
    scaling: Yarn | Llama3 | None,
) -> Scales:
    """Where latent attention is stretched by yarn, its softmax makes up for it."""
    attention = head_dim**-0.5
    if latent is not None and isinstance(scaling, Yarn):
        attention *= yarn_magnitude(scaling.factor, scaling.all_dims) ** 2
    if not family.multipliers:
        return Scales(1.0, 1.0, attention, 1.0)
    return Scales(
        f.number("embedding_multiplier", 1e-6, 1e6, 1.0),
        f.number("residual_multiplier", 1e-3, 1e3, 1.0),
        f.number("attention_multiplier", 1e-6, 1e6, 1.0),
        1 / f.number("logits_scaling", 1e-6, 1e6, 1.0),
    )
