"""Kimi's vocabulary gives tiktoken's ids (scripts/make_tiktoken_golden.py), or is refused in a line."""

import base64
import json
import shutil
from pathlib import Path

import pytest

from diskmoe.engine.errors import BadModel
from diskmoe.engine.text import tiktoken_file
from diskmoe.engine.text.side import TextSide
from diskmoe.engine.text.tokenizer import TextTokenizer, load_tokenizer

GOLDEN = Path(__file__).parents[2] / "golden" / "tiktoken"
VOCAB = 620


def load(directory: Path = GOLDEN, vocab_size: int = VOCAB) -> TextTokenizer:
    tokenizer = load_tokenizer(directory, vocab_size)
    assert tokenizer is not None
    return tokenizer


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return shutil.copytree(GOLDEN, tmp_path / "model")


def test_texts_have_the_ids_and_the_bytes_of_tiktoken():
    tokenizer = load()
    cases = json.loads((GOLDEN / "expected.json").read_text(encoding="utf-8"))
    assert len(cases) == 150
    for text, ids in cases:
        assert tokenizer.encode(text) == ids, text
        printed = b"".join(tokenizer.token_bytes[i] or b"" for i in ids)
        spoken = text
        for special in tokenizer.special_text.values():
            spoken = spoken.replace(special, "")
        assert printed == spoken.encode()


def test_special_tokens_are_those_of_the_config_and_the_rest_is_reserved():
    tokenizer = load()
    assert tokenizer.kind == "byte-level"
    assert tokenizer.encode("[BOS]<think><|reserved_token_619|>") == [600, 608, 619]
    assert tokenizer.is_special(602) and tokenizer.is_special(619)
    assert not tokenizer.is_special(608) and tokenizer.token_bytes[608] == b"<think>"
    assert tokenizer.encode("a", special=True) == tokenizer.encode("a")
    assert tokenizer.surplus_ids == ()


def test_the_side_of_a_model_stops_where_kimi_stops():
    side = TextSide.load(GOLDEN, {"eos_token_id": 601}, VOCAB)
    assert side.stop_ids == {601} and side.unread == ""
    assert side.encode_prompt("Hello").ids


def test_a_tokenizer_json_wins(directory, toys):
    (directory / "tokenizer.json").write_text(json.dumps(toys["byte-level"]), encoding="utf-8")
    assert load(directory).path.name == "tokenizer.json"


def test_another_models_vocabulary_is_not_read(directory):
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "QWenTokenizer"}')
    assert load_tokenizer(directory, VOCAB) is None
    assert TextSide.load(directory, {}, VOCAB).unread == " (tiktoken.model is not read)"


def line(token: bytes, rank: object) -> str:
    return f"{base64.b64encode(token).decode()} {rank}\n"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("YQ==\n", "line 601 is 'YQ==', not a token in base64 and its rank"),
        ("YQ== 1 2\n", "line 601"),
        ("Y 600\n", "line 601"),
        ("\u00e9\u00e9 600\n", "line 601"),
        (line(b"zzz", "x"), "line 601"),
        (line(b"zzz", "9" * 5000), "line 601"),
        (" 600\n", "has 0 bytes"),
        (line(b"z" * 1025, 600), "has 1025 bytes"),
        (line(b"zzz", 599), "rank 600 is missing"),
        (line(b"zzz", 700), "rank 600 is missing"),
        (line(b"zzz", -1), "rank 0 is missing"),
        (line(b"a", 900), "is missing"),
        (line(b"zzz", 600), "id 600 belongs to '[BOS]' and to 'zzz'"),
    ],
)
def test_a_line_that_cannot_be_is_named(directory, more, said):
    path = directory / "tiktoken.model"
    path.write_text(path.read_text() + more, encoding="utf-8")
    with pytest.raises(BadModel) as caught:
        load(directory)
    message = str(caught.value)
    assert said in message and str(path) in message and "\n" not in message and len(message) < 300


@pytest.mark.parametrize(
    ("limit", "most", "said"),
    [
        ("LIMIT_BYTES", 100, "bigger than 100 bytes"),
        ("MOST_TOKENS", 100, "up to 100 tokens"),
        ("MOST_BYTES", 200, "200 in all"),
    ],
)
def test_a_file_beyond_the_bounds_is_refused(directory, monkeypatch, limit, most, said):
    monkeypatch.setattr(tiktoken_file, limit, most)
    with pytest.raises(BadModel, match=said):
        load(directory)


def test_a_vocabulary_without_all_bytes_is_refused(directory):
    path = directory / "tiktoken.model"
    lines = [text for text in path.read_text().splitlines() if not text.startswith("fw== ")]
    path.write_text("".join(f"{text.split()[0]} {i}\n" for i, text in enumerate(lines)))
    with pytest.raises(BadModel, match="no token for byte 0x7F"):
        load(directory)


def test_more_ranks_than_the_model_has_ids_are_refused(directory):
    with pytest.raises(BadModel, match="the model has 590"):
        load(directory, 590)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (["[EOS]"], "not an object"),
        ({"x": {"content": "a"}}, "no id or no content"),
        ({"601": {"content": ""}}, "no id or no content"),
        ({"601": "[EOS]"}, "no id or no content"),
        ({"5": {"content": "[EOS]"}}, "id 5 belongs to"),
        ({"700": {"content": "[EOS]"}}, "the model has 620"),
    ],
)
def test_added_tokens_that_cannot_be_are_refused(directory, tokens, said):
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"added_tokens_decoder": tokens}
    path.write_text(json.dumps(config))
    with pytest.raises(BadModel) as caught:
        load(directory)
    assert said in str(caught.value) and "\n" not in str(caught.value)
