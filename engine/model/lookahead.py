"""Which experts the next layer will want, told by its router from the hidden state of this one.

The one rule: a guess never changes a result. It is judged (how often it names the true experts) and
may let the disk read ahead in its idle time; published measurements of such guesses are 70-89 %
right one layer ahead (Eliseev and Mazur, arXiv 2312.17238, and later).
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from diskmoe.engine.kernels.program import Rows, address_of_array
from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.phases import RowBuilder
from diskmoe.engine.model.roles import LayerWeights
from diskmoe.engine.model.router import add_choice

Ints = npt.NDArray[np.int32]
MOST_ROWS = 8  # of a forward that is looked ahead for; a prompt's chunk wants nearly all experts


@dataclass
class Recall:
    """Of the experts that rows chose, how many were among the k, and the 2k, first guesses."""

    chosen: int = 0
    in_k: int = 0
    in_2k: int = 0

    def add(self, ids: Ints, guessed: Ints) -> None:
        """ids (n, k) the true choice, guessed (n, 2k or fewer) best first."""
        same = ids[:, :, None] == guessed[:, None, :]
        self.chosen += ids.size
        self.in_k += int(np.count_nonzero(same[:, :, : ids.shape[1]]))
        self.in_2k += int(np.count_nonzero(same))


class LookAhead:
    """Guesses for the layers of one model."""

    def __init__(self, config: ModelConfig) -> None:
        eligible = config.experts // max(1, config.groups) * config.top_groups
        self._config = replace(config, top_k=min(2 * config.top_k, eligible))
        self._guesses: dict[tuple[int, int], Ints] = {}  # by rows and layer
        self._fresh: int | None = None  # the layer that was guessed last
        self.recall = Recall()

    def add(self, builder: RowBuilder, x: Rows, layer: LayerWeights) -> None:
        """Phases that guess the experts of `layer` from x (n, hidden), which stands before it."""
        if layer.router is None or builder.n > MOST_ROWS:
            return
        config, n = self._config, builder.n
        ids = np.zeros((n, config.top_k), np.int32)
        shares = np.zeros((n, config.top_k), np.float32)
        normed = builder.normed("ahead.normed", x, layer.ffn_norm, config.norm_epsilon)
        add_choice(
            builder, normed, layer.router, config, address_of_array(ids), address_of_array(shares)
        )
        builder.keep(ids, shares)
        self._guesses[n, layer.layer] = ids

    def judge(self, layer: int, ids: Ints) -> None:
        """The router of `layer` has chosen ids (n, k): counts how good the guess was, if any."""
        if self._fresh == layer:
            self.recall.add(ids, self._guesses[len(ids), layer])
        self._fresh = None

    def guess(self, layer: int, n: int) -> Ints | None:
        """ids (n, 2k) of `layer`, as guessed by the phases that have just run; None without."""
        ids = self._guesses.get((n, layer))
        self._fresh = None if ids is None else layer
        return ids
