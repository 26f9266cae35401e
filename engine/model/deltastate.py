"""What the layers with a delta rule keep between forwards, and how far it can be taken back.

The one rule: a state has only seen rows that a forward found whole, so an error in the middle of a
forward spoils nothing, and drafts are taken back by forgetting them: of the last forward's rows the
raw inputs are kept, not their effects (`kernels.delta` computes them again). A forward of more rows
than are kept, a prompt's chunk, is the exception: what was before it cannot be had again, but for
the beginning.
"""

import numpy as np

from diskmoe.engine.kernels.delta import DeltaPart
from diskmoe.engine.kernels.delta_shape import DeltaShape
from diskmoe.engine.kernels.program import address_of_array, rows_of
from diskmoe.engine.model.scratch import Floats
from diskmoe.experts.arena import Arena
from diskmoe.experts.tiles import PAGE


class DeltaStates:
    """Of so many `layers`; forwards of up to `kept` rows can be taken back."""

    def __init__(self, shape: DeltaShape, layers: int, kept: int) -> None:
        self.kept = kept
        self._positions = np.zeros(layers, np.int64)  # rows that each layer's state has seen
        sizes = _layer_floats(shape, kept)
        self._floats: Floats = _zeros(layers * sum(sizes)).reshape(layers, -1)
        self._states = self._floats[:, : sizes[0]]
        self._rows = self._floats[:, sizes[0] :].reshape(layers, -1, _row_floats(shape))

    @property
    def nbytes(self) -> int:
        return self._floats.nbytes

    def part(self, layer: int) -> DeltaPart:
        """Where a layer's is, by its number among those with a delta rule."""
        return DeltaPart(
            address_of_array(self._positions[layer : layer + 1]),
            address_of_array(self._states[layer]),
            rows_of(self._rows[layer]),
            self.kept,
        )

    def can_be_at(self, length: int) -> bool:
        """Whether no state has seen more than the first `length` rows."""
        return not (self._positions > length).any()

    def take_over(self, other: "DeltaStates") -> None:
        """All that another of the same sizes has."""
        self._floats[:] = other._floats
        self._positions[:] = other._positions

    def begin_again(self) -> None:
        """Forget all rows."""
        for layer in np.flatnonzero(self._positions):  # memory of the others was never touched
            self._floats[layer] = 0
        self._positions[:] = 0


def delta_state_bytes(shape: DeltaShape, layers: int, kept: int) -> int:
    """What ``DeltaStates(shape, layers, kept).nbytes`` will be."""
    return 4 * layers * sum(_layer_floats(shape, kept))


def _layer_floats(shape: DeltaShape, kept: int) -> tuple[int, int]:
    """Numbers of a layer's state, and of its raw inputs."""
    return shape.state_size, (shape.taps - 1 + kept) * _row_floats(shape)


def _row_floats(shape: DeltaShape) -> int:
    return -(-shape.raw_width // 16) * 16


def _zeros(count: int) -> Floats:
    arena = Arena(1, -(-4 * count // PAGE) * PAGE)
    return arena.bytes[: 4 * count].view(np.float32)
