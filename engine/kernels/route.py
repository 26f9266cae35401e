"""Router logits to experts and weights, for every router of the supported families.

The rule of this file: the order of operations is that of the families' published routers
(`qwen3_moe`, `olmoe`: softmax, top-k, renormalise; `glm4_moe`, `deepseek_v3`: sigmoid, bias for
the choice only, groups, top-k, renormalise, scale), in f32, sums in ascending order; equal scores
go to the lower id.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskmoe.compiled.functions import inner
from diskmoe.engine.kernels.atomics import store_i32, word_at
from diskmoe.engine.kernels.matmul import check_floats
from diskmoe.engine.kernels.program import (
    Builder,
    Phase,
    Rows,
    address_of_array,
    f32_word,
    rows_of,
)
from diskmoe.engine.kernels.simd import address, exp, f32_at, i32_at, sigmoid, store_one
from diskmoe.engine.kernels.workers import Workers

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
    builder = Builder()
    rule = RouteRule(score, n_group, topk_group, group_score, top_k, renorm, scale)
    add_route(
        builder,
        n,
        experts,
        rule,
        rows_of(logits),
        address_of_array(bias),
        address_of_array(ids),
        address_of_array(weights),
    )
    with Workers(1) as alone:
        alone.run(builder.program())
    return ids, weights


@dataclass(frozen=True)
class RouteRule:
    """How a family's router chooses; see `route`."""

    score: str
    n_group: int
    topk_group: int
    group_score: str
    top_k: int
    renorm: bool
    scale: float


def add_route(
    builder: Builder,
    n: int,
    experts: int,
    rule: RouteRule,
    logits: Rows,
    bias: int,  # address of f32 (experts,)
    ids: int,  # address of i32 (n, top_k)
    weights: int,  # address of f32 (n, top_k)
) -> None:
    """A phase: see `route`."""
    words = [
        *(experts, int(rule.score == "sigmoid"), bias, rule.n_group, rule.topk_group),
        *(2 if rule.group_score == "top2" else 1, rule.top_k, int(rule.renorm)),
        *(f32_word(rule.scale), logits.address, logits.step, ids, weights),
    ]
    builder.add(ROUTE, words, n, experts * (20 + 2 * rule.top_k))


@inner
def _best(choice, free, begin, end):  # pragma: no cover - compiled
    """Index of the largest free one of choice[begin:end], the lowest of equals; NaN never beats."""
    best = np.int64(-1)
    highest = np.float32(0.0)
    for e in range(begin, end):
        if i32_at(free + e * 4) != 0:
            number = f32_at(choice + e * 4)
            if best < 0 or number > highest:
                best = np.int64(e)
                highest = number
    return best


@inner
def _group_score(choice, free, begin, end, group_best):  # pragma: no cover - compiled
    """The largest choice score of a group, or the sum of the two largest."""
    first = _best(choice, free, begin, end)
    total = f32_at(choice + first * 4)
    if group_best == 2 and end - begin > 1:
        store_one(free + first * 4, _NOT_FREE)
        total += f32_at(choice + _best(choice, free, begin, end) * 4)
        store_one(free + first * 4, _FREE)
    return total


_NOT_FREE = np.float32(0.0)  # flags are f32 words; what counts is that the bits are not 0
_FREE = np.float32(1.0)


@inner
def _softmax(logits, experts, scores):  # pragma: no cover - compiled
    largest = f32_at(logits)
    for e in range(1, experts):
        largest = max(largest, f32_at(logits + e * 4))
    total = np.float32(0.0)
    for e in range(experts):
        score = exp(f32_at(logits + e * 4) - largest)
        store_one(scores + e * 4, score)
        total += score
    for e in range(experts):
        store_one(scores + e * 4, f32_at(scores + e * 4) / total)


@inner
def _route_row(args, logits, ids, weights, scores):  # pragma: no cover - compiled
    """One row; `scores`: room for 3 * experts + 2 * groups f32."""
    experts = word_at(args)
    bias = word_at(args + 16)
    n_group = word_at(args + 24)
    topk_group = word_at(args + 32)
    top_k = word_at(args + 48)
    size = experts // n_group
    choice = scores + experts * 4
    free = choice + experts * 4  # experts that can still be chosen
    group_scores = free + experts * 4
    shut = group_scores + n_group * 4  # groups that are not kept (yet)
    if word_at(args + 8) != 0:
        for e in range(experts):
            store_one(scores + e * 4, sigmoid(f32_at(logits + e * 4)))
    else:
        _softmax(logits, experts, scores)
    for e in range(experts):
        store_one(choice + e * 4, f32_at(scores + e * 4) + f32_at(bias + e * 4))
        store_one(free + e * 4, _FREE)
    if topk_group < n_group:
        for group in range(n_group):
            first = group * size
            score = _group_score(choice, free, first, first + size, word_at(args + 40))
            store_one(group_scores + group * 4, score)
            store_one(shut + group * 4, _FREE)
        for _ in range(topk_group):
            kept = _best(group_scores, shut, np.int64(0), n_group)
            store_one(shut + kept * 4, _NOT_FREE)
        for e in range(experts):
            if i32_at(shut + e // size * 4) != 0:
                store_one(free + e * 4, _NOT_FREE)
    total = np.float32(0.0)
    for j in range(top_k):
        e = _best(choice, free, np.int64(0), experts)
        store_one(free + e * 4, _NOT_FREE)
        store_i32(ids + j * 4, e)
        store_one(weights + j * 4, f32_at(scores + e * 4))
        total += f32_at(scores + e * 4)
    scale = f32_at(args + 64)
    if word_at(args + 56) != 0:
        if word_at(args + 8) != 0:
            total += np.float32(1e-20)
        for j in range(top_k):
            store_one(weights + j * 4, f32_at(weights + j * 4) / total)
    for j in range(top_k):
        store_one(weights + j * 4, f32_at(weights + j * 4) * scale)


def _route(args, begin, end):  # pragma: no cover - compiled
    """Items: rows."""
    top_k = word_at(args + 48)
    room = np.empty(3 * word_at(args) + 2 * word_at(args + 24), np.float32)
    for row in range(begin, end):
        logits = word_at(args + 72) + row * word_at(args + 80)
        ids = word_at(args + 88) + row * top_k * 4
        weights = word_at(args + 96) + row * top_k * 4
        _route_row(args, logits, ids, weights, address(room))


ROUTE = Phase(_route)
