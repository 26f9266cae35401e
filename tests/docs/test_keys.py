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
from diskmoe.grammar_draft import gbnf, languages, lexer, library
from diskmoe.grammar_draft.regex import syntax
from diskmoe.grammar_draft.schema import arrays, document, strings
from diskmoe.mtp.certain_source import CertainSource
from diskmoe.mtp.corpus import CorpusSource
from diskmoe.mtp.draft_model import DraftModelSource
from diskmoe.mtp.grammar_source import GrammarSource
from diskmoe.mtp.head import MtpSource
from diskmoe.mtp.ngram import NgramSource


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


def test_every_source_of_drafts_is_named() -> None:
    sources = (CertainSource, CorpusSource, DraftModelSource, GrammarSource, MtpSource, NgramSource)
    page = (ROOT / "docs" / "report.md").read_text("utf-8")
    for source in sources:
        assert f"`{source.name}`" in page


def test_limits_of_grammars_are_those_of_the_source() -> None:
    rows = [
        row.split("|")[2] for row in table("structured-output.md", "### Limits").splitlines()[2:]
    ]
    found = [[int(number) for number in re.findall(r"\d+", row)] for row in rows]
    assert found == [
        [gbnf.MAX_TEXT, gbnf.MAX_RULES, lexer.MAX_TIMES],
        [library.MAX_BYTES],
        [document.MAX_TEXT, document.MAX_VALUES],
        [strings.MAX_LENGTH, arrays.MAX_ITEMS],
        [syntax.MAX_PATTERN],
        [languages.MAX_CHOICES, languages.MAX_BYTES],
    ]
