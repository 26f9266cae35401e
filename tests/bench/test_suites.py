"""Prompts: our suites are what they say of themselves, and users' files are checked."""

import json
from pathlib import Path

import pytest

from diskmoe.bench import suites
from diskmoe.bench.results import Prompt
from diskmoe.engine.errors import BadRequest
from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.library import load


def lines_of(name: str) -> list[dict]:
    _, *lines = (suites.FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("name", suites.SUITES)
def test_a_suite_is_small_and_says_what_it_is(name: str) -> None:
    prompts, settings = suites.suite(name)
    head = json.loads((suites.FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines()[0])
    assert head["suite"] == name and head["about"] and head["density"]
    assert settings == ({} if name == "chat" else {"CHAT": "0"})
    assert 4 <= len(prompts) <= 8 and len({prompt.name for prompt in prompts}) == len(prompts)
    assert all(prompt.density is not None for prompt in prompts)


def test_rows_follow_the_grammar_and_keys_and_punctuation_are_their_density() -> None:
    automaton = Automaton(load("fit_compact"))
    for line in lines_of("ndjson"):
        state = automaton.start
        for byte in (line["prompt"] + line["expected"]).encode():
            state = automaton.advance(state, byte)
            assert state is not None, line["name"]
        rows = line["expected"].splitlines()
        values = sum(len(json.dumps(v)) for row in rows for v in json.loads(row).values())
        assert line["density"] == pytest.approx(1 - values / len(line["expected"]), abs=1e-3)


def test_the_density_of_code_is_what_stands_in_the_prompt_already() -> None:
    for line in lines_of("code"):
        known = set(line["prompt"].splitlines())
        told = line["expected"].splitlines(keepends=True)
        copied = sum(len(text) for text in told if text.rstrip("\n") in known)
        assert line["density"] == pytest.approx(copied / len(line["expected"]), abs=1e-3)
        compiled = line["prompt"] + line["expected"]
        if line["name"] != "orders":
            compile(compiled, line["name"], "exec")


def test_nothing_decides_the_form_of_prose_and_chat() -> None:
    assert {line["density"] for name in ("prose", "chat") for line in lines_of(name)} == {0}


def test_a_text_file_has_a_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("Once upon\n\n  a time\n", encoding="utf-8")
    assert suites.prompts_in(path) == [
        Prompt("1", "Once upon", None),
        Prompt("2", "  a time", None),
    ]


def test_json_lines_have_names_and_densities(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a\\nb", "name": "x", "density": 1}\n{"prompt": "c"}\n')
    assert suites.prompts_in(path) == [Prompt("x", "a\nb", 1.0), Prompt("2", "c", None)]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "holds no prompt"),
        (b"\xff", "is not UTF-8 text: byte 0"),
        (b"{", "line 1 is no JSON"),
        (b"3", "line 1 must be an object"),
        (b'{"prompt": 3}', "line 1 must be an object"),
        (b'{"prompt": " "}', "line 1: the prompt is empty"),
        (b'{"prompt": "a", "nam": "b"}', "line 1: unknown key 'nam'; did you mean name?"),
        (b'{"prompt": "a", "name": ""}', "line 1: name must be a text of 1 to 40 characters"),
        (b'{"prompt": "a", "density": true}', "line 1: density must be a number from 0 to 1"),
        (b'{"prompt": "a", "density": 1.5}', "line 1: density must be a number from 0 to 1"),
        (b'{"prompt": "a", "name": "2"}\n{"prompt": "b"}', "two prompts have the name '2'"),
        (b"[" * 100_000, "line 1 is no JSON"),
        (b'{"prompt": "\\ud800"}', "line 1: half of a pair"),
    ],
)
def test_what_is_no_prompt_is_named_with_its_line(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadRequest) as caught:
        suites.prompts_in(path)
    assert str(caught.value).startswith(f"--prompts {path}") and why in str(caught.value)


def test_too_many_prompts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("a\n" * 1001)
    with pytest.raises(BadRequest, match="holds 1001 prompts, at most 1000"):
        suites.prompts_in(path)
