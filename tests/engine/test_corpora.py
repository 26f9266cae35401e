"""``diskmoe corpus`` and runs that draft from what it makes."""

import json
from pathlib import Path

import pytest
from tiny_model import random_tensors, tiny_config, write_checkpoint
from tiny_text import VOCAB, WORDS, write_tokenizer

from diskmoe.engine.api import Model, Options
from diskmoe.engine.cli import main
from diskmoe.engine.corpora import make_corpus
from diskmoe.engine.errors import BadOutput, BadRequest
from diskmoe.mtp.corpus import BREAK, Corpus


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    config = tiny_config("qwen3_moe", vocab_size=VOCAB, eos_token_id=None)
    write_checkpoint(path, config, random_tensors(config, seed=11), dtype="bf16")
    return write_tokenizer(path)


def ids_in(corpus: Path, vocabulary: str) -> list[int]:
    opened = Corpus.open(corpus, vocabulary)
    ids = [opened.token(place) for place in range(len(opened))]
    opened.close()
    return ids


def test_texts_and_lines_become_documents_and_runs_draft_from_them(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Model.load(model, Options(ctx=128, ngram=False)) as plain:
        answer = plain.generate("once upon", limit=48)
        list(answer)
        tokenizer = plain.text.tokenizer
        assert tokenizer is not None and not answer.stats.drafts
        continued = tokenizer.decode_bytes([*tokenizer.encode("once upon"), *answer.token_ids])
    text, lines, out = tmp_path / "a.txt", tmp_path / "b.jsonl", tmp_path / "corpus"
    text.write_bytes("the end\r\n".encode("utf-8-sig"))
    whole = continued.decode(errors="replace")  # a random model writes what is no UTF-8
    lines.write_text(f'{json.dumps({"text": whole})}\n\n"on"\n', encoding="utf-8")
    words = ["corpus", str(text), str(lines), "--model", str(model), "--out", str(out)]
    assert main(words) == 0
    assert " tokens of 3 documents, " in capsys.readouterr().err
    expected = [tokenizer.encode(part) for part in ("the end\r\n", whole, "on")]
    written = [token for ids in expected for token in (BREAK, *ids)]
    assert ids_in(out, tokenizer.fingerprint) == written
    said: list[str] = []
    options = Options(ctx=128, ngram=False, corpus=out, draft=4)
    with Model.load(model, options, said.append) as drafting:
        run = drafting.generate("once upon", limit=48)
        list(run)
    assert run.token_ids == answer.token_ids and run.stats.drafts["corpus"].judged
    assert any(line.startswith("corpus ") and "3 documents" in line for line in said)


def test_a_corpus_of_another_vocabulary_is_refused_before_a_weight_is_read(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text((model / "config.json").read_text())
    write_tokenizer(other, WORDS[:2])
    (tmp_path / "a.txt").write_text("the end of the end of the end")
    make_corpus([tmp_path / "a.txt"], other, tmp_path / "corpus", print)
    words = ["Hi", "--model", str(model), "--corpus", str(tmp_path / "corpus"), "--ctx", "64"]
    assert main(words) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error:")]
    assert "of another vocabulary" in line and "make it again with diskmoe corpus" in line


def test_a_model_without_a_tokenizer_has_no_corpus(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("on")
    with pytest.raises(BadRequest, match="no tokenizer.json"):
        make_corpus([tmp_path / "a.txt"], tiny, tmp_path / "corpus", print)
    with pytest.raises(BadRequest, match="no tokenizer.json"):
        Model.load(tiny, Options(corpus=tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.jsonl", b'"on"\n{"text": \n', "line 2 is not JSON"),
        ("a.jsonl", b'{"txt": "on"}', 'line 1 is neither a string nor an object with a "text"'),
        ("a.ndjson", b"\xff", "line 1 is not JSON"),
        ("a.txt", b"on \xff", "is not UTF-8 text"),
        ("a.txt", b"", "there is no token in it"),
        ("a.jsonl", rb'"on \ud800"', "a.jsonl: the text is not valid Unicode"),
    ],
)
def test_what_is_no_text_is_refused_and_nothing_is_left(
    model: Path, tmp_path: Path, name: str, content: bytes, why: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadRequest, match=why):
        make_corpus([tmp_path / name], model, tmp_path / "corpus", print)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_directory_that_is_there_is_left_alone(model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("on")
    with pytest.raises(BadOutput, match="is there already; remove it or name a new directory"):
        make_corpus([tmp_path / "a.txt"], model, tmp_path, print)


def test_a_link_that_leads_nowhere_is_left_alone(model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("on")
    try:
        (tmp_path / "out").symlink_to(tmp_path / "nowhere")
    except OSError:
        pytest.skip("links cannot be made here")
    with pytest.raises(BadOutput, match="is there already"):
        make_corpus([tmp_path / "a.txt"], model, tmp_path / "out", print)


def test_a_text_longer_than_a_piece_is_cut_where_a_line_ends(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diskmoe.engine.corpora._PIECE", 10)
    (tmp_path / "a.txt").write_bytes(b"the one\nin the end\non\n")
    said: list[str] = []
    make_corpus([tmp_path / "a.txt"], model, tmp_path / "corpus", said.append)
    assert "of 2 documents" in said[-1]
