"""Working memory that is kept between forwards, so that steady decoding allocates nothing.

The one rule: an array taken under a name is valid until that name is taken again. Programs hold
addresses of such arrays; ``moves`` counts how often one was given up for a larger one.
"""

import math

import numpy as np
import numpy.typing as npt

from diskmoe.experts.tiles import aligned_zeros

Floats = npt.NDArray[np.float32]


class Scratch:
    """f32 arrays by name, 64-aligned; each grows to the largest size it was asked for."""

    def __init__(self) -> None:
        self.moves = 0
        self._arrays: dict[str, Floats] = {}
        self._views: dict[tuple[str, tuple[int, ...]], Floats] = {}  # decoding asks the same again

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays.values())

    def take(self, name: str, *shape: int) -> Floats:
        """A C-contiguous array of this shape whose contents are whatever was there before."""
        view = self._views.get((name, shape))
        if view is not None:
            return view
        size = math.prod(shape)
        array = self._arrays.get(name)
        if array is None or array.size < size:
            self.moves += array is not None
            self._views = {key: view for key, view in self._views.items() if key[0] != name}
            self._arrays[name] = array = aligned_zeros(size * 4).view(np.float32)
        view = self._views[name, shape] = array[:size].reshape(shape)
        return view
