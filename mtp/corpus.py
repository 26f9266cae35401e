"""Texts on disk as a source of drafts: what followed in them where they look like the text at hand.

A corpus is a directory that ``write_corpus`` makes of documents, once:

    corpus.json   what it is, and the fingerprint of the vocabulary that its ids belong to
    tokens/       a RaggedMmap of mmap-ninja: the documents, u32 ids, each begun by BREAK
    order/        a memory map of mmap-ninja: u32, all places in them, sorted by the LONGEST tokens
                  before each, read backwards

So the places that look most like the end of a text are neighbours, and are found by bisection: in
about log2(tokens) + 8 of them, a few pages of the files. The one rule: files are mapped and never
read whole, and what was mapped of them is given back to the system all the time. They may come from
elsewhere, so a place that lies outside is none.

    corpus = Corpus.open(Path("corpora/python"), vocabulary)
    source = CorpusSource(corpus, prompt_ids)
"""

from __future__ import annotations

import json
import mmap
import os
from array import array
from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.mtp.evidence import LONGEST, PLACES, RIGHT, Place, guess
from diskmoe.mtp.source import Draft

BREAK = 0xFFFFFFFF  # no id: stands before each document
MOST_TOKENS = BREAK - 1  # with the breaks
MAPPED_BYTES = 16 << 20  # most of a corpus that is in memory, about
_VERSION = 1
_LEAST = 2  # tokens in common of a place worth a look
_SEARCHES = 32  # between two times that mapped pages are given back
_NONE = (0, 0)  # no place
_MOST_FACTS = 1 << 16  # bytes of corpus.json


class BadCorpus(ValueError):
    """A corpus that cannot be used; one line, with what to do."""


class Corpus:
    """A corpus on disk, mapped."""

    def __init__(self, path: Path, tokens: mmap.mmap, order: mmap.mmap, documents: int) -> None:
        self.path = path
        self.documents = documents
        self._tokens = tokens
        self._order = order
        self._ranked = memoryview(order).cast("I")
        self._searches = 0

    @classmethod
    def open(cls, path: Path, vocabulary: str) -> Corpus:
        """Maps the files of ``path``. vocabulary: the fingerprint of the model's.

        Raises:
            BadCorpus: not a corpus, damaged, or of another vocabulary.
        """
        facts = _facts(path)
        if facts["vocabulary"] != vocabulary:
            raise BadCorpus(
                f"{path}: its token ids are of another vocabulary ({facts['vocabulary'][:12]}) than "
                f"the model's ({vocabulary[:12]}): make it again with diskmoe corpus and this model"
            )
        nbytes = 4 * facts["tokens"]
        tokens, order = (
            _mapped(path / part / "data.ninja", nbytes) for part in ("tokens", "order")
        )
        return cls(path, tokens, order, facts["documents"])

    def __len__(self) -> int:
        """Tokens, with the breaks between documents."""
        return len(self._tokens) // 4

    def close(self) -> None:
        self._ranked.release()
        self._tokens.close()
        self._order.close()

    def places(self, context: Sequence[int]) -> list[tuple[int, int]]:
        """(place, tokens in common) of up to PLACES that have most in common with the end of a
        text, the most first."""
        sought = array("I", context[-LONGEST:]).tobytes()[::-1]
        after = bisect_left(range(len(self)), sought, key=self._before)
        below, above = self._looked(sought, after - 1, -1), self._looked(sought, after, 1)
        found: list[tuple[int, int]] = []
        one, other = next(below, _NONE), next(above, _NONE)
        while len(found) < PLACES and (one is not _NONE or other is not _NONE):
            if one[1] >= other[1]:
                found.append(one)
                one = next(below, _NONE)
            else:
                found.append(other)
                other = next(above, _NONE)
        self._give_back()
        return found

    def token(self, place: int) -> int:
        """The token at a place; BREAK at the end of the corpus too."""
        if place >= len(self):
            return BREAK
        return int.from_bytes(self._tokens[4 * place : 4 * place + 4], "little")

    def _looked(self, sought: bytes, rank: int, step: int) -> Iterator[tuple[int, int]]:
        """Places from a rank on, with less and less in common with what is sought."""
        while 0 <= rank < len(self):
            common = _common(sought, self._before(rank))
            if common < _LEAST:
                return
            yield self._ranked[rank], common
            rank += step

    def _before(self, rank: int) -> bytes:
        """The bytes of the tokens before a place, backwards: they compare as the tokens do."""
        end = 4 * self._ranked[rank]
        return self._tokens[max(0, end - 4 * LONGEST) : end][::-1]

    def _give_back(self) -> None:
        """Pages that were looked at count as the process's memory until it lets go of them."""
        self._searches += 1
        if self._searches % _SEARCHES == 0 and hasattr(mmap, "MADV_DONTNEED"):
            self._tokens.madvise(mmap.MADV_DONTNEED)
            self._order.madvise(mmap.MADV_DONTNEED)


class CorpusSource:
    """Drafts for one text from what stands in a corpus."""

    name = "corpus"
    gave_up = ""
    cheap = True
    grades = RIGHT
    prior = (0.6, 0.75)

    def __init__(self, corpus: Corpus, prompt: Sequence[int] = ()) -> None:
        self._corpus = corpus
        self._end = list(prompt[-LONGEST:])  # of the text

    def drafts(self, chain: Sequence[int]) -> Generator[Draft, None, None]:
        """Along the places that look most like the end of the text, for as long as they agree and
        none speaks for the end of a document."""
        places = self._corpus.places([*self._end, *chain])
        while True:
            found = [Place(self._corpus.token(place), common) for place, common in places]
            said = guess(found)
            if said is None or said[0] == BREAK:
                return
            yield Draft(*said)
            places = [
                (place + 1, min(common + 1, LONGEST))
                for (place, common), looked in zip(places, found, strict=True)
                if looked.token == said[0]
            ]

    def observe(self, tokens: Sequence[int]) -> None:
        self._end = [*self._end, *tokens][-LONGEST:]


def write_corpus(
    path: Path, documents: Iterable[Sequence[int]], vocabulary: str
) -> tuple[int, int]:
    """Writes a corpus into a directory, new or empty: (documents, tokens).

    While their order is worked out some 40 bytes a token are in memory.

    Raises:
        BadCorpus: no tokens at all, or more than MOST_TOKENS.
    """
    from mmap_ninja import numpy as maps
    from mmap_ninja.ragged import RaggedMmap

    path.mkdir(exist_ok=True)
    count = total = 0

    def begun() -> Iterator[npt.NDArray[np.uint32]]:
        nonlocal count, total
        for document in documents:
            count, total = count + 1, total + 1 + len(document)
            if total > MOST_TOKENS:
                raise BadCorpus(f"{path}: over {MOST_TOKENS} tokens: make two corpora of it")
            yield np.array([BREAK, *document], np.uint32)

    RaggedMmap.from_generator(path / "tokens", begun(), batch_size=64)
    if total == count:
        raise BadCorpus(f"{path}: there is no token in it: give text that is not empty")
    tokens = np.fromfile(path / "tokens" / "data.ninja", np.uint32)
    maps.from_ndarray(path / "order", order_of(tokens)).flush()
    facts = {"version": _VERSION, "vocabulary": vocabulary, "documents": count, "tokens": total}
    (path / "corpus.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return count, total - count


def order_of(tokens: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """All places, sorted by the LONGEST tokens before each, the nearest first; equal ones as they
    stand. tokens u32 (n,) -> u32 (n,).

    By doubling: places in order of k tokens are put in order of 2 k by the pair of their own rank
    and that of the place k before.
    """
    rank = np.zeros(len(tokens), np.uint64)  # 0: before it is nothing
    rank[1:] = tokens[:-1].astype(np.uint64) + np.uint64(1)
    width = 1
    while True:
        order = np.argsort(rank, kind="stable")
        if width == LONGEST:
            return order.astype(np.uint32)
        ordered = rank[order]
        rank[order] = np.cumsum(np.append(False, ordered[1:] != ordered[:-1])) + 1
        before = np.zeros(len(rank), np.uint64)
        before[width:] = rank[:-width]
        rank = rank * np.uint64(len(rank) + 1) + before
        width *= 2


def _facts(path: Path) -> dict[str, Any]:
    """corpus.json, checked."""
    file = path / "corpus.json"
    try:
        _refuse_pipe(file)
        with file.open("rb") as opened:
            raw = opened.read(_MOST_FACTS)
    except OSError as error:
        raise BadCorpus(
            f"{file}: cannot be read ({error.strerror or error}); a corpus is a directory made by "
            "diskmoe corpus"
        ) from None
    try:
        facts = json.loads(raw.decode())
    except (ValueError, RecursionError):
        facts = None
    wanted = {"version": int, "vocabulary": str, "documents": int, "tokens": int}
    if not isinstance(facts, dict) or any(
        type(facts.get(key)) is not wanted[key] for key in wanted
    ):
        raise BadCorpus(f"{file}: does not describe a corpus; make it again with diskmoe corpus")
    if facts["version"] != _VERSION:
        raise BadCorpus(
            f"{file}: a corpus of version {facts['version']}, this program reads {_VERSION}: make it "
            "again with diskmoe corpus"
        )
    if not 0 < facts["documents"] <= facts["tokens"] <= MOST_TOKENS:
        raise BadCorpus(
            f"{file}: {facts['documents']} documents of {facts['tokens']} tokens cannot be: make it "
            "again with diskmoe corpus"
        )
    return facts


def _refuse_pipe(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise BadCorpus(f"{path}: not a regular file")  # a pipe would be waited for without end


def _mapped(path: Path, nbytes: int) -> mmap.mmap:
    try:
        _refuse_pipe(path)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != nbytes:
                raise BadCorpus(
                    f"{path}: has {size} bytes, corpus.json says {nbytes}: it was cut short or is of "
                    "another corpus; make it again with diskmoe corpus"
                )
            found = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise BadCorpus(f"{path}: cannot be read ({error.strerror or error})") from None
    if hasattr(mmap, "MADV_RANDOM"):
        found.madvise(mmap.MADV_RANDOM)
    return found


def _common(one: bytes, other: bytes) -> int:
    """How many u32 at the start of both are the same."""
    size = min(len(one), len(other))
    differ = int.from_bytes(one[:size], "big") ^ int.from_bytes(other[:size], "big")
    return (8 * size - differ.bit_length()) // 32
