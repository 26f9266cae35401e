"""``bench grammar``: what it prints of a small vocabulary, and what it refuses."""

import base64
import json
import re
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from diskmoe.bench import matchers, vocabulary_file
from diskmoe.bench.grammar import Line, table
from diskmoe.bench.vocabulary_file import SPARE_IDS, greedy, read_vocabulary
from diskmoe.engine.cli import main
from diskmoe.engine.errors import BadRequest

WORDS = [
    b"title",
    b' "',
    b'":',
    b'", "',
    b"alpha",
    b" (",
    b"true",
    "\u65c5".encode(),
    b"administrator",
]
TEXTS = [*(bytes([byte]) for byte in range(256)), *WORDS]
FIRST_AND_WARM = {
    f"{what}_{when}_us" for what in ("mask", "accept", "fork") for when in ("first", "warm")
}
FIGURES = FIRST_AND_WARM | {"compile_new_ms", "compile_again_ms"}


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    """A vocabulary of every byte and a few words."""
    file = tmp_path / "small.tiktoken"
    lines = (base64.b64encode(text) + b" %d\n" % i for i, text in enumerate(TEXTS))
    file.write_bytes(b"".join(lines))
    return str(file)


def bench(*words: str) -> int:
    return main(["bench", "grammar", *words])


def test_its_json_has_every_figure_as_first_or_warm_new_or_again(tokens: str, capsys) -> None:
    assert bench("--vocabulary", tokens, "--runs", "2", "--ours", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["tokens"] == len(TEXTS) + SPARE_IDS and said["runs"] == 2
    assert [line["kind"] for line in said["lines"]] == ["JSON", "schema", "arithmetic"]
    for line in said["lines"]:
        assert set(line) == FIGURES | {"kind", "program", "how"}
        assert line["program"] == "diskmoe" and "states" in line["how"]
        for name in FIGURES:
            median, most = line[name]
            assert 0 < median <= most
        for what in ("mask", "accept", "fork"):  # the least of all passes, the first among them
            assert line[f"{what}_warm_us"][0] <= line[f"{what}_first_us"][0]


def test_its_table_says_what_first_and_warm_mean_and_has_a_row_for_each(
    tokens: str, capsys
) -> None:
    assert bench("--vocabulary", tokens, "--runs", "1", "--ours") == 0
    title, first, new, heads, *rows = capsys.readouterr().out.splitlines()
    assert title.startswith(f"{len(TEXTS) + SPARE_IDS} tokens; microseconds")
    assert first.startswith("first: the first pass") and "compile again: " in new
    names = re.split(r"  +", heads.strip())
    assert {name.replace(" ms", "_ms").replace(" ", "_") for name in names} == {
        name.removesuffix("_us") for name in FIGURES
    }
    assert [row.split()[:2] for row in rows] == [
        [kind, "diskmoe"] for kind in ("JSON", "schema", "arithmetic")
    ]
    assert all(row.count(" / ") == len(FIGURES) for row in rows)


def test_figures_are_shown_with_two_digits_or_whole() -> None:
    pair = (0.123, 1234.5)
    values: list[Any] = [*[pair] * 7, (2.345, 99.96), ""]
    line = Line("JSON", "other 1.0", *values)
    row = table([line], 10).splitlines()[-1]
    assert row.split()[:5] == ["JSON", "other", "1.0", "0.12", "/"]
    assert row.endswith("2.3 / 100.0") and row.count("0.12 / 1234") == 7


@pytest.mark.skipif(
    not (util.find_spec("xgrammar") and util.find_spec("llguidance")),
    reason="xgrammar or llguidance is not installed",
)
def test_other_programs_follow_the_same_documents(tokens: str, capsys) -> None:
    assert bench("--vocabulary", tokens, "--runs", "1", "--json") == 0
    lines = json.loads(capsys.readouterr().out)["lines"]
    programs = [line["program"].split()[0] for line in lines]
    assert programs == ["diskmoe", "XGrammar", "llguidance"] * 3


def test_programs_that_are_not_installed_are_said_and_left_out(monkeypatch, tokens: str) -> None:
    monkeypatch.setattr(matchers.util, "find_spec", lambda name: None)
    said: list[str] = []
    assert matchers.peers(read_vocabulary(tokens), said.append) == {}
    assert said == [
        f"{name} is not installed and left out: pip install {name}"
        for name in ("xgrammar", "llguidance")
    ]


def test_without_a_vocabulary_it_says_where_one_is(monkeypatch, capsys) -> None:
    monkeypatch.setattr(vocabulary_file.util, "find_spec", lambda name: None)
    assert bench("--ours") == 2
    assert capsys.readouterr().err == (
        "error: bench grammar needs a vocabulary: --vocabulary FILE, or Qwen's from the package "
        "dashscope, which is not installed: pip install dashscope\n"
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"YQ== 1\n", "line 1 has the id 1"),
        (b"YQ==\n", "not enough values"),
        (b"!! 0\n", "base64"),
    ],
)
def test_what_is_no_vocabulary_is_refused(content: bytes, why: str, tmp_path: Path, capsys) -> None:
    file = tmp_path / "bad.tiktoken"
    file.write_bytes(content)
    assert bench("--vocabulary", str(file)) == 2
    assert f"{file} is no vocabulary" in (told := capsys.readouterr().err) and why in told.lower()


def test_a_place_that_is_given_is_refused(capsys) -> None:
    assert bench("model") == 2
    assert "takes no argument, and got 'model'" in capsys.readouterr().err


def test_texts_are_cut_into_the_longest_tokens(tokens: str) -> None:
    vocabulary = read_vocabulary(tokens)
    found = greedy('title": \u65c5x'.encode(), vocabulary)
    assert [vocabulary.texts[token] for token in found] == [
        b"title", b'":', b" ", "\u65c5".encode(), b"x",
    ]  # fmt: skip


def test_a_text_that_no_token_begins_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "one.tiktoken"
    file.write_bytes(b"YQ== 0\n")
    with pytest.raises(BadRequest, match="no token for b'b'"):
        greedy(b"ab", read_vocabulary(str(file)))
