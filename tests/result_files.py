"""A directory of results that nobody had to run: two arms, two rungs, two prompts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from diskmoe.bench.results import (
    VERSION,
    Acceptance,
    Arm,
    Experiment,
    Figures,
    Machine,
    Prompt,
    Results,
    Run,
    Setting,
)
from diskmoe.experts.trace import FORWARD, HEADING

MACHINE = Machine(
    system="Linux 6",
    cpu="Some CPU",
    features=("avx2", "fma"),
    kernels="avx2",
    processors=4,
    cores=2,
    ram_bytes=8 << 30,
    available_bytes=6 << 30,
    cgroup_memory_bytes=None,
    cgroup_cpus=None,
    disk="sda (solid state)",
    disk_bps=5e8,
    disk_how="reads",
    read_ahead_bytes=128 << 10,
    load=0.1,
    busy=0.0,
    versions={"diskmoe": "0.1.0"},
    commit="abc",
)
EXPERIMENT = Experiment(
    version=VERSION,
    kind="ab",
    made="2026-01-31T12:00:00Z",
    command=("bench", "ab", "--a", "", "--b", "DRAFT=4", "--rungs", "CAP=4,8"),
    model="tiny",
    model_id="0" * 32,
    suite="code",
    prompts=(Prompt("one", "Say <b>one</b> | two", 0.5), Prompt("two", "Say two", None)),
    arms=(Arm("a", "diskmoe", ""), Arm("b", "diskmoe", "DRAFT=4")),
    settings={"NGEN": "10"},
    decided={"RAM_GB": "2"},
    rungs=("CAP=4", "CAP=8"),
    repeat=2,
    cache="dropped",
    limits=None,
    machine=MACHINE,
)
FIGURES = Figures(
    tok_per_s=10.0,
    tokens=10,
    prompt_tokens=5,
    tokens_per_forward=1.0,
    hit_rate=0.5,
    misses_per_token=3.0,
    miss_bytes_per_token=3000.0,
    acceptance={},
    ttft_seconds=0.2,
    prefill_tok_per_s=50.0,
    peak_rss_bytes=1 << 28,
    decode_seconds=1.0,
    read_wait_seconds=0.25,
    compute_seconds=0.5,
    read_wait_share=0.25,
)
RUN = Run(
    version=VERSION,
    program="diskmoe",
    arm="a",
    rung=0,
    prompt=0,
    repeat=0,
    order=0,
    started="2026-01-31T12:00:01Z",
    command=("diskmoe",),
    seconds=2.0,
    cpu_seconds=3.0,
    others_cpu=0.01,
    load=0.2,
    cached_share=0.0,
    settings={"CAP": Setting(4, "flag --cap")},
    token_ids=(1, 2, 3),
    text="one",
    figures=FIGURES,
    report={"slots_per_layer": 4, "model": {"experts": 8, "top_k": 2}},
)


def run(arm: str, rung: int, prompt: int, repeat: int, order: int, **figures: Any) -> Run:
    """A run with such figures in place of `FIGURES`'."""
    slots = (4, 8)[rung]
    return replace(
        RUN,
        arm=arm,
        rung=rung,
        prompt=prompt,
        repeat=repeat,
        order=order,
        figures=replace(FIGURES, **figures),
        settings={"CAP": Setting(slots, f"flag --cap={slots}")},
        report={**RUN.report, "slots_per_layer": slots},
    )


def runs() -> list[Run]:
    """All 16 of the experiment: b is twice as fast, slots of the second rung double both."""
    found = []
    for repeat in range(2):
        for rung in range(2):
            for prompt in range(2):
                for arm in ("a", "b"):
                    speed = 10.0 * (1 + rung) * (2 if arm == "b" else 1) + repeat
                    drafts = {"ngram": Acceptance(10, 7, ((6, 5), (4, 2)))} if arm == "b" else {}
                    found.append(
                        run(
                            arm,
                            rung,
                            prompt,
                            repeat,
                            len(found),
                            tok_per_s=speed,
                            acceptance=drafts,
                            hit_rate=(0.5, 0.75)[rung],
                        )
                    )
    return found


def write_results(folder: Path) -> Results:
    """The whole directory, with a recorded routing of two layers."""
    results = Results.create(folder, EXPERIMENT)
    for each in runs():
        results.add(each)
    lines = [HEADING]
    for step in range(20):
        lines.append(FORWARD)
        phase = int(step > 1)
        lines += [
            f"{phase},{step},{layer},{(step + layer) % 5}-{(step + layer) % 5 + 1}"
            for layer in (1, 2)
        ]
    (folder / "trace.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return results
