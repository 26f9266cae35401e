"""A vocabulary as tiktoken has it (``tiktoken.model``) made into a tokenizer.json.

Each line is a token's bytes in base64 and its rank, which is its id; neighbours are joined whose
bytes together have the lowest rank. That is BPE whose merges are all pairs of tokens that make a
token, in the order of its rank. How a text is cut before is not in the file but in a model's Python
code; what is known is Kimi's way, and its tokenizer_config.json is recognised by its class.
"""

import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diskmoe.engine.errors import BadModel
from diskmoe.engine.text.files import one_line, read_text
from diskmoe.engine.text.pre_tokenizers import PRE_TOKENIZERS
from diskmoe.engine.text.spelling import byte_characters
from diskmoe.engine.text.tokenizer_json import added_token, byte_level_tokenizer

NAME = "tiktoken.model"
CLASS = "TikTokenTokenizer"  # tokenizer_class of Kimi K2, K2.5, Moonlight
LIMIT_BYTES = 64 << 20  # Kimi's is 2.7 MB
MOST_TOKENS, LONGEST_TOKEN, MOST_BYTES = 1 << 20, 1024, 1 << 24  # Kimi: 163584, 128, 1.1 M


def tiktoken_tokenizer(
    directory: Path, config: Mapping[str, Any], vocab_size: int
) -> dict[str, Any] | None:
    """The tokenizer.json of a directory with a tiktoken.model; None where there is none, or one of
    another model than Kimi.

    config: tokenizer_config.json. Ids behind the ranks have the names that it gives them, or are
    reserved. Raises BadModel for lines that are no token and rank, and for ranks that are not
    0, 1, 2, ... each once.
    """
    path = directory / NAME
    if config.get("tokenizer_class") != CLASS:
        return None
    text = read_text(path, LIMIT_BYTES)
    if text is None:
        return None
    tokens = _tokens(text, path)
    spelt = {token: "".join(map(byte_characters().__getitem__, token)) for token in tokens}
    vocab = {spelt[token]: rank for rank, token in enumerate(tokens)}
    merges = [
        (spelt[token[:cut]], spelt[token[cut:]])
        for token in tokens
        for cut in range(1, len(token))
        if token[:cut] in spelt and token[cut:] in spelt
    ]
    added = _added(config, len(tokens), vocab_size, directory / "tokenizer_config.json")
    return byte_level_tokenizer(PRE_TOKENIZERS["kimi-k2"], vocab, merges, added)


def _tokens(text: str, path: Path) -> list[bytes]:
    """The tokens by rank."""
    ranks: dict[bytes, int] = {}
    nbytes = 0
    for number, line in enumerate(text.splitlines(), 1):
        if not line:
            continue
        words = line.split(" ")
        try:
            encoded, rank = words
            token = binascii.a2b_base64(encoded, strict_mode=True)
            ranks[token] = int(rank)
        except ValueError:
            raise BadModel(
                f"{path}: line {number} is {one_line(repr(line), 60)}, not a token in base64 and its "
                "rank"
            ) from None
        nbytes += len(token)
        if not 0 < len(token) <= LONGEST_TOKEN or len(ranks) > MOST_TOKENS or nbytes > MOST_BYTES:
            raise BadModel(
                f"{path}: line {number}: token {len(ranks)} has {len(token)} bytes, all so far "
                f"{nbytes}; up to {MOST_TOKENS} tokens of 1 to {LONGEST_TOKEN} bytes and "
                f"{MOST_BYTES} in all are read"
            )
    ordered = sorted(ranks, key=ranks.__getitem__)
    odd = next((i for i, token in enumerate(ordered) if ranks[token] != i), None)
    if odd is not None:
        raise BadModel(
            f"{path}: has {len(ranks)} tokens, but rank {odd} is missing or there more than once: "
            "fetch the file again"
        )
    missing = next((byte for byte in range(256) if bytes([byte]) not in ranks), None)
    if missing is not None:
        raise BadModel(f"{path}: has no token for byte 0x{missing:02X}: fetch the file again")
    return ordered


def _added(
    config: Mapping[str, Any], first: int, vocab_size: int, path: Path
) -> list[dict[str, Any]]:
    """The tokens behind the ranks."""
    named = config.get("added_tokens_decoder") or {}
    if not isinstance(named, Mapping):
        raise BadModel(f"{path}: added_tokens_decoder is not an object")
    added: dict[int, dict[str, Any]] = {}
    for key, token in named.items():
        content = token.get("content") if isinstance(token, Mapping) else None
        if not key.isdecimal() or not isinstance(content, str) or not content:
            raise BadModel(
                f"{path}: added_tokens_decoder[{one_line(repr(key), 40)}] has no id or no content"
            )
        added[int(key)] = added_token(int(key), content, token.get("special") is not False)
    for token_id in range(first, vocab_size):
        reserved = added_token(token_id, f"<|reserved_token_{token_id}|>", True)
        added.setdefault(token_id, reserved)
    return [added[token_id] for token_id in sorted(added)]
