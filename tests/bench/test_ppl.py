"""bench ppl: what is scored with what before it, sums that survive, and slips in one line."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import random_tensors, tiny_config, write_checkpoint
from tiny_text import VOCAB, write_tokenizer
from twin_model import Twin

from diskmoe.bench import ppl
from diskmoe.bench.perplexity import (
    Sums,
    negative_log_likelihoods,
    unscored,
    windows,
)
from diskmoe.bench.ppl_text import pieces
from diskmoe.engine.cli import main
from diskmoe.engine.model.config import read_config
from diskmoe.engine.text.tokenizer import load_tokenizer

TEXT = "then the engine reads on, in\nthe end, 'café' \U0001f642 <|end|> one two\n" * 2
Asked = Callable[..., dict]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ppl") / "model"
    config = tiny_config("qwen3_moe", vocab_size=VOCAB)
    write_checkpoint(folder, config, random_tensors(config, seed=3))
    return write_tokenizer(folder)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture
def asked(model: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> Asked:
    """``bench ppl --json`` with these words; what it printed."""

    def ask(*words: str) -> dict:
        line = ["bench", "ppl", str(model), str(text), "--threads", "1", "--json"]
        assert main([*line, *words]) == 0
        return json.loads(capsys.readouterr().out)

    return ask


def plainly(model: Path, context: int, stride: int, prefix: tuple[int, ...] = ()) -> list[float]:
    """-log p of every token of TEXT that has one before it, by NumPy: each from the first
    window that holds it."""
    config = json.loads((model / "config.json").read_text())
    twin = Twin(read_config(config, "tiny"), random_tensors(config, seed=3))
    tokenizer = load_tokenizer(model, VOCAB)
    assert tokenizer is not None
    ids = tokenizer.encode(TEXT)
    known: dict[int, float] = {}
    for begin in range(0, len(ids), stride):
        fed = [*prefix, *ids[begin : begin + context - len(prefix)]]
        logits = twin.logits(fed).astype(np.float64)
        unsure = np.logaddexp.reduce(logits, axis=1)
        for row in range(len(fed)):
            place = begin + row + 1 - len(prefix)
            if begin <= place < len(ids):
                known.setdefault(place, float(unsure[row] - logits[row, ids[place]]))
    return [known[place] for place in sorted(known)]


def test_it_is_what_plain_numpy_finds(asked: Asked, model: Path) -> None:
    found = asked("--ctx", "32", "--stride", "12", "--cap", "3")
    expected = plainly(model, 32, 12)
    assert found["tokens"] == len(expected) and found["windows"] > 5
    assert found["nll"] == pytest.approx(np.mean(expected), abs=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(np.mean(expected)), rel=1e-5)
    spread = np.std(expected) / math.sqrt(len(expected) - 1) * found["perplexity"]
    assert found["standard_error"] == pytest.approx(spread, rel=1e-3)
    nbytes = len(TEXT.encode()) - len("the")  # the first token is not scored
    assert found["bytes"] == nbytes
    assert found["bits_per_byte"] == pytest.approx(sum(expected) / math.log(2) / nbytes, rel=1e-5)


def test_a_window_of_a_model_with_bos_begins_with_it(
    asked: Asked, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_tokenizer(model, VOCAB)
    assert tokenizer is not None
    bos = tokenizer.token_id("<|end|>")
    assert bos is not None
    whole = ppl.Text.of

    def with_bos(path, raw, side, most):
        text = whole(path, raw, side, most)
        return ppl.Text(text.path, text.sha256, text.nbytes, text.ids, (bos,))

    monkeypatch.setattr(ppl.Text, "of", staticmethod(with_bos))
    found = asked("--ctx", "32", "--stride", "12")
    expected = plainly(model, 32, 12, (bos,))
    assert found["nll"] == pytest.approx(np.mean(expected), abs=1e-5)
    assert found["bytes"] == len(TEXT.encode()) and found["settings"]["bos"] == [bos]


def test_what_buys_speed_changes_no_bit(asked: Asked) -> None:
    words = ("--ctx", "40", "--dense-bits", "8", "--expert-bits", "4")
    plain = asked(*words)
    for fast in (("--cap", "2"), ("--prefill-chunk", "7"), ("--threads", "2")):
        assert asked(*words, *fast)["nll"] == plain["nll"]
    assert plain["nll"] != asked("--ctx", "40")["nll"]


def test_a_run_that_was_killed_goes_on_and_ends_with_the_same_bits(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, words = tmp_path / "sums.json", ("--ctx", "32", "--cap", "3")
    whole = asked(*words)
    scored: list[int] = []
    plain = ppl.score

    def killed(target, ids, prefix, window, *rest):
        if len(scored) == 3:
            raise KeyboardInterrupt
        scored.append(window.begin)
        return plain(target, ids, prefix, window, *rest)

    monkeypatch.setattr(ppl, "score", killed)
    with pytest.raises(AssertionError):
        asked(*words, "--out", str(out))
    monkeypatch.setattr(ppl, "score", plain)
    assert json.loads(out.read_text())["sums"]["windows"] == 3
    rest = asked(*words, "--out", str(out), "--cap", "8")
    assert rest["resumed_windows"] == 3
    again = asked(*words, "--out", str(out))
    assert again["resumed_windows"] == again["windows"] == whole["windows"]
    for name in ("nll", "tokens", "bytes", "standard_error"):
        assert whole[name] == rest[name] == again[name]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda kept: kept.update(model="f" * 32), "is of another model (ffffffffffff..."),
        (lambda kept: kept.update(text="0" * 64), "is of another text"),
        (lambda kept: kept["settings"].update(ctx=64), "other settings (ctx 64, not 32)"),
        (lambda kept: kept.pop("sums"), "is no file of bench ppl"),
        (lambda kept: kept["sums"].update(nll=float("nan")), "is no file of bench ppl"),
        (lambda kept: kept["sums"].update(windows=10**6), "is no file of bench ppl"),
        (lambda kept: kept.update(version=2), "is no file of bench ppl"),
    ],
)
def test_the_sums_of_something_else_are_refused(
    spoil: Callable[[dict], object],
    message: str,
    asked: Asked,
    model: Path,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "sums.json"
    asked("--ctx", "32", "--out", str(out))
    kept = json.loads(out.read_text())
    spoil(kept)
    out.write_text(json.dumps(kept))
    words = ["bench", "ppl", str(model), str(text), "--ctx", "32", "--out", str(out)]
    assert main(words) == 2
    assert message in capsys.readouterr().err.strip().splitlines()[-1]
    assert json.loads(out.read_text()) == kept or "NaN" in out.read_text()


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        (b"", (), "is empty"),
        (b" \n\t", (), "is empty"),
        (b"ab\0c", (), "is no text: byte 2 is 0"),
        (b"ab\xffc", (), "is no UTF-8 text: byte 2"),
        (b"t", (), "has 1 token"),
        (b"then", ("--rule", "llama.cpp"), "has 2 tokens, and --rule llama.cpp needs a whole"),
        (b"then on", ("--rule", "llama.cpp", "--stride", "3"), "--stride has no effect"),
        (b"then on", ("--stride", "600"), "--stride is '600'"),
        (b"then on", ("--rule", "perfect"), "one of sliding, llama.cpp"),
        (b"then on", ("--tokens", "1"), "--tokens"),
        (b"then on", ("--temp", "0"), "has no effect"),
        (b"then on", ("--out", "/nowhere/at/all.json"), "/nowhere/at/all.json"),
        (b"then on", ("--out", "/"), "--out /"),
    ],
)
def test_a_slip_is_answered_in_one_line(
    content: bytes,
    words: tuple[str, ...],
    message: str,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    assert main(["bench", "ppl", str(model), str(path), *words]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("error: ") and message in last


def test_a_text_too_large_is_refused_before_it_is_read(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "huge.txt"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert main(["bench", "ppl", str(model), str(path)]) == 2
    assert "has 1.0 TiB, more than the 64.0 MiB" in capsys.readouterr().err


def test_a_short_text_is_scored_with_a_note(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "text.txt"
    path.write_text("then one")
    assert main(["bench", "ppl", str(model), str(path), "--threads", "1"]) == 0
    said = capsys.readouterr()
    assert "fits one window of 512" in said.err
    assert said.out.splitlines()[2].startswith(
        "scored     4 tokens, 5 bytes of text.txt, 1 windows"
    )


def test_a_model_without_a_tokenizer_is_refused(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny_config("qwen3_moe")
    write_checkpoint(tmp_path / "bare", config, random_tensors(config, seed=3))
    assert main(["bench", "ppl", str(tmp_path / "bare"), str(text)]) == 2
    assert "has no tokenizer.json: perplexity is of text" in capsys.readouterr().err


@settings(deadline=None)
@given(st.integers(2, 300), st.integers(0, 1), st.integers(3, 60), st.data())
def test_sliding_windows_score_every_token_once(
    tokens: int, prefix: int, context: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, context - prefix))
    plan = windows(tokens, prefix, context, stride, "sliding")
    scored = [place for window in plan for place in range(window.first, window.end)]
    assert scored == list(range(1 - prefix, tokens))
    assert unscored(plan, tokens) == ([] if prefix else [(0, 1)])
    for number, window in enumerate(plan):
        assert prefix + window.end - 1 - window.begin <= context
        assert number == 0 or window.first - window.begin >= context - prefix + 1 - stride


@settings(deadline=None)
@given(st.integers(2, 500), st.integers(0, 1), st.integers(4, 60))
def test_windows_of_the_other_rule_are_those_of_llama_perplexity(
    tokens: int, prefix: int, context: int
) -> None:
    stream = [-1] * prefix + list(range(tokens))  # as it tokenises: BOS first
    expected = []
    for chunk in range(len(stream) // context):
        fed = stream[chunk * context : (chunk + 1) * context]
        fed = ([-1] if prefix else fed[:1]) + fed[1:]
        expected.append((fed[:-1], fed[context // 2 + 1 :]))
    plan = windows(tokens, prefix, context, context, "llama.cpp")
    assert [
        ([-1] * prefix + list(range(w.begin, w.end - 1)), list(range(w.first, w.end))) for w in plan
    ] == expected


def test_log_likelihoods_are_those_of_a_softmax_in_f64_and_survive_any_size() -> None:
    rng = np.random.default_rng(5)
    logits = rng.normal(0, 8, (6, 1000)).astype(np.float32)
    logits[3] += 1e30
    targets = rng.integers(0, 1000, 6)
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    expected = np.logaddexp.reduce(wide, axis=1) - wide[range(6), targets]
    assert np.abs(negative_log_likelihoods(logits, targets) - expected).max() < 1e-12


def test_sums_are_of_windows_in_order() -> None:
    sums = Sums().plus(np.asarray([1.0, 2.0])).plus(np.asarray([3.0]))
    assert (sums.windows, sums.tokens, sums.nll, sums.squares) == (2, 3, 6.0, 14.0)
    assert sums.perplexity == pytest.approx(math.exp(2))
    assert Sums(1, 1, 1e6, 1e12).perplexity == math.inf


@settings(deadline=None)
@given(st.text("ab\n", max_size=40))
def test_pieces_are_the_text(text: str) -> None:
    assert "".join(pieces(text)) == text


def test_pieces_end_with_a_line() -> None:
    line = "x" * 999 + "\n"
    found = list(pieces(line * 3000))
    assert len(found) == 3 and all(piece.endswith("\n") for piece in found)
