"""Keys and values of the positions seen so far, all layers, in f32, f16 or int8.

The one rule: ``length`` counts the positions that are whole in every layer. A forward writes rows
above it layer by layer and calls ``advance`` at its very end, so an error on the way leaves the
cache as it was; ``trim`` takes rejected drafts back. Memory is reserved at once and touched as
positions arrive. The positions of one head lie one after another: attention reads them in a row.
Layers with a delta rule have states instead of keys and values; with these a forward of more than
``kept`` rows cannot be taken back, and an error in it leaves nothing but the beginning.

    cache = KvCache(config, capacity=4096, kv_format="f16")
    keys, values = cache.parts(3)            # where the kernels find a layer
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.kernels.delta import DeltaPart
from diskmoe.engine.kernels.heads import KV_KIND, CachePart
from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.deltastate import DeltaStates, delta_state_bytes
from diskmoe.experts.arena import Arena
from diskmoe.experts.tiles import PAGE

_NUMBER_BYTES = {"f32": 4, "f16": 2, "q8": 1}
_GROUP = 32  # numbers that share an f32 scale in q8


KEPT_ROWS = 25  # a token and the most drafts that a forward has by default


class KvCache:
    """Room for ``capacity`` positions in each of the model's layers, or in ``layers`` layers with
    attention."""

    def __init__(
        self,
        config: ModelConfig,
        capacity: int,
        layers: int | None = None,
        kv_format: str = "f32",
        kept: int = KEPT_ROWS,
    ) -> None:
        """kept: rows of a forward that can be taken back where layers have states."""
        if capacity < 1:
            raise BadRequest(f"a context of {capacity} positions holds nothing, 1 is the least")
        if kv_format not in KV_KIND:
            raise BadRequest(f"KV is {kv_format!r}; it must be one of {', '.join(KV_KIND)}")
        states = config.delta_layers if layers is None else ()
        self.layers = config.layers if layers is None else layers
        attention = [layer for layer in range(self.layers) if layer not in states]
        self._index = {layer: i for group in (attention, states) for i, layer in enumerate(group)}
        self.states: DeltaStates | None = None
        if states and config.delta is not None:
            self.states = DeltaStates(config.delta, len(states), kept)
        self.capacity = capacity
        self.kv_format = kv_format
        self.kind = KV_KIND[kv_format]
        self._parts = config.cached_parts  # keys, then values, of each layer
        count = self._parts * len(attention)
        self._kv = _Positions(count, config.kv_heads, capacity, config.cached_dims, kv_format)
        self._index_keys: _Positions | None = None
        choosing = _choosing(config, capacity) if layers is None else []
        self._choosing = {layer: i for i, layer in enumerate(choosing)}
        if config.indexer is not None and choosing:
            dims = config.indexer.dims
            self._index_keys = _Positions(len(choosing), 1, capacity, dims, kv_format)
        self._length = 0
        self.tokens: list[int] = []  # of the positions, as far as they were told

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
        parts = (self._kv, self._index_keys, self.states)
        return sum(part.nbytes for part in parts if part is not None)

    @property
    def indexed(self) -> bool:
        """Whether it holds more positions than rows choose from, so that keys are chosen."""
        return self._index_keys is not None

    def parts(self, layer: int) -> tuple[CachePart, CachePart]:
        """Where the keys and the values of a layer are; they live as long as the cache.

        Of latent attention it is the same place: a latent is what keys and values are made of.
        """
        first = self._parts * self._index[layer]
        return self._kv.part(first), self._kv.part(first + self._parts - 1)

    def index_keys(self, layer: int) -> CachePart | None:
        """Where the keys are that a layer chooses by; None for a layer that chooses none."""
        if self._index_keys is None or layer not in self._choosing:
            return None
        return self._index_keys.part(self._choosing[layer])

    def state(self, layer: int) -> DeltaPart:
        """Where the state of a layer with a delta rule is."""
        assert self.states is not None
        return self.states.part(self._index[layer])

    def check_room(self, n: int) -> None:
        """BadRequest when ``n`` more rows do not fit."""
        if n > self.room:
            raise BadRequest(
                f"{self._length} + {n} positions do not fit in a context of {self.capacity},"
                " raise CTX or shorten the prompt"
            )

    def begin(self, n: int) -> None:
        """Before a forward of ``n`` rows: BadRequest when they do not fit, or when a forward that
        failed has lost what they would go on from."""
        self.check_room(n)
        if self.states is not None and not self.states.can_be_at(self._length):
            if self._length:
                raise BadRequest(
                    f"the first {self._length} positions were lost in a forward that failed: "
                    "begin again"
                )
            self.states.begin_again()

    def advance(self, n: int, tokens: Sequence[int] = ()) -> None:
        """Count the ``n`` rows written above ``length`` as whole; they are of these tokens."""
        self.check_room(n)
        if len(self.tokens) == self._length:
            self.tokens += tokens
        self._length += n

    def can_trim(self, length: int) -> bool:
        """Whether the cache can go back to ``length``: always, but where layers have states; then
        to 0, and within the last forward if it had no more than ``kept`` rows."""
        return self.states is None or length == 0 or self.states.can_be_at(length)

    def trim(self, length: int) -> None:
        """Forget the positions from ``length`` on; no memory is given back.

        ValueError where layers have states and ``can_trim`` says no.
        """
        if not 0 <= length <= self._length or not self.can_trim(length):
            raise ValueError(f"cannot trim {self._length} positions to {length}")
        if length == 0 and self.states is not None:
            self.states.begin_again()
        self._length = length
        del self.tokens[length:]

    def holds(self, ids: Sequence[int]) -> int:
        """How many positions of a text that begins with these tokens can be gone on from."""
        tokens = self.tokens[: len(ids)]
        same = next((i for i, (a, b) in enumerate(zip(ids, tokens, strict=False)) if a != b), None)
        same = len(tokens) if same is None else same
        return same if self.can_trim(same) else 0

    def take_over(self, other: "KvCache", length: int) -> None:
        """Positions up to `length`, which is more than there are here, become those of another cache
        of the same sizes. It holds as many, and its tokens begin with ours; nobody computes."""
        begin, there = self._length, (other._kv, other._index_keys)
        for ours, theirs in zip((self._kv, self._index_keys), there, strict=True):
            if ours is not None and theirs is not None:
                ours.take_over(theirs, begin, length)
        if self.states is not None and other.states is not None:
            self.states.take_over(other.states)
        self.tokens[begin:] = other.tokens[begin:length]
        self._length = length


def kv_cache_bytes(
    config: ModelConfig,
    capacity: int,
    layers: int | None = None,
    kv_format: str = "f32",
    kept: int = KEPT_ROWS,
) -> int:
    """What ``KvCache(config, capacity, layers, kv_format, kept).nbytes`` will be."""
    states = len(config.delta_layers) if layers is None else 0
    count = config.layers - states if layers is None else layers
    heads = config.cached_parts * config.kv_heads
    nbytes = count * heads * _position_bytes(config.cached_dims, kv_format)
    if config.indexer is not None and layers is None:
        choosing = len(_choosing(config, capacity))
        nbytes += choosing * _position_bytes(config.indexer.dims, kv_format)
    nbytes *= capacity
    return nbytes + (delta_state_bytes(config.delta, states, kept) if config.delta else 0)


def _choosing(config: ModelConfig, capacity: int) -> list[int]:
    """Layers that choose keys, where there will ever be more than are chosen."""
    if config.indexer is None or capacity <= config.indexer.top:
        return []
    return [layer for layer, full in enumerate(config.indexer.full) if full]


class _Positions:
    """Numbers of so many positions, for the heads of each of so many parts."""

    def __init__(self, parts: int, heads: int, capacity: int, dims: int, kv_format: str) -> None:
        numbers, scales = _head_bytes(dims, kv_format)
        self._numbers = _room(parts, heads, capacity, numbers)
        self._scales = _room(parts, heads, capacity, scales)

    @property
    def nbytes(self) -> int:
        return self._numbers.nbytes + self._scales.nbytes

    def take_over(self, other: "_Positions", begin: int, end: int) -> None:
        self._numbers[:, :, begin:end] = other._numbers[:, :, begin:end]
        self._scales[:, :, begin:end] = other._scales[:, :, begin:end]

    def part(self, index: int) -> CachePart:
        numbers, scales = self._numbers[index], self._scales[index]
        return CachePart(
            numbers.ctypes.data,
            numbers.strides[1],
            numbers.strides[0],
            scales.ctypes.data,
            scales.strides[1],
            scales.strides[0],
        )


def _position_bytes(dims: int, kv_format: str) -> int:
    return sum(_head_bytes(dims, kv_format))


def _head_bytes(dims: int, kv_format: str) -> tuple[int, int]:
    """Bytes of one head of one position in one part: numbers, scales."""
    scales = -(-dims // _GROUP) * 4 if kv_format == "q8" else 0
    return dims * _NUMBER_BYTES[kv_format], scales


def _room(*shape: int) -> npt.NDArray[np.uint8]:
    """Zeros in huge pages, where the system has them."""
    nbytes = int(np.prod(shape))
    arena = Arena(1, max(PAGE, -(-nbytes // PAGE) * PAGE))
    return arena.bytes[:nbytes].reshape(shape)
