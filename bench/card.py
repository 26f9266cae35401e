"""What a routing does to a cache: unique experts and hits, by replaying the choices.

The rule of this file: the replay is that of ``experts.store`` with its least recently used policy,
one token at a time: the experts of a token that are resident are touched first, in ascending order,
then the missing ones as they are asked for. Its figures are those the engine would count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskmoe.engine.kernels.route import RouteRule, route
from diskmoe.experts.budget import shown_bytes

Ints = npt.NDArray[np.int64]
COUNTED = 128  # tokens
WARMING = 32  # tokens before them


def choices(
    signal: npt.NDArray[np.float32],  # (tokens, RESERVED), as stored in the embedding
    routers: Sequence[npt.NDArray[np.float32]],  # per layer (experts, RESERVED)
    rule: RouteRule,
) -> Ints:
    """(layers, tokens, top_k): what each layer's router chooses, ascending ids."""
    wide = signal.astype(np.float64)
    found = []
    for rows in routers:
        logits = (wide @ rows.astype(np.float64).T).astype(np.float32)
        ids, _ = route(
            logits,
            rule.score,
            np.zeros(len(rows), np.float32),
            rule.n_group,
            rule.topk_group,
            rule.group_score,
            rule.top_k,
            rule.renorm,
            rule.scale,
        )
        found.append(np.sort(ids, axis=1))
    return np.stack(found).astype(np.int64)


def hits_of(chosen: Ints, experts: int, slots: int, warming: int = 0) -> tuple[int, int]:
    """(hits, selections) of a store with `slots` slots per layer, after `warming` tokens.

    chosen: (layers, tokens, top_k), ids ascending; slots >= top_k.
    """
    layers, tokens, top_k = chosen.shape
    if slots < top_k:
        raise ValueError(f"{slots} slots are fewer than the {top_k} experts of one token")
    touched = np.full((layers, experts), -1, np.int64)  # when last; -1: never
    lane = np.arange(layers)[:, None]
    hits = 0
    for token in range(tokens):
        ids = chosen[:, token]
        last = touched[lane, ids]
        newer = (touched[:, None, :] > last[:, :, None]).sum(axis=2)
        hit = (last >= 0) & (newer < slots)
        if token >= warming:
            hits += int(hit.sum())
        touched[lane, ids] = token * top_k + np.arange(top_k)
    return hits, layers * (tokens - warming) * top_k


@dataclass(frozen=True)
class Card:
    """What a synthetic model is like to a cache."""

    routing: str
    experts: int
    top_k: int
    unique: float  # experts per layer over `COUNTED` tokens
    hit_rate: dict[int, float]  # by slots per layer
    expert_bytes: int
    total_bytes: int

    def lines(self) -> list[str]:
        rates = ", ".join(f"{rate:.2f} at {slots}" for slots, rate in self.hit_rate.items())
        return [
            f"routing   {self.routing}: {self.unique:.1f} of {self.experts} experts a layer in "
            + f"{COUNTED} tokens",
            f"lru       hit rate {rates} slots (top-k {self.top_k})",
            f"bytes     {shown_bytes(self.expert_bytes)} an expert, "
            + f"{shown_bytes(self.total_bytes)} in all",
        ]

    def as_json(self) -> dict[str, object]:
        return {
            "routing": self.routing,
            "experts": self.experts,
            "top_k": self.top_k,
            "unique_experts_128": self.unique,
            "lru_hit_rate": {str(slots): rate for slots, rate in self.hit_rate.items()},
            "expert_bytes": self.expert_bytes,
            "total_bytes": self.total_bytes,
        }


def card_slots(experts: int, top_k: int) -> list[int]:
    """8, 16, 32, 64, and the multiples of top-k that real routings are told at."""
    wanted = {8, 16, 32, 64} | {top_k * times for times in (1, 2, 3, 4, 6)}
    return sorted(slots for slots in wanted if top_k <= slots < experts)


def measure(chosen: Ints, experts: int, slots: Sequence[int]) -> tuple[float, dict[int, float]]:
    """(unique experts per layer over `COUNTED` tokens, LRU hit rate by slots).

    chosen: (layers x streams, WARMING + COUNTED, top_k).
    """
    counted = chosen[:, WARMING:]
    unique = float(np.mean([len(np.unique(layer)) for layer in counted]))
    rates = {}
    for count in slots:
        hits, asked = hits_of(chosen, experts, count, WARMING)
        rates[count] = hits / asked
    return unique, rates
