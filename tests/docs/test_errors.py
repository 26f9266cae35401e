"""Each error text of docs/troubleshooting.md is one that the source can say."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from manual_text import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
PACKAGES = ("bench", "compiled", "engine", "experts", "grammar_draft", "mtp")
LEAST = 8  # characters of a text that are fixed


def literals(path: Path) -> Iterator[str]:
    """The texts of a source file; … for what is filled in."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.JoinedStr):
            parts = [p.value if isinstance(p, ast.Constant) else "…" for p in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@cache
def said() -> frozenset[str]:
    """Every text of the source."""
    return frozenset(
        " ".join(text.split())
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for text in literals(path)
        if " " in text
    )


def told() -> list[str]:
    """The error texts of the page: the headings' code, and code with … in the lines."""
    found = []
    for heading in re.findall(r"^### (`.*)$", PAGE, flags=re.MULTILINE):
        found += re.split(r"(?<=[^ ])` and `(?=[^ ])", heading.strip("`"))
    body = re.sub(r"^###.*$", "", PAGE, flags=re.MULTILINE)
    found += [
        " ".join(span.split()) for span in re.findall(r"`([^`]*…[^`]*)`", body) if len(span) > 3
    ]
    return found


def is_said(text: str) -> bool:
    """Whether a text of the source has the fixed words of this one, in their order."""
    parts = [part for part in (each.strip() for each in text.split("…")) if part]
    if len("".join(parts)) < LEAST:
        return text in said()
    way = re.compile(".*?".join(map(re.escape, parts)))
    return any(way.search(source) for source in said())


@pytest.mark.parametrize("text", told())
def test_each_text_is_in_the_source(text: str) -> None:
    assert is_said(text), text


def test_a_text_that_nobody_says_is_found() -> None:
    assert not is_said("the disk is empty; … of … bytes are still to be written")
    assert not is_said("the prompt is … tokens and CTX is …: make it longer")


def test_the_page_has_texts_of_each_kind() -> None:
    assert len(told()) > 50
