"""``diskmoe bench drafts``: what drafts are worth, fixed depths and the planner side by side.

All arms run in one process on one model, in turns and back again, so that what disturbs the machine
or fills the hot store disturbs all of them alike. Token ids are compared: they must not differ.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diskmoe.bench.words import Words, understood
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.places import as_path

if TYPE_CHECKING:
    from diskmoe.engine.api import Model, Options
    from diskmoe.engine.stats import RunStats

Say = Callable[[str], None]

USAGE = """\
usage: diskmoe bench drafts [MODEL] [options]     without MODEL: the demo model

Generates the same texts, greedily, with no drafts ("plain"), with fixed numbers of drafts and with
the planner, in turns on one loaded model, and says tokens per second of each, for every number of
slots and every disk speed asked for. The texts: prose, code (an edit of a function in the prompt)
and ndjson (with a grammar). Every arm but "plain" has all sources of drafts that the model has.

  --texts LIST       of prose, code, ndjson (default all three)
  --slots N,N,...    hot-store slots per layer (default: 2, half and all of the experts)
  --disks LIST       bytes a second, 0 for as fast as it is (default 200M,1G,0)
  --depths N,N,...   fixed numbers of drafts (default 1,2,4,8)
  --tokens N         of each run (default 96)
  --repeat N         rounds of all arms, back and forth (default 2)
  --json             one JSON object, with every run

Settings of a run that apply: --threads, --io-threads, --direct, --policy, --guard, --ngram, --mtp.
"""
FLAGS = {
    "--texts": True,
    "--slots": True,
    "--disks": True,
    "--depths": True,
    "--tokens": True,
    "--repeat": True,
}
SETTINGS = (
    "MODEL",
    "THREADS",
    "IO_THREADS",
    "DIRECT",
    "POLICY",
    "GUARD",
    "NGRAM",
    "MTP",
    "CACHE_DIR",
    "JSON",
    "DEBUG",
    "VERBOSE",
)
TEXTS = ("prose", "code", "ndjson")
PLAIN, PLANNER = "plain", "planner"
_HERE = Path(__file__).parent
_PROSE = "Write a letter to a friend about a long walk in the mountains."
_CODE = '''\
def total_price(items, tax):
    """Return the total price of all items, with tax."""
    total = 0
    for item in items:
        price = item["price"]
        quantity = item["quantity"]
        total = total + price * quantity
    return total * (1 + tax)


# The same function again, where the tax is given in percent:
def total_price(items, tax):
'''


@dataclass
class Cell:
    """One text, one number of slots, one disk: the runs of every arm."""

    text: str
    slots: int
    disk: int | None  # bytes a second
    runs: dict[str, list[RunStats]] = field(default_factory=dict)
    same_ids: bool = True

    def speed(self, arm: str) -> float:
        """The median tokens per second of an arm."""
        return statistics.median(stats.tok_per_s or 0.0 for stats in self.runs[arm])

    def per_forward(self, arm: str) -> float:
        return statistics.median(stats.tokens_per_forward or 0.0 for stats in self.runs[arm])

    def against(self, arms: Sequence[str]) -> float:
        """The planner's speed, of that of the fastest of these arms."""
        return self.speed(PLANNER) / max(self.speed(arm) for arm in arms)


def command(words: Sequence[str], env: Mapping[str, str], say: Say) -> int:
    """Runs ``bench drafts``; returns the exit code."""
    line = understood("drafts", words, env, FLAGS, SETTINGS)
    from diskmoe.engine.opening import model_path

    if len(line.places) > 1:
        raise BadRequest("bench drafts takes one MODEL; see diskmoe bench drafts --help")
    path = as_path(line.places[0]) if line.places else model_path(line.values, say)
    texts = line.several("--texts", TEXTS, TEXTS)
    depths = line.wholes("--depths", 1, 16, (1, 2, 4, 8))
    arms = [PLAIN, *(str(depth) for depth in depths), PLANNER]
    cells = []
    for cell in _cells(line, path, texts, arms, say):
        cells.append(cell)
        say(_row(cell, arms))
    if line.values["JSON"].value:
        print(json.dumps(_as_json(cells, arms)))
    else:
        print("\n".join([*_table(cells, arms), *_summary(cells, arms)]))
    return 0 if all(cell.same_ids for cell in cells) else 1


def _cells(
    line: Words, path: Path, texts: Sequence[str], arms: Sequence[str], say: Say
) -> Iterator[Cell]:
    from diskmoe.engine.api import Model
    from diskmoe.engine.opening import options_from

    disks = _disks(line.flags.get("--disks", "200M,1G,0"))
    tokens, repeat = line.whole("--tokens", 8, 4096, 96), line.whole("--repeat", 1, 100, 2)
    options = options_from(line.values)
    experts = _experts(path)
    for slots in line.wholes("--slots", 1, 100_000, sorted({2, experts // 2, experts})):
        for disk in disks if slots < experts else disks[-1:]:  # nothing is read where all fit
            here = replace(options, cap=slots, disk_bps=disk, ctx=1024, draft_rows=24, span=24)
            with Model.load(path, here, say) as model:
                for text in texts:
                    yield _measured(model, here, Cell(text, slots, disk), arms, tokens, repeat)


def _experts(path: Path) -> int:
    from diskmoe.engine.api import prepare

    prepared = prepare(path)
    prepared.close()
    return prepared.opened.config.experts


def _disks(text: str) -> list[int | None]:
    """Bytes a second of each disk in a list, None for as fast as it is."""
    from diskmoe.engine.settings import BY_NAME

    try:
        found = [BY_NAME["DISK_BPS"].parse(part) for part in text.replace(",", " ").split()]
    except ValueError as error:
        raise BadRequest(f"--disks is {text[:60]!r}; each must be {error}") from None
    if not found:
        raise BadRequest("--disks is empty; it must be a list like 200M,1G,0")
    return list(dict.fromkeys(found))


def _measured(
    model: Model, options: Options, cell: Cell, arms: Sequence[str], tokens: int, repeat: int
) -> Cell:
    seen: list[list[int]] = []
    for arm in [PLAIN, *(arm for i in range(repeat) for arm in (arms if i % 2 else arms[::-1]))]:
        model.options = _of_arm(options, arm)
        prompt, grammar = _prompt(model, cell.text)
        run = model.generate(
            prompt, limit=tokens, ignore_eos=True, grammar=None if arm == PLAIN else grammar
        )
        for _ in run:
            pass
        if not seen:
            seen.append(run.token_ids)  # the first run fills the store and is not counted
            continue
        cell.same_ids &= run.token_ids == seen[0]
        cell.runs.setdefault(arm, []).append(run.stats)
    return cell


def _of_arm(options: Options, arm: str) -> Options:
    if arm == PLAIN:
        return replace(options, draft_rows=0)
    return replace(options, draft=None if arm == PLANNER else int(arm))


def _prompt(model: Model, text: str) -> tuple[Any, str | None]:
    """(the prompt, the grammar that its answer follows)."""
    if text == "prose":
        return model.text.encode_prompt(_PROSE), None
    if text == "code":
        return model.text.encode_prompt(_CODE, chat="0"), None
    rows = (_HERE / "fit.ndjson").read_text(encoding="utf-8")
    return model.text.encode_prompt(rows, chat="0"), "fit_compact"


def _row(cell: Cell, arms: Sequence[str]) -> str:
    return " | ".join(_fields(cell, arms))


def _fields(cell: Cell, arms: Sequence[str]) -> list[str]:
    rate = statistics.median(s.decode.hit_rate or 0.0 for s in cell.runs[PLAIN])
    disk = "-" if cell.disk is None else f"{cell.disk / 1e6:.0f} MB/s"
    speeds = [f"{cell.speed(arm):.1f} ({cell.per_forward(arm):.2f})" for arm in arms]
    fixed = [arm for arm in arms if arm != PLANNER]
    shares = [f"{cell.against([PLAIN]):.2f}", f"{cell.against(fixed):.2f}"]
    return [cell.text, str(cell.slots), disk, f"{100 * rate:.0f} %", *speeds, *shares]


def _table(cells: Sequence[Cell], arms: Sequence[str]) -> list[str]:
    heads = ["text", "slots", "disk", "hits", *arms, "planner/plain", "planner/best"]
    lines = [heads, ["---"] * len(heads), *(_fields(cell, arms) for cell in cells)]
    return ["| " + " | ".join(fields) + " |" for fields in lines]


def _summary(cells: Sequence[Cell], arms: Sequence[str]) -> list[str]:
    fixed = [arm for arm in arms if arm != PLANNER]
    best = [cell.against(fixed) for cell in cells]
    means = {
        arm: statistics.geometric_mean(cell.speed(arm) / cell.speed(PLAIN) for cell in cells)
        for arm in arms
    }
    return [
        (
            "tok/s (tokens/forward), medians; planner/plain at least "
            f"{min(cell.against([PLAIN]) for cell in cells):.2f}; planner/best fixed: median "
            f"{statistics.median(best):.2f}, least {min(best):.2f}"
        ),
        "speed against plain over all rows (geometric mean): "
        + ", ".join(f"{arm} {mean:.3f}" for arm, mean in means.items()),
        "token ids equal in all runs"
        if all(cell.same_ids for cell in cells)
        else "token ids DIFFER in " + ", ".join(c.text for c in cells if not c.same_ids),
    ]


def _as_json(cells: Sequence[Cell], arms: Sequence[str]) -> dict[str, Any]:
    def run(stats: RunStats) -> dict[str, Any]:
        return {
            "tok_per_s": stats.tok_per_s,
            "tokens_per_forward": stats.tokens_per_forward,
            "hit_rate": stats.decode.hit_rate,
            "bytes_per_token": stats.bytes_per_token,
            "read_wait_seconds": stats.decode.read_wait_seconds,
            "drafts": {n: [a.proposed, a.judged, a.accepted] for n, a in stats.drafts.items()},
            "planner": None if stats.planner is None else stats.planner.summary(),
        }

    return {
        "arms": list(arms),
        "cells": [
            {
                "text": cell.text,
                "slots": cell.slots,
                "disk_bps": cell.disk,
                "same_ids": cell.same_ids,
                "runs": {arm: [run(stats) for stats in found] for arm, found in cell.runs.items()},
            }
            for cell in cells
        ],
    }
