"""What a config.json says about latent attention (MLA): the sizes of its projections.

Keys and values of all heads are made of one latent vector per position, which is all that is cached
beside one small key that carries the position. The rule of this file: heads begin at whole tiles of
the matrix that expands the latent, so that the kernels find them; other sizes are refused by name.
"""

from dataclasses import dataclass

from diskmoe.engine.model.fields import MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN, MAX_WIDTH, Fields
from diskmoe.experts.errors import BadModel
from diskmoe.experts.tiles import TILE


@dataclass(frozen=True)
class LatentShape:
    """Sizes of latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    q_rank: int  # of the latent that queries are made of; 0: they are made of the hidden state
    rank: int  # of the latent that keys and values are made of
    plain: int  # dims of a head's query and key that are made of latents
    turning: int  # dims behind these that turn with the position; the key's are shared by all heads
    value: int  # dims of a head's value

    @property
    def width(self) -> int:
        """Numbers that a position leaves in the cache."""
        return self.rank + self.turning

    @property
    def head_rows(self) -> int:
        """Rows of a head in the matrix that expands the latent: of its key, then of its value."""
        return self.plain + self.value


def read_latent(f: Fields, heads: int) -> LatentShape:
    kv_heads = f.integer("num_key_value_heads", 1, MAX_HEADS, heads)
    if kv_heads != heads:
        raise f.wrong("num_key_value_heads", kv_heads, f"{heads}, as many as attention heads")
    if "q_lora_rank" not in f.raw:
        raise BadModel(f"{f.where}: q_lora_rank is missing, expected a whole number or null")
    shape = LatentShape(
        q_rank=f.integer("q_lora_rank", 1, MAX_HIDDEN, 0),
        rank=f.integer("kv_lora_rank", 1, MAX_HIDDEN, None),
        plain=_whole_tiles(f, "qk_nope_head_dim"),
        turning=f.integer("qk_rope_head_dim", 2, MAX_HEAD_DIM, None),
        value=_whole_tiles(f, "v_head_dim"),
    )
    widest = heads * max(shape.head_rows, shape.plain + shape.turning)
    if widest > MAX_WIDTH:
        raise f.wrong("num_attention_heads", heads, f"projections of up to {MAX_WIDTH} rows")
    return shape


def _whole_tiles(f: Fields, key: str) -> int:
    dims = f.integer(key, TILE, MAX_HEAD_DIM, None)
    if dims % TILE:
        raise f.wrong(key, dims, f"a multiple of {TILE}")
    return dims
