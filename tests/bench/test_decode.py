"""bench decode: fixed tokens in, the keys of a run's report out."""

import json
from pathlib import Path

import pytest

from diskmoe.bench.decode import GivenIds, token_ids
from diskmoe.bench.model import MARK, Synthetic
from diskmoe.engine.cli import main
from diskmoe.engine.report import REPORT_KEYS


def test_the_report_has_the_keys_of_a_run_and_the_prompts_speed(
    written: tuple[Synthetic, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--tokens", "5", "--prompt", "7", "--threads", "1", "--ram-gb", "4", "--json"]
    assert main(["bench", "decode", str(written[1]), *words]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {*REPORT_KEYS, "prompt_tok_per_s", "routing"}
    assert report["tokens"] == report["forwards"] == 5 and report["prompt_tokens"] == 8
    assert report["prefill"]["rows"] == 7 and report["token_ids"] == [8, 9, 10, 11, 12]
    assert report["misses"] == 0 and report["hit_rate"] == 1.0  # all experts fit: read beforehand
    assert report["cache_state"] == "warm"
    assert report["tok_per_s"] > 0 and report["prompt_tok_per_s"] > 0
    assert report["settings"]["THREADS"]["value"] == 1


def test_with_few_slots_nothing_is_warmed(
    written: tuple[Synthetic, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--tokens", "3", "--prompt", "0", "--threads", "1", "--cap", "4", "--ram-gb", "4"]
    assert main(["bench", "decode", str(written[1]), *words, "--json"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["misses"] >= 8 and report["prompt_tok_per_s"] is None
    assert "before the clock" not in captured.err
    assert main(["bench", "decode", str(written[1]), *words, "--warm", "20"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("decode    3 tokens") and "before the clock" in captured.err


def test_a_synthetic_model_gets_its_ids_in_order_and_others_the_same_random_ones() -> None:
    assert token_ids({MARK: {}}, 10, 8, 4) == [8, 9, 0, 1]
    ids = token_ids({}, 10, 0, 100)
    assert ids == token_ids({}, 10, 0, 100) and set(ids) == set(range(10))


def test_given_ids_take_no_notice_of_logits() -> None:
    import numpy as np

    picker = GivenIds([3, 1])
    assert [picker.pick(np.zeros(4)), picker.pick(np.ones(4))] == [3, 1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "needs a MODEL"),
        (["a", "b"], "one too many"),
        (["a", "--model", "b"], "'b' is one too many"),
        ([""], "needs a MODEL"),
        (["{model}", "--routing", ""], "--routing '': there is no such file"),
        (["{model}", "--tokens", "9000"], "--prompt 128 and --tokens 9000 need CTX=9129: CTX="),
        (["{model}", "--tokens", "0"], "--tokens"),
        (["{model}", "--tokens", "10", "--ctx", "8"], "CTX"),
        (["{model}", "--routing", "sticky"], "there is no such file"),
        (["{model}", "--temp", "0"], "has no effect"),
        (["{model}", "--tokns", "3"], "did you mean --tokens?"),
        (["/nowhere/at/all"], "/nowhere/at/all"),
    ],
)
def test_a_slip_is_answered_in_one_line(
    words: list[str],
    message: str,
    written: tuple[Synthetic, Path, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [str(written[1]) if word == "{model}" else word for word in words]
    assert main(["bench", "decode", *words]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("error: ") and message in said
