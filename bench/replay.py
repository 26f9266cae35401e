"""``diskmoe bench replay``: what each policy would have hit in a recorded routing.

The bookkeeping that is driven here is the hot store's own, ``LayerSlots``: with the policy and the
slots of a run, the trace of that run gives the run's hits and misses exactly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diskmoe.bench.belady import Belady
from diskmoe.bench.trace import Forward, Recording, read_recording
from diskmoe.bench.words import understood
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.places import as_path
from diskmoe.experts.policy import AUTO, POLICIES, Policy
from diskmoe.experts.slots import LayerSlots, most_recent_first
from diskmoe.experts.trace import DECODE, PROMPT

Say = Callable[[str], None]

USAGE = """\
usage: diskmoe bench replay TRACE [options]

Drives the hot store's bookkeeping with a recorded routing (diskmoe --trace FILE, or the same lines
of another program: phase,step,layer,experts) and prints the hit rate of each policy while decoding.
'belady' knows the future and keeps every newcomer; 'bypass' knows it too and keeps what is wanted
sooner. Then what a forward of several accepted rows reads: unique experts, and misses per row.

  --slots N,N,...    slots per layer (default 1, 1.5, 2, 3, 4 and 6 times the experts per token)
  --rows N,N,...     rows per forward (default 1,2,4,8,16), with the policy --policy
  --json             one JSON object
"""
FLAGS = {"--slots": True, "--rows": True}
SETTINGS = ("POLICY", "JSON", "DEBUG", "VERBOSE")
SLOTS_PER_EXPERT = (1, 1.5, 2, 3, 4, 6)
ROWS = (1, 2, 4, 8, 16)


@dataclass
class Hits:
    """Counts of one phase, over all layers. A hit or miss is one unique expert of one union."""

    hits: int = 0
    misses: int = 0

    @property
    def rate(self) -> float:
        return self.hits / max(1, self.hits + self.misses)


def replay(
    recording: Recording,
    n_slots: int,
    policy: Callable[[int], Policy] | None,
    keeps_all: bool = True,
    pinned: Mapping[int, Iterable[int]] | None = None,
) -> dict[int, Hits]:
    """Hits and misses by phase, with so many slots in each layer, empty at first.

    policy: makes it from the number of slots; None: Belady's, see there for `keeps_all`.
    pinned: experts that have slots from the start and keep them, by layer.
    """
    total = {PROMPT: Hits(), DECODE: Hits()}
    for layer, forwards in recording.layers.items():
        unions = [sorted({e for row in forward.rows for e in row}) for forward in forwards]
        made = Belady(unions, keeps_all) if policy is None else policy(n_slots)
        slots = LayerSlots(range(n_slots), made)
        for expert in (pinned or {}).get(layer, ()):
            slot = slots.pin()
            if slot is not None:
                slots.arrived(expert, slot)
        for forward, union in zip(forwards, unions, strict=True):
            ranked, doubted = None, frozenset[int]()
            if forward.phase == DECODE:
                doubted = frozenset(union).difference(forward.rows[0])
            elif recording.by_forward:
                ranked = most_recent_first(np.array(forward.rows, np.int32))
            plan = slots.plan(union, ranked, doubted)
            for expert, slot in plan.loads:
                slots.arrived(expert, slot)
            if forward.accepted is not None:
                right = {e for row in forward.rows[: forward.accepted] for e in row}
                slots.cool(e for e, _ in plan.loads if e in doubted - right)
            total[forward.phase].hits += len(plan.hits)
            total[forward.phase].misses += plan.misses
    return total


def regrouped(recording: Recording, rows: int) -> Recording:
    """The same with so many decoded rows in each forward; the last of a layer may have fewer."""

    def grouped(forwards: Sequence[Forward]) -> list[Forward]:
        decoded = [
            row
            for forward in forwards
            if forward.phase == DECODE
            for row in forward.rows[: forward.accepted]
        ]
        return [forward for forward in forwards if forward.phase == PROMPT] + [
            Forward(DECODE, decoded[at : at + rows]) for at in range(0, len(decoded), rows)
        ]

    layers = {layer: grouped(forwards) for layer, forwards in recording.layers.items()}
    return Recording(recording.path, recording.top_k, layers, recording.by_forward)


def command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """Runs ``bench replay``; returns the exit code."""
    line = understood("replay", words, env, FLAGS, SETTINGS)
    if len(line.places) != 1 or not line.places[0]:
        raise BadRequest("bench replay needs one TRACE file; see diskmoe bench replay --help")
    recording = read_recording(as_path(line.places[0]))
    multiples = [int(times * recording.top_k) for times in SLOTS_PER_EXPERT]
    slot_counts = line.wholes("--slots", 1, 100_000, multiples)
    row_counts = line.wholes("--rows", 1, 10_000, ROWS)
    forwards = [forward for layer in recording.layers.values() for forward in layer]
    asked = {phase: sum(len(f.rows) for f in forwards if f.phase == phase) for phase in (0, 1)}
    if not asked[DECODE]:
        raise BadRequest(f"{recording.path}: holds no line of phase 1: nothing was decoded")
    table = {n_slots: _rates(recording, n_slots) for n_slots in slot_counts}
    name = AUTO if line.values["POLICY"].value == "auto" else line.values["POLICY"].value
    unions = {rows: union_of(recording, rows, slot_counts, name) for rows in row_counts}
    if line.values["JSON"].value:
        print(json.dumps(_as_json(recording, asked, table, unions, name)))
        return 0
    print(
        f"trace     {recording.path.name}: {len(recording.layers)} layers, {recording.top_k} experts "
        f"per token; rows x layers: {asked[PROMPT]} of prompts, {asked[DECODE]} decoded"
    )
    _print_rates(table)
    _print_unions(unions, slot_counts, name)
    return 0


def _rates(recording: Recording, n_slots: int) -> dict[str, dict[int, Hits]]:
    found = {name: replay(recording, n_slots, policy) for name, policy in POLICIES.items()}
    found["belady"] = replay(recording, n_slots, None)
    found["bypass"] = replay(recording, n_slots, None, keeps_all=False)
    return found


@dataclass(frozen=True)
class Union:
    """Means over the unions of so many rows, per layer."""

    unique: float
    misses_per_row: dict[int, float]  # by slots


def union_of(recording: Recording, rows: int, slot_counts: Sequence[int], name: str) -> Union:
    """What forwards of so many rows ask for, and miss with a policy."""
    grouped = regrouped(recording, rows)
    decoded = [f for layer in grouped.layers.values() for f in layer if f.phase == DECODE]
    whole = [f for f in decoded if len(f.rows) == rows] or decoded
    unique = sum(len({e for row in f.rows for e in row}) for f in whole) / len(whole)
    n_rows = sum(len(f.rows) for f in decoded)
    misses = {
        n_slots: replay(grouped, n_slots, POLICIES[name])[DECODE].misses / n_rows
        for n_slots in slot_counts
    }
    return Union(unique, misses)


def _print_rates(table: Mapping[int, Mapping[str, Mapping[int, Hits]]]) -> None:
    names = list(next(iter(table.values())))
    print("hit rate of decoding")
    print("slots   " + "".join(f"{name:>8}" for name in names) + f"{AUTO + '/belady':>14}")
    for n_slots, found in table.items():
        rates = {name: found[name][DECODE].rate for name in names}
        share = rates[AUTO] / rates["belady"] if rates["belady"] else 1.0
        print(f"{n_slots:<8}" + "".join(f"{rates[n]:>8.3f}" for n in names) + f"{share:>14.3f}")


def _print_unions(unions: Mapping[int, Union], slot_counts: Sequence[int], name: str) -> None:
    first = next(iter(unions))
    print(f"forwards of several rows ({name}): unique experts, and misses per row and layer,")
    print(f"with what share that is of the misses of forwards of {first}")
    print("rows    unique" + "".join(f"{f'{n} slots':>16}" for n in slot_counts))
    for rows, union in unions.items():
        cells = ""
        for n_slots, misses in union.misses_per_row.items():
            before = unions[first].misses_per_row[n_slots]
            cells += f"{misses:>9.2f} ({misses / before if before else 1:.2f})"
        print(f"{rows:<8}{union.unique:>6.1f}{cells}")


def _as_json(
    recording: Recording,
    asked: Mapping[int, int],
    table: Mapping[int, Mapping[str, Mapping[int, Hits]]],
    unions: Mapping[int, Union],
    name: str,
) -> dict[str, Any]:
    return {
        "trace": str(recording.path),
        "layers": len(recording.layers),
        "top_k": recording.top_k,
        "prompt_rows_x_layers": asked[PROMPT],
        "decoded_rows_x_layers": asked[DECODE],
        "slots": {
            n_slots: {
                policy: {
                    "hit_rate": hits[DECODE].rate,
                    "hits": hits[DECODE].hits,
                    "misses": hits[DECODE].misses,
                    "prompt_hits": hits[PROMPT].hits,
                    "prompt_misses": hits[PROMPT].misses,
                }
                for policy, hits in found.items()
            }
            for n_slots, found in table.items()
        },
        "unions": {
            "policy": name,
            "rows": {
                rows: {"unique": union.unique, "misses_per_row": union.misses_per_row}
                for rows, union in unions.items()
            },
        },
    }
