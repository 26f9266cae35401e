"""Which bytes a token stands for, read off tokenizer.json.

Two kinds of vocabulary are in use. *Byte-level* ones write each byte as a printable character
(GPT-2's table: a space is ``Ġ``, a newline ``Ċ``). *SentencePiece* ones write text, with ``▁`` for
a space and ``<0xHH>`` for a single byte. The kind is read from the file's pre-tokenizer and
decoder, never from the model's name.

The one rule kept here: a token's bytes are looked up, not decoded, because a token may hold half
of a UTF-8 character.
"""

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, Literal

Kind = Literal["byte-level", "sentencepiece"]

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE_MARK = "▁"


@cache
def byte_characters() -> tuple[str, ...]:
    """The character that byte-level vocabularies write for each of the 256 bytes.

    Bytes that print in Latin-1 stand for themselves, the others take 256, 257, ... in order
    (the table of OpenAI's GPT-2 encoder).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    characters: list[str] = []
    moved = 0
    for byte in range(256):
        if byte in printable:
            characters.append(chr(byte))
        else:
            characters.append(chr(256 + moved))
            moved += 1
    return tuple(characters)


def types_within(*nodes: Any) -> set[str]:
    """Every ``type`` named anywhere inside these parts of a tokenizer.json."""
    found: set[str] = set()
    open_nodes = list(nodes)
    while open_nodes:
        node = open_nodes.pop()
        if isinstance(node, dict):
            if isinstance(node.get("type"), str):
                found.add(node["type"])
            open_nodes.extend(node.values())
        elif isinstance(node, list):
            open_nodes.extend(node)
    return found


def detect_kind(data: dict[str, Any]) -> Kind | None:
    """The kind of vocabulary of a parsed tokenizer.json, None when it is neither."""
    types = types_within(data.get("pre_tokenizer"), data.get("decoder"))
    if "ByteLevel" in types:
        return "byte-level"
    if types & {"Metaspace", "ByteFallback"} or SPACE_MARK in str(data.get("normalizer")):
        return "sentencepiece"
    return None


class Speller:
    """Turns a vocabulary entry into bytes, and knows which text the vocabulary can spell."""

    def __init__(self, kind: Kind, entries: Iterable[str], byte_fallback: bool):
        self.kind = kind
        self._byte_fallback = byte_fallback
        self._table = {ord(char): byte for byte, char in enumerate(byte_characters())}
        self._characters = frozenset(byte_characters())
        self._singles = frozenset(entry for entry in entries if len(entry) == 1)
        self._byte_tokens = {
            int(match[1], 16) for entry in entries if (match := BYTE_TOKEN.fullmatch(entry))
        }

    def spell(self, entry: str) -> bytes:
        """The bytes of one vocabulary entry (not of an added token: those are literal text)."""
        if self.kind == "byte-level":
            # An entry with a character outside the table is literal, as in tokenizers' decoder.
            if self._characters.issuperset(entry):
                return entry.translate(self._table).encode("latin-1")
            return entry.encode()
        if self._byte_fallback and (match := BYTE_TOKEN.fullmatch(entry)):
            return bytes([int(match[1], 16)])
        return entry.replace(SPACE_MARK, " ").encode()

    def can_spell(self, text: str) -> bool:
        """Whether every byte (or character) of `text` has a token of its own.

        Real vocabularies lack some: byte-level ones of SmolLM2 lack 0x04 and 0xF1, for example,
        and drop such text silently.
        """
        if self.kind == "byte-level":
            return self._singles.issuperset(byte_characters()[byte] for byte in text.encode())
        return all(
            char in self._singles
            or (self._byte_fallback and self._byte_tokens.issuperset(char.encode()))
            for char in text.replace(" ", SPACE_MARK)
        )


def token_text(value: Any) -> str | None:
    """The text of a token in tokenizer_config.json: a string, or an AddedToken's dictionary."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None
