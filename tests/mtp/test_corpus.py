"""Corpora: what they say, by a twin that looks at every place; what is refused; what is written."""

import json
import os
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmap_ninja.ragged import RaggedMmap

from diskmoe.mtp.corpus import BREAK, BadCorpus, Corpus, CorpusSource, order_of, write_corpus
from diskmoe.mtp.evidence import LONGEST

words = st.lists(st.sampled_from([1, 2, 3, 900]), min_size=1, max_size=60)
ORIGIN = "a" * 64


def written(path: Path, documents: Sequence[Sequence[int]]) -> Path:
    write_corpus(path, documents, ORIGIN)
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return written(tmp_path / "c", [[1, 2, 3, 4, 5], [7, 8, 9]])


def said(corpus: Corpus, prompt: Sequence[int], chain: Sequence[int] = ()) -> list[int]:
    source = CorpusSource(corpus, prompt)
    return [draft.token for draft in islice(source.drafts(chain), 12)]


@settings(max_examples=40, deadline=None)
@given(st.lists(words, min_size=1, max_size=5), words)
def test_the_places_with_most_in_common_are_found(
    documents: list[list[int]], text: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        corpus = Corpus.open(written(Path(folder), documents), ORIGIN)
        tokens = [token for document in documents for token in (BREAK, *document)]
        assert [corpus.token(place) for place in range(len(corpus) + 1)] == [*tokens, BREAK]
        every = sorted(_in_common(tokens[:place], text) for place in range(len(tokens)))[::-1]
        found = corpus.places(text)
        assert [common for _, common in found] == [common for common in every if common >= 2][:8]
        assert all(_in_common(tokens[:place], text) == common for place, common in found)
        assert len(set(found)) == len(found)
        corpus.close()


def _in_common(one: Sequence[int], other: Sequence[int]) -> int:
    count = 0
    while count < min(LONGEST, len(one), len(other)) and one[-1 - count] == other[-1 - count]:
        count += 1
    return count


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=150))
def test_the_order_is_that_of_what_stands_before_read_backwards(tokens: list[int]) -> None:
    before = [tokens[:place][: -LONGEST - 1 : -1] for place in range(len(tokens))]
    assert order_of(np.array(tokens, np.uint32)).tolist() == sorted(
        range(len(tokens)), key=before.__getitem__
    )


@settings(max_examples=40, deadline=None)
@given(words, st.integers(0, 60), words)
def test_how_a_text_is_told_and_what_was_tried_between_make_no_difference(
    text: list[int], cut: int, chain: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        corpus = Corpus.open(written(Path(folder), [[1, 2, 3, 900] * 9, [3, 2, 1] * 9]), ORIGIN)
        source = CorpusSource(corpus, text[:cut])
        list(islice(source.drafts(chain), 5))
        source.observe(text[cut:])
        drafts = list(islice(source.drafts(chain), 12))
        assert [draft.token for draft in drafts] == said(corpus, text, chain)
        corpus.close()


def test_a_document_is_followed_to_its_end_and_not_into_the_next(corpus: Path) -> None:
    opened = Corpus.open(corpus, ORIGIN)
    assert said(opened, [0, 1, 2, 3]) == [4, 5]
    assert said(opened, [7], [8, 9]) == []
    assert said(opened, [5, 7, 8]) == []  # two tokens seen once are no evidence


def test_documents_are_a_ragged_memory_map_that_others_can_read(corpus: Path) -> None:
    documents = RaggedMmap(corpus / "tokens")
    assert [list(document) for document in documents[:]] == [
        [BREAK, 1, 2, 3, 4, 5],
        [BREAK, 7, 8, 9],
    ]


def test_a_corpus_without_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadCorpus, match="there is no token in it"):
        write_corpus(tmp_path / "c", [[], []], ORIGIN)


def test_another_vocabulary_is_refused_by_its_fingerprint(corpus: Path) -> None:
    with pytest.raises(
        BadCorpus, match=r"aaaaaaaaaaaa\) than the model's \(bbbbbbbbbbbb\): make it"
    ):
        Corpus.open(corpus, "b" * 64)


def test_files_that_were_cut_or_are_missing_are_refused_by_name_and_size(corpus: Path) -> None:
    for part in ("tokens", "order"):
        file = corpus / part / "data.ninja"
        whole = file.read_bytes()
        file.write_bytes(whole[:-4])
        with pytest.raises(
            BadCorpus, match=rf"{part}.data.ninja: has 36 bytes, corpus.json says 40"
        ):
            Corpus.open(corpus, ORIGIN)
        file.unlink()
        with pytest.raises(BadCorpus, match=rf"{part}.data.ninja: cannot be read"):
            Corpus.open(corpus, ORIGIN)
        file.write_bytes(whole)
    Corpus.open(corpus, ORIGIN).close()


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"version": True},
        {"tokens": 0},
        {"tokens": 2**63},
        {"tokens": -4},
        {"documents": 11},
        {"documents": 0},
        {"vocabulary": None},
        {"tokens": "10"},
    ],
)
def test_facts_that_cannot_be_are_refused(corpus: Path, change: dict) -> None:
    file = corpus / "corpus.json"
    facts = json.loads(file.read_text())
    file.write_text(json.dumps({**facts, **change}))
    with pytest.raises(BadCorpus, match="corpus.json: .*make it again with diskmoe corpus"):
        Corpus.open(corpus, ORIGIN)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 5000])
def test_facts_that_are_none_are_refused(corpus: Path, content: bytes) -> None:
    (corpus / "corpus.json").write_bytes(content)
    with pytest.raises(BadCorpus, match="does not describe a corpus"):
        Corpus.open(corpus, ORIGIN)
    with pytest.raises(BadCorpus, match="a corpus is a directory made by diskmoe corpus"):
        Corpus.open(corpus / "nowhere", ORIGIN)


def test_an_order_that_names_places_outside_does_no_harm(corpus: Path) -> None:
    np.array([2**32 - 1, *range(9, 0, -1)], np.uint32).tofile(corpus / "order" / "data.ninja")
    opened = Corpus.open(corpus, ORIGIN)
    for end in range(1, 6):
        assert all(token < 10 for token in said(opened, [1, 2, 3, 4, 5][:end]))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_pipes_are_refused_and_not_waited_for(corpus: Path) -> None:
    for name in ("order/data.ninja", "corpus.json"):
        (corpus / name).unlink()
        os.mkfifo(corpus / name)
        with pytest.raises(BadCorpus, match="not a regular file"):
            Corpus.open(corpus, ORIGIN)
