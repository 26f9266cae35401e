"""bench serve: what its parts measure, on a tiny server in a thread, and what is made of it."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from tiny_server import listen, write_model

from diskmoe.bench import serve, serve_parts, served
from diskmoe.bench.launch import RunFailed
from diskmoe.bench.ratios import Ratio
from diskmoe.bench.serve_parts import Bar, Part, Work
from diskmoe.bench.served import Answer, Server
from diskmoe.engine.api import Model, Options
from diskmoe.engine.cli import main
from diskmoe.engine.errors import BadRequest
from diskmoe.engine.server.app import Rules
from diskmoe.engine.server.app import Server as App
from diskmoe.engine.server.desk import Desk


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("bench-served") / "tiny")


@pytest.fixture(scope="module")
def server(model_path: Path) -> Iterator[Server]:
    with Model.load(model_path, Options(ctx=1024, cap=2, parallel=2, ngram=False)) as model:
        desk = Desk(model, most_waiting=4, most_seconds=60, say=pytest.fail)
        running, address, thread = listen(App(desk, Rules()).app)
        yield Server(address.removeprefix("http://"))
        running.should_exit = True
        thread.join(10)
        desk.close()


@pytest.fixture
def work(model_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Work:
    """Whose servers are all the one in the thread."""
    asked: list[list[str]] = []

    @contextmanager
    def there(flags: list[str], say: Callable[[str], None]) -> Iterator[Server]:
        asked.append(flags)
        yield server

    monkeypatch.setattr(serve_parts, "served", there)
    line = serve.understood(
        "serve",
        [str(model_path), "--tokens=32", "--pairs=2", "--history=120", "--slots=2", "--cap=3"],
        {},
        serve.FLAGS,
        serve.SETTINGS,
    )
    return serve._work(line, pytest.fail)


def silent(line: str) -> None:
    pass


def test_a_client_sees_every_piece_and_the_usage(server: Server) -> None:
    pieces: list[int] = []
    body = {"prompt": "abc", "max_tokens": 400, "temperature": 0}
    answer = server.stream("/v1/completions", body, lambda: pieces.append(1))
    assert answer.tokens == 400 and len(answer.arrived) > 6 and pieces
    assert answer.sent < answer.first <= answer.last <= answer.ended
    assert len(answer.gaps) == len(answer.arrived) - 1 and answer.tok_per_s > 0


def test_a_client_that_is_refused_says_why(server: Server) -> None:
    with pytest.raises(RunFailed, match=r"refused /v1/completions \(400\).*max_tokens"):
        server.stream("/v1/completions", {"prompt": "abc", "max_tokens": 0})
    with pytest.raises(RunFailed, match="did not answer /metrics"):
        Server("127.0.0.1:1").counted()


def test_without_text_the_first_token_is_when_the_server_says() -> None:
    usage = {"completion_tokens": 11, "diskmoe": {"ttft_seconds": 2.0}}
    answer = Answer(100.0, (), 104.0, "", usage)
    assert answer.first_seconds == 2.0 and answer.tok_per_s == 5.0
    with pytest.raises(RunFailed, match="before its end"):
        served._answer(0.0, [(1.0, b'data: {"choices": []}\n')], 2.0)
    with pytest.raises(RunFailed, match="failed at an answer: no room"):
        served._answer(0.0, [(1.0, b'data: {"error": {"message": "no room"}}\n')], 2.0)


def test_overhead_compares_the_same_moments_of_both(work: Work) -> None:
    report = {
        "tokens": 32,
        "prefill_seconds": 1.0,
        "ttft_seconds": 1.5,
        "decode_seconds": 3.6,
        "text": "another",
    }
    seen: list[list[str]] = []

    def run(program: object, flags: list[str], text: str, what: str) -> SimpleNamespace:
        seen.append(flags)
        return SimpleNamespace(report=report)

    part = serve_parts.overhead(work, SimpleNamespace(run=run), silent)  # pyright: ignore
    assert [first for first, _ in part.pairs] == pytest.approx([10.0, 10.0])
    assert all("--cap=3" in flags and "--ngen=32" in flags for flags in seen)
    assert "the texts DIFFER" in part.notes  # ours is made up


def test_prefix_compares_as_many_new_tokens(work: Work) -> None:
    part = serve_parts.prefix(work, silent)
    assert len(part.pairs) == 2 and all(bare > 0 and turn > 0 for bare, turn in part.pairs)
    assert "tokens of history" in part.notes[0]


def test_union_counts_what_is_read_once_for_all(work: Work) -> None:
    equal, unlike = serve_parts.union(work, silent)
    assert [len(part.pairs) for part in (equal, unlike)] == [2, 2]
    assert equal.bar is not None and unlike.bar is None
    assert equal.notes[0].startswith("one: ") and "MB a token" in equal.notes[1]
    assert not any("DIFFER" in note for note in equal.notes)


def test_gap_is_of_the_time_in_which_the_prompt_is_read(work: Work) -> None:
    gaps, ttft = serve_parts.gap(work, silent)
    assert len(gaps.pairs) == len(ttft.pairs) == 2 and gaps.notes == ["a prompt of 120 tokens"]


def test_gap_is_left_out_where_streams_have_no_pieces(work: Work) -> None:
    said: list[str] = []
    assert serve._measured(replace(work, prompt=[1, 2]), ["gap"], said.append) == []
    assert "gap is left out" in said[0]


def test_a_client_that_is_refused_beside_another_ends_the_benchmark(
    work: Work, server: Server
) -> None:
    good, bad = work.body("abc", 2), {"prompt": "abc", "max_tokens": 0}
    for ask in (
        lambda: serve_parts._beside(server, bad, good),
        lambda: serve_parts._at_once(server, [good, bad]),
    ):
        with pytest.raises(RunFailed, match="max_tokens"):
            ask()


def test_no_prompt_of_ids_begins_like_another(work: Work) -> None:
    made = [work.ids(700, number) for number in range(5)]
    assert {len(ids) for ids in made} == {700}
    assert len({ids[0] for ids in made}) == 5


def test_a_bar_holds_misses_or_is_unsure() -> None:
    least, most = Bar(0.97, "least"), Bar(1.2, "most")
    assert least.verdict(Ratio(0.99, (0.98, 1.0))) == "holds"
    assert least.verdict(Ratio(0.99, (0.96, 1.02))) == "holds, unsure"
    assert least.verdict(Ratio(0.9, (0.8, 0.95))) == "misses"
    assert most.verdict(Ratio(1.3, (1.1, 1.5))) == "misses, unsure"
    assert most.verdict(Ratio(1.1, None)) == "holds, unsure"
    assert (str(least), str(most)) == (">= 0.97", "<= 1.2")


def test_the_table_and_the_json_have_every_part(
    work: Work, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(work: Work, parts: object, say: object) -> list[Part]:
        assert parts == ["union", "gap"]
        pairs = [(2.0, 3.0), (2.0, 3.0), (4.0, 6.0)]
        return [
            Part("union", "one -> two", ("one", "two"), "tok/s", Bar(1.3, "least"), pairs, ["so"])
        ]

    monkeypatch.setattr(serve, "_measured", measured)
    words = ["bench", "serve", str(work.model), "--parts=union,gap"]
    assert main(words) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[2] == (
        "| union | one -> two | 2 tok/s | 3 tok/s | 1.500 | 1.500 to 1.500 | >= 1.3 | holds |"
    )
    assert out[3] == "union: so"
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["parts"][0]["verdict"] == "holds" and told["parts"][0]["pairs"][2] == [4.0, 6.0]
    assert "--mtp=0" in told["flags"] and told["machine"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--disk=fast"], "--disk is 'fast'"),
        (["--parts=all"], "--parts is 'all'"),
        (["--tokens=2"], "--tokens is '2'"),
        (["--temp=1"], "--temp has no effect on diskmoe bench serve"),
        (["more"], "takes one MODEL"),
    ],
)
def test_words_that_are_wrong_are_refused(model_path: Path, words: list[str], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        serve.command([str(model_path), *words], {}, silent)


def test_a_server_that_does_not_start_is_told_with_its_error() -> None:
    with pytest.raises(RunFailed, match="no such model"), served.served(["--model=/none"], silent):
        pass


def test_a_benchmark_that_is_told_to_end_ends_its_servers(model_path: Path) -> None:
    words = [sys.executable, "-m", "diskmoe.engine", "bench", "serve", str(model_path)]
    words += ["--parts=union", "--tokens=512", "--history=16", "--pairs=1000"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    with process.stderr as lines:
        told = next(line for line in lines if line.startswith("server "))
        server = psutil.Process(int(told.split()[2]))
        process.terminate()
        for _ in lines:
            pass
    assert process.wait(60) == 143
    server.wait(30)
