"""Keys and values of the positions seen so far, all layers, in f32, f16 or int8.

The one rule: ``length`` counts the positions that are whole in every layer. A forward writes rows
above it layer by layer and calls ``advance`` at its very end, so an error on the way leaves the
cache as it was; ``trim`` takes rejected drafts back. Memory is reserved at once and touched as
positions arrive. The positions of one head lie one after another: attention reads them in a row.

    cache = KvCache(config, capacity=4096, kv_format="f16")
    keys, values = cache.parts(3)            # where the kernels find a layer
"""

import numpy as np
import numpy.typing as npt

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.kernels.heads import KV_KIND, CachePart
from diskmoe.engine.model.config import ModelConfig
from diskmoe.experts.arena import Arena
from diskmoe.experts.tiles import PAGE

_NUMBER_BYTES = {"f32": 4, "f16": 2, "q8": 1}
_GROUP = 32  # numbers that share an f32 scale in q8


class KvCache:
    """Room for ``capacity`` positions in each of ``layers`` layers (default: the model's)."""

    def __init__(
        self,
        config: ModelConfig,
        capacity: int,
        layers: int | None = None,
        kv_format: str = "f32",
    ) -> None:
        if capacity < 1:
            raise BadRequest(f"a context of {capacity} positions holds nothing, 1 is the least")
        if kv_format not in KV_KIND:
            raise BadRequest(f"KV is {kv_format!r}; it must be one of {', '.join(KV_KIND)}")
        self.layers = config.layers if layers is None else layers
        self.capacity = capacity
        self.kv_format = kv_format
        self.kind = KV_KIND[kv_format]
        self._parts = config.cached_parts
        number, scales = _head_bytes(config, kv_format)
        heads = self._parts * self.layers, config.kv_heads  # keys, then values, of each layer
        self._numbers = _room(*heads, capacity, number)
        self._scales = _room(*heads, capacity, scales)
        self._length = 0

    @property
    def length(self) -> int:
        """Positions that are whole in every layer."""
        return self._length

    @property
    def room(self) -> int:
        """Positions that still fit."""
        return self.capacity - self._length

    @property
    def nbytes(self) -> int:
        return self._numbers.nbytes + self._scales.nbytes

    def parts(self, layer: int) -> tuple[CachePart, CachePart]:
        """Where the keys and the values of a layer are; they live as long as the cache.

        Of latent attention it is the same place: a latent is what keys and values are made of.
        """
        first = self._parts * layer
        return self._part(first), self._part(first + self._parts - 1)

    def _part(self, index: int) -> CachePart:
        numbers, scales = self._numbers[index], self._scales[index]
        return CachePart(
            numbers.ctypes.data,
            numbers.strides[1],
            numbers.strides[0],
            scales.ctypes.data,
            scales.strides[1],
            scales.strides[0],
        )

    def check_room(self, n: int) -> None:
        """BadRequest when ``n`` more rows do not fit."""
        if n > self.room:
            raise BadRequest(
                f"{self._length} + {n} positions do not fit in a context of {self.capacity},"
                " raise CTX or shorten the prompt"
            )

    def advance(self, n: int) -> None:
        """Count the ``n`` rows written above ``length`` as whole."""
        self.check_room(n)
        self._length += n

    def trim(self, length: int) -> None:
        """Forget the positions from ``length`` on; no work is done and no memory given back."""
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot trim {self._length} positions to {length}")
        self._length = length


def kv_cache_bytes(
    config: ModelConfig, capacity: int, layers: int | None = None, kv_format: str = "f32"
) -> int:
    """What ``KvCache(config, capacity, layers, kv_format).nbytes`` will be."""
    count = config.layers if layers is None else layers
    heads = config.cached_parts * config.kv_heads
    return count * capacity * heads * sum(_head_bytes(config, kv_format))


def _head_bytes(config: ModelConfig, kv_format: str) -> tuple[int, int]:
    """Bytes of one head of one position in one part: numbers, scales."""
    scales = -(-config.cached_dims // _GROUP) * 4 if kv_format == "q8" else 0
    return config.cached_dims * _NUMBER_BYTES[kv_format], scales


def _room(*shape: int) -> npt.NDArray[np.uint8]:
    """Zeros in huge pages, where the system has them."""
    nbytes = int(np.prod(shape))
    arena = Arena(1, max(PAGE, -(-nbytes // PAGE) * PAGE))
    return arena.bytes[:nbytes].reshape(shape)
