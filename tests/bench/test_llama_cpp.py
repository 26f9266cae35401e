"""llama.cpp's programs from outside: told apart by what they print, and their timings read."""

import json
from pathlib import Path

import pytest
from fake_peer import (
    BENCH_HELP,
    COMMON_PRINT,
    OLD_PRINT,
    TEXT_HELP,
    VERSION,
    bench_json,
    write_program,
)

from diskmoe.bench.llama_cpp import Peer, PeerFailed, Timings
from diskmoe.engine.errors import BadRequest


def program(path: Path, help: str, version: str | None = VERSION) -> str:
    return str(write_program(path, help=help, version=version))


@pytest.mark.parametrize(("shown", "kind"), [(BENCH_HELP, "bench"), (TEXT_HELP, "text")])
def test_a_program_is_known_by_its_help_not_by_its_name(
    shown: str, kind: str, tmp_path: Path
) -> None:
    peer = Peer.of(program(tmp_path / "anything", help=shown))
    assert peer.kind == kind and peer.version == "0.5.0-dev (build 1, commit 0c1e570)"


def test_a_program_that_knows_no_version_is_none_the_worse(tmp_path: Path) -> None:
    peer = Peer.of(program(tmp_path / "old", help=BENCH_HELP, version=None))
    assert (peer.kind, peer.version) == ("bench", "unknown")


def test_other_programs_are_refused_with_what_they_say(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"neither --n-gen nor --predict, it says: usage: ls"):
        Peer.of(program(tmp_path / "ls", help="usage: ls [--all]"))
    with pytest.raises(BadRequest, match="no such program"):
        Peer.of(str(tmp_path / "nowhere"))
    plain = tmp_path / "plain"
    plain.write_text("no program")
    with pytest.raises(BadRequest, match="cannot be run"):
        Peer.of(str(plain))


def test_the_words_are_those_that_the_program_has(tmp_path: Path) -> None:
    bench = Peer.of(program(tmp_path / "a", help=BENCH_HELP))
    words = bench.command(Path("m.gguf"), 16, 32, 2, 256, ("--repack", "0"))
    assert words[1:] == [
        *("-m", "m.gguf", "-t", "2", "-n", "16", "-p", "32", "-r", "1", "-o", "json"),
        *("--repack", "0"),
    ]
    text = Peer.of(program(tmp_path / "b", help=TEXT_HELP))
    words = text.command(Path("m.gguf"), 16, "Once", 2, 256)
    assert words[7:] == [
        *("-p", "Once", "-c", "256", "--temp", "0", "--ignore-eos"),
        *("--no-display-prompt", "-no-cnv"),
    ]
    newer = Peer.of(program(tmp_path / "c", help=TEXT_HELP.replace("-no-cnv,", "")))
    assert "-no-cnv" not in newer.command(Path("m.gguf"), 16, "Once", 2, 256)
    assert newer.command(Path("m.gguf"), 16, "Once", 2, 256)[-1] == "--single-turn"


def peer(kind: str) -> Peer:
    return Peer("program", "bench" if kind == "bench" else "text", "1", frozenset())


def test_llama_bench_tells_a_speed_for_prompt_and_text() -> None:
    found = peer("bench").timings(bench_json(32, 16, 100.0, 8.0), "")
    assert found == Timings(8.0, 16, 2.0, 100.0, 32, 0.32, None)
    assert peer("bench").timings(bench_json(0, 16, 0, 8.0), "").prompt_tok_per_s is None


@pytest.mark.parametrize("said", [OLD_PRINT, COMMON_PRINT])
def test_the_timings_of_all_years_are_read_from_either_stream(said: str) -> None:
    for out, err in ((said, "text"), ("text", said)):
        found = peer("text").timings(out, err)
        assert (
            found.tokens == 15
            and found.prompt_tokens == 5
            and found.load_seconds == pytest.approx(0.27773)
        )
        assert found.tok_per_s == pytest.approx(15 / 2.22829)
        assert found.prompt_tok_per_s == pytest.approx(5 / 0.27155)


def test_a_speed_in_brackets_is_better_than_none() -> None:
    found = peer("text").timings("[ Prompt: 18.4 t/s | Generation: 6.7 t/s ]", "")
    assert (found.tok_per_s, found.prompt_tok_per_s, found.tokens) == (6.7, 18.4, None)


@pytest.mark.parametrize(
    ("kind", "out"),
    [
        ("bench", ""),
        ("bench", "| model | size |"),
        ("bench", "[]"),
        ("bench", "{}"),
        ("bench", "[1, null, {}]"),
        ("bench", json.dumps([{"n_gen": 4, "n_prompt": 0, "avg_ts": "8", "avg_ns": 1}])),
        ("bench", json.dumps([{"n_gen": True, "n_prompt": 0, "avg_ts": 8, "avg_ns": -1}])),
        ("bench", "[" * 100_000),
        ("text", ""),
        ("text", "eval time = nan ms / 3 runs"),
        ("text", "eval time = 0.00 ms / 0 runs (nan ms per token, inf tokens per second)"),
        ("text", "prompt eval time = 4.00 ms / 2 tokens"),
    ],
)
def test_what_is_no_speed_is_an_error_with_the_end_of_what_was_said(kind: str, out: str) -> None:
    with pytest.raises(PeerFailed) as caught:
        peer(kind).timings(out, "first\nlast words")
    message = str(caught.value)
    assert message.endswith("first last words") and "\n" not in message and len(message) < 500


def test_a_program_in_path_is_started_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(tmp_path / "llama-of-mine", help=BENCH_HELP)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Peer.of("llama-of-mine").command(Path("m"), 1, 0, 1, 9)[0] == "llama-of-mine"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    for given in ("llama-of-mine", "./llama-of-mine"):
        assert Peer.of(given).binary == str(tmp_path / "llama-of-mine")
    with pytest.raises(BadRequest, match="no such program"):
        Peer.of("llama-of-nobody")
