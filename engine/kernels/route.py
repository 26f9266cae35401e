"""Router logits to experts and weights, for every router of the supported families.

The rule of this file: the order of operations is that of the families' published routers
(`qwen3_moe`, `olmoe`: softmax, top-k, renormalise; `glm4_moe`, `deepseek_v3`: sigmoid, bias for
the choice only, groups, top-k, renormalise, scale), in f32, sums in ascending order; equal scores
go to the lower id.
"""

import numpy as np
import numpy.typing as npt

from diskmoe.engine.kernels.matmul import check_floats
from diskmoe.engine.kernels.simd import exp, sigmoid
from diskmoe.experts.compiled import kernel

Floats = npt.NDArray[np.float32]


def route(
    logits: Floats,  # (n, experts)
    score: str,  # "softmax" | "sigmoid"
    bias: Floats,  # (experts,) correction bias for the choice; zeros for none
    n_group: int,
    topk_group: int,
    group_score: str,  # "top2" (sum of the two best; deepseek_v3) | "max" (deepseek_v2)
    top_k: int,
    renorm: bool,
    scale: float,
) -> tuple[npt.NDArray[np.int32], Floats]:
    """-> ids i32 (n, top_k) by falling choice score (ties: lower id), weights f32 (n, top_k).

    Weights are the unbiased scores of the chosen; renormalised they are divided by their sum (plus
    1e-20 with sigmoid scores); then multiplied by `scale`.
    """
    n, experts = logits.shape
    check_floats("logits", logits, (n, experts))
    check_floats("bias", bias, (experts,))
    if score not in ("softmax", "sigmoid") or group_score not in ("top2", "max"):
        raise ValueError(f"router score {score!r} with group score {group_score!r}")
    if n_group < 1 or experts % n_group or not 1 <= topk_group <= n_group:
        raise ValueError(f"{topk_group} of {n_group} groups of {experts} experts")
    if not 1 <= top_k <= experts // n_group * topk_group:
        raise ValueError(f"top {top_k} of {experts // n_group * topk_group} eligible experts")
    ids = np.empty((n, top_k), np.int32)
    weights = np.empty((n, top_k), np.float32)
    _route(
        logits,
        score == "sigmoid",
        bias,
        n_group,
        topk_group,
        2 if group_score == "top2" else 1,
        renorm,
        np.float32(scale),
        ids,
        weights,
    )
    return ids, weights


@kernel
def _best(choice, free, begin, end):  # pragma: no cover - compiled
    """Index of the largest free one of choice[begin:end], the lowest of equals; NaN never beats."""
    best = -1
    for e in range(begin, end):
        if free[e] and (best < 0 or choice[e] > choice[best]):
            best = e
    return best


@kernel
def _group_score(choice, free, begin, end, group_best):  # pragma: no cover - compiled
    """The largest choice score of a group, or the sum of the two largest."""
    first = _best(choice, free, begin, end)
    total = choice[first]
    if group_best == 2 and end - begin > 1:
        free[first] = False
        total += choice[_best(choice, free, begin, end)]
        free[first] = True
    return total


@kernel
def _route(
    logits, use_sigmoid, bias, n_group, topk_group, group_best, renorm, scale, ids, weights
):  # pragma: no cover - compiled
    n, experts = logits.shape
    top_k = ids.shape[1]
    size = experts // n_group
    scores = np.empty(experts, np.float32)
    choice = np.empty(experts, np.float32)
    group_scores = np.empty(n_group, np.float32)
    free = np.empty(experts, np.bool_)  # experts that can still be chosen
    shut = np.empty(n_group, np.bool_)  # groups that are not kept (yet)
    for row in range(n):
        free[:] = True
        if use_sigmoid:
            for e in range(experts):
                scores[e] = sigmoid(logits[row, e])
        else:
            _softmax(logits[row], scores)
        for e in range(experts):
            choice[e] = scores[e] + bias[e]
        if topk_group < n_group:
            for group in range(n_group):
                first = group * size
                group_scores[group] = _group_score(choice, free, first, first + size, group_best)
            shut[:] = True
            for _ in range(topk_group):
                shut[_best(group_scores, shut, 0, n_group)] = False
            for e in range(experts):
                free[e] = not shut[e // size]
        total = np.float32(0.0)
        for j in range(top_k):
            e = _best(choice, free, 0, experts)
            free[e] = False
            ids[row, j] = e
            weights[row, j] = scores[e]
            total += scores[e]
        if renorm:
            if use_sigmoid:
                total += np.float32(1e-20)
            for j in range(top_k):
                weights[row, j] /= total
        for j in range(top_k):
            weights[row, j] *= scale


@kernel
def _softmax(logits, scores):  # pragma: no cover - compiled
    largest = logits[0]
    for e in range(1, len(logits)):
        largest = max(largest, logits[e])
    total = np.float32(0.0)
    for e in range(len(logits)):
        scores[e] = exp(logits[e] - largest)
        total += scores[e]
    for e in range(len(logits)):
        scores[e] /= total
