"""Writes the pages of docs/ that are made from the source: docs/settings.md, docs/api.md.

python scripts/make_manual.py            # --check: exit code 1 and a line for each that is stale
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from manual_api import api_page
from manual_settings import settings_page

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES: Mapping[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "api.md": api_page,
}


def main(words: list[str]) -> int:
    stale = 0
    for name, made in PAGES.items():
        path, text = DOCS / name, made()
        if path.is_file() and path.read_text("utf-8") == text:
            continue
        stale += 1
        if words == ["--check"]:
            print(f"docs/{name} is stale: run python scripts/make_manual.py")
        else:
            path.write_text(text, "utf-8")
            print(f"docs/{name} was written")
    return int(words == ["--check"] and stale > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
