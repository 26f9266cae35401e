"""``diskmoe grammar check|test``, and the grammars that come with the package."""

from __future__ import annotations

import json
from pathlib import Path

import hostile
import pytest

from diskmoe.engine import arguments
from diskmoe.engine import cli as engine_cli
from diskmoe.engine.arguments import other_commands
from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.cli import main
from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.library import load, shipped

ROW = {
    "id": 7,
    "fit_category": "good_fit",
    "fit_score": 0.8,
    "confidence_level": "high",
    "needs_human_review": False,
    "reason": 'five years of "C", \u00e9t\u00e9',
}


def run(*words: str) -> tuple[int, list[str]]:
    said: list[str] = []
    return main(words, {}, said.append), said


def test_cases_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = {"grammar": 'root ::= "a" | root "b"', "root": "root", "accept": ["ab"], "reject": ["b"]}
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps(case) + "\n\n" + json.dumps({"kind": "lark"}) + "\n")
    path.write_text(path.read_text() + '{"schema": {"maxLength": 1}, "accept": ["1"]}\n')
    with path.open("a") as file:
        file.write(
            '{"regex": "a+", "accept": ["aa"], "reject": [""]}\n{"choices": [3], "ok": false}\n'
        )
    assert run("test", str(path)) == (0, [f"{path}: 1 lines hold no grammar and are skipped"])
    assert capsys.readouterr().out == "6 passed, 0 failed\n"
    path.write_text(path.read_text().split("\n")[0])
    code, said = run("test", str(path), "--strict")
    assert code == 1 and "left recursion" in said[0]
    assert capsys.readouterr().out == "0 passed, 1 failed\n"


@pytest.mark.parametrize(
    "line", ["{", "3", '{"grammar": 3}', '{"grammar": "root ::= [a]", "accept": 1}']
)
def test_a_line_that_is_no_case_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "c.jsonl").write_text("\n" + line)
    with pytest.raises(BadGrammar, match="c.jsonl: line 2 is no"):
        run("test", str(tmp_path / "c.jsonl"))


def test_check_tells_where_a_text_leaves_and_what_is_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "g.gbnf"
    path.write_text('root ::= "id=" [0-9] ws\nws ::= [ \\n]*\nx ::= "y"')
    (tmp_path / "text").write_text("id=7\n")
    code, said = run("check", str(path), "id=7", f"@{tmp_path / 'text'}", "id=x", "id=")
    out = capsys.readouterr().out.splitlines()
    assert code == 1
    assert out[0].startswith(f"{path}: fine, 3 rules, read in ")
    assert out[1] == "'id=7': complete, 75 % of 4 bytes forced"
    assert out[2].endswith("text: complete, 60 % of 5 bytes forced")
    assert out[3] == "'id=x': leaves the grammar at 1:4: '0'-'9' expected"
    assert out[4] == "'id=': incomplete: '0'-'9' expected; 100 % of 3 bytes forced"
    assert said[0] == "warning: rule 'x' is never used"
    assert said[1].startswith("warning: rule 'ws' takes blanks without end")


def test_check_warns_of_two_ways_to_say_one_thing(tmp_path: Path) -> None:
    path = tmp_path / "g.gbnf"
    path.write_text('root ::= ("a"?)* b\nb ::= "c" | "d" | "c"')
    _, said = run("check", str(path))
    assert said == [
        "warning: rule 'root' is ambiguous: it repeats something that may be empty",
        "warning: rule 'b' is ambiguous: two of its alternatives are the same",
    ]


def test_check_reads_a_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"type": "array", "items": {"minimum": 3}, "uniqueItems": true}')
    with pytest.raises(BadGrammar, match="s.json: at #: uniqueItems: only items"):
        run("check", str(path), "[17]")
    code, said = run("check", str(path), "[17, 4]", "[2]", "--lax")
    assert (code, said) == (1, ["warning: ignored in the schema: uniqueItems at #"])
    out = capsys.readouterr().out
    assert "'[17, 4]': complete" in out and "'[2]': leaves the grammar at 1:3" in out
    assert run("check", str(path), "[17, 4]", "--lax", "--compact")[0] == 1
    assert run("check", str(path), "[17, 4]", "--profile", "drafts")[0] == 0


def test_check_reads_a_pattern_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", "--regex", "[a-c]{2}", "ab") == (0, [])
    assert run("check", "--choices=red,green", "gre")[0] == 1
    out = capsys.readouterr().out
    assert "'ab': complete" in out and "'gre': incomplete: 'e' expected" in out
    with pytest.raises(BadGrammar, match="regex: character 1 of the pattern: lookahead"):
        run("check", "--regex", "(?=a)b")


def test_an_error_is_one_line_and_its_place_is_shown_above(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Point:
        @staticmethod
        def load() -> object:
            return main

    for module in (arguments, engine_cli):
        monkeypatch.setattr(module, "other_commands", lambda: {"grammar": Point})
    path = tmp_path / "g.gbnf"
    path.write_text("root ::= x\ny ::= 'a'\n")
    assert engine_cli.main(["grammar", "check", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[:2] == ["  y ::= 'a'", "        ^"]
    assert lines[2].startswith(f"error: {path}:2:7: expected ") and len(lines) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chek"], "unknown command grammar 'chek'"),
        (["check"], "needs a file"),
        (["check", "/no/such.gbnf"], "No such file"),
        (["check", "x" * 5000], "too long"),
        (["check", "a\0b"], "null"),
        (["check", "/"], "directory"),
        (["check", "--rot", "x"], "unknown option --rot"),
        (["check", "json", "--root", "valeu"], "did you mean 'value'"),
    ],
)
def test_wrong_words_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(BadGrammar) as caught:
        run(*words)
    assert said in str(caught.value)


def test_help_needs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run()[0] == run("test", "--help")[0] == 0
    assert "diskmoe grammar check FILE" in capsys.readouterr().out


def test_the_package_metadata_names_the_command(repo_root: Path) -> None:
    assert (
        'grammar = "diskmoe.grammar_draft.cli:main"' in (repo_root / "pyproject.toml").read_text()
    )
    assert other_commands()  # the mechanism itself is tested with bench


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", shipped())
def test_our_grammars_are_read_in_both_modes_without_a_warning(name: str, strict: bool) -> None:
    assert load(name, strict=strict).notes == []


@pytest.mark.parametrize(
    ("name", "text", "fits"),
    [
        ("json", json.dumps(ROW, indent=2), True),
        ("json", json.dumps([ROW, -1.5e-3, "\\u00e9"]), True),
        ("json", '{"a":1,}', False),
        ("json_compact", json.dumps(ROW, separators=(",", ":")), True),
        ("json_compact", json.dumps(ROW), False),
        ("ndjson", (json.dumps(ROW) + "\n") * 2, True),
        ("ndjson", json.dumps(ROW, indent=1) + "\n", False),
        ("fit", (json.dumps(ROW, ensure_ascii=False) + "\n") * 2, True),
        ("fit", json.dumps(ROW, separators=(",", ":")) + "\n", True),
        ("fit", json.dumps(ROW | {"fit_category": "so_so"}) + "\n", False),
        ("fit_compact", json.dumps(ROW, separators=(",", ":")) + "\n", True),
        ("fit_compact", json.dumps(ROW) + "\n", False),
    ],
)
def test_our_grammars_judge_right(name: str, text: str, fits: bool) -> None:
    automaton = Automaton(load(name))
    state = automaton.walk(automaton.start, text.encode())
    assert (state is not None and state.may_end) == fits


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nested 10,000 deep", "nested too deeply"),
        ("minItems of a billion", "#: minItems and maxItems: more than 50000"),
        ("references in a circle", "can never end"),
    ],
)
def test_check_refuses_what_is_hostile_in_one_line(tmp_path: Path, name: str, told: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(hostile.text_of(hostile.schemas()[name]))
    with pytest.raises(BadGrammar, match=told) as caught:
        run("check", str(path))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700
