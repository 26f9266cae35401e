"""The tokenizer files of a Hugging Face directory, made from the metadata of a GGUF.

The rule kept here: encoding with these files equals encoding with the tokenizer that the GGUF was
made from. Two kinds are known: byte-level BPE (``tokenizer.ggml.model`` = gpt2) and SentencePiece
with scores (llama). What cuts a text before merges is named by the file, see `pre_tokenizers`.
"""

import json
from typing import Any

from diskmoe.engine.text.files import one_line
from diskmoe.engine.text.pre_tokenizers import PRE_TOKENIZERS
from diskmoe.engine.text.spelling import BYTE_TOKEN, SPACE_MARK
from diskmoe.engine.text.tokenizer_json import added_token, bpe_model, byte_level_tokenizer
from diskmoe.experts.gguf_file import Metadata

MOST_TOKENS = 1 << 20
LONGEST_PIECE, MOST_CHARACTERS = 256, 1 << 24  # of SentencePiece's; Llama 2 has 16 and 180,000

# tokenizer.ggml.token_type, as in llama.cpp's llama_token_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# control tokens that end a turn whatever else the file says: a GGUF has room for one or two of
# them only, where the hub's generation_config.json lists all
END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|return|>",
    "<|call|>",
    "<|user|>",
    "<|observation|>",
    "[e~[",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)


def tokenizer_files(metadata: Metadata, vocab_size: int | None = None) -> dict[str, bytes]:
    """{name: contents} of tokenizer.json, tokenizer_config.json and generation_config.json.

    Raises BadModel for another kind of tokenizer, for an unknown pre-tokenizer, for lists that
    disagree and for more tokens than the model's `vocab_size`.
    """
    kind = _value(metadata, "tokenizer.ggml.model", str)
    if kind not in ("gpt2", "llama"):
        raise metadata.bad(
            "tokenizer.ggml.model", f"is {one_line(repr(kind), 40)}, not 'gpt2' or 'llama'"
        )
    vocabulary = _Vocabulary(metadata, vocab_size)
    made = _byte_level(vocabulary) if kind == "gpt2" else _sentencepiece(vocabulary)
    named = vocabulary.named
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": made["bos"] is not None,
    }
    for name in ("bos", "eos", "unk", "pad"):
        token_id = named[name]
        if token_id is not None:
            config[f"{name}_token"] = vocabulary.tokens[token_id]
    template = _template(metadata)
    if template is not None:
        config["chat_template"] = template
    stops = [named["eos"], named["eot"], named["eom"]]
    stops += [vocabulary.control_ids.get(text) for text in END_OF_TURN]
    ids = list(dict.fromkeys(stop for stop in stops if stop is not None))
    generation = {
        "bos_token_id": named["bos"],
        "eos_token_id": ids[0] if len(ids) == 1 else ids,
        "pad_token_id": named["pad"],
    }
    generation = {name: value for name, value in generation.items() if value not in (None, [])}
    return {
        "tokenizer.json": _json(made["tokenizer"], indent=None),
        "tokenizer_config.json": _json(config, indent=2),
        "generation_config.json": _json(generation, indent=2),
    }


def _value(metadata: Metadata, key: str, kind: type) -> Any:
    if not metadata.has(key):
        raise metadata.bad(key, "is missing: this GGUF carries no usable tokenizer")
    return metadata.value(key, kind)


class _Vocabulary:
    """The lists of a file's tokens, checked against one another."""

    def __init__(self, metadata: Metadata, vocab_size: int | None) -> None:
        self.metadata = metadata
        self.tokens = self.texts("tokenizer.ggml.tokens")
        if vocab_size is not None and len(self.tokens) > vocab_size:
            raise metadata.bad(
                "tokenizer.ggml.tokens",
                f"has {len(self.tokens)} entries, the model has {vocab_size}: they do not belong "
                "together",
            )
        self.types: list[int] = _value(metadata, "tokenizer.ggml.token_type", list)
        if len(self.types) != len(self.tokens):
            raise metadata.bad(
                "tokenizer.ggml.token_type",
                f"has {len(self.types)} entries for {len(self.tokens)} tokens",
            )
        used = [(t, i) for i, t in enumerate(self.tokens) if self.types[i] != UNUSED]
        self.ids = dict(used)
        if len(self.ids) != len(used):
            raise metadata.bad(
                "tokenizer.ggml.tokens",
                f"has {len(used)} entries, only {len(self.ids)} of them differ",
            )
        self.control_ids = {t: i for t, i in used if self.types[i] == CONTROL}
        self.named = {
            name: self._token_id(f"tokenizer.ggml.{key}_token_id")
            for name, key in (
                ("bos", "bos"),
                ("eos", "eos"),
                ("unk", "unknown"),
                ("pad", "padding"),
                ("eot", "eot"),
                ("eom", "eom"),
            )
        }

    def texts(self, key: str) -> list[str]:
        value = _value(self.metadata, key, list)
        if len(value) > MOST_TOKENS:
            raise self.metadata.bad(
                key, f"has {len(value)} entries, the most read is {MOST_TOKENS}"
            )
        if not all(isinstance(text, str) and text for text in value):
            raise self.metadata.bad(key, "is not a list of texts")
        return value

    def _token_id(self, key: str) -> int | None:
        if not self.metadata.has(key):
            return None
        token_id = self.metadata.value(key, int)
        if not 0 <= token_id < len(self.tokens):
            raise self.metadata.bad(key, f"is {token_id}, but there are {len(self.tokens)} tokens")
        return token_id

    def bos(self, default: bool) -> str | None:
        """The text of the token that is put before a text, if one is."""
        bos_id = self.named["bos"]
        wanted = self.metadata.get("tokenizer.ggml.add_bos_token", bool, default)
        return self.tokens[bos_id] if wanted and bos_id is not None else None

    def added_tokens(self) -> list[dict[str, Any]]:
        return [
            added_token(i, self.tokens[i], special=kind != USER_DEFINED)
            for i, kind in enumerate(self.types)
            if kind in (UNKNOWN, CONTROL, USER_DEFINED)
        ]


def _byte_level(vocabulary: _Vocabulary) -> dict[str, Any]:
    """{"tokenizer": tokenizer.json, "bos": text or None}."""
    metadata = vocabulary.metadata
    pre = PRE_TOKENIZERS.get(name := _value(metadata, "tokenizer.ggml.pre", str))
    if pre is None:
        raise metadata.bad(
            "tokenizer.ggml.pre",
            f"is {one_line(repr(name), 40)}; supported are: {', '.join(PRE_TOKENIZERS)}",
        )
    bos = vocabulary.bos(pre.bos)
    after = None if bos is None else _bos_first(bos, vocabulary.ids[bos])
    merges, added = _merges(vocabulary), vocabulary.added_tokens()
    return {
        "tokenizer": byte_level_tokenizer(pre, vocabulary.ids, merges, added, after),
        "bos": bos,
    }


def _merges(vocabulary: _Vocabulary) -> list[list[str]]:
    key = "tokenizer.ggml.merges"
    merges: list[list[str]] = []
    for place, merge in enumerate(vocabulary.texts(key)):
        pair = merge.split(" ")
        if len(pair) != 2 or not vocabulary.ids.keys() >= {*pair, "".join(pair)}:
            raise vocabulary.metadata.bad(
                key, f"[{place}] is {one_line(repr(merge), 60)}, not two tokens that make a third"
            )
        merges.append(pair)
    return merges


def _sentencepiece(vocabulary: _Vocabulary) -> dict[str, Any]:
    """{"tokenizer": tokenizer.json, "bos": text or None}.

    SentencePiece joins the neighbours that make the piece with the best score. That is BPE whose
    merges are all pairs of pieces that make a piece, in the order of its score.
    """
    metadata, tokens = vocabulary.metadata, vocabulary.tokens
    scores = _value(metadata, "tokenizer.ggml.scores", list)
    if len(scores) != len(tokens) or not all(isinstance(score, float) for score in scores):
        raise metadata.bad(
            "tokenizer.ggml.scores",
            f"has {len(scores)} entries for {len(tokens)} tokens, or others than numbers",
        )
    missing = 256 - sum(BYTE_TOKEN.fullmatch(text) is not None for text in vocabulary.ids)
    unk_id = vocabulary.named["unk"]
    if missing or unk_id is None:
        raise metadata.bad(
            "tokenizer.ggml.tokens",
            f"misses {missing} of the 256 bytes, or an unknown token: no SentencePiece vocabulary "
            "that is supported",
        )
    pieces = {t: i for t, i in vocabulary.ids.items() if vocabulary.types[i] == NORMAL}
    longest, all_nbytes = max(map(len, pieces), default=0), sum(map(len, pieces))
    if longest > LONGEST_PIECE or all_nbytes > MOST_CHARACTERS:
        raise metadata.bad(
            "tokenizer.ggml.tokens",
            f"has pieces of up to {longest} and {all_nbytes} characters in all; up to "
            f"{LONGEST_PIECE} and {MOST_CHARACTERS} are read",
        )
    pairs = [
        (-scores[i], pieces[piece[:cut]], pieces[piece[cut:]])
        for piece, i in pieces.items()
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]
    merges = [[tokens[left], tokens[right]] for _, left, right in sorted(pairs)]
    bos = vocabulary.bos(True)
    spaced = metadata.get("tokenizer.ggml.add_space_prefix", bool, True)
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}
    ]
    if spaced:
        steps.insert(0, {"type": "Prepend", "prepend": SPACE_MARK})
    decoder: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if spaced:
        decoder.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": vocabulary.added_tokens(),
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "post_processor": None if bos is None else _bos_first(bos, vocabulary.ids[bos]),
        "decoder": {"type": "Sequence", "decoders": decoder},
        "model": bpe_model(vocabulary.ids, merges, unk=tokens[unk_id]),
    }
    return {"tokenizer": tokenizer, "bos": bos}


def _template(metadata: Metadata) -> Any:
    """The chat template; a list of named ones, as the hub has it, where there are several."""
    key = "tokenizer.chat_template"
    template = metadata.get(key, str)
    others = {
        name.removeprefix(f"{key}."): metadata.value(name, str)
        for name in metadata.entries
        if name.startswith(f"{key}.")
    }
    if template is None or not others:
        return template
    named = {"default": template, **others}
    return [{"name": name, "template": text} for name, text in named.items()]


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


def _json(value: dict[str, Any], indent: int | None) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=indent) + "\n").encode()
