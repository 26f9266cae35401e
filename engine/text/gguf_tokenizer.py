"""Writes the tokenizer files of a Hugging Face directory from the metadata of a GGUF file.

The rule kept here: encoding with the written files equals encoding with the tokenizer that the
GGUF was made from. GGUF names the pre-tokenizer (``tokenizer.ggml.pre``) instead of describing
it, so only names whose description is known are accepted.
"""

import json
import os
from pathlib import Path
from typing import Any

from diskmoe.engine.errors import BadModel
from diskmoe.engine.text.files import one_line

MOST_TOKENS = 1 << 20

# tokenizer.ggml.token_type, as in llama.cpp's llama_token_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "gpt-2": BYTE_LEVEL,
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL],
    },
}


def tokenizer_files_from_gguf(reader: Any, out_dir: Path) -> list[Path]:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json; return their paths.

    `reader` is a ``gguf.GGUFReader``. Byte-level BPE only (``tokenizer.ggml.model`` = gpt2); raises
    BadModel for other kinds, for an unknown pre-tokenizer and for lists that disagree.
    """
    metadata = _Metadata(reader)
    kind = metadata.value("tokenizer.ggml.model", str)
    if kind != "gpt2":
        raise metadata.bad("tokenizer.ggml.model", f"is {one_line(repr(kind), 40)}, not 'gpt2'")
    pre = metadata.value("tokenizer.ggml.pre", str)
    if pre not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise metadata.bad(
            "tokenizer.ggml.pre", f"is {one_line(repr(pre), 40)}; supported are: {known}"
        )
    tokens = metadata.texts("tokenizer.ggml.tokens")
    types = metadata.value("tokenizer.ggml.token_type", list)
    if len(types) != len(tokens):
        raise metadata.bad(
            "tokenizer.ggml.token_type", f"has {len(types)} entries for {len(tokens)} tokens"
        )
    ids = {token: i for i, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise metadata.bad(
            "tokenizer.ggml.tokens", f"has {len(tokens)} entries, only {len(ids)} of them differ"
        )
    merges = _merges(metadata, ids)
    named = {
        name: metadata.token_id(f"tokenizer.ggml.{key}_token_id", len(tokens))
        for name, key in (
            ("bos", "bos"),
            ("eos", "eos"),
            ("unk", "unknown"),
            ("pad", "padding"),
            ("eot", "eot"),
            ("eom", "eom"),
        )
    }
    bos_id = named["bos"]
    bos = tokens[bos_id] if bos_id is not None and metadata.get("add_bos_token") is True else None
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added_token(i, tokens[i], kind)
            for i, kind in enumerate(types)
            if kind in (UNKNOWN, CONTROL, USER_DEFINED)
        ],
        "normalizer": None,
        "pre_tokenizer": PRE_TOKENIZERS[pre],
        "post_processor": BYTE_LEVEL if bos is None else _bos_first(bos, ids[bos]),
        "decoder": BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for token, i in ids.items() if types[i] != UNUSED},
            "merges": merges,
        },
    }
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": bos is not None,
    }
    for name in ("bos", "eos", "unk", "pad"):
        token_id = named[name]
        if token_id is not None:
            config[f"{name}_token"] = tokens[token_id]
    if metadata.has("tokenizer.chat_template"):
        config["chat_template"] = metadata.value("tokenizer.chat_template", str)
    stops = [i for i in (named["eos"], named["eot"], named["eom"]) if i is not None]
    stops = list(dict.fromkeys(stops))
    generation = {
        "bos_token_id": bos_id,
        "eos_token_id": stops[0] if len(stops) == 1 else stops,
        "pad_token_id": named["pad"],
    }
    generation = {name: value for name, value in generation.items() if value not in (None, [])}
    return [
        _write_json(out_dir / "tokenizer.json", tokenizer, indent=None),
        _write_json(out_dir / "tokenizer_config.json", config, indent=2),
        _write_json(out_dir / "generation_config.json", generation, indent=2),
    ]


class _Metadata:
    """Typed look-ups in a GGUF's key-value pairs; whatever is wrong is a BadModel with the key."""

    def __init__(self, reader: Any):
        self._fields = reader.fields
        self._path = getattr(getattr(reader, "data", None), "filename", None) or "GGUF file"

    def bad(self, key: str, what: str) -> BadModel:
        return BadModel(f"{self._path}: {key} {what}")

    def has(self, key: str) -> bool:
        return key in self._fields

    def get(self, name: str) -> Any:
        key = f"tokenizer.ggml.{name}"
        return self._fields[key].contents() if key in self._fields else None

    def value(self, key: str, kind: type) -> Any:
        if key not in self._fields:
            raise self.bad(key, "is missing: this GGUF carries no usable tokenizer")
        field = self._fields[key]
        if kind is list and len(field.data) > MOST_TOKENS:
            raise self.bad(key, f"has {len(field.data)} entries, the most read is {MOST_TOKENS}")
        try:
            value = field.contents()
        except UnicodeDecodeError:
            raise self.bad(key, "holds text that is not UTF-8") from None
        if not isinstance(value, kind):
            raise self.bad(key, f"is a {type(value).__name__}, not a {kind.__name__}")
        return value

    def texts(self, key: str) -> list[str]:
        value = self.value(key, list)
        if not all(isinstance(text, str) and text for text in value):
            raise self.bad(key, "is not a list of texts")
        return value

    def token_id(self, key: str, n_tokens: int) -> int | None:
        if not self.has(key):
            return None
        token_id = self.value(key, int)
        if not 0 <= token_id < n_tokens:
            raise self.bad(key, f"is {token_id}, but there are {n_tokens} tokens")
        return token_id


def _merges(metadata: _Metadata, ids: dict[str, int]) -> list[list[str]]:
    key = "tokenizer.ggml.merges"
    merges: list[list[str]] = []
    for place, merge in enumerate(metadata.texts(key)):
        pair = merge.split(" ")
        if len(pair) != 2 or not ids.keys() >= {*pair, "".join(pair)}:
            raise metadata.bad(
                key, f"[{place}] is {one_line(repr(merge), 60)}, not two tokens that make a third"
            )
        merges.append(pair)
    return merges


def _added_token(token_id: int, content: str, kind: int) -> dict[str, Any]:
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": kind != USER_DEFINED,
    }


def _bos_first(bos: str, bos_id: int) -> dict[str, Any]:
    """The post-processor that puts BOS before a text."""
    first = {"SpecialToken": {"id": bos, "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [first, text],
        "pair": [first, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}},
    }


def _write_json(path: Path, value: dict[str, Any], indent: int | None) -> Path:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8", newline="\n") as file:
        json.dump(value, file, ensure_ascii=False, indent=indent)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    return path
