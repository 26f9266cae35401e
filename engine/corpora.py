"""``diskmoe corpus``: texts in, a corpus of the model's tokens out, to draft from (``CORPUS``)."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from diskmoe.engine.errors import BadOutput, BadRequest
from diskmoe.engine.model.config import read_config
from diskmoe.engine.text.files import one_line, read_json_object
from diskmoe.engine.text.tokenizer import TextTokenizer, load_tokenizer
from diskmoe.experts.budget import shown_bytes
from diskmoe.mtp.corpus import BadCorpus, Corpus, write_corpus

Say = Callable[[str], None]
LINES = (".jsonl", ".ndjson")  # files whose lines are documents
_PIECE = 1 << 20  # characters that are tokenised at once
_LONGEST_LINE = 64 << 20
_SECONDS = 2.0  # between two lines of progress


def make_corpus(texts: Sequence[Path], model: Path, out: Path, say: Say) -> None:
    """Writes a corpus of these files, whole or not at all.

    Raises:
        BadRequest: a file that is no text, or a model without a tokenizer.
        BadOutput: ``out`` is there already.
    """
    config = read_json_object(model / "config.json")
    if config is None:
        raise BadRequest(f"{model}: has no config.json; --model names the model to make it for")
    tokenizer = load_tokenizer(model, read_config(config, str(model / "config.json")).vocab)
    if tokenizer is None:
        raise BadRequest(f"a corpus is of text, and {model} has no tokenizer.json")
    if out.exists() or out.is_symlink():  # one that leads nowhere is there too
        raise BadOutput(f"{out}: is there already; remove it or name a new directory")
    unfinished = out.with_name(f".{out.name[:50]}.{os.getpid()}.tmp")
    started = time.perf_counter()
    unfinished.mkdir(parents=True)
    try:
        documents = _documents(texts, tokenizer, say)
        count, tokens = write_corpus(unfinished, documents, tokenizer.fingerprint)
        files = [file for file in sorted(unfinished.rglob("*")) if file.is_file()]
        for file in files:
            with file.open("rb+") as opened:
                os.fsync(opened.fileno())
        nbytes = sum(file.stat().st_size for file in files)
        unfinished.rename(out)
    except BadCorpus as error:
        raise BadRequest(str(error).replace(str(unfinished), str(out))) from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    seconds = time.perf_counter() - started
    say(
        f"written   {tokens} tokens of {count} documents, {shown_bytes(nbytes)} at {out} "
        f"in {seconds:.1f} s"
    )


def open_corpus(path: Path, tokenizer: TextTokenizer | None) -> Corpus:
    """The corpus of a run. Raises BadRequest, in one line, when it cannot be used."""
    if tokenizer is None:
        raise BadRequest(f"CORPUS={path} is of text, and this model has no tokenizer.json")
    try:
        return Corpus.open(path, tokenizer.fingerprint)
    except BadCorpus as error:
        raise BadRequest(f"CORPUS: {error}") from None


def _documents(texts: Sequence[Path], tokenizer: TextTokenizer, say: Say) -> Iterator[list[int]]:
    tokens, told = 0, time.perf_counter()
    for path in texts:
        for text in _lines(path) if path.suffix.lower() in LINES else _pieces(path):
            try:
                ids = tokenizer.encode(text)
            except BadRequest as error:
                raise BadRequest(f"{path}: {error}") from None
            if not ids:
                continue
            yield ids
            tokens += len(ids)
            if time.perf_counter() - told >= _SECONDS:
                told = time.perf_counter()
                say(f"corpus    {tokens} tokens, at {path.name}")


def _lines(path: Path) -> Iterator[str]:
    """The texts of a JSONL file: strings, or objects with a "text"."""
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(_LONGEST_LINE + 1):
            number += 1
            if len(raw) > _LONGEST_LINE:
                raise BadRequest(f"{path}: line {number} is longer than {_LONGEST_LINE} bytes")
            if not raw.strip():
                continue
            try:
                value = json.loads(raw.decode("utf-8"))
            except (ValueError, RecursionError) as error:
                raise BadRequest(f"{path}: line {number} is not JSON ({one_line(error)})") from None
            text = value.get("text") if isinstance(value, dict) else value
            if not isinstance(text, str):
                raise BadRequest(
                    f'{path}: line {number} is neither a string nor an object with a "text"; a file '
                    "to be taken as it is must not end in " + " or ".join(LINES)
                )
            yield text


def _pieces(path: Path) -> Iterator[str]:
    """A text file in pieces that end with a line, where lines are not endless."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            while piece := file.read(_PIECE):
                yield piece + file.readline(_PIECE)
    except UnicodeDecodeError as error:
        raise BadRequest(f"{path}: is not UTF-8 text ({one_line(error.reason)})") from None
