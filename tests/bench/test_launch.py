"""Runs as processes: what they are given, what is made of what they say, and how they end."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tiny_results import report

from diskmoe.bench.laptop import Box
from diskmoe.bench.launch import Launcher, RunFailed, figures_of, rest_of
from diskmoe.bench.model_files import drop_from_cache, fill_cache, model_id, weight_files
from diskmoe.bench.results import Acceptance
from diskmoe.experts.errors import BadModel
from diskmoe.experts.pagecache import cached_share


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return Launcher(Box("none", False, False), tmp_path / "usage", [], "as found")


def program(text: str) -> list[str]:
    return [sys.executable, "-S", "-c", text]


def test_a_run_gets_its_prompt_its_flags_and_a_copy_of_the_history_that_is_gone_afterwards(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMPT", "another")
    monkeypatch.setenv("DISKMOE_TRACE", "trace")
    launcher.usage.mkdir()
    (launcher.usage / "history.json").write_text("then")
    said = report(10.0, [1, 2], {"CAP": 4})
    code = f"""
import json, os, sys
state = os.environ["DISKMOE_STATE_DIR"]
path = state + "/usage/history.json"
seen = [sys.stdin.read(), sys.argv[1:], open(path).read(), state]
seen += [os.environ.get("PROMPT"), os.environ.get("DISKMOE_TRACE")]
open(path, "w").write("now")
print(json.dumps({{**json.loads({json.dumps(said)!r}), "text": seen}}))
"""
    ended = launcher.run(program(code), ["--cap=4"], "two\nlines\n", "arm a")
    prompt, flags, history, state, *from_outside = ended.report["text"]
    assert prompt == "two\nlines\n\n" and flags == ["--json", "--stats=0", "--cap=4"]
    assert history == "then" and from_outside == [None, None]
    assert not Path(state).exists()
    assert (launcher.usage / "history.json").read_text() == "then"
    assert ended.settings["CAP"].value == 4 and ended.seconds > 0


def test_the_numbers_of_a_report_are_those_of_the_schema() -> None:
    found = figures_of(report(10.0, [1, 2], {}))
    assert (found.tok_per_s, found.tokens, found.decode_seconds) == (10.0, 2, 0.2)
    assert found.misses_per_token == 0.5 and found.miss_bytes_per_token == 4096.0
    assert found.prefill_tok_per_s == 8.0 and found.read_wait_share == pytest.approx(0.25)
    assert found.acceptance == {"ngram": Acceptance(4, 3, ((4, 3),))}
    assert not {"text", "token_ids", "settings"} & set(rest_of(report(10.0, [1], {})))


def test_a_run_without_a_token_has_no_speed() -> None:
    nothing: dict[str, Any] = {
        "token_ids": [],
        "tokens": 0,
        "tok_per_s": None,
        "decode_seconds": 0.0,
        "read_wait_seconds": 0.0,
        "prefill": {"rows": 0, "seconds": 0.0},
    }
    found = figures_of({**report(10.0, [1], {}), **nothing})
    assert found.misses_per_token is None and found.read_wait_share is None
    assert found.ttft_seconds is None and found.prefill_tok_per_s is None


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (
            "import sys; print('note\\nerror: CAP is 0', file=sys.stderr); sys.exit(2)",
            2,
            "arm b ended with code 2: CAP is 0",
        ),
        ("import sys; sys.exit(1)", 1, "arm b ended with code 1: it said nothing"),
        ("import os; os.kill(os.getpid(), 9)", 1, "arm b was ended by signal 9: it said nothing"),
        ("print('text')", 1, "arm b wrote no report that can be read: b'text"),
        ("print('[]')", 1, "arm b wrote no report that can be read: b'[]"),
        ("print('{\"tokens\": 1}')", 1, "arm b wrote no report that can be read"),
    ],
)
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_run_that_fails_is_named_with_what_it_said_last(
    launcher: Launcher, text: str, code: int, said: str
) -> None:
    with pytest.raises(RunFailed) as caught:
        launcher.run(program(text), [], "prompt", "arm b")
    assert str(caught.value).startswith(said) and caught.value.exit_code == code


def test_a_run_that_ctrl_c_ended_is_ctrl_c(launcher: Launcher) -> None:
    with pytest.raises(KeyboardInterrupt):
        launcher.run(program("import sys; sys.exit(130)"), [], "prompt", "arm b")


def test_a_process_ends_after_its_time(launcher: Launcher) -> None:
    begin = time.perf_counter()
    with pytest.raises(RunFailed, match=r"arm b did not end in 0\.2 s"):
        launcher.process(program("import time; time.sleep(60)"), "", "arm b", 0.2)
    assert time.perf_counter() - begin < 30


@pytest.mark.skipif(sys.platform != "linux", reason="the page cache of Linux")
def test_files_are_put_out_of_the_page_cache_and_into_it(tmp_path: Path) -> None:
    path = tmp_path / "experts-00000.safetensors"
    path.write_bytes(os.urandom(1 << 20))
    with path.open("rb+") as file:
        os.fsync(file.fileno())
    files = weight_files(tmp_path)
    assert files == [path]
    drop_from_cache(files)
    if cached_share(files) == 1.0:
        pytest.skip("this file system keeps all files in memory")
    assert cached_share(files) == 0.0
    fill_cache(files)
    assert cached_share(files) == 1.0


def test_a_model_is_known_by_its_files_wherever_they_lie(tmp_path: Path) -> None:
    ids = []
    for name, weights in (("one", b"a" * 9000), ("two", b"a" * 9000), ("three", b"b" * 9000)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text('{"a": 1}')
        (folder / "model.safetensors").write_bytes(weights)
        ids.append(model_id(folder))
    assert ids[0] == ids[1] != ids[2] and len(ids[0]) == 32
    (tmp_path / "one" / "config.json").write_text("{")
    with pytest.raises(BadModel, match="cannot be read as a model"):
        model_id(tmp_path / "one")
