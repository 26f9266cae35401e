"""Which experts a row goes to, and with what weight. Always in f32, whatever the other weights."""

import numpy as np
import numpy.typing as npt

from diskmoe.engine.kernels.matmul import matmul
from diskmoe.engine.kernels.route import route
from diskmoe.engine.kernels.workers import Workers
from diskmoe.engine.model.config import ModelConfig
from diskmoe.engine.model.scratch import Floats, Scratch
from diskmoe.engine.model.weights import RouterWeights


def choose_experts(
    x: Floats,  # (n, hidden), normed
    weights: RouterWeights,
    config: ModelConfig,
    workers: Workers,
    scratch: Scratch,
) -> tuple[npt.NDArray[np.int32], Floats]:
    """-> ids i32 (n, top_k), best choice first, and weights f32 (n, top_k)."""
    logits = scratch.take("router.logits", len(x), config.experts)
    matmul(x, weights.matrix, logits, workers)
    return route(
        logits,
        config.score,
        weights.correction_bias,
        config.groups,
        config.top_groups,
        "top2",
        config.top_k,
        config.renorm,
        config.routed_scale,
    )
