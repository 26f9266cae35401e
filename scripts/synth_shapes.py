"""Does every published shape load, plan and decode within a budget? Two layers of each, one by one.

    python scripts/synth_shapes.py --out DIR [--ram-gb 2 4] [--layers 2] [NAME ...]

Each is written by ``diskmoe bench synth`` with its own vocabulary, run with the first of the budgets
that it does not refuse, and removed. A line each: bytes, budget, peak memory, tokens per second, or
what was said. Test runs use small shapes; this is for the real ones, up to 18 GB of disk at a time.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from diskmoe.bench.shapes import SHAPES

TOKENS = 8
PROMPT_IDS = "1,2,3,4,5,6,7,8"
SECONDS = 900  # of one command


def diskmoe(*words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    given = os.environ | {f"DISKMOE_{name}": value for name, value in settings.items()}
    command = [sys.executable, "-m", "diskmoe.engine", *words]
    return subprocess.run(command, env=given, capture_output=True, text=True, timeout=SECONDS)


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["nothing was said"])[-1]


def tried(name: str, out: Path, layers: int, budgets: list[float]) -> str:
    made = diskmoe("bench", "synth", "--like", name, "--layers", str(layers), "--out", str(out))
    if made.returncode:
        return last_line(made.stderr)
    nbytes = sum(path.stat().st_size for path in out.iterdir())
    refused: list[str] = []
    for budget in budgets:
        settings = {"MODEL": str(out), "PROMPT_IDS": PROMPT_IDS, "NGEN": str(TOKENS)}
        run = diskmoe("--json", "--ctx", "512", RAM_GB=f"{budget:g}", **settings)
        if run.returncode == 0:
            report: dict[str, Any] = json.loads(run.stdout)
            assert len(report["token_ids"]) == TOKENS
            peak = report["peak_rss_bytes"] / 2**30
            return "; ".join(
                [
                    *refused,
                    f"{nbytes / 1e9:.1f} GB, RAM_GB {budget:g}: peak {peak:.2f} GiB, "
                    f"{report['tok_per_s']:.2f} tok/s",
                ]
            )
        refused.append(f"RAM_GB {budget:g}: {last_line(run.stderr)}")
    return "; ".join(refused)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a directory that may be removed")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--ram-gb", type=float, nargs="+", default=[2.0, 4.0, 8.0])
    parser.add_argument("names", nargs="*", default=[*SHAPES], help="which (default: all)")
    args = parser.parse_args()
    for name in args.names:
        try:
            print(f"{name}: {tried(name, args.out, args.layers, args.ram_gb)}", flush=True)
        finally:
            shutil.rmtree(args.out, ignore_errors=True)


if __name__ == "__main__":
    main()
