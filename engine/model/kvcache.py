"""Keys and values of the positions seen so far, all layers, in f32.

The one rule: ``length`` counts the positions that are whole in every layer. A forward writes rows
above it layer by layer and calls ``advance`` at its very end, so an error on the way leaves the
cache as it was; ``trim`` takes rejected drafts back. Memory is reserved at once and touched as
positions arrive.

    cache = KvCache(config, capacity=4096)
    keys, values = cache.layer(3)            # (capacity, kv_heads, head_dim) each
"""

import numpy as np
import numpy.typing as npt

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.model.config import ModelConfig


class KvCache:
    """Room for ``capacity`` positions in each of ``layers`` layers (default: the model's)."""

    def __init__(self, config: ModelConfig, capacity: int, layers: int | None = None) -> None:
        if capacity < 1:
            raise BadRequest(f"a context of {capacity} positions holds nothing, 1 is the least")
        self.layers = config.layers if layers is None else layers
        self.capacity = capacity
        shape = (self.layers, capacity, config.kv_heads, config.head_dim)
        self._keys = np.zeros(shape, np.float32)
        self._values = np.zeros(shape, np.float32)
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
        return self._keys.nbytes + self._values.nbytes

    def layer(self, layer: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Keys and values of a layer, (capacity, kv_heads, head_dim) each, to read and write."""
        return self._keys[layer], self._values[layer]

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


def kv_cache_bytes(config: ModelConfig, capacity: int, layers: int | None = None) -> int:
    """What ``KvCache(config, capacity, layers).nbytes`` will be."""
    count = config.layers if layers is None else layers
    return count * capacity * 2 * config.kv_width * 4
