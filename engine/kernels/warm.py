"""Everything that is to be compiled before the first token, as a list of items.

The rule of this file: an item is a piece of work that two processes need not share, and whatever a
model of these formats calls is in one of them, so that no kernel is compiled in the middle of an
answer. Only tile kernels depend on the format.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from types import MappingProxyType

import numpy as np

from diskmoe.engine.kernels.attention import ATTEND
from diskmoe.engine.kernels.attention_chosen import ATTEND_CHOSEN
from diskmoe.engine.kernels.basic import NORM, rms_norm, rope_tables
from diskmoe.engine.kernels.delta import GATED_NORM
from diskmoe.engine.kernels.delta_keep import KEEP, SETTLE
from diskmoe.engine.kernels.delta_mix import MIX
from diskmoe.engine.kernels.delta_rule import DELTA
from diskmoe.engine.kernels.experts import COMBINE, DOWN, GATE_UP, expert_ffn
from diskmoe.engine.kernels.gates import OPEN, SPLIT, SWITCH
from diskmoe.engine.kernels.heads import HEADS
from diskmoe.engine.kernels.indexer import CHOOSE, INDEX_HEADS, INDEX_SCORES
from diskmoe.engine.kernels.latent import FOLD, KEEP_LATENTS, TURN_QUERIES, UNFOLD
from diskmoe.engine.kernels.matmul import matmul, take_rows
from diskmoe.engine.kernels.matrix import Matrix
from diskmoe.engine.kernels.multiply import MULTIPLY, PREPARE
from diskmoe.engine.kernels.products import tile_kernel
from diskmoe.engine.kernels.program import Phase
from diskmoe.engine.kernels.route import ROUTE
from diskmoe.engine.kernels.workers import Workers, ready_pool
from diskmoe.experts.tiles import matrix_layout, record_layout

# in falling order of cost, so that two processes end at about the same time
PHASES = (ATTEND, HEADS, ROUTE, PREPARE, GATE_UP, DOWN, MULTIPLY, COMBINE, NORM)
# of blocks that only some models have
BLOCKS: Mapping[str, tuple[Phase, ...]] = MappingProxyType(
    {
        "latents": (FOLD, KEEP_LATENTS, UNFOLD, TURN_QUERIES),
        "chosen keys": (ATTEND_CHOSEN, INDEX_SCORES, INDEX_HEADS, CHOOSE),
        "delta": (DELTA, MIX, KEEP, GATED_NORM, SETTLE),
        "gates": (OPEN, SWITCH, SPLIT),
    }
)


@dataclass(frozen=True)
class WarmItem:
    """A few kernels; `run` compiles them, or finds them on disk."""

    name: str
    run: Callable[[], None]


def kernel_items(formats: Sequence[str], blocks: Sequence[str] = tuple(BLOCKS)) -> list[WarmItem]:
    """Every kernel that a model with these weight formats and blocks needs, the costliest first.

    What packs weights on the way in is compiled by ``experts.warm.compile_packers``.
    """
    phases = chain(PHASES, *(BLOCKS[block] for block in blocks))
    return [
        *(WarmItem(phase.name, partial(_ready_phase, phase)) for phase in phases),
        *(WarmItem(f"products {fmt}", partial(_ready_tiles, fmt)) for fmt in formats),
        WarmItem("embedding", partial(_take_rows, formats[0])),
        WarmItem("threads", ready_pool),
        # these put the items above to use, and so come last
        WarmItem("norms and rope", _basics),
        *(WarmItem(f"experts {fmt}", partial(_experts, fmt)) for fmt in formats),
        *(WarmItem(f"matrices {fmt}", partial(_matrices, fmt)) for fmt in formats),
    ]


def _ready_phase(phase: Phase) -> None:
    assert phase.address


def _ready_tiles(fmt: str) -> None:
    assert tile_kernel(fmt)


def _take_rows(fmt: str) -> None:
    take_rows(_matrix(fmt), np.zeros(1, np.int32), _zeros(1, 64))


def _basics() -> None:
    x = _zeros(1, 32)
    rms_norm(x, x[0], 1e-6, x)
    rope_tables(np.ones(8), 4)


def _experts(fmt: str) -> None:
    layout = record_layout(fmt, 32, 16)
    arena = np.zeros(layout.nbytes, np.uint8)
    zeros, bounds = np.zeros(1, np.int32), np.array([0, 1], np.int32)
    with Workers(1) as workers:
        expert_ffn(
            _zeros(1, 32), zeros, zeros, bounds, zeros, arena, layout, _zeros(1, 32), workers
        )


def _matrices(fmt: str) -> None:
    with Workers(1) as workers:
        matmul(_zeros(5, 64), _matrix(fmt), _zeros(5, 16), workers)


def _matrix(fmt: str) -> Matrix:
    layout = matrix_layout(fmt, 16, 64)
    return Matrix(layout, np.zeros(layout.nbytes, np.uint8))


def _zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)
