"""A text file as perplexity wants it: checked, tokenised, its bytes counted."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.text.side import TextSide
from diskmoe.engine.text.tokenizer import TextTokenizer
from diskmoe.experts.budget import shown_bytes

MOST_BYTES = 64 << 20  # of a text: some 16 million tokens
_PIECE = 1 << 20  # characters that are tokenised at once


@dataclass(frozen=True)
class Text:
    """A text as the model gets it."""

    path: Path
    sha256: str
    nbytes: int  # in UTF-8, without a byte order mark
    ids: npt.NDArray[np.int32]  # (tokens,), without BOS
    prefix: tuple[int, ...]  # what stands before every window

    @staticmethod
    def of(path: Path, raw: bytes, side: TextSide, most: int) -> Text:
        """The first `most` tokens of a text that was read by ``read_bytes``.

        Raises BadRequest in one line where the model takes no text or this is none.
        """
        tokenizer = side.tokenizer
        if tokenizer is None:
            raise BadRequest(
                f"{side.path} has no tokenizer.json{side.unread}: perplexity is of text"
            )
        try:
            whole = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadRequest(f"{path} is no UTF-8 text: byte {error.start} is wrong") from None
        found: list[npt.NDArray[np.int32]] = []
        nbytes = 0
        for piece in pieces(whole):
            found.append(np.asarray(tokenizer.encode(piece), np.int32))
            nbytes += len(piece.encode())
            if sum(map(len, found)) > most:
                break
        ids, prefix = np.concatenate(found), tokenizer.prefix_ids
        if prefix and tuple(ids[: len(prefix)]) == prefix:
            ids = ids[len(prefix) :]
        nbytes -= spelled_bytes(tokenizer, ids[most:])
        ids = ids[:most]
        if len(ids) + len(prefix) < 2:
            raise BadRequest(
                f"{path} has {len(ids)} token: one must stand before what is predicted"
            )
        return Text(path, hashlib.sha256(raw).hexdigest(), nbytes, ids, prefix)


def read_bytes(path: Path) -> bytes:
    """The file. Raises BadRequest in one line for what is no text, or too much of it."""
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise BadRequest(f"{path} is no file; bench ppl takes a text file")
        if size > MOST_BYTES:
            raise BadRequest(
                f"{path} has {shown_bytes(size)}, more than the {shown_bytes(MOST_BYTES)} that are "
                f"read: cut it (head -c {MOST_BYTES >> 3} FILE has enough tokens for any figure)"
            )
        raw = path.read_bytes()
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror or error}") from None
    raw = raw.removeprefix(codecs.BOM_UTF8)
    if not raw.strip():
        raise BadRequest(f"{path} is empty: there is nothing to predict")
    if b"\0" in raw:
        raise BadRequest(f"{path} is no text: byte {raw.index(0)} is 0")
    return raw


def pieces(text: str) -> Iterator[str]:
    """A text in pieces that end with a line, as they are tokenised."""
    begin = 0
    while begin < len(text):
        line_end = text.find("\n", begin + _PIECE)
        end = len(text) if line_end < 0 else line_end + 1
        yield text[begin:end]
        begin = end


def spelled_bytes(tokenizer: TextTokenizer, ids: npt.NDArray[np.int32]) -> int:
    """How many bytes of text these tokens stand for, special ones as they are written."""
    special = tokenizer.special_text
    return len(tokenizer.decode_bytes(ids)) + sum(
        len(special[int(token)].encode()) for token in ids if int(token) in special
    )
