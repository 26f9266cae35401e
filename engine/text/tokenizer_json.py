"""Parts of a tokenizer.json, as the ``tokenizers`` library reads it, for vocabularies in other forms."""

from collections.abc import Mapping, Sequence
from typing import Any

from diskmoe.engine.text.pre_tokenizers import PreTokenizer, byte_level


def byte_level_tokenizer(
    pre: PreTokenizer,
    vocab: Mapping[str, int],
    merges: Sequence[Sequence[str]],
    added: Sequence[Mapping[str, Any]],
    after: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A whole tokenizer.json of GPT-2's kind.

    vocab: bytes written as `spelling.byte_characters`. merges: pairs of entries, the first to be
    joined first. after: the post-processor.
    """
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(added),
        "normalizer": {"type": "NFC"} if pre.composed else None,
        "pre_tokenizer": pre.described(),
        "post_processor": after or byte_level(True),
        "decoder": byte_level(True),
        "model": bpe_model(vocab, merges, whole=pre.whole),
    }


def bpe_model(
    vocab: Mapping[str, int],
    merges: Sequence[Sequence[str]],
    unk: str | None = None,
    whole: bool = False,
) -> dict[str, Any]:
    """A BPE model; with `unk` one of SentencePiece's kind, that falls back to bytes. `whole`: a piece
    that is an entry is taken as it is."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unk,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": unk is not None,
        "byte_fallback": unk is not None,
        "ignore_merges": whole,
        "vocab": vocab,
        "merges": merges,
    }


def added_token(token_id: int, content: str, special: bool) -> dict[str, Any]:
    """A token that is written out in a text; `special` ones print nothing."""
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }
