"""Working arrays that are kept between forwards, so that steady decoding allocates nothing large.

The one rule: an array taken under a name is valid until that name is taken again.
"""

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class Scratch:
    """f32 arrays by name; each grows to the largest size it was asked for."""

    def __init__(self) -> None:
        self._arrays: dict[str, Floats] = {}

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays.values())

    def take(self, name: str, *shape: int) -> Floats:
        """A C-contiguous array of this shape whose contents are whatever was there before."""
        size = math.prod(shape)
        array = self._arrays.get(name)
        if array is None or array.size < size:
            array = np.empty(size, np.float32)
            self._arrays[name] = array
        return array[:size].reshape(shape)
