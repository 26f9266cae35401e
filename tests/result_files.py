"""A whole directory of results that nobody had to run: two arms, two rungs, two prompts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tiny_results import experiment, figures, run

from diskmoe.bench.results import Acceptance, Arm, Prompt, Results, Run, Setting
from diskmoe.experts.trace import FORWARD, HEADING

SLOTS = (4, 8)  # by rung
EXPERIMENT = experiment(
    kind="ab",
    command=("bench", "ab", "--a", "", "--b", "DRAFT=4", "--rungs", "CAP=4,8"),
    prompts=(Prompt("one", "Say <b>one</b> | two", 0.5), Prompt("two", "Say two", None)),
    arms=(Arm("a", "diskmoe", ""), Arm("b", "diskmoe", "DRAFT=4")),
    repeat=2,
    machine=replace(experiment().machine, cpu="Some CPU", busy=0.0),
)


def run_of(arm: str, rung: int, prompt: int, repeat: int, order: int, **changes: Any) -> Run:
    """A run of 10 tokens, half of whose time is computing and a quarter waiting; changes: of its
    figures."""
    numbers = {
        "tok_per_s": 10.0,
        "tokens": 10,
        "hit_rate": 0.5,
        "decode_seconds": 1.0,
        "read_wait_seconds": 0.25,
        "compute_seconds": 0.5,
    }
    return run(
        arm=arm,
        rung=rung,
        prompt=prompt,
        repeat=repeat,
        order=order,
        others_cpu=0.0,
        settings={"CAP": Setting(SLOTS[rung], f"flag --cap={SLOTS[rung]}")},
        figures=figures(**{**numbers, **changes}),
        report={"slots_per_layer": SLOTS[rung], "model": {"experts": 8, "top_k": 2}},
    )


def runs() -> list[Run]:
    """All 16 of the experiment: b is twice as fast as a, and the second rung as the first."""
    found: list[Run] = []
    for repeat in range(2):
        for rung in range(2):
            for prompt in range(2):
                for arm in ("a", "b"):
                    speed = 10.0 * (1 + rung) * (2 if arm == "b" else 1) + repeat
                    drafts = {"ngram": Acceptance(10, 7, ((6, 5), (4, 2)))} if arm == "b" else {}
                    numbers = {"tok_per_s": speed, "acceptance": drafts}
                    numbers["hit_rate"] = (0.5, 0.75)[rung]
                    found.append(run_of(arm, rung, prompt, repeat, len(found), **numbers))
    return found


def write_results(folder: Path) -> Results:
    """The whole directory, with a recorded routing of two layers."""
    results = Results.create(folder, EXPERIMENT)
    for each in runs():
        results.add(each)
    lines = [HEADING]
    for step in range(20):
        lines.append(FORWARD)
        for layer in (1, 2):
            first = (step + layer) % 5
            lines.append(f"{int(step > 1)},{step},{layer},{first}-{first + 1}")
    (folder / "trace.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return results
