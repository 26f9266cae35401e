"""A GGUF's tokenizer becomes the files of a Hugging Face directory."""

import json
from pathlib import Path

import gguf
import pytest

from diskmoe.engine.errors import BadModel
from diskmoe.engine.text.gguf_tokenizer import tokenizer_files
from diskmoe.engine.text.template import ChatTemplate
from diskmoe.engine.text.tokenizer import TextTokenizer, load_tokenizer
from diskmoe.experts.gguf_file import read_gguf

TEXTS = ["The capital of France", "1234 ab12  3\n4", "naïve 🙂", "<|im_start|>user\nHi<|im_end|>"]


def load(directory: Path) -> TextTokenizer:
    tokenizer = load_tokenizer(directory, 500)
    assert tokenizer is not None
    return tokenizer


@pytest.fixture
def write_gguf(tmp_path, toys):
    """write_gguf(folder, **changes): the files that are made of a toy's tokenizer.

    A change to None leaves an entry out.
    """

    def write(folder: Path, **changes) -> dict[str, bytes]:
        data = toys["byte-level"]
        vocab = sorted(data["model"]["vocab"].items(), key=lambda entry: entry[1])
        values = {
            "model": "gpt2",
            "pre": "smollm",
            "tokens": [token for token, _ in vocab],
            "token_type": [3, 3, 3, 4] + [1] * (len(vocab) - 4),
            "merges": [" ".join(merge) for merge in data["model"]["merges"]],
            "bos_token_id": 1,
            "eos_token_id": 2,
            "unknown_token_id": 0,
            "padding_token_id": 2,
            "eot_token_id": None,
            "add_bos_token": False,
            **changes,
        }
        writer = gguf.GGUFWriter(tmp_path / "toy.gguf", "llama")
        for name, value in values.items():
            key = f"tokenizer.ggml.{name}"
            if isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, str):
                writer.add_string(key, value)
            elif isinstance(value, int):
                writer.add_uint32(key, value)
            elif value is not None:
                writer.add_array(key, value)
        writer.add_chat_template("{{ messages[0].content }}<|im_end|>")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        files = tokenizer_files(read_gguf(tmp_path / "toy.gguf")[1])
        folder.mkdir()
        for name, contents in files.items():
            (folder / name).write_bytes(contents)
        return files

    return write


def test_the_written_files_encode_like_the_tokenizer_they_came_from(
    write_gguf, make_directory, tmp_path
):
    def split_digits(data):
        digits = {"type": "Digits", "individual_digits": True}
        data["pre_tokenizer"] = {
            "type": "Sequence",
            "pretokenizers": [digits, data["pre_tokenizer"]],
        }

    original = load(make_directory(edit=split_digits))

    write_gguf(tmp_path / "out")
    made = load(tmp_path / "out")

    for text in TEXTS:
        assert made.encode(text) == original.encode(text)
        assert made.decode_bytes(made.encode(text)) == original.decode_bytes(original.encode(text))
    assert made.special_text == {0: "<|endoftext|>", 1: "<|im_start|>", 2: "<|im_end|>"}
    assert made.token_bytes[3] == b"<think>"


def test_stops_template_and_named_tokens_are_written(write_gguf, tmp_path):
    out = tmp_path / "out"

    files = write_gguf(out, eot_token_id=1)

    assert set(files) == {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    assert json.loads((out / "generation_config.json").read_text()) == {
        "bos_token_id": 1,
        "eos_token_id": [2, 1, 0],  # <|endoftext|> ends a turn whatever the file says
        "pad_token_id": 2,
    }
    config = json.loads((out / "tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    question = [{"role": "user", "content": "Hi"}]
    template = ChatTemplate.load(out)
    assert template is not None
    assert template.render(question) == "Hi<|im_end|>"


def test_a_bos_that_the_file_asks_for_is_put_before_raw_text(write_gguf, tmp_path):
    write_gguf(tmp_path / "out", add_bos_token=True)

    made = load(tmp_path / "out")

    assert made.encode("a", special=True) == [1, *made.encode("a")]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model": "bert"}, "tokenizer.ggml.model is 'bert', not 'gpt2' or 'llama'"),
        ({"model": "llama"}, "tokenizer.ggml.scores is missing"),
        ({"model": None}, "tokenizer.ggml.model is missing"),
        ({"model": 3}, "tokenizer.ggml.model is a int, not a str"),
        ({"pre": "unheard"}, "tokenizer.ggml.pre is 'unheard'; supported are: default, gpt-2, "),
        ({"tokens": ["a", "b", "a"]}, "tokenizer.ggml.token_type has"),
        ({"tokens": ["a", "b", "a"], "token_type": [1, 1, 1]}, "3 entries, only 2 of them differ"),
        ({"merges": ["x y z"]}, r"tokenizer.ggml.merges \[0\] is 'x y z'"),
        ({"merges": ["qq zz"]}, r"tokenizer.ggml.merges \[0\] is 'qq zz'"),
        ({"eos_token_id": 9999}, "tokenizer.ggml.eos_token_id is 9999, but there are"),
    ],
)
def test_a_gguf_whose_tokenizer_is_not_understood_is_refused(write_gguf, tmp_path, changes, told):
    with pytest.raises(BadModel, match=told):
        write_gguf(tmp_path / "out", **changes)

    assert not (tmp_path / "out").exists()


def test_an_unused_name_may_occur_twice(write_gguf, toys, tmp_path):
    vocab = toys["byte-level"]["model"]["vocab"]
    tokens = [token for token, _ in sorted(vocab.items(), key=lambda entry: entry[1])]
    types = [3, 3, 3, 4] + [1] * (len(tokens) - 4) + [5, 5]

    write_gguf(tmp_path / "out", tokens=[*tokens, "[PAD]", "[PAD]"], token_type=types)

    assert load(tmp_path / "out").surplus_ids[:2] == (len(tokens), len(tokens) + 1)


def test_qwens_texts_are_composed_first(write_gguf, tmp_path):
    write_gguf(tmp_path / "out", pre="qwen2")

    made = load(tmp_path / "out")

    assert made.encode("cafe\u0301") == made.encode("caf\u00e9")


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
SCORED = {"\u2581": -9, "a": -8, "b": -7, "c": -6, "ab": -3, "bc": -1, "abc": -2, "\u2581abc": -4}


@pytest.fixture
def sentencepiece(write_gguf):
    """A vocabulary of pieces with scores; sentencepiece(folder, **changes)."""

    def write(folder: Path, **changes):
        tokens = [*PIECES, *SCORED, "<|user|>"]
        scores = [0.0] * len(PIECES) + [float(score) for score in SCORED.values()] + [-1000.0]
        types = [2, 3, 3] + [6] * 256 + [1] * len(SCORED) + [4]
        values = {"model": "llama", "tokens": tokens, "scores": scores, "token_type": types}
        return write_gguf(folder, **{**values, "merges": None, "pre": "default", **changes})

    return write


def test_pieces_are_joined_by_their_scores(sentencepiece, tmp_path):
    sentencepiece(tmp_path / "out", add_bos_token=True)

    made = load(tmp_path / "out")

    ids = {token: i for i, token in enumerate([*PIECES, *SCORED])}
    # bc first, then a + bc, then the space; ab would be a dead end
    assert made.encode("abc") == [ids["\u2581abc"]]
    assert made.encode("a<|user|>b") == [ids["\u2581"], ids["a"], len(ids), ids["\u2581"], ids["b"]]
    assert made.encode("\u00e9") == [ids["\u2581"], ids["<0xC3>"], ids["<0xA9>"]]
    assert made.encode("a", special=True)[0] == 1
    assert made.leading_space


def test_a_file_may_ask_for_no_space_in_front(sentencepiece, tmp_path):
    sentencepiece(tmp_path / "out", add_space_prefix=False)

    made = load(tmp_path / "out")

    assert made.decode_bytes(made.encode("abc c")) == b"abc c"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"scores": [0.0]}, "tokenizer.ggml.scores has 1 entries for"),
        ({"unknown_token_id": None}, "or an unknown token"),
    ],
)
def test_pieces_that_do_not_add_up_are_refused(sentencepiece, tmp_path, changes, told):
    with pytest.raises(BadModel, match=told):
        sentencepiece(tmp_path / "out", **changes)


def test_several_templates_are_kept_by_name(write_gguf, tmp_path, monkeypatch):
    monkeypatch.setattr(
        gguf.GGUFWriter,
        "add_chat_template",
        lambda self, text: [
            self.add_string("tokenizer.chat_template", text),
            self.add_string("tokenizer.chat_template.tool_use", "tools"),
        ],
    )
    files = write_gguf(tmp_path / "out")

    config = json.loads(files["tokenizer_config.json"])

    assert [entry["name"] for entry in config["chat_template"]] == ["default", "tool_use"]
    template = ChatTemplate.load(tmp_path / "out")
    assert template is not None
    assert template.render([{"role": "user", "content": "Hi"}]) == "Hi<|im_end|>"
