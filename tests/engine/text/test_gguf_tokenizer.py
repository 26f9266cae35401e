"""A GGUF's tokenizer becomes the files of a Hugging Face directory."""

import json
from pathlib import Path

import gguf
import pytest

from diskmoe.engine.errors import BadModel
from diskmoe.engine.text.gguf_tokenizer import tokenizer_files_from_gguf
from diskmoe.engine.text.template import ChatTemplate
from diskmoe.engine.text.tokenizer import TextTokenizer, load_tokenizer

TEXTS = ["The capital of France", "1234 ab12  3\n4", "naïve 🙂", "<|im_start|>user\nHi<|im_end|>"]


def load(directory: Path) -> TextTokenizer:
    tokenizer = load_tokenizer(directory, 500)
    assert tokenizer is not None
    return tokenizer


@pytest.fixture
def write_gguf(tmp_path, toys):
    """write_gguf(**changes) -> GGUFReader of a toy's tokenizer; a change to None leaves it out."""

    def write(**changes):
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
        return gguf.GGUFReader(tmp_path / "toy.gguf")

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

    tokenizer_files_from_gguf(write_gguf(), tmp_path / "out")
    made = load(tmp_path / "out")

    for text in TEXTS:
        assert made.encode(text) == original.encode(text)
        assert made.decode_bytes(made.encode(text)) == original.decode_bytes(original.encode(text))
    assert made.special_text == {0: "<|endoftext|>", 1: "<|im_start|>", 2: "<|im_end|>"}
    assert made.token_bytes[3] == b"<think>"


def test_stops_template_and_named_tokens_are_written(write_gguf, tmp_path):
    out = tmp_path / "out"

    paths = tokenizer_files_from_gguf(write_gguf(eot_token_id=0), out)

    assert set(paths) == set(out.iterdir())
    assert json.loads((out / "generation_config.json").read_text()) == {
        "bos_token_id": 1,
        "eos_token_id": [2, 0],
        "pad_token_id": 2,
    }
    config = json.loads((out / "tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    question = [{"role": "user", "content": "Hi"}]
    template = ChatTemplate.load(out)
    assert template is not None
    assert template.render(question) == "Hi<|im_end|>"


def test_a_bos_that_the_file_asks_for_is_put_before_raw_text(write_gguf, tmp_path):
    tokenizer_files_from_gguf(write_gguf(add_bos_token=True), tmp_path / "out")

    made = load(tmp_path / "out")

    assert made.encode("a", special=True) == [1, *made.encode("a")]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model": "llama"}, "tokenizer.ggml.model is 'llama', not 'gpt2'"),
        ({"model": None}, "tokenizer.ggml.model is missing"),
        ({"model": 3}, "tokenizer.ggml.model is a int, not a str"),
        ({"pre": "unheard"}, "tokenizer.ggml.pre is 'unheard'; supported are: gpt-2, smollm"),
        ({"tokens": ["a", "b", "a"]}, "tokenizer.ggml.token_type has"),
        ({"tokens": ["a", "b", "a"], "token_type": [1, 1, 1]}, "3 entries, only 2 of them differ"),
        ({"merges": ["x y z"]}, r"tokenizer.ggml.merges \[0\] is 'x y z'"),
        ({"merges": ["qq zz"]}, r"tokenizer.ggml.merges \[0\] is 'qq zz'"),
        ({"eos_token_id": 9999}, "tokenizer.ggml.eos_token_id is 9999, but there are"),
    ],
)
def test_a_gguf_whose_tokenizer_is_not_understood_is_refused(write_gguf, tmp_path, changes, told):
    reader = write_gguf(**changes)

    with pytest.raises(BadModel, match=told):
        tokenizer_files_from_gguf(reader, tmp_path / "out")

    assert not (tmp_path / "out").exists()
