"""Writes README's results from the runs that are kept in bench/results, and from nothing else.

    python -m diskmoe.bench.readme          # in the source tree; --check: is README as it would be?

Each directory there is an experiment, as ``diskmoe bench ab --out`` or ``bench peer --out`` left it, and
what is shown of it is what ``diskmoe bench report DIR --readme`` prints. ``about.md`` in it has the
heading and what must be known beside the numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from diskmoe.bench.report import in_short
from diskmoe.bench.results import EXPERIMENT_FILE, Results
from diskmoe.experts.whole import write_whole

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "bench" / "results"
BEGIN, END = "<!-- results: made by bench/readme.py -->", "<!-- end of results -->"


def section(kept: Path = KEPT) -> str:
    """What README says between the two marks."""
    parts = []
    for folder in sorted(path.parent for path in kept.glob(f"*/{EXPERIMENT_FILE}")):
        about = (folder / "about.md").read_text("utf-8").strip()
        parts.append(f"{about}\n\n{in_short(Results.open(folder)).rstrip()}\n")
    return "\n" + "\n".join(parts) + "\n"


def with_section(readme: str) -> str:
    """README's text with the section as it is now."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md has no {BEGIN} ... {END}")
    return before + begin + section() + end + after


def main(words: Sequence[str]) -> int:
    """Exit code 1 where --check finds another text."""
    path = ROOT / "README.md"
    readme = path.read_text("utf-8")
    found = with_section(readme)
    if list(words) == ["--check"]:
        return int(found != readme)
    write_whole(path, [found.encode()])
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
