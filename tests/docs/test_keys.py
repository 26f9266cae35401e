"""The keys of JSON objects that the manual tells are those that the program writes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from manual_text import ROOT
from tiny_server import write_model

from diskmoe.engine.api import Options, prepare
from diskmoe.engine.inspecting import inspect_model
from diskmoe.engine.plan import PlanReport
from diskmoe.engine.predict import Speeds
from diskmoe.engine.report import REPORT_KEYS


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("keys") / "tiny")


def table(page: str, behind: str) -> str:
    """The first table of a page behind a text."""
    text = (ROOT / "docs" / page).read_text("utf-8").partition(behind)[2]
    rows = re.search(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert rows, page
    return rows[0]


def first_column(rows: str) -> list[str]:
    return [
        key for row in rows.splitlines()[2:] for key in re.findall(r"`(\w+)`", row.split("|")[1])
    ]


def keys_within(value: Any) -> Iterator[str]:
    """All keys of an object, of those within it too."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys_within(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_within(inner)


def test_the_keys_of_a_report() -> None:
    assert sorted(first_column(table("report.md", "## As JSON"))) == sorted(REPORT_KEYS)


def test_the_keys_of_inspect(path: Path) -> None:
    found = json.loads(json.dumps(inspect_model(path).as_json()))
    assert sorted(first_column(table("convert.md", "## Inspect"))) == sorted(found)


def test_the_keys_of_a_plan(path: Path) -> None:
    rows = table("small-ram.md", "## The plan as JSON")
    prepared = prepare(path, Options(cap=4))
    try:
        plan = PlanReport(prepared, prepared.plan(), Speeds(1e9, 1e9, 1e9, "given"))
        found = plan.as_json()
    finally:
        prepared.close()
    assert sorted(first_column(rows)) == sorted(found)
    named = set(re.findall(r"`(\w+)`", rows))
    assert named == set(keys_within(found))
