"""What a config.json says about latent attention (MLA), and about choosing keys for it (DSA).

Keys and values of all heads are made of one latent vector per position, which is all that is cached
beside one small key that carries the position. The rule of this file: heads begin at whole tiles of
the matrix that expands the latent, so that the kernels find them; other sizes are refused by name.
"""

from dataclasses import dataclass

from diskmoe.engine.model.family import Family
from diskmoe.engine.model.fields import (
    MAX_CONTEXT,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_WIDTH,
    Fields,
)
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


@dataclass(frozen=True)
class IndexerShape:
    """How the keys that a row attends to are chosen (DeepSeek sparse attention)."""

    heads: int
    dims: int  # of its queries and its one key; the first ones turn, as many as of latent attention
    interleaved: bool  # pairs that turn are neighbours; else the first half with the second
    top: int  # keys that are chosen, where a row could see more
    full: tuple[
        bool, ...
    ]  # by layer: it chooses; else it takes what the last layer before it chose


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


def read_indexer(
    f: Fields, family: Family, latent: LatentShape | None, layers: int
) -> IndexerShape | None:
    if family.indexer is None or latent is None:
        return None
    if not latent.q_rank:
        raise f.wrong("q_lora_rank", None, "a whole number: the indexer takes its queries from it")
    heads = f.integer("index_n_heads", 1, MAX_HEADS, family.index_heads_default)
    dims = f.integer("index_head_dim", latent.turning, MAX_HEAD_DIM, 128)
    if heads * dims > MAX_WIDTH:
        raise f.wrong("index_n_heads", heads, f"heads x index_head_dim up to {MAX_WIDTH}")
    top = f.integer("index_topk", 1, MAX_CONTEXT, 2048)
    interleaved = family.indexer == "interleaved"
    return IndexerShape(heads, dims, interleaved, top, _full_layers(f, layers))


def _full_layers(f: Fields, layers: int) -> tuple[bool, ...]:
    """By layer: does it choose keys itself? A list, a pattern of letters, or every so many layers."""
    key, listed = f.find(("indexer_types", "index_topk_pattern"))
    if listed is None:
        every = max(1, f.integer("index_topk_freq", 0, MAX_LAYERS, 1))
        skipped = f.integer("index_skip_topk_offset", 0, MAX_LAYERS, 2)
        return tuple(max(layer - skipped + 1, 0) % every == 0 for layer in range(layers))
    kinds = {"F": True, "S": False} if isinstance(listed, str) else {"full": True, "shared": False}
    if not isinstance(listed, str | list) or any(
        not isinstance(kind, str) or kind not in kinds for kind in listed
    ):
        raise f.wrong(key, listed, "a list of full or shared, or letters F and S")
    if len(listed) != layers:
        raise f.wrong(key, listed, f"as many as there are layers, {layers}")
    if not kinds[listed[0]]:
        raise f.wrong(key, listed, "a first layer that is full")
    return tuple(kinds[kind] for kind in listed)
