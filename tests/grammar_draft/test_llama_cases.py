"""llama.cpp's own grammar tests and example grammars, as facts (scripts/make_gbnf_cases.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.cases import judge
from diskmoe.grammar_draft.gbnf import parse


@pytest.fixture(scope="module")
def lines(repo_root: Path) -> list[str]:
    path = repo_root / "tests" / "golden" / "gbnf_cases.jsonl"
    return path.read_text(encoding="utf-8").strip().split("\n")  # a case holds U+2028


def test_strict_mode_agrees_with_all_of_them(lines: list[str]) -> None:
    tally = judge(lines, "cases", strict=True)
    assert tally.failures == []
    assert tally.passed == 245


def test_the_default_mode_reads_the_same_strings(lines: list[str]) -> None:
    kept = [line for line in lines if '"accept"' in line]
    assert judge(kept, "cases", strict=False).failures == []


def test_feeding_byte_by_byte_is_the_same_as_feeding_characters(lines: list[str]) -> None:
    cases: list[dict[str, Any]] = [json.loads(line) for line in lines]
    for case in cases:
        if "<[" in case["grammar"] or "accept" not in case:
            continue
        automaton = Automaton(parse(case["grammar"], root=case["root"]))
        for wanted in ("accept", "reject"):
            for string in case[wanted]:
                state = automaton.walk(automaton.start, string.encode())
                assert (state is not None and state.may_end) == (wanted == "accept"), string


def test_a_wrong_case_is_counted_and_named() -> None:
    case = {"name": "n", "grammar": 'root ::= "a"', "root": "root", "accept": ["b"], "reject": [""]}
    tally = judge([json.dumps(case)], "f", strict=True)
    assert (tally.passed, tally.failures) == (1, ['f:1 n: must accept "b"'])
